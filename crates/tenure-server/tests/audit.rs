//! The audit log: what is kept during floods, and how entries are found.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use common::{KEY, Server, key, until};
use serde_json::{Value, json};
use tenure_core::{Command, Kinds, Outcome};
use tenure_server::HttpConfig;
use tenure_server::audit::{Audit, AuditLimits};
use tenure_store::audit::{AuditFilter, AuditRetention, AuditRow, SharedAudit};
use tenure_store::observer::Observer;
use tenure_store::store::{
    Hint, Pruned, Reads, Result, Retention, Status, Store, StoreError, Swept,
};
use tenure_store::{KeyRing, Memory};
use tokio::sync::broadcast;

/// Entries per class that certainly do not fit into [`LIMITS`].
const FLOOD: usize = 200;
/// Nine files of 2 KiB, which is space for less than a hundred entries.
const LIMITS: AuditLimits = AuditLimits { max_bytes: 9 * 2_048, max_age_ms: None };

async fn server(dir: &Path, limits: AuditLimits) -> Server {
    server_with(dir, limits, Arc::new(Memory::new())).await
}

async fn server_with(dir: &Path, limits: AuditLimits, store: Arc<dyn Store>) -> Server {
    let audit = Audit::open(&dir.join("audit.jsonl"), limits).expect("created");
    let http_config = HttpConfig { audit, ..HttpConfig::default() };
    Server::start_with_http(store, http_config).await
}

/// Breaks a lock, which is an action of an operator.
async fn break_lock(server: &Server, key: &str) {
    let take = json!({ "holder": "h", "ttl_ms": 60_000 });
    let (_, tenure) =
        server.request(key, "POST", "/v1/locks/cluster/broken/acquire", Some(&take)).await;
    let body = json!({ "token": tenure["token"], "reason": "it hangs" });
    let path = "/v1/locks/cluster/broken/break";
    assert_eq!(server.request(key, "POST", path, Some(&body)).await.0, 200);
}

async fn entries(server: &Server, query: &str) -> Vec<Value> {
    let (status, list) = server.get(&format!("/v1/audit?limit=1000{query}")).await;
    assert_eq!(status, 200, "{list}");
    list["items"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_flood_of_worker_calls_evicts_no_action_of_an_operator() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(dir.path(), LIMITS).await;
    // The key of an operator is no reason to keep its calls as a worker.
    break_lock(&server, KEY).await;
    for n in 0..FLOOD {
        let take = json!({ "holder": "h", "ttl_ms": 60_000 });
        let path = format!("/v1/locks/cluster/c{n}/acquire");
        assert_eq!(server.post(&path, take).await.0, 200);
    }
    assert!(entries(&server, "&action=lock.acquire").await.len() < FLOOD);
    let broken = entries(&server, "&action=lock.break").await;
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert_eq!(broken[0]["server"], "tenure-server");
}

#[tokio::test]
async fn a_flood_of_denied_calls_evicts_no_action_of_an_operator() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(dir.path(), LIMITS).await;
    let viewer = key(&server, "acme", "viewer").await;
    break_lock(&server, KEY).await;
    let body = json!({ "token": 1, "reason": "no" });
    for _ in 0..FLOOD {
        let path = "/v1/locks/cluster/broken/break";
        assert_eq!(server.request(&viewer, "POST", path, Some(&body)).await.0, 403);
        // Nobody needs a key for this.
        assert!(server.post_with("/signout", &[], String::new()).await.0 < 500);
    }
    let outcomes: Vec<_> = entries(&server, "&action=lock.break").await;
    assert!(outcomes.len() < FLOOD, "{}", outcomes.len());
    assert_eq!(outcomes.last().map(|entry| entry["outcome"].clone()), Some("ok".into()));
    assert_eq!(entries(&server, "&action=key.create").await.len(), 1);
}

