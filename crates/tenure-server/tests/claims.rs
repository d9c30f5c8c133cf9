//! Claims that wait, and clients that disconnect meanwhile.

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{KEY, Server, Worker, until};
use serde_json::{Value, json};
use tenure_core::{Command, Kinds, Outcome};
use tenure_store::clock::stopwatch;
use tenure_store::observer::Observer;
use tenure_store::store::{Hint, Pruned, Reads, Result, Retention, Status, Swept};
use tenure_store::{KeyRing, Memory, Store, scenario};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, watch};

/// A store that blocks claims while its gate is closed.
struct GatedStore {
    inner: Memory,
    open: watch::Sender<bool>,
    held: watch::Sender<bool>,
}

impl GatedStore {
    fn new() -> Arc<Self> {
        let (open, held) = (watch::Sender::new(true), watch::Sender::new(false));
        Arc::new(Self { inner: Memory::new(), open, held })
    }

    async fn wait_for_held_claim(&self) {
        self.held.subscribe().wait_for(|held| *held).await.expect("not dropped");
    }
}

#[async_trait]
impl Store for GatedStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        let claims = commands.iter().any(|command| matches!(command, Command::Claim(_)));
        if claims && !*self.open.borrow() {
            self.held.send_replace(true);
            self.open.subscribe().wait_for(|open| *open).await.expect("not dropped");
        }
        self.inner.apply(commands).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.inner.sweep().await
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.inner.prune(keep).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.inner.declare(kinds).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.inner.watch()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.inner.observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.inner.status().await
    }

    fn reads(&self) -> &dyn Reads {
        self.inner.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.inner.key_ring()
    }
}

async fn server() -> (Arc<GatedStore>, Server) {
    let store = GatedStore::new();
    let server = Server::start_with(Arc::clone(&store) as Arc<dyn Store>, scenario::kinds()).await;
    (store, server)
}

async fn submit(server: &Server, name: &str) -> String {
    let path = format!("/v1/resources/task/{name}/jobs");
    let (_, answer) = server.post(&path, json!({ "operation": "work" })).await;
    answer["job"]["id"].as_str().expect("a job").to_owned()
}

