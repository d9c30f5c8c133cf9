//! Three times the sustainable load: new work is shed quickly, holders keep their locks, and the
//! server recovers afterwards. Bodies that are sent in part do not fill the memory.

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{KEY, Server, config, http, until};
use serde_json::{Value, json};
use tenure_core::{Command, Kinds, Outcome};
use tenure_server::{Config, HttpConfig};
use tenure_store::clock::stopwatch;
use tenure_store::observer::Observer;
use tenure_store::store::{Hint, Pruned, Reads, Result, Retention, Status, Swept};
use tenure_store::{KeyRing, Memory, Store, scenario};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Duration of each command: the store sustains two hundred per second.
const COMMAND_DURATION: Duration = Duration::from_millis(5);
/// Three times as many arrive.
const ARRIVAL_INTERVAL: Duration = Duration::from_micros(1_667);
const LOAD_DURATION: Duration = Duration::from_secs(6);
const HOLDERS: usize = 20;
const TTL_MS: u64 = 3_000;
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(1_000);
/// Maximum p99 latency of a refusal.
const REFUSAL_MAX: Duration = Duration::from_millis(500);

/// A store with limited throughput.
struct SlowStore(Memory);

#[async_trait]
impl Store for SlowStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        tokio::time::sleep(
            COMMAND_DURATION * u32::try_from(commands.len()).expect("a batch is small"),
        )
        .await;
        self.0.apply(commands).await
    }
    async fn sweep(&self) -> Result<Swept> {
        self.0.sweep().await
    }
    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.0.prune(keep).await
    }
    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.0.declare(kinds).await
    }
    fn watch(&self) -> tokio::sync::broadcast::Receiver<Hint> {
        self.0.watch()
    }
    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.0.observe(observer);
    }
    async fn status(&self) -> Result<Status> {
        self.0.status().await
    }
    fn reads(&self) -> &dyn Reads {
        self.0.reads()
    }
    fn key_ring(&self) -> &dyn KeyRing {
        self.0.key_ring()
    }
}

/// Holds a lock with a session and sends heartbeats until `stop`. Returns their number.
async fn hold(url: String, n: usize, ready: Arc<Barrier>, stop: CancellationToken) -> u32 {
    let post = async |path: &str, body: Value| -> Value {
        let request = http().post(format!("{url}{path}")).header("x-api-key", KEY);
        let answer = request.body(body.to_string()).send().await.expect("it answers");
        let status = answer.status();
        let text = answer.text().await.expect("a complete response");
        assert!(status.is_success(), "{path} of a holder: {status} {text}");
        serde_json::from_str(&text).expect("JSON")
    };
    let open = json!({ "name": format!("holder {n}"), "ttl_ms": TTL_MS });
    let session = post("/v1/sessions", open).await["session"].clone();
    let lock = format!("/v1/locks/cluster/held-{n}");
    let tenure = post(&format!("{lock}/acquire"), json!({ "session": session })).await;
    let path = format!("/v1/sessions/{}/beat", session.as_str().expect("an id"));
    let mut heartbeats = 0;
    ready.wait().await;
    while !stop.is_cancelled() {
        let answer = post(&path, json!({ "seen": 0 })).await;
        assert_eq!(answer["revoked"], json!([]), "no tenure is lost");
        heartbeats += 1;
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
    }
    post(&format!("{lock}/release"), json!({ "token": tenure["token"] })).await;
    heartbeats
}

#[tokio::test(flavor = "multi_thread")]
async fn under_overload_new_work_is_shed_quickly_and_no_holder_loses_its_lock() {
    let server = Server::start(Arc::new(SlowStore(Memory::new()))).await;
    let (ready, stop) = (Arc::new(Barrier::new(HOLDERS + 1)), CancellationToken::new());
    let mut holders = JoinSet::new();
    for n in 0..HOLDERS {
        holders.spawn(hold(server.url.clone(), n, Arc::clone(&ready), stop.clone()));
    }
    ready.wait().await;
    let mut arrivals = JoinSet::new();
    let mut tick = tokio::time::interval(ARRIVAL_INTERVAL);
    let started = stopwatch();
    let mut n = 0;
    while started.elapsed() < LOAD_DURATION {
        tick.tick().await;
        n += 1;
        let url = format!("{}/v1/locks/cluster/new-{n}/acquire", server.url);
        arrivals.spawn(async move {
            let body = json!({ "holder": "new", "ttl_ms": 1_000 }).to_string();
            let sent = stopwatch();
            let request = http().post(url).header("x-api-key", KEY).body(body);
            let answer = request.send().await.expect("it answers");
            let after = answer.headers().get("retry-after").cloned();
            (answer.status().as_u16(), after, sent.elapsed())
        });
    }
    let answers = arrivals.join_all().await;
    let (mut granted, mut refused) = (0, Vec::new());
    for (status, retry_after, took) in answers {
        match status {
            200 => granted += 1,
            503 => {
                assert!(retry_after.is_some(), "a Retry-After header");
                refused.push(took);
            }
            other => panic!("{other}"),
        }
    }
    refused.sort();
    let p99 = refused[refused.len() * 99 / 100];
    println!("{n} arrived, {granted} were granted, {} refused, p99 {p99:?}", refused.len());
    assert!(p99 < REFUSAL_MAX, "a refusal takes {p99:?}");
    assert!(granted > 300, "it still makes progress: {granted}");
    assert!(refused.len() > n / 4, "the load exceeds the capacity");
    stop.cancel();
    for heartbeats in holders.join_all().await {
        assert!(heartbeats >= 3, "{heartbeats}");
    }
    // The server recovers.
    let body = json!({ "holder": "after", "ttl_ms": 1_000 });
    let sent = stopwatch();
    let (status, answer) = server.post("/v1/locks/cluster/after/acquire", body).await;
    assert_eq!(status, 200, "{answer}");
    assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
}

