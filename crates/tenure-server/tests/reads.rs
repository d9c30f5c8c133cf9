//! Requests that the engine answers cost no read of the store.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use common::{KEY, Server, key};
use serde_json::{Value, json};
use tenure_core::{
    Acquire, Claimant, Command, Kinds, LockAction, LockName, Outcome, RequestId, ResourceKey,
};
use tenure_store::observer::Observer;
use tenure_store::store::{Hint, Pruned, Reads, Result, Retention, Status, Swept};
use tenure_store::{KeyRing, Memory, Store, scenario};
use tokio::sync::broadcast;

/// A store that counts how often its queries are used.
#[derive(Default)]
struct CountingStore {
    inner: Memory,
    reads: AtomicUsize,
}

#[async_trait]
impl Store for CountingStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
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
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.inner.key_ring()
    }
}

struct Fixture {
    store: Arc<CountingStore>,
    server: Server,
    /// Key bound to the tenant `acme`.
    key: String,
}

impl Fixture {
    async fn start() -> Self {
        let store = Arc::new(CountingStore::default());
        hold_janitor_lock(&store.inner).await;
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let server = Server::start_with(shared, scenario::kinds()).await;
        let key = key(&server, "acme", "operator").await;
        Self { store, server, key }
    }

    /// Sends a request with a key and returns the answer and the number of reads it caused.
    async fn request(&self, key: &str, method: &str, path: &str, body: &Value) -> (Value, usize) {
        let before = self.store.reads.load(Ordering::Relaxed);
        let (status, answer) = self.server.request(key, method, path, Some(body)).await;
        assert!(status < 300, "{method} {path}: {answer}");
        (answer, self.store.reads.load(Ordering::Relaxed) - before)
    }

    /// Sends a request with the bound key, which must not read.
    async fn post(&self, path: &str, body: Value) -> Value {
        let (answer, reads) = self.request(&self.key, "POST", path, &body).await;
        assert_eq!(reads, 0, "{path}");
        answer
    }
}

/// Prevents the duties of the janitor, which read, by holding its lock.
async fn hold_janitor_lock(store: &Memory) {
    let acquire = Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Solo { name: "test".into(), ttl_ms: 3_600_000 },
        request: RequestId(1),
        wait_ms: 0,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    };
    let key: ResourceKey = tenure_server::janitor::resource();
    let command = Command::Lock { key, action: LockAction::Acquire(acquire) };
    let outcomes = store.apply(vec![command]).await.expect("the store is available");
    assert!(matches!(outcomes[..], [Outcome::Granted(_)]), "{outcomes:?}");
}

#[tokio::test]
async fn a_key_of_one_tenant_costs_no_read() {
    let fixture = Fixture::start().await;
    let open = json!({ "name": "w", "ttl_ms": 60_000 });
    let session = fixture.post("/v1/sessions", open).await["session"].clone();
    let path = format!("/v1/sessions/{}", session.as_str().expect("an id"));
    fixture.post(&format!("{path}/beat"), json!({})).await;
    let claim = json!({ "session": session, "kinds": ["task"], "max": 1, "wait_ms": 0 });
    fixture.post("/v1/jobs/claim", claim).await;
    for (name, wait_ms) in [("c1", 0), ("c2", 1_000)] {
        let acquire = json!({ "session": session, "wait_ms": wait_ms });
        fixture.post(&format!("/v1/locks/cluster/{name}/acquire"), acquire).await;
    }
    let (closed, reads) = fixture.request(&fixture.key, "DELETE", &path, &json!({})).await;
    assert_eq!((closed, reads), (json!({ "closed": true }), 0));
}

#[tokio::test]
async fn a_submit_does_not_read_the_job_back() {
    let fixture = Fixture::start().await;
    for (path, verdict) in [
        ("/v1/resources/task/t1/jobs", "started"),
        ("/v1/resources/task/t1/jobs", "queued"),
        ("/v1/resources/pipeline/p1/jobs", "started"),
        ("/v1/resources/pipeline/p1/jobs", "attached"),
    ] {
        let operation = if path.contains("task") { "work" } else { "run" };
        let body = json!({ "operation": operation, "args": { "n": 1 } });
        let answer = fixture.post(path, body).await;
        assert_eq!(answer["verdict"], verdict, "{answer}");
        let id = answer["job"]["id"].as_str().expect("an id");
        // The answer is what a list shows, and a show without the limit of its kind.
        let (jobs, _) = fixture.request(&fixture.key, "GET", "/v1/jobs", &Value::Null).await;
        let listed = jobs["items"].as_array().expect("a list").iter().find(|job| job["id"] == id);
        assert_eq!(Some(&answer["job"]), listed);
    }
}

#[tokio::test]
async fn a_put_is_answered_by_its_step() {
    let fixture = Fixture::start().await;
    let path = "/v1/resources/cluster/c1";
    for (generation, nodes) in [(1, 3), (2, 5), (2, 5)] {
        let body = json!({ "spec": { "nodes": nodes } });
        let (put, reads) = fixture.request(&fixture.key, "PUT", path, &body).await;
        assert_eq!(reads, 0, "a later read may show what another client has put");
        assert_eq!((&put["generation"], &put["spec"]), (&json!(generation), &body["spec"]));
        let (mut shown, _) = fixture.request(&fixture.key, "GET", path, &Value::Null).await;
        shown["job"] = put["job"].clone();
        assert_eq!(put, shown);
    }
    let puts = (0..50).map(|n| {
        let (url, key) = (format!("{}{path}", fixture.server.url), fixture.key.clone());
        tokio::spawn(async move {
            let body = json!({ "spec": { "writer": n } });
            let request = common::http().put(url).header("x-api-key", key).body(body.to_string());
            let (_, put) = common::answer(request).await;
            assert_eq!(put["spec"], body["spec"], "the answer of another writer");
            put["generation"].as_u64().expect("a number")
        })
    });
    let mut generations = std::collections::BTreeSet::new();
    for put in puts.collect::<Vec<_>>() {
        generations.insert(put.await.expect("no panic"));
    }
    assert_eq!(generations.len(), 50, "{generations:?}");
}

#[tokio::test]
async fn the_reads_of_a_request_are_counted() {
    let fixture = Fixture::start().await;
    let (_, reads) = fixture.request(KEY, "GET", "/v1/locks", &Value::Null).await;
    assert_eq!(reads, 1);
}