/// Sends a claim on a raw connection.
async fn send_raw_claim(server: &Server, worker: &Worker, wait_ms: u64) -> TcpStream {
    let session = &worker.session;
    let body = json!({ "session": session, "kinds": ["task"], "wait_ms": wait_ms }).to_string();
    let mut stream = TcpStream::connect(&server.url["http://".len()..]).await.expect("it listens");
    let head = format!(
        "POST /v1/jobs/claim HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\nidempotency-key: c-1\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("it reads");
    stream
}

/// Disconnects, and waits until the server has noticed.
async fn disconnect(mut stream: TcpStream) {
    stream.shutdown().await.expect("it is open");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("closed cleanly");
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}

async fn shown(server: &Server, job: &str) -> Value {
    server.get(&format!("/v1/jobs/{job}")).await.1
}

#[tokio::test]
async fn a_waiting_claim_is_woken_by_a_submit() {
    let (_, server) = server().await;
    let server = Arc::new(server);
    let mut best = Duration::MAX;
    for n in 0..3 {
        let name = format!("w{n}");
        let worker = Worker::open(&server, &name).await;
        let waiting = {
            let server = Arc::clone(&server);
            tokio::spawn(async move { worker.claim(&server, &["task"], 60_000).await })
        };
        until(|| async {
            let (_, workers) = server.get("/v1/workers").await;
            workers["items"].as_array().unwrap().iter().any(|worker| worker["name"] == name)
        })
        .await;
        let since = stopwatch();
        let job = submit(&server, &name).await;
        assert_eq!(waiting.await.unwrap()[0]["job"]["id"], job);
        best = best.min(since.elapsed());
    }
    // Without the wake-up it would poll after a second.
    assert!(best < Duration::from_millis(500), "{best:?}");
}

#[tokio::test]
async fn a_waiting_claim_times_out_without_jobs() {
    let (_, server) = server().await;
    let worker = Worker::open(&server, "w1").await;
    assert_eq!(worker.claim(&server, &["task"], 50).await, json!([]));
}

#[tokio::test]
async fn a_waiting_claim_of_a_disconnected_client_takes_no_job() {
    let (_, server) = server().await;
    let (gone, other) = (Worker::open(&server, "w1").await, Worker::open(&server, "w2").await);
    let stream = send_raw_claim(&server, &gone, 60_000).await;
    until(|| async { server.get("/v1/workers").await.1["items"] != json!([]) }).await;
    disconnect(stream).await;
    let job = submit(&server, "t1").await;
    let claimed = other.claim(&server, &["task"], 10_000).await;
    assert_eq!(claimed[0]["job"]["id"], job);
    assert_eq!(claimed[0]["tenure"]["token"], 1, "it is the first tenure");
}

#[tokio::test]
async fn a_job_claimed_for_a_disconnected_client_is_handed_back() {
    let (store, server) = server().await;
    let worker = Worker::open(&server, "w1").await;
    let job = submit(&server, "t1").await;
    store.open.send_replace(false);
    let stream = send_raw_claim(&server, &worker, 0).await;
    store.wait_for_held_claim().await;
    disconnect(stream).await;
    store.open.send_replace(true);
    let handed_back = || async {
        let job = shown(&server, &job).await;
        job["state"] == "queued" && job["attempts"][0]["outcome"] == "handed_back"
    };
    until(handed_back).await;
    assert_eq!(shown(&server, &job).await["attempt"], 0, "a handed-back attempt does not count");
    let claimed = worker.claim(&server, &["task"], 0).await;
    assert_eq!((&claimed[0]["job"]["id"], &claimed[0]["job"]["attempt"]), (&json!(job), &json!(1)));
}

#[tokio::test]
async fn a_repeated_claim_keeps_its_job_when_the_first_delivery_ends() {
    let (store, server) = server().await;
    let worker = Worker::open(&server, "w1").await;
    let job = submit(&server, "t1").await;
    store.open.send_replace(false);
    let stream = send_raw_claim(&server, &worker, 0).await;
    store.wait_for_held_claim().await;
    disconnect(stream).await;
    let server = Arc::new(server);
    let again = {
        let (server, session) = (Arc::clone(&server), worker.session.clone());
        let body = json!({ "session": session, "kinds": ["task"] });
        tokio::spawn(async move { server.post_as("/v1/jobs/claim", "c-1", body).await.1 })
    };
    store.open.send_replace(true);
    let got = again.await.unwrap();
    // Either the first delivery had handed the job back already, or this one keeps it.
    let Some(claimed) = got["jobs"].get(0) else {
        assert_eq!(shown(&server, &job).await["state"], "queued");
        return;
    };
    let body = json!({ "token": claimed["tenure"]["token"], "outcome": "ok" });
    let (status, done) = server.post(&format!("/v1/jobs/{job}/finish"), body).await;
    assert_eq!(status, 200, "{done}");
}

#[tokio::test]
async fn copies_of_a_claim_get_the_same_jobs() {
    let (_, server) = server().await;
    let server = Arc::new(server);
    let worker = Worker::open(&server, "w1").await;
    let send = |kind: &'static str| {
        let (server, session) = (Arc::clone(&server), worker.session.clone());
        let body = json!({ "session": session, "kinds": [kind], "wait_ms": 60_000 });
        tokio::spawn(async move { server.post_as("/v1/jobs/claim", "c-1", body).await })
    };
    let first = send("task");
    until(|| async { server.get("/v1/workers").await.1["items"] != json!([]) }).await;
    let (status, refused) = send("pipeline").await.unwrap();
    assert_eq!((status, &refused["reason"]), (409, &json!("request_reused")), "{refused}");
    let copies: Vec<_> = std::iter::once(first).chain((0..8).map(|_| send("task"))).collect();
    // With the request for the metrics.
    let metrics = || async { server.get("/metrics").await.1 };
    until(|| async { metrics().await.to_string().contains("tenure_http_in_flight 10") }).await;
    let job = submit(&server, "t1").await;
    for copy in copies {
        let (_, answer) = copy.await.unwrap();
        assert_eq!(answer["jobs"][0]["job"]["id"], job, "{answer}");
        assert_eq!(answer["jobs"][0]["tenure"]["token"], 1);
    }
    assert_eq!(shown(&server, &job).await["attempt"], 1);
}

#[tokio::test]
async fn a_shutdown_answers_waiting_claims() {
    let (_, mut server) = server().await;
    let worker = Worker::open(&server, "w1").await;
    let stream = send_raw_claim(&server, &worker, 60_000).await;
    until(|| async { server.get("/v1/workers").await.1["items"] != json!([]) }).await;
    let task = server.stop();
    let mut answer = String::new();
    let mut stream = stream;
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    task.await.unwrap().expect("a graceful shutdown");
}

#[tokio::test]
async fn a_closed_session_cannot_claim() {
    let (_, server) = server().await;
    submit(&server, "t1").await;
    let worker = Worker::open(&server, "w1").await;
    server.delete(&format!("/v1/sessions/{}", worker.session)).await;
    let body = json!({ "session": worker.session, "kinds": ["task"] });
    let (status, problem) = server.post("/v1/jobs/claim", body).await;
    assert_eq!((status, &problem["reason"]), (409, &json!("session_over")));
}
