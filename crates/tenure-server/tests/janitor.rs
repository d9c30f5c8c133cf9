//! The janitor of real servers: one holds the lock, the others stand by, all report their status.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::{KEY, Server};
use serde_json::{Value, json};
use tenure_config::RetentionSettings;
use tenure_core::{Command, Kinds, Outcome};
use tenure_server::auth::Keys;
use tenure_store::observer::Observer;
use tenure_store::store::{Hint, Pruned, Reads, Result, Retention, Status, Swept};
use tenure_store::{Embedded, KeyRing, Memory, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

const DUTIES: [&str; 8] =
    ["expiry", "retries", "overdue", "lock_age", "orphans", "retention", "dead", "verify"];

/// Polls until the response satisfies `wanted`, for at most thirty seconds.
#[expect(clippy::disallowed_methods, reason = "the one bounded wait of these tests")]
async fn until(server: &Server, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let (_, answer) = server.get(path).await;
        if wanted(&answer) {
            return answer;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "timed out: {answer:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn wait_for_lock(server: &Server) -> Value {
    until(server, "/v1/janitor", |janitor| janitor["here"] == true).await
}

fn row<'a>(janitor: &'a Value, duty: &str) -> &'a Value {
    let items = janitor["items"].as_array().expect("a list");
    items.iter().find(|row| row["duty"] == duty).expect("no such duty")
}

/// A store whose sweeps are counted, fail, or never end.
#[derive(Default)]
struct TestStore {
    memory: Memory,
    sweep_mode: SweepMode,
    sweeps: Arc<AtomicU64>,
    /// Number of sweeps before kinds were declared, which must be zero.
    sweeps_before_declare: Arc<AtomicU64>,
    /// Retention of jobs in the first prune.
    jobs_ms: Arc<OnceLock<u64>>,
}

#[derive(Clone, Copy, Default)]
enum SweepMode {
    #[default]
    Counted,
    Failing,
    Hanging,
}

#[async_trait]
impl Store for TestStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.memory.apply(commands).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.sweeps.fetch_add(1, Ordering::SeqCst);
        match self.sweep_mode {
            SweepMode::Counted => self.memory.sweep().await,
            SweepMode::Failing => Err(StoreError::unavailable("the disk is on fire".to_owned())),
            SweepMode::Hanging => std::future::pending().await,
        }
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.jobs_ms.get_or_init(|| keep.jobs_ms);
        self.memory.prune(keep).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        // Gives a sweep that does not wait for this enough time to run first.
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.sweeps_before_declare.fetch_add(self.sweeps.load(Ordering::SeqCst), Ordering::SeqCst);
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
}

#[tokio::test]
async fn every_duty_runs_and_reports_its_status() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let has_run = |janitor: &Value| {
        let items = janitor["items"].as_array().expect("a list");
        items.iter().all(|row| row["last_run"].is_string())
    };
    let janitor = until(&server, "/v1/janitor", has_run).await;
    assert_eq!(janitor["here"], true);
    for duty in DUTIES {
        let row = row(&janitor, duty);
        assert!(row["error"].is_null() && row["every_ms"].as_u64() >= Some(100), "{row}");
    }
    // The status is updated.
    let before = row(&janitor, "expiry")["last_run"].clone();
    until(&server, "/v1/janitor", |janitor| row(janitor, "expiry")["last_run"] != before).await;
    let (status, ready) = server.get("/readyz").await;
    assert_eq!((status, &ready["ready"]), (200, &json!(true)));
    assert!(ready["reasons"].is_null(), "{ready}");
}

#[tokio::test]
async fn expiry_counts_the_sessions_and_tenures_it_ended() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let body = json!({ "holder": "ann", "ttl_ms": 1_000 });
    server.post("/v1/locks/cluster/c1/acquire", body).await;
    let ended = |janitor: &Value| row(janitor, "expiry")["total"] == 2;
    // The session and its tenure.
    until(&server, "/v1/janitor", ended).await;
    let (_, shown) = server.get("/v1/locks/cluster/c1").await;
    assert_eq!(shown["tenures"], json!([]));
}

#[tokio::test]
async fn one_server_runs_the_duties_and_the_next_takes_over_when_it_stops() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let mut first = Server::start(Arc::clone(&store)).await;
    wait_for_lock(&first).await;
    let second = Server::start(Arc::clone(&store)).await;
    let swept = |janitor: &Value| row(janitor, "expiry")["last_run"].is_string();
    let standing_by = until(&second, "/v1/janitor", swept).await;
    assert_eq!(standing_by["here"], false);
    assert!(row(&standing_by, "retention")["last_run"].is_null(), "{standing_by:#}");
    assert!(is_ready_without_reasons(&second).await);
    first.stop().await.expect("no panic").expect("it stops");
    let took_over = wait_for_lock(&second).await;
    assert_eq!(took_over["here"], true);
    let has_run = |janitor: &Value| row(janitor, "retention")["last_run"].is_string();
    until(&second, "/v1/janitor", has_run).await;
}

