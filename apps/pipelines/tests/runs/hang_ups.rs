//! Forced releases whose client or server disappears at any moment: a run that was released ends,
//! although its retry rule would start it again.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use reqwest::Method;
use rustix::net::sockopt::set_socket_linger;
use serde_json::{Value, json};

use crate::testbed::{Cluster, KEY, StoreKind, id, on_each_store, until};

on_each_store! {
    released_run_ends_if_the_client_hangs_up,
}

const HANG_UPS: u32 = 40;
const KILLS: u32 = 20;

/// A pipeline that records its starts, and is retried soon.
const RETRIED: &str = "retry = { attempts = 100, initial = \"200ms\", max = \"200ms\" }\n\
    [[steps]]\nname = \"work\"\ncommand = [\"sh\", \"-c\", \
    \"echo $PIPELINE_LOGGING_ID >> DIR/starts; exec sleep 600\"]\n";

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum HangUp {
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
    /// Closes its sending direction only.
    HalfClose,
}

async fn start(store: StoreKind) -> Cluster {
    let config = "[worker]\ndrain = \"0s\"\n";
    let cluster = Cluster::start_with(store, 1, config, "", &[]).await;
    let text = RETRIED.replace("DIR", &cluster.dir.path().display().to_string());
    cluster.declare("default/p", &text);
    until(async || cluster.output().contains("1 pipeline")).await;
    cluster
}

/// Starts a run, waits for its command, and returns its id and its token.
async fn start_run(cluster: &Cluster) -> (String, u64) {
    let run = cluster.start_run("p").await;
    until(async || starts(cluster, &run) == 1).await;
    (run.clone(), held_token(cluster, &run).await.expect("it runs"))
}

fn starts(cluster: &Cluster, run: &str) -> usize {
    let starts = std::fs::read_to_string(cluster.file("starts")).unwrap_or_default();
    starts.lines().filter(|line| *line == run).count()
}

async fn held_token(cluster: &Cluster, run: &str) -> Option<u64> {
    let locks = cluster.get("/pipelines/locks").await;
    let mut locks = locks["items"].as_array().expect("list").iter();
    locks.find(|lock| id(lock) == run).and_then(|lock| lock["token"].as_u64())
}

fn body(token: u64) -> Value {
    json!({ "token": token, "reason": "a test" })
}

/// Sends a forced release without waiting for the response.
fn send_release(cluster: &Cluster, token: u64) -> TcpStream {
    let (body, host) = (body(token).to_string(), &cluster.listen[0]);
    let head = "POST /pipelines/locks/p/release HTTP/1.1";
    let length = body.len();
    let request = format!(
        "{head}\r\nhost: {host}\r\nx-api-key: {KEY}\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(host).expect("connection");
    stream.set_nodelay(true).expect("option");
    stream.write_all(request.as_bytes()).expect("sent");
    stream
}

/// Delays a fault, more precisely than the timer of the runtime.
#[expect(clippy::disallowed_methods, reason = "the moment of the fault is the input of the test")]
fn delay_micros(micros: u32) {
    std::thread::sleep(Duration::from_micros(micros.into()));
}

/// Releases the run, unless that is done, and expects that it has ended for good.
async fn expect_cancelled(cluster: &Cluster, run: &str, token: u64) {
    let path = "/pipelines/locks/p/release";
    let (status, response) = cluster.send(0, KEY, Method::POST, path, Some(&body(token))).await;
    assert!(status == 200 || status == 409, "{response}");
    let detail = cluster.run(run).await;
    assert_eq!(detail["status"], "CANCELLED", "the release answered {response}: {detail:#}");
}

async fn released_run_ends_if_the_client_hangs_up(store: StoreKind) {
    let cluster = start(store).await;
    let mut runs = Vec::new();
    for n in 0..HANG_UPS {
        let (run, token) = start_run(&cluster).await;
        let stream = send_release(&cluster, token);
        let step = n / 3;
        delay_micros(step * step * 150);
        let how = [HangUp::Close, HangUp::Reset, HangUp::HalfClose][n as usize % 3];
        match how {
            HangUp::Close => drop(stream),
            HangUp::Reset => {
                set_socket_linger(&stream, Some(Duration::ZERO)).expect("option");
                drop(stream);
            }
            HangUp::HalfClose => stream.shutdown(Shutdown::Write).expect("connected"),
        }
        expect_cancelled(&cluster, &run, token).await;
        runs.push(run);
    }
    for run in runs {
        let detail = cluster.run(&run).await;
        assert_eq!((&detail["status"], &detail["attempt"]), (&json!("CANCELLED"), &json!(1)));
        assert_eq!(starts(&cluster, &run), 1, "{detail:#}");
    }
    cluster.verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_run_ends_if_the_server_is_killed() {
    let mut cluster = start(StoreKind::Embedded).await;
    for n in 0..KILLS {
        let (run, token) = start_run(&cluster).await;
        let _stream = send_release(&cluster, token);
        delay_micros(n * 250);
        cluster.servers[0].kill();
        cluster.launch(0).await;
        // The release has happened in full or not at all: the run has ended, or its lock is held.
        if cluster.run(&run).await["status"] != "CANCELLED" {
            let held = held_token(&cluster, &run).await;
            assert_eq!(held, Some(token), "{:#}", cluster.run(&run).await);
        }
        expect_cancelled(&cluster, &run, token).await;
        assert_eq!(starts(&cluster, &run), 1);
    }
    cluster.verify().await;
}
