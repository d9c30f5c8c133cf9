//! `/v1/status`: counts, conditions that need attention, and tenant isolation.

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{KEY, Server, Worker, key};
use serde_json::{Value, json};
use tenure::Client;
use tenure_core::ready::GroupCounts;
use tenure_core::retry::Retry;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{Command, JobId, Kind, Kinds, Operation, Outcome, ResourceKey, TenureView, Text};
use tenure_store::census::Census;
use tenure_store::observer::Observer;
use tenure_store::store::{
    Hint, HistoryQuery, HistoryRow, JobPage, JobQuery, JobView, LogLine, LogQuery, Page, Pruned,
    Reads, ResourceDetail, ResourceQuery, ResourceView, Result, Retention, Status, Swept,
    TenureQuery, WorkerView,
};
use tenure_store::{KeyRing, Memory, Store};
use tokio::sync::broadcast;

async fn server() -> Server {
    let once = Retry { attempts: 1, ..Retry::default() };
    let work = Operation::new("work").retry(once);
    let kinds = Kinds::new([
        Kind::new("task").operation(work),
        Kind::new("report").operation(Operation::new("run")),
    ]);
    Server::start_with(Arc::new(Memory::new()), Arc::new(kinds.expect("valid kinds"))).await
}

/// Holds a lock with a waiter, runs a job, and leaves a dead letter and a job without a worker, all
/// of the tenant `acme`.
async fn fill(server: &Server) -> Worker {
    let post = async |path: &str, body: Value| {
        let (status, answer) = server.post(&format!("{path}?tenant=acme"), body).await;
        assert!(status < 300 || status == 409, "{path}: {status} {answer}");
        answer
    };
    let hold = json!({ "holder": "ann", "ttl_ms": 600_000 });
    post("/v1/locks/cluster/c1/acquire", hold.clone()).await;
    let mut wait = hold;
    (wait["holder"], wait["wait_ms"], wait["poll_ms"]) = (json!("bob"), json!(60_000), json!(0));
    post("/v1/locks/cluster/c1/acquire", wait).await;
    let worker = Worker::open_for(server, "w1", "acme").await;
    for resource in ["task/t1", "task/t2"] {
        post(&format!("/v1/resources/{resource}/jobs"), json!({ "operation": "work" })).await;
    }
    let failed = worker.claim(server, &["task"], 0).await[0].clone();
    let id = failed["job"]["id"].as_str().expect("an id");
    let body = json!({
        "token": failed["tenure"]["token"], "outcome": "failed", "code": "BUSY", "message": "busy",
        "transient": true,
    });
    post(&format!("/v1/jobs/{id}/finish"), body).await;
    worker.claim(server, &["task"], 0).await;
    post("/v1/resources/report/r1/jobs", json!({ "operation": "run" })).await;
    worker
}

/// Returns the codes of the conditions that are not about the server itself.
fn codes(status: &Value) -> Vec<&str> {
    let conditions = status["attention"].as_array().expect("a list").iter();
    let codes = conditions.map(|condition| condition["code"].as_str().expect("a code"));
    codes.filter(|code| *code != "readiness").collect()
}