async fn is_ready_without_reasons(server: &Server) -> bool {
    server.get("/readyz").await.1["reasons"].is_null()
}

#[tokio::test]
async fn a_server_whose_lock_is_broken_stops_its_duties_and_stands_by() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let first = Server::start(Arc::clone(&store)).await;
    wait_for_lock(&first).await;
    let second = Server::start(Arc::clone(&store)).await;
    let lock = "/v1/locks/janitor/main?tenant=tenure";
    let queued = |lock: &Value| lock["queue"].as_array().is_some_and(|queue| !queue.is_empty());
    let shown = until(&first, lock, queued).await;
    let token = shown["token"].clone();
    let body = json!({ "token": token, "reason": "test" });
    let broken = first.post("/v1/locks/janitor/main/break?tenant=tenure", body).await;
    assert_eq!(broken.0, 200, "{broken:?}");
    wait_for_lock(&second).await;
    until(&first, "/v1/janitor", |janitor| janitor["here"] == false).await;
}

#[tokio::test]
async fn the_session_of_a_dead_janitor_is_swept_by_servers_that_stand_by() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let mut first = Server::start(Arc::clone(&store)).await;
    let body = json!({ "ttl_ms": 5_000 });
    // The lock of a janitor that never sends another heartbeat.
    wait_for_lock(&first).await;
    first.stop().await.expect("no panic").expect("it stops");
    let committer = tenure_store::Committer::start_with(
        Arc::clone(&store),
        tenure_store::committer::Sweep::External,
    );
    let held = acquire(&committer, "tenure/janitor/main", &body).await;
    assert!(matches!(held, Outcome::Granted(_)), "{held:?}");
    let expiring = acquire(&committer, "default/cluster/c1", &json!({ "ttl_ms": 1_000 })).await;
    assert!(matches!(expiring, Outcome::Granted(_)), "{expiring:?}");
    let second = Server::start(store).await;
    // Other sessions are swept while the dead janitor still holds the lock.
    let free = |lock: &Value| lock["tenures"] == json!([]);
    until(&second, "/v1/locks/cluster/c1", free).await;
    assert_eq!(second.get("/v1/janitor").await.1["here"], false);
    wait_for_lock(&second).await;
}

async fn acquire(committer: &tenure_store::Committer, key: &str, body: &Value) -> Outcome {
    let acquire = tenure_core::Acquire {
        locks: tenure_core::LockName::main().into(),
        claimant: tenure_core::Claimant::Solo {
            name: "dead".into(),
            ttl_ms: body["ttl_ms"].as_u64().expect("a number"),
        },
        request: tenure_store::random::request_id(),
        wait_ms: 0,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    };
    let action = tenure_core::LockAction::Acquire(acquire);
    let key = key.parse().expect("a good name");
    committer.submit(Command::Lock { key, action }).await.expect("it answers")
}

#[tokio::test]
async fn a_failing_duty_reports_its_error() {
    let server = Server::start(Arc::new(TestStore {
        sweep_mode: SweepMode::Failing,
        ..TestStore::default()
    }))
    .await;
    let failed = |janitor: &Value| row(janitor, "expiry")["error"].is_string();
    let janitor = until(&server, "/v1/janitor", failed).await;
    assert_eq!(row(&janitor, "expiry")["error"], "the disk is on fire");
    assert_eq!(row(&janitor, "retries")["error"], "the disk is on fire");
}

#[tokio::test]
async fn a_hanging_duty_is_reported_by_readyz_but_the_server_stays_ready() {
    let server = Server::start(Arc::new(TestStore {
        sweep_mode: SweepMode::Hanging,
        ..TestStore::default()
    }))
    .await;
    let late = |ready: &Value| {
        let reasons = ready["reasons"].as_array();
        let named = |reason: &Value| reason.as_str().is_some_and(|why| why.contains("expiry"));
        reasons.is_some_and(|reasons| reasons.iter().any(named))
    };
    let ready = until(&server, "/readyz", late).await;
    assert_eq!(ready["ready"], true);
    assert_eq!(server.get("/readyz").await.0, 200);
    let janitor = wait_for_lock(&server).await;
    assert!(row(&janitor, "expiry")["lag_ms"].as_u64() > Some(500), "{janitor:#}");
    // Other duties do not wait for it.
    let has_run = |janitor: &Value| row(janitor, "orphans")["last_run"].is_string();
    until(&server, "/v1/janitor", has_run).await;
}

