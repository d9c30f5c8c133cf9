//! The audit log: what is kept during floods, and how entries are found.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{KEY, Server, key};
use serde_json::{Value, json};
use tenure_server::HttpConfig;
use tenure_server::audit::{Audit, AuditLimits};
use tenure_store::Memory;

/// Entries per class that certainly do not fit into [`LIMITS`].
const FLOOD: usize = 200;
/// Nine files of 2 KiB, which is space for less than a hundred entries.
const LIMITS: AuditLimits = AuditLimits { max_bytes: 9 * 2_048, max_age_ms: None };

async fn server(dir: &Path, limits: AuditLimits) -> Server {
    let audit = Audit::open(&dir.join("audit.jsonl"), limits).expect("created");
    let http_config = HttpConfig { audit, ..HttpConfig::default() };
    Server::start_with_http(Arc::new(Memory::new()), http_config).await
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
