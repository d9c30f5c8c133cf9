//! Events increase exactly the expected series, and labels are bounded.

#[path = "common/series.rs"]
mod series;

use std::sync::Arc;

use tenure_app::LiveConfig;
use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, JobId, LockAction, LockName, Outcome,
    RequestId, ResourceAction, ResourceKey, SessionId, Submit, Token,
};
use tenure_server::janitor::JanitorStatus;
use tenure_server::metrics::Metrics;
use tenure_store::clock::ManualClock;
use tenure_store::metered::Metered;
use tenure_store::observer::Observer;
use tenure_store::{Memory, Store, scenario};

use series::{Series, increases, name, parse, values};

/// A metered store on a manual clock, with two sessions.
struct Fixture {
    clock: ManualClock,
    store: Metered,
    metrics: Arc<Metrics>,
    last: Series,
    requests: u128,
}

impl Fixture {
    async fn new() -> Self {
        let clock = ManualClock::default();
        let memory = Arc::new(Memory::with_clock(clock.clone()));
        let metrics = Arc::new(Metrics::new(&tenure_cli::apps::installed()));
        metrics.reload(&LiveConfig { kinds: scenario::kinds(), ..LiveConfig::default() });
        let store = Metered::new(memory, Arc::clone(&metrics) as Arc<dyn Observer>);
        store.declare(scenario::kinds()).await.expect("in memory");
        let fixture = Self { clock, store, metrics, last: Series::new(), requests: 0 };
        for session in [1, 2] {
            fixture.open(session).await;
        }
        fixture
    }

    async fn open(&self, session: u128) {
        let (tenant, name) = ("t".into(), format!("s{session}").into());
        let session = SessionId(session);
        self.send(Command::Open { session, tenant, name, ttl_ms: 10_000 }).await;
    }

    async fn send(&self, command: Command) -> Outcome {
        self.store.apply(vec![command]).await.expect("in memory").remove(0)
    }

    async fn scrape(&self) -> Series {
        let text = self
            .metrics
            .scrape(&self.store, &JanitorStatus::new(&[], Arc::default()), &scenario::kinds())
            .await;
        parse(&text)
    }

    /// Returns all counters except those of the store and the janitor.
    async fn counters(&self) -> Series {
        let counts = |series: &str| {
            let name = name(series);
            let ends = ["_total", "_count", "_sum"].iter().any(|end| name.ends_with(end));
            ends && !name.starts_with("tenure_store") && !name.starts_with("tenure_janitor")
        };
        self.scrape().await.into_iter().filter(|(series, _)| counts(series)).collect()
    }

    /// Returns the increases since the last call.
    async fn increases(&mut self) -> Vec<String> {
        let now = self.counters().await;
        increases(&std::mem::replace(&mut self.last, now.clone()), &now)
    }

    async fn acquire(&mut self, path: &str, session: u128, wait_ms: u64) -> Option<Token> {
        self.requests += 1;
        let acquire = Acquire {
            locks: LockName::main().into(),
            claimant: Claimant::Session(SessionId(session)),
            request: RequestId(self.requests),
            wait_ms,
            purpose: None,
            max_age_ms: Some(60_000),
            tenant: None,
        };
        let action = LockAction::Acquire(acquire);
        match self.send(Command::Lock { key: key(path), action }).await {
            Outcome::Granted(tenure) => Some(tenure.token),
            _ => None,
        }
    }

    async fn lock(&self, path: &str, action: LockAction) -> Outcome {
        self.send(Command::Lock { key: key(path), action }).await
    }

    async fn submit(&mut self, path: &str, operation: &str) {
        self.requests += 1;
        let submit = Submit {
            request: RequestId(self.requests),
            operation: operation.into(),
            args: None,
            priority: 0,
            run_at: None,
            by: "ann".into(),
            precondition: None,
        };
        let action = ResourceAction::Submit(submit);
        self.send(Command::Resource { key: key(path), action }).await;
    }

    async fn claim(&mut self, kind: &str) -> (JobId, Token) {
        self.requests += 1;
        let (session, request) = (SessionId(1), RequestId(self.requests));
        let claim =
            Claim { session, request, kinds: vec![kind.into()], max: 1, tenant: None, only: None };
        match self.send(Command::Claim(claim)).await {
            Outcome::Claimed(jobs) => (jobs[0].job.id, jobs[0].tenure.token),
            other => panic!("{other:?} is not the outcome of a claim"),
        }
    }

    async fn finish(&self, (id, token): (JobId, Token), finish: Finish) -> Outcome {
        self.send(Command::Job { id, action: JobAction::Finish { token, finish, update: None } })
            .await
    }