/// Budget of the server with half-sent bodies.
const BODIES_BYTES_MAX: usize = 256 * 1024;

async fn server_with_little_memory(read_timeout: Duration) -> Server {
    let http =
        HttpConfig { bodies_bytes_max: BODIES_BYTES_MAX, read_timeout, ..HttpConfig::default() };
    let config = Config { http, ..config(scenario::kinds()) };
    Server::run(Arc::new(Memory::new()), config).await
}

/// Connects and sends a head, and as much of its body.
async fn send_in_part(server: &Server, head: &str, sent: &str) -> TcpStream {
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let head = format!("{head} HTTP/1.1\r\nhost: t\r\nx-api-key: {KEY}\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.write_all(sent.as_bytes()).await.expect("sent");
    stream
}

/// Puts a spec of this size, with spaces.
async fn put_spec(server: &Server, size: usize) -> (u16, bool) {
    let body = format!("{}{}", json!({ "spec": 1 }), " ".repeat(size));
    let request = http().put(format!("{}/v1/resources/task/large", server.url));
    let answer = request.header("x-api-key", KEY).body(body).send().await.expect("it answers");
    (answer.status().as_u16(), answer.headers().contains_key("retry-after"))
}

/// Fills the budget with bodies that begin with `start`, and checks who is still served.
async fn assert_half_sent_bodies_are_bounded(head: &str, start: &str) {
    let server = server_with_little_memory(Duration::from_secs(60)).await;
    assert_eq!(put_spec(&server, 200 * 1024).await.0, 200);
    let mut half_sent = Vec::new();
    for _ in 0..8 {
        let sent = format!("{start}{}", " ".repeat(100 * 1024));
        half_sent.push(send_in_part(&server, head, &sent).await);
    }
    until(|| async { put_spec(&server, 200 * 1024).await == (503, true) }).await;
    // Holders are served as always.
    let body = json!({ "holder": "ann", "ttl_ms": 60_000 });
    let (status, tenure) = server.post("/v1/locks/cluster/c1/acquire", body).await;
    assert_eq!(status, 200, "{tenure}");
    let body = json!({ "token": tenure["token"] });
    assert_eq!(server.post("/v1/locks/cluster/c1/release", body).await.0, 200);
    drop(half_sent);
    until(|| async { put_spec(&server, 200 * 1024).await.0 == 200 }).await;
}

#[tokio::test]
async fn half_sent_bodies_share_a_budget_and_holders_are_served() {
    let start = format!("content-length: {}\r\n\r\n", 500 * 1024);
    assert_half_sent_bodies_are_bounded("PUT /v1/resources/task/t1", &start).await;
}

#[tokio::test]
async fn half_sent_bodies_of_unknown_size_share_a_budget() {
    let start = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", 500 * 1024);
    assert_half_sent_bodies_are_bounded("PUT /v1/resources/task/t1", &start).await;
}

#[tokio::test]
async fn half_sent_batches_share_the_budget_of_all_bodies() {
    let start = format!("content-length: {}\r\n\r\n", 8 * 1024 * 1024);
    assert_half_sent_bodies_are_bounded("POST /v1/batch", &start).await;
}

#[tokio::test]
async fn a_body_that_drips_is_cut_off() {
    let server = server_with_little_memory(Duration::from_millis(300)).await;
    for route in ["PUT /v1/resources/task/t1", "POST /v1/batch"] {
        let start = "content-length: 400000\r\n\r\n";
        let mut stream = send_in_part(&server, route, start).await;
        let mut answer = [0; 12];
        let drip = async {
            loop {
                stream.write_all(b" ").await.expect("sent");
                let read = stream.read_exact(&mut answer);
                if tokio::time::timeout(Duration::from_millis(20), read).await.is_ok() {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), drip).await.expect("an answer");
        assert_eq!(answer, *b"HTTP/1.1 408", "{route}");
    }
}
