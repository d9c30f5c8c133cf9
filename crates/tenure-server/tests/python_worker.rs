//! The example worker in Python on a real server: retries, cancel, crashes, drain, lost responses.
//! It stands for any worker in another language.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{KEY, Server};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_core::retry::Retry;
use tenure_core::{Kind, Kinds, Operation};
use tenure_store::Memory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Long enough for a busy machine, short enough for a test that waits for it to run out.
const TTL_S: &str = "4";
/// Maximum duration of any wait.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn server() -> Server {
    let retry = Retry {
        attempts: 3,
        initial_ms: 100,
        permanent: vec!["BROKEN".into()],
        ..Retry::default()
    };
    let report = Kind::new("report").states(&["NEW", "BUILDING", "BUILT", "FAILED"]).operation(
        Operation::new("build")
            .path(&["NEW", "BUILT", "FAILED"], "BUILDING", "BUILT", "FAILED")
            .retry(retry),
    );
    let kinds = Kinds::new([report]).expect("valid kinds");
    Server::start_with(Arc::new(Memory::new()), Arc::new(kinds)).await
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python")
}

/// A worker process, killed on drop.
struct Worker {
    child: Child,
    log: PathBuf,
    _dir: TempDir,
}

impl Worker {
    /// Starts the unmodified example.
    fn start(url: &str, name: &str, env: &[(&str, &str)]) -> Self {
        Self::run(url, name, env, &[examples().join("worker.py").to_str().expect("UTF-8")])
    }