#[tokio::test(flavor = "current_thread")]
#[expect(clippy::disallowed_methods, reason = "blocks the runtime on purpose, with a deadline")]
async fn a_blocked_runtime_does_not_delay_the_janitor() {
    let sweeps = Arc::new(AtomicU64::new(0));
    let store = TestStore { sweeps: Arc::clone(&sweeps), ..TestStore::default() };
    let server = Server::start(Arc::new(store)).await;
    wait_for_lock(&server).await;
    // From here on this runtime is blocked, and with it the server.
    let (started, before) = (Instant::now(), sweeps.load(Ordering::SeqCst));
    while sweeps.load(Ordering::SeqCst) < before + 5 {
        assert!(started.elapsed() < Duration::from_secs(30), "no sweeps");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn kinds_and_retention_are_set_before_the_janitor_starts() {
    let (sweeps_before_declare, jobs_ms) =
        (Arc::<AtomicU64>::default(), Arc::<OnceLock<u64>>::default());
    let store = Arc::new(TestStore {
        sweeps_before_declare: Arc::clone(&sweeps_before_declare),
        jobs_ms: Arc::clone(&jobs_ms),
        ..TestStore::default()
    });
    let mut config = tenure_server::Config::new(Keys::admin(KEY), Arc::default());
    config.live.retention = RetentionSettings { jobs_ms: 4_711, ..RetentionSettings::default() };
    let server = tenure_server::Server::start(store, config, "test").await;
    let server = server.expect("it answers");
    let status = Arc::clone(&server.state().janitor);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let pruned = async move {
        while !status.duties().iter().any(|row| row.duty == "retention" && row.last_run.is_some()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let serve = tokio::time::timeout(Duration::from_secs(30), server.serve(listener, pruned));
    serve.await.expect("it prunes").expect("it serves");
    // A job that is settled without its kind cannot be retried.
    assert_eq!(
        sweeps_before_declare.load(Ordering::SeqCst),
        0,
        "it swept before the kinds were declared"
    );
    assert_eq!(jobs_ms.get(), Some(&4_711));
}

#[tokio::test]
async fn a_history_that_was_changed_is_reported_by_readyz_status_and_metrics() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tenure.db");
    let store: Arc<dyn Store> = Arc::new(Embedded::open(&path).expect("it opens"));
    let committer = tenure_store::Committer::start_with(
        Arc::clone(&store),
        tenure_store::committer::Sweep::External,
    );
    let held = acquire(&committer, "default/cluster/c1", &json!({ "ttl_ms": 60_000 })).await;
    assert!(matches!(held, Outcome::Granted(_)), "{held:?}");
    let file = rusqlite::Connection::open(&path).expect("it is a database");
    let sql = "UPDATE history SET line = replace(line, '\"dead\"', '\"alive\"')";
    assert_eq!(file.execute(sql, []).expect("it is a table"), 1);
    let server = Server::start(store).await;
    let has_reason = |ready: &Value| ready["reasons"][0].to_string().contains("history");
    let ready = until(&server, "/readyz", has_reason).await;
    let reason = ready["reasons"][0].as_str().expect("a text");
    assert!(reason.contains("the history contradicts itself in 1 place"), "{reason}");
    assert!(!reason.contains("c1"), "everyone can read it: {reason}");
    let (_, status) = server.get("/v1/status?tenant=*").await;
    let attention = status["attention"].as_array().expect("a list");
    let shown = attention.iter().find(|one| one["text"] == reason).expect("it needs attention");
    assert_eq!((&shown["code"], &shown["command"]), (&json!("readiness"), &json!("tenure verify")));
    let has_run = |janitor: &Value| row(janitor, "verify")["note"].is_string();
    let janitor = until(&server, "/v1/janitor", has_run).await;
    let note = row(&janitor, "verify")["note"].as_str().expect("a note").to_owned();
    assert!(note.contains("default/cluster/c1 entry 1: its hash"), "{note}");
    let metrics = server.get("/metrics").await.1;
    let metrics = metrics.as_str().expect("a text");
    assert!(metrics.contains("\ntenure_history_violations_total 1\n"), "{metrics}");
    assert!(metrics.contains("\ntenure_history_unverified_entries "), "{metrics}");
}

#[tokio::test]
async fn the_status_of_the_janitor_requires_a_key() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let request =
        common::http().get(format!("{}/v1/janitor", server.url)).send().await.expect("it answers");
    assert_eq!(request.status(), 401);
}
