//! A controller runs in one process of a fleet at a time. When the active process is killed or
//! frozen another takes over with a greater token, and a process that wakes up is fenced off.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure::worker::Failure;
use tenure_app::{App, Apps, Controller, ControllerContext, LoadedApp};
use tenure_config::{Report, Section};
use tenure_server::auth::Keys;
use tenure_server::{Config, Server};
use tenure_store::Memory;
use tokio_util::sync::CancellationToken;

const KEY: &str = "tenure_0123456789abcdef0123456789abcdef";
/// A takeover takes the TTL of the session, two seconds, and a little more.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(20);

/// The app of the server; the test processes run its controller.
struct Writers;

impl App for Writers {
    fn name(&self) -> &'static str {
        "writers"
    }

    fn load(&self, _: &Section<'_>, _: &Path, _: &mut Report<'_>) -> Option<Arc<dyn LoadedApp>> {
        None
    }

    fn controllers(&self) -> Vec<Arc<dyn Controller>> {
        vec![Arc::new(IdleWriter)]
    }
}

/// Gives the server the name of the controller; it never runs.
struct IdleWriter;

#[async_trait]
impl Controller for IdleWriter {
    fn name(&self) -> &'static str {
        "writer"
    }

    async fn run(&self, _: ControllerContext) -> Result<(), Failure> {
        std::future::pending().await
    }
}

/// A write, and the decision of the guard.
#[derive(Debug, PartialEq)]
struct Write {
    token: u64,
    by: String,
    accepted: bool,
}

/// Starts an external system that accepts writes over TCP and refuses a token older than the
/// newest.
fn start_guard() -> (SocketAddr, Receiver<Write>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, writes) = channel();
    let newest = Arc::new(Mutex::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (sender, newest) = (sender.clone(), Arc::clone(&newest));
            std::thread::spawn(move || serve(BufReader::new(stream), &sender, &newest));
        }
    });
    (address, writes)
}

fn serve(lines: impl std::io::BufRead, sender: &Sender<Write>, newest: &Mutex<u64>) {
    for line in lines.lines().map_while(Result::ok) {
        let (token, by) = line.split_once(' ').unwrap();
        let token: u64 = token.parse().unwrap();
        let mut newest = newest.lock().unwrap();
        let accepted = token >= *newest;
        *newest = (*newest).max(token);
        if sender.send(Write { token, by: by.to_owned(), accepted }).is_err() {
            return;
        }
    }
}

/// Returns the token of the next accepted write of a process. Until then only `others` may write.
fn next_token(writes: &Receiver<Write>, name: &str, others: &[&str]) -> u64 {
    loop {
        let write = writes.recv_timeout(TAKEOVER_TIMEOUT).expect("nothing was written");
        if write.accepted && write.by == name {
            return write.token;
        }
        assert!(!write.accepted || others.contains(&write.by.as_str()), "{write:?}");
    }
}

/// A process, killed on drop.
struct Process(Child);

impl Process {
    fn start(url: &str, guard: SocketAddr, name: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-controller-process"));
        Self(command.args([url, KEY, &guard.to_string(), name]).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the holder and the token of the controller from the API.
async fn holder(url: &str) -> (Value, Value) {
    let request = reqwest::Client::new().get(format!("{url}/v1/controllers"));
    let response = request.header("x-api-key", KEY).send().await.unwrap().error_for_status();
    let text = response.unwrap().text().await.unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list["items"][0]["name"], "writer", "{list}");
    let tenure = &list["items"][0]["tenure"];
    (tenure["holder"]["name"].clone(), tenure["token"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_runs_a_controller_and_another_takes_over_when_it_dies_or_freezes() {
    rustls::crypto::ring::default_provider().install_default().ok();
    let apps = Apps::new(vec![Arc::new(Writers)]);
    let config = Config { apps, ..Config::new(Keys::admin(KEY), Arc::default()) };
    let server = Server::start(Arc::new(Memory::new()), config, "test").await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(listener, stop.clone().cancelled_owned()));
    let (address, writes) = start_guard();

    assert_eq!(holder(&url).await, (Value::Null, Value::Null), "not running yet");
    let a = Process::start(&url, address, "a");
    let first = next_token(&writes, "a", &[]);
    assert_eq!(holder(&url).await, ("a".into(), first.into()));

    // Killed: the other process takes over. It has not written before.
    let b = Process::start(&url, address, "b");
    a.signal(Signal::KILL);
    let second = next_token(&writes, "b", &["a"]);
    assert!(second > first, "{second} > {first}");

    // Frozen: the same, and after it wakes up its writes are refused.
    let c = Process::start(&url, address, "c");
    b.signal(Signal::STOP);
    let third = next_token(&writes, "c", &["b"]);
    assert!(third > second, "{third} > {second}");
    b.signal(Signal::CONT);

    // The woken process competes again, with a new session and a greater token.
    c.signal(Signal::KILL);
    let fourth = next_token(&writes, "b", &["c"]);
    assert!(fourth > third, "{fourth} > {third}");
    assert_eq!(holder(&url).await, ("b".into(), fourth.into()));
    drop(b);
    stop.cancel();
    serving.await.unwrap().unwrap();
}