    /// Starts any program of the interpreter.
    fn run(url: &str, name: &str, env: &[(&str, &str)], program: &[&str]) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let log = dir.path().join("log");
        let child = Command::new("python3")
            .args(program)
            .envs([("TENURE_SERVER", url), ("TENURE_KEY", KEY), ("WORKER_NAME", name)])
            .envs([("WORKER_TTL", TTL_S), ("WORKER_SLOTS", "1"), ("NO_PROXY", "*")])
            .envs([("PYTHONDONTWRITEBYTECODE", "1")])
            .env("PYTHONPATH", examples())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("python3 is missing; on Debian: sudo apt-get install python3");
        Self { child, log, _dir: dir }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("readable")
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(status.expect("kill runs").success(), "cannot send {name} to {pid}");
    }

    /// Waits for its end without blocking the server, which runs on this thread.
    async fn ended(&mut self) -> ExitStatus {
        let end = async {
            loop {
                if let Some(status) = self.child.try_wait().expect("a child") {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let status = tokio::time::timeout(TIMEOUT, end).await;
        status.unwrap_or_else(|_| panic!("timed out:\n{}", self.log()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn a_worker_finds_the_server_of_its_data_directory() {
    let server = server().await;
    let data = TempDir::new().expect("a temporary directory");
    std::fs::write(data.path().join("server.url"), format!("{}\n", server.url)).expect("writable");
    let id = submit(&server, "r1", json!({ "steps": 1, "step_ms": 1 })).await;
    let data = data.path().to_str().expect("UTF-8");
    let _worker = Worker::start("", "w1", &[("TENURE_DATA", data)]);
    let job = wait_for_job(&server, &id, |job| job["state"] == "succeeded").await;
    assert_eq!(job["attempts"][0]["worker"], "w1");
}

async fn submit(server: &Server, name: &str, args: Value) -> String {
    let body = json!({ "operation": "build", "args": args });
    let (status, answer) = server.post(&format!("/v1/resources/report/{name}/jobs"), body).await;
    assert_eq!(status, 202, "{answer}");
    answer["job"]["id"].as_str().expect("a job has an id").to_owned()
}

/// Submits a job that runs longer than any test.
async fn submit_long(server: &Server, name: &str) -> String {
    submit(server, name, json!({ "steps": 2_000, "step_ms": 100 })).await
}

/// Polls a job until it satisfies `wanted`.
async fn wait_for_job(server: &Server, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let found = async {
        loop {
            let (_, job) = server.get(&format!("/v1/jobs/{id}")).await;
            if wanted(&job) {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(TIMEOUT, found).await {
        Ok(job) => job,
        Err(_) => panic!("timed out: {}", server.get(&format!("/v1/jobs/{id}")).await.1),
    }
}

async fn finished(server: &Server, id: &str) -> Value {
    wait_for_job(server, id, |job| !job["ended_at"].is_null()).await
}

async fn started(server: &Server, id: &str) -> Value {
    wait_for_job(server, id, |job| job["state"] == "running" && !job["progress"].is_null()).await
}

fn outcomes(job: &Value) -> Vec<&str> {
    let attempts = job["attempts"].as_array().expect("a list");
    attempts.iter().map(|attempt| attempt["outcome"].as_str().unwrap_or("none")).collect()
}

#[tokio::test]
async fn it_runs_jobs_with_retries_results_and_logs() {
    let server = server().await;
    let worker = Worker::start(&server.url, "py", &[("WORKER_SLOTS", "4")]);
    let args =
        |fails: u32, code: &str| json!({ "steps": 2, "step_ms": 10, "fails": fails, "code": code });
    let good = submit(&server, "good", args(0, "")).await;
    let flaky = submit(&server, "flaky", args(1, "FLAKY")).await;
    let broken = submit(&server, "broken", args(1, "BROKEN")).await;
    let dead = submit(&server, "dead", args(9, "FLAKY")).await;
    let odd = submit(&server, "odd", json!({ "steps": "many" })).await;

    let job = finished(&server, &good).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    assert_eq!(
        (&job["result"], &job["attempts"][0]["worker"]),
        (&json!({"steps": 2}), &json!("py"))
    );
    let (_, logs) = server.get(&format!("/v1/jobs/{good}/logs")).await;
    assert_eq!(logs["items"][0]["text"], "2 steps under token 1\n", "{logs}");

    let job = finished(&server, &flaky).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(2)), "{job}");
    assert_eq!(outcomes(&job), ["failed", "ok"]);
    let job = finished(&server, &broken).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("failed"), &json!(1)), "{job}");
    let job = finished(&server, &dead).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("dead"), &json!(3)), "{job}");
    // An exception in a handler is a failure with a message and does not end the worker.
    let job = finished(&server, &odd).await;
    assert_eq!((&job["state"], &job["error"]["code"]), (&json!("dead"), &json!("ERROR")), "{job}");
    let message = job["error"]["message"].as_str().expect("a text");
    assert!(message.starts_with("TypeError: "), "{message}");
    assert!(!worker.log().contains(KEY), "the key was printed");
}

#[tokio::test]
async fn a_cancelled_job_stops_and_its_slot_is_free_again() {
    let server = server().await;
    // With the long TTL there is no heartbeat: the response to its progress has the cancel.
    for (ttl, steps, step_ms) in [("600", 2_000, 100), (TTL_S, 1, 600_000)] {
        let mut worker = Worker::start(&server.url, "py", &[("WORKER_TTL", ttl)]);
        let long = submit(&server, ttl, json!({ "steps": steps, "step_ms": step_ms })).await;
        started(&server, &long).await;
        let (status, answer) = server.post(&format!("/v1/jobs/{long}/cancel"), json!({})).await;
        assert_eq!((status, &answer["state"]), (202, &json!("cancelling")));
        let job = finished(&server, &long).await;
        assert_eq!(job["state"], "cancelled", "{job}");
        assert_eq!(outcomes(&job), ["cancelled"]);
        let next = submit(&server, "next", json!({ "steps": 1 })).await;
        assert_eq!(finished(&server, &next).await["state"], "succeeded");
        worker.signal("TERM");
        worker.ended().await;
    }
}

#[tokio::test]
async fn a_job_of_a_killed_worker_is_finished_by_another() {
    let server = server().await;
    let mut first = Worker::start(&server.url, "first", &[]);
    let id = submit(&server, "r1", json!({ "steps": 20, "step_ms": 100 })).await;
    started(&server, &id).await;
    first.signal("KILL");
    first.ended().await;
    let _second = Worker::start(&server.url, "second", &[]);
    let job = finished(&server, &id).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(2)), "{job}");
    assert_eq!(outcomes(&job), ["lost", "ok"]);
    assert_eq!(job["attempts"][0]["code"], "WORKER_TIMEOUT");
    assert_eq!(job["attempts"][1]["worker"], "second");
}

#[tokio::test]
async fn on_sigterm_it_drains_and_closes_its_session() {
    let server = server().await;
    let mut worker = Worker::start(&server.url, "py", &[]);
    let id = submit(&server, "r1", json!({ "steps": 10, "step_ms": 100 })).await;
    started(&server, &id).await;
    let waiting = submit(&server, "r2", json!({ "steps": 1 })).await;
    worker.signal("TERM");
    assert!(worker.ended().await.success(), "{}", worker.log());
    assert_eq!(finished(&server, &id).await["state"], "succeeded");
    let (_, job) = server.get(&format!("/v1/jobs/{waiting}")).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("queued"), &json!(0)), "{job}");
    let (_, workers) = server.get("/v1/workers").await;
    assert_eq!(workers["items"], json!([]), "its session is still there");
}