    /// Advances the clock with sweeps in between, and heartbeats of the sessions `alive`.
    async fn advance(&self, seconds: u64, alive: &[u128]) {
        for _ in 0..seconds {
            self.clock.advance(1_000);
            for session in alive {
                self.send(Command::Heartbeat {
                    session: SessionId(*session),
                    seen: 0,
                    tenant: None,
                })
                .await;
            }
            self.store.sweep().await.expect("in memory");
        }
    }
}

fn key(path: &str) -> ResourceKey {
    format!("t/{path}").parse().expect("a valid name")
}

fn failed(code: &str) -> Finish {
    let (code, message) = (code.into(), "no".into());
    Finish::Failed { code, message, class: None, state: None, delay_ms: None }
}

const GRANTED: &str = r#"tenure_lock_acquisitions_total{kind="k",result="granted"} +1"#;
const WAITED_COUNT: &str = r#"tenure_lock_wait_time_seconds_count{kind="k"} +1"#;
const HELD_COUNT: &str = r#"tenure_lock_held_duration_seconds_count{kind="k",operation=""} +1"#;

#[tokio::test]
async fn a_lock_counts_its_grant_its_refusals_and_its_end() {
    let mut fixture = Fixture::new().await;
    let token = fixture.acquire("k/a", 1, 0).await.expect("it is free");
    assert_eq!(fixture.increases().await, [GRANTED, WAITED_COUNT]);
    fixture.acquire("k/a", 2, 0).await;
    let failed = r#"tenure_lock_acquisitions_total{kind="k",result="failed"} +1"#;
    let held = r#"tenure_lock_acquisition_failures_total{reason="held"} +1"#;
    assert_eq!(fixture.increases().await, [held, failed]);
    // A waiting request counts neither as granted nor as failed.
    fixture.acquire("k/a", 2, 60_000).await;
    assert_eq!(fixture.increases().await, [""; 0]);
    fixture.advance(2, &[1, 2]).await;
    fixture.lock("k/a", LockAction::Release { token, locks: None, to: None }).await;
    let held_sum = r#"tenure_lock_held_duration_seconds_sum{kind="k",operation=""} +2"#;
    let waited_sum = r#"tenure_lock_wait_time_seconds_sum{kind="k"} +2"#;
    let both = [GRANTED, HELD_COUNT, held_sum, WAITED_COUNT, waited_sum];
    assert_eq!(fixture.increases().await, both);
    // A repeated request counts once.
    fixture.lock("k/a", LockAction::Release { token, locks: None, to: None }).await;
    assert_eq!(fixture.increases().await, [""; 0]);
}

#[tokio::test]
async fn a_request_that_times_out_in_the_queue_fails_once() {
    let mut fixture = Fixture::new().await;
    fixture.acquire("k/a", 1, 0).await;
    fixture.acquire("k/a", 2, 1_000).await;
    fixture.increases().await;
    fixture.advance(2, &[1, 2]).await;
    let withdraw = LockAction::Withdraw { request: RequestId(fixture.requests) };
    fixture.lock("k/a", withdraw).await;
    let gave_up = r#"tenure_lock_acquisition_failures_total{reason="gave_up"} +1"#;
    let failed = r#"tenure_lock_acquisitions_total{kind="k",result="failed"} +1"#;
    assert_eq!(fixture.increases().await, [gave_up, failed]);
}