#[tokio::test]
async fn entries_are_filtered_by_time_caller_and_action() {
    let dir = tempfile::tempdir().expect("a directory");
    // An entry of an earlier version, which had one file and no servers.
    let old = json!({
        "at": "2020-01-01T00:00:00Z", "action": "lock.break", "path": "/old", "principal": "bob/1",
        "key": "1", "role": "operator", "tenant": "acme", "address": null, "status": 200,
        "outcome": "ok", "reason": "long ago", "request_id": "r", "took_ms": 1,
    });
    std::fs::write(dir.path().join("audit.jsonl"), format!("{old}\n")).expect("writable");
    let server = server(dir.path(), AuditLimits::default()).await;
    let operator = key(&server, "acme", "operator").await;
    break_lock(&server, &operator).await;
    let paths = async |query: &str| {
        let entries = entries(&server, query).await;
        let path = |entry: &Value| entry["path"].as_str().expect("a path").to_owned();
        entries.iter().map(path).collect::<Vec<_>>()
    };
    let new = "/v1/locks/cluster/broken/break";
    assert_eq!(paths("&action=lock.break").await, [new, "/old"]);
    assert_eq!(paths("&action=lock.break&since=1h").await, [new]);
    assert_eq!(paths("&action=lock.break&since=2019-12-31T00:00:00Z").await, [new, "/old"]);
    assert_eq!(paths("&since=2999-01-01T00:00:00Z").await, [""; 0]);
    assert_eq!(paths("&who=bob/1").await, ["/old"]);
    assert_eq!(paths("&who=1&tenant=acme").await, ["/old"]);
    assert_eq!(paths("&who=bob/1&since=1h").await, [""; 0]);
    let (status, problem) = server.get("/v1/audit?since=yesterday").await;
    assert_eq!(status, 422, "{problem}");
    assert!(problem["detail"].as_str().expect("a text").contains("such as 2h"), "{problem}");
}

/// A store with a shared audit log that lists its entries twice, and can be made unreadable.
#[derive(Default)]
struct SharingStore {
    memory: Memory,
    lines: Mutex<Vec<String>>,
    outage: AtomicBool,
}

#[async_trait]
impl SharedAudit for SharingStore {
    async fn append(&self, rows: &[AuditRow]) -> Result<()> {
        let mut lines = self.lines.lock().expect("not poisoned");
        lines.extend(rows.iter().flat_map(|row| [row.entry.clone(), row.entry.clone()]));
        Ok(())
    }

    async fn newest(&self, _filter: &AuditFilter) -> Result<Vec<String>> {
        if self.outage.load(Ordering::SeqCst) {
            return Err(StoreError::unavailable("simulated outage"));
        }
        Ok(self.lines.lock().expect("not poisoned").clone())
    }

    async fn prune(&self, _class: &str, _keep: AuditRetention) -> Result<usize> {
        Ok(0)
    }
}

#[async_trait]
impl Store for SharingStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.memory.apply(commands).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.memory.sweep().await
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.memory.prune(keep).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.memory.declare(kinds).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.memory.watch()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.memory.observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.memory.status().await
    }

    fn reads(&self) -> &dyn Reads {
        self.memory.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.memory.key_ring()
    }

    fn shared_audit(&self) -> Option<&dyn SharedAudit> {
        Some(self)
    }
}

#[tokio::test]
async fn without_the_shared_log_the_server_lists_its_own_entries() {
    let (dir, other) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("another"));
    let store = Arc::new(SharingStore::default());
    let shared = || Arc::clone(&store) as Arc<dyn Store>;
    let server = server_with(dir.path(), AuditLimits::default(), shared()).await;
    let other = server_with(other.path(), AuditLimits::default(), shared()).await;
    break_lock(&server, KEY).await;
    break_lock(&other, KEY).await;
    let list = async || server.get("/v1/audit?action=lock.break").await.1;
    let count = |list: &Value| list["items"].as_array().map_or(0, Vec::len);
    until(async || store.lines.lock().expect("not poisoned").len() == 4).await;
    let complete = list().await;
    assert_eq!(count(&complete), 2, "each is listed once: {complete}");
    assert!(complete.get("partial").is_none(), "{complete}");
    store.outage.store(true, Ordering::SeqCst);
    let partial = list().await;
    assert_eq!(count(&partial), 1, "{partial}");
    let why = partial["partial"].as_str().expect("a reason");
    assert!(why.contains("simulated outage"), "{partial}");
}