#[tokio::test]
async fn a_job_that_outlasts_the_drain_is_handed_back_and_does_not_count() {
    let server = server().await;
    let mut worker = Worker::start(&server.url, "py", &[("WORKER_DRAIN", "0.2")]);
    let id = submit_long(&server, "long").await;
    started(&server, &id).await;
    worker.signal("TERM");
    assert!(worker.ended().await.success(), "{}", worker.log());
    let (_, job) = server.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("queued"), &json!(0)), "{job}");
    assert_eq!(outcomes(&job), ["handed_back"]);
}

/// A worker whose effects are lines in an unguarded file: only its own checks can stop it.
const WRITES_LINES: &str = "import os, worker\n\
     @worker.handles('report', 'build')\n\
     def build(job):\n\
     \x20   job.progress(1)\n\
     \x20   for _ in range(60):\n\
     \x20       job.sleep(0.05)\n\
     \x20       with open(os.environ['LINES'], 'a') as file: file.write(job.name + '\\n')\n\
     worker.main()\n";

#[tokio::test]
async fn a_frozen_worker_stops_its_job_when_it_wakes_up_and_opens_a_new_session() {
    let server = server().await;
    let dir = TempDir::new().expect("a temporary directory");
    let file = dir.path().join("lines");
    let lines = || std::fs::read_to_string(&file).unwrap_or_default().matches("r1").count();
    let env = [("LINES", file.to_str().expect("UTF-8"))];
    let mut frozen = Worker::run(&server.url, "frozen", &env, &["-c", WRITES_LINES]);
    let id = submit(&server, "r1", json!({ "steps": 1, "step_ms": 10 })).await;
    let old = started(&server, &id).await["attempts"][0]["session"].clone();
    frozen.signal("STOP");
    let mut other = Worker::start(&server.url, "other", &[]);
    let job = finished(&server, &id).await;
    assert_eq!(outcomes(&job), ["lost", "ok"], "{job}");
    assert_eq!(job["attempts"][1]["worker"], "other");
    other.signal("TERM");
    other.ended().await;

    let before = lines();
    frozen.signal("CONT");
    let next = submit(&server, "r2", json!({})).await;
    let job = finished(&server, &next).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    assert_ne!(job["attempts"][0]["session"], old);
    // It may have been frozen between the check and the write, which only a guard could prevent.
    assert!(lines() <= before + 1, "{before} lines, then {}", lines());
    assert!(frozen.child.try_wait().expect("a child").is_none(), "{}", frozen.log());
    assert!(frozen.log().contains("build of report/r1, attempt 1: lost"), "{}", frozen.log());
}