#[tokio::test]
async fn lost_tenures_count_by_reason_and_expired_ones_as_cleaned() {
    let mut fixture = Fixture::new().await;
    let token = fixture.acquire("k/a", 1, 0).await.expect("it is free");
    fixture.acquire("k/b", 1, 0).await;
    fixture.open(3).await;
    fixture.acquire("k/c", 3, 0).await;
    fixture.increases().await;
    let (by, reason) = ("ann".into(), "host is gone".into());
    fixture.lock("k/a", LockAction::Break { token, locks: None, by, reason, end_job: false }).await;
    let broken = r#"tenure_lost_total{reason="broken"} +1"#;
    assert_eq!(fixture.increases().await, [HELD_COUNT, broken]);
    fixture.send(Command::Close { session: SessionId(3), tenant: None }).await;
    assert_eq!(fixture.increases().await, [HELD_COUNT, r#"tenure_lost_total{reason="closed"} +1"#]);
    fixture.advance(11, &[2]).await;
    let held_sum = r#"tenure_lock_held_duration_seconds_sum{kind="k",operation=""} +10"#;
    let expired = r#"tenure_lost_total{reason="expired"} +1"#;
    let cleaned = "tenure_stale_locks_cleaned_total +1";
    assert_eq!(fixture.increases().await, [HELD_COUNT, held_sum, expired, cleaned]);
    // Each late renew is fenced.
    for _ in 0..2 {
        fixture.lock("k/a", LockAction::Renew { token, ttl_ms: None }).await;
    }
    assert_eq!(fixture.increases().await, ["tenure_fenced_writes_total +2"]);
}

#[tokio::test]
async fn an_attempt_counts_its_outcome_and_the_tenure_of_its_operation() {
    let mut fixture = Fixture::new().await;
    fixture.submit("task/a", "work").await;
    assert_eq!(fixture.increases().await, [""; 0]);
    fixture.advance(3, &[1]).await;
    let job = fixture.claim("task").await;
    let granted = r#"tenure_lock_acquisitions_total{kind="task",result="granted"} +1"#;
    let waited = [
        r#"tenure_lock_wait_time_seconds_count{kind="task"} +1"#,
        r#"tenure_lock_wait_time_seconds_sum{kind="task"} +3"#,
    ];
    assert_eq!(fixture.increases().await, [granted, waited[0], waited[1]]);
    fixture.advance(2, &[1]).await;
    for _ in 0..2 {
        fixture.finish(job, Finish::Ok { state: None, result: None }).await;
    }
    let attempt = |outcome: &str, code: &str| {
        format!(
            "tenure_job_attempts_total{{kind=\"task\",operation=\"work\",\
             outcome=\"{outcome}\",code=\"{code}\"}} +1"
        )
    };
    let held = r#"tenure_lock_held_duration_seconds_count{kind="task",operation="work"} +1"#;
    let held_sum = r#"tenure_lock_held_duration_seconds_sum{kind="task",operation="work"} +2"#;
    assert_eq!(fixture.increases().await, [&attempt("ok", ""), held, held_sum]);

    fixture.submit("task/b", "work").await;
    let job = fixture.claim("task").await;
    fixture.increases().await;
    fixture.finish(job, failed("BUSY")).await;
    assert_eq!(fixture.increases().await, [&attempt("failed", "BUSY"), held]);
    fixture.advance(60, &[1]).await;
    let job = fixture.claim("task").await;
    fixture.increases().await;
    // The worker dies: the attempt is lost, the job is dead, and a late finish is fenced.
    fixture.advance(10, &[]).await;
    let increases = fixture.increases().await;
    assert!(increases.contains(&attempt("lost", "WORKER_TIMEOUT")), "{increases:?}");
    assert!(
        increases.contains(&r#"tenure_lost_total{reason="expired"} +1"#.to_owned()),
        "{increases:?}"
    );
    assert_eq!(increases.len(), 5, "{increases:?}");
    fixture.finish(job, Finish::Ok { state: None, result: None }).await;
    assert_eq!(fixture.increases().await, ["tenure_fenced_writes_total +1"]);
}

#[tokio::test]
async fn gauges_are_computed_from_the_store_and_cached() {
    let mut fixture = Fixture::new().await;
    let token = fixture.acquire("k/a", 1, 0).await.expect("it is free");
    fixture.acquire("k/a", 2, 60_000).await;
    fixture.submit("cluster/c", "create").await;
    fixture.claim("cluster").await;
    fixture.submit("task/a", "work").await;
    fixture.submit("task/b", "work").await;
    fixture.advance(15, &[1, 2]).await;
    let seen = fixture.scrape().await;
    let expected = [
        (r#"tenure_active_locks{kind="k"}"#, 1.0),
        (r#"tenure_active_locks{kind="cluster"}"#, 1.0),
        (r#"tenure_active_locks{kind="pipeline"}"#, 0.0),
        (r#"tenure_lock_waiters{kind="k"}"#, 1.0),
        (r#"tenure_stale_locks{kind="k"}"#, 0.0),
        (r#"tenure_jobs{kind="cluster",state="running"}"#, 1.0),
        (r#"tenure_jobs{kind="task",state="queued"}"#, 2.0),
        (r#"tenure_jobs_running_duration_seconds{kind="cluster",operation="create"}"#, 15.0),
        (r#"tenure_lock_age_ratio{kind="cluster"}"#, 0.25),
        (r#"tenure_lock_age_seconds{kind="k"}"#, 15.0),
        (r#"tenure_lock_age_seconds{kind="cluster"}"#, 15.0),
        (r#"tenure_lock_unlimited_age_seconds{kind="k"}"#, 0.0),
        (r#"tenure_lock_unlimited_age_seconds{kind="cluster"}"#, 15.0),
        (r#"tenure_lock_max_age_ratio{kind="k"}"#, 0.25),
        (r#"tenure_lock_max_age_ratio{kind="cluster"}"#, 0.0),
        (r#"tenure_queue_depth{kind="task"}"#, 2.0),
        (r#"tenure_queue_oldest_seconds{kind="task"}"#, 15.0),
        (r#"tenure_dead_letters{kind="task"}"#, 0.0),
        ("tenure_sessions", 2.0),
        ("tenure_store_up", 1.0),
    ];
    for (series, value) in expected {
        assert_eq!(seen.get(series), Some(&value), "{series}");
    }
    assert!(!seen.keys().any(|series| series.contains("tenure_jobs{kind=\"k\"")), "{seen:?}");
    fixture
        .lock(
            "k/a",
            LockAction::Break {
                token,
                locks: None,
                by: "ann".into(),
                reason: "enough".into(),
                end_job: false,
            },
        )
        .await;
    let waiters = |seen: &Series| seen[r#"tenure_lock_waiters{kind="k"}"#];
    assert_eq!(waiters(&fixture.scrape().await), 1.0, "cached");
    while waiters(&fixture.scrape().await) > 0.0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_thousand_names_give_at_most_a_hundred_label_values() {
    let mut fixture = Fixture::new().await;
    for n in 0..1_000 {
        let token = fixture.acquire(&format!("kind{n}/a"), 1, 0).await.expect("it is free");
        if n % 2 == 0 {
            let release = LockAction::Release { token, locks: None, to: None };
            fixture.lock(&format!("kind{n}/a"), release).await;
        }
    }
    for n in 0..100 {
        fixture.submit("pipeline/p", "run").await;
        let job = fixture.claim("pipeline").await;
        fixture.finish(job, failed(&format!("CODE{n}"))).await;
    }
    let seen = fixture.scrape().await;
    let kinds = values(&seen, "kind");
    assert_eq!(kinds.len(), 101, "{kinds:?}");
    assert!(kinds.contains("other") && kinds.contains("task"), "declared names are kept");
    let codes = values(&seen, "code");
    assert_eq!(codes.len(), 47, "fifty without four predefined ones, and `other`: {codes:?}");
    let rest = &seen[r#"tenure_lock_acquisitions_total{kind="other",result="granted"}"#];
    assert!(*rest > 900.0, "{rest}");
    assert!(seen.len() < 6_000, "{} series", seen.len());
}

#[tokio::test]
async fn the_tenant_label_is_optional_and_bounded() {
    for per_tenant in [false, true] {
        let mut fixture = Fixture::new().await;
        fixture.metrics.set_per_tenant(per_tenant);
        for n in 0..150 {
            let acquire = Acquire {
                locks: LockName::main().into(),
                claimant: Claimant::Solo { name: "s".into(), ttl_ms: 10_000 },
                request: RequestId(1_000 + n),
                wait_ms: 0,
                purpose: None,
                max_age_ms: None,
                tenant: None,
            };
            let key = format!("tenant{n}/k/a").parse().expect("a valid name");
            fixture.send(Command::Lock { key, action: LockAction::Acquire(acquire) }).await;
        }
        fixture.submit("task/a", "work").await;
        let seen = fixture.scrape().await;
        let tenants = values(&seen, "tenant");
        assert_eq!(tenants.len(), if per_tenant { 101 } else { 0 }, "{tenants:?}");
        let sum = |name: &str| {
            let of = seen.iter().filter(|(series, _)| series::name(series) == name);
            of.map(|(_, value)| value).sum::<f64>()
        };
        assert_eq!((sum("tenure_active_locks"), sum("tenure_queue_depth")), (150.0, 1.0));
    }
}

#[tokio::test]
async fn batches_and_sweeps_are_measured() {
    let fixture = Fixture::new().await;
    let before = fixture.scrape().await;
    let open = |session| {
        let (tenant, name) = ("t".into(), "s".into());
        Command::Open { session: SessionId(session), tenant, name, ttl_ms: 10_000 }
    };
    fixture.store.apply(vec![open(11), open(12), open(13)]).await.expect("in memory");
    fixture.store.sweep().await.expect("in memory");
    let after = fixture.scrape().await;
    let increases = increases(&before, &after);
    for expected in [
        "tenure_store_batch_commands_sum +3",
        "tenure_store_batch_commands_count +1",
        "tenure_store_batch_seconds_count +1",
        "tenure_store_sweep_seconds_count +1",
    ] {
        assert!(increases.contains(&expected.to_owned()), "{increases:?}");
    }
    let no_errors =
        before.keys().filter(|series| series.contains("errors")).all(|s| after[s] == 0.0);
    assert!(no_errors, "{after:?}");
}