#[tokio::test]
async fn counts_and_conditions_are_those_of_the_tenants_that_the_key_permits() {
    let server = server().await;
    let (mine, other) =
        (key(&server, "acme", "viewer").await, key(&server, "rival", "admin").await);
    let _worker = fill(&server).await;
    let (status, all) = server.get("/v1/status?tenant=*").await;
    assert_eq!(status, 200, "{all}");
    assert_eq!((&all["tenant"], &all["store"]), (&json!("*"), &json!("memory")));
    assert_eq!(all["version"], env!("CARGO_PKG_VERSION"));
    assert!(all["uptime_ms"].is_u64(), "{all}");
    let (status, of_tenant) = server.request(&mine, "GET", "/v1/status", None).await;
    assert_eq!(status, 200, "{of_tenant}");
    for status in [&all, &of_tenant] {
        // The running job holds one. The lock of the janitor does not count.
        assert_eq!(status["locks"]["held"], 2, "{status}");
        assert_eq!(status["locks"]["waiters"], 1, "{status}");
        assert_eq!(status["locks"]["stale"], 0, "{status}");
        let jobs = &status["jobs"];
        let counts = ["running", "queued", "backoff", "dead"].map(|state| jobs[state].as_u64());
        assert_eq!(counts, [1, 1, 0, 1].map(Some), "{status}");
        assert_eq!(status["workers"], json!({ "sessions": 1, "busy": 1 }));
        assert_eq!(codes(status), ["dead_letters", "no_worker"], "{status}");
    }
    assert_eq!(of_tenant["attention"].as_array().map(Vec::len), Some(2), "nothing of the server");

    let (status, nothing) = server.request(&other, "GET", "/v1/status", None).await;
    assert_eq!(status, 200, "{nothing}");
    assert_eq!(nothing["locks"], json!({ "held": 0, "stale": 0, "waiters": 0 }));
    let none = json!({ "running": 0, "queued": 0, "backoff": 0, "dead": 0, "queue_oldest_ms": 0 });
    assert_eq!(nothing["jobs"], none);
    assert_eq!(nothing["workers"], json!({ "sessions": 0, "busy": 0 }));
    assert_eq!(nothing["attention"], json!([]));
    for path in ["/v1/status?tenant=acme", "/v1/status?tenant=*"] {
        let (status, refused) = server.request(&other, "GET", path, None).await;
        assert_eq!(status, 403, "{refused}");
    }
    assert_eq!(server.request("", "GET", "/v1/status", None).await.0, 401);
}

#[tokio::test]
async fn the_library_returns_the_status() {
    let server = server().await;
    let client = Client::connect(&server.url, KEY).await.expect("a server");
    let _worker = fill(&server).await;
    let client = client.for_tenant("acme").expect("a key of all tenants");
    let status = client.status().await.expect("it answers");
    assert_eq!((&*status.tenant, status.jobs.dead, status.workers.busy), ("acme", 1, 1));
    assert_eq!(status.attention[0].command, "tenure dead ls --tenant acme");
}

/// A store that never lists its workers.
struct SilentStore(Memory);

#[async_trait]
impl Store for SilentStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
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

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.0.watch()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.0.observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.0.status().await
    }

    fn reads(&self) -> &dyn Reads {
        self
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.0.key_ring()
    }
}

#[async_trait]
impl Reads for SilentStore {
    async fn tenures(&self, query: TenureQuery) -> Result<Page<TenureView>> {
        self.0.reads().tenures(query).await
    }

    async fn show(&self, key: &ResourceKey) -> Result<Option<ResourceDetail>> {
        self.0.reads().show(key).await
    }

    async fn keys(&self, after: Option<ResourceKey>, limit: usize) -> Result<Vec<ResourceKey>> {
        self.0.reads().keys(after, limit).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<HistoryRow>> {
        self.0.reads().history(query).await
    }

    async fn checkpoints(
        &self,
        after: Option<ResourceKey>,
        limit: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
        self.0.reads().checkpoints(after, limit).await
    }

    async fn checkpoint(&self, key: &ResourceKey) -> Result<Option<ChainCheckpoint>> {
        self.0.reads().checkpoint(key).await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>> {
        self.0.reads().job(id).await
    }

    async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        self.0.reads().jobs(query).await
    }

    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceView>> {
        self.0.reads().resources(query).await
    }

    async fn group(&self, tenant: Text, kind: Text, group: Text) -> Result<GroupCounts> {
        self.0.reads().group(tenant, kind, group).await
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        self.0.reads().logs(query).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        std::future::pending().await
    }

    async fn census(&self) -> Result<Census> {
        self.0.reads().census().await
    }
}

#[tokio::test]
async fn a_store_that_does_not_list_its_workers_is_unavailable() {
    let server = Server::start(Arc::new(SilentStore(Memory::new()))).await;
    let answer = tokio::time::timeout(Duration::from_secs(20), server.get("/v1/status?tenant=*"));
    let (status, problem) = answer.await.expect("an answer within the time limit");
    assert_eq!(status, 503, "{problem}");
}