#[tokio::test]
async fn a_process_whose_job_does_not_stop_after_a_loss_exits() {
    let server = server().await;
    let program = "import time, worker\n\
                   @worker.handles('report', 'build')\n\
                   def build(job):\n\
                   \x20   job.progress(1)\n\
                   \x20   time.sleep(600)\n\
                   worker.main()\n";
    let mut worker = Worker::run(&server.url, "stubborn", &[], &["-c", program]);
    let id = submit(&server, "r1", json!({})).await;
    let session = started(&server, &id).await["attempts"][0]["session"].clone();
    let path = format!("/v1/sessions/{}", session.as_str().expect("a text"));
    assert_eq!(server.delete(&path).await.0, 200);
    assert_eq!(worker.ended().await.code(), Some(1), "{}", worker.log());
}

#[tokio::test]
async fn its_deadline_counts_from_before_the_heartbeat_is_sent() {
    let program = "import threading, worker\n\
                   clock, left, done = [100.0], [], threading.Event()\n\
                   def call(method, path, body=None, key=None, timeout=0):\n\
                   \x20   left.append(clock[0])\n\
                   \x20   clock[0] += 1.0\n\
                   \x20   if path.endswith('/beat'):\n\
                   \x20       session.closed.set()\n\
                   \x20       done.set()\n\
                   \x20   return 200, {'session': 's', 'revoked': []}\n\
                   worker.now, worker.call = lambda: clock[0], call\n\
                   session = worker.Session('x')\n\
                   opened = session.deadline\n\
                   assert done.wait(30), 'no heartbeat'\n\
                   for thread in threading.enumerate()[1:]: thread.join(30)\n\
                   assert len(left) == 2, left\n\
                   assert [opened, session.deadline] == [at + 0.8 * worker.TTL for at in left]\n";
    let mut check = Worker::run("http://127.0.0.1:1", "none", &[], &["-c", program]);
    assert!(check.ended().await.success(), "{}", check.log());
}

#[tokio::test]
async fn a_lost_response_causes_neither_a_second_attempt_nor_a_lost_result() {
    let server = server().await;
    let proxy = Proxy::start(&server.url).await;
    let worker = Worker::start(&proxy.url, "py", &[]);
    let id = submit(&server, "r1", json!({ "steps": 1, "step_ms": 10 })).await;
    let job = finished(&server, &id).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    let next = submit(&server, "r2", json!({ "steps": 1, "step_ms": 10 })).await;
    finished(&server, &next).await;
    assert_eq!(proxy.dropped.load(Ordering::Relaxed), 2, "{}", worker.log());
    assert!(worker.log().contains("build of report/r1, attempt 1: succeeded"), "{}", worker.log());
}

/// Between a worker and its server: it swallows the first answer that brings a job, and the first
/// that confirms one.
struct Proxy {
    url: String,
    dropped: Arc<AtomicUsize>,
}

impl Proxy {
    async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let to = server.trim_start_matches("http://").to_owned();
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&dropped);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, to.clone(), Arc::clone(&count)));
            }
        });
        Self { url, dropped }
    }
}

/// One request and its answer; the client closes the connection after each.
async fn forward(mut client: TcpStream, to: String, dropped: Arc<AtomicUsize>) {
    let mut server = TcpStream::connect(to).await.expect("the server is there");
    let (mut request, mut answer) = (Vec::new(), Vec::new());
    while !is_complete(&request) {
        if client.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
    }
    server.write_all(&request).await.ok();
    server.read_to_end(&mut answer).await.ok();
    let text = String::from_utf8_lossy(&answer);
    let drop_response = match dropped.load(Ordering::Relaxed) {
        0 => request.starts_with(b"POST /v1/jobs/claim ") && text.contains("\"tenure\""),
        1 => text.contains("\"already\":false"),
        _ => false,
    };
    if drop_response {
        dropped.fetch_add(1, Ordering::Relaxed);
    } else {
        client.write_all(&answer).await.ok();
    }
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned)
    });
    body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0)
}
