//! What happens moves exactly the series that it should, and no label grows without a bound.

#[path = "common/series.rs"]
mod series;

use std::sync::Arc;

use tenure_app::LiveConfig;
use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, JobId, LockAction, LockName, Outcome,
    RequestId, ResourceAction, ResourceKey, SessionId, Submit, Token,
};
use tenure_server::janitor::Board;
use tenure_server::metrics::Metrics;
use tenure_store::clock::ManualClock;
use tenure_store::metered::Metered;
use tenure_store::observer::Observer;
use tenure_store::{Memory, Store, scenario};

use series::{Series, name, parse, risen, values};

/// A store on a clock of its own that is measured, with a holder and a worker.
struct World {
    clock: ManualClock,
    store: Metered,
    metrics: Arc<Metrics>,
    seen: Series,
    requests: u128,
}

impl World {
    async fn new() -> Self {
        let clock = ManualClock::default();
        let memory = Arc::new(Memory::with_clock(clock.clone()));
        let metrics = Arc::new(Metrics::new(&tenure_cli::apps::installed()));
        metrics.reload(&LiveConfig { kinds: scenario::kinds(), ..LiveConfig::default() });
        let store = Metered::new(memory, Arc::clone(&metrics) as Arc<dyn Observer>);
        store.declare(scenario::kinds()).await.expect("memory answers");
        let world = Self { clock, store, metrics, seen: Series::new(), requests: 0 };
        for session in [1, 2] {
            world.open(session).await;
        }
        world
    }

    async fn open(&self, session: u128) {
        let (tenant, name) = ("t".into(), format!("s{session}").into());
        let session = SessionId(session);
        self.send(Command::Open { session, tenant, name, ttl_ms: 10_000 }).await;
    }

    async fn send(&self, command: Command) -> Outcome {
        self.store.apply(vec![command]).await.expect("memory answers").remove(0)
    }

    async fn scrape(&self) -> Series {
        let text = self.metrics.scrape(&self.store, &Board::new(&[]), &scenario::kinds()).await;
        parse(&text)
    }

    /// What has happened so far, without what is about the store itself.
    async fn counted(&self) -> Series {
        let counts = |series: &str| {
            let name = name(series);
            let ends = ["_total", "_count", "_sum"].iter().any(|end| name.ends_with(end));
            ends && !name.starts_with("tenure_store") && !name.starts_with("tenure_janitor")
        };
        self.scrape().await.into_iter().filter(|(series, _)| counts(series)).collect()
    }

    /// What rose since the last time.
    async fn rise(&mut self) -> Vec<String> {
        let now = self.counted().await;
        risen(&std::mem::replace(&mut self.seen, now.clone()), &now)
    }

    async fn acquire(&mut self, path: &str, session: u128, wait_ms: u64) -> Option<Token> {
        self.requests += 1;
        let acquire = Acquire {
            locks: LockName::main().into(),
            claimant: Claimant::Session(SessionId(session)),
            request: RequestId(self.requests),
            wait_ms,
            purpose: None,
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
        };
        let action = ResourceAction::Submit(submit);
        self.send(Command::Resource { key: key(path), action }).await;
    }

    async fn claim(&mut self, kind: &str) -> (JobId, Token) {
        self.requests += 1;
        let (session, request) = (SessionId(1), RequestId(self.requests));
        let claim = Claim { session, request, kinds: vec![kind.into()], max: 1 };
        match self.send(Command::Claim(claim)).await {
            Outcome::Claimed(jobs) => (jobs[0].job.id, jobs[0].tenure.token),
            other => panic!("{other:?} answers no claim"),
        }
    }

    async fn finish(&self, (id, token): (JobId, Token), finish: Finish) -> Outcome {
        self.send(Command::Job { id, action: JobAction::Finish { token, finish } }).await
    }

    /// Lets time pass as a running server does; these sessions live on.
    async fn pass(&self, seconds: u64, alive: &[u128]) {
        for _ in 0..seconds {
            self.clock.advance(1_000);
            for session in alive {
                self.send(Command::Heartbeat { session: SessionId(*session), seen: 0 }).await;
            }
            self.store.sweep().await.expect("memory answers");
        }
    }
}

fn key(path: &str) -> ResourceKey {
    format!("t/{path}").parse().expect("a good name")
}

fn failed(code: &str) -> Finish {
    let (code, message) = (code.into(), "no".into());
    Finish::Failed { code, message, class: None, state: None }
}

const GRANTED: &str = r#"tenure_lock_acquisitions_total{kind="k",result="granted"} +1"#;
const WAITED_COUNT: &str = r#"tenure_lock_wait_time_seconds_count{kind="k"} +1"#;
const HELD_COUNT: &str = r#"tenure_lock_held_duration_seconds_count{kind="k",operation=""} +1"#;

#[tokio::test]
async fn a_lock_moves_what_is_about_its_grant_and_its_end() {
    let mut world = World::new().await;
    let token = world.acquire("k/a", 1, 0).await.expect("it is free");
    assert_eq!(world.rise().await, [GRANTED, WAITED_COUNT]);
    world.acquire("k/a", 2, 0).await;
    let lost = r#"tenure_lock_acquisitions_total{kind="k",result="failed"} +1"#;
    let held = r#"tenure_lock_acquisition_failures_total{reason="held"} +1"#;
    assert_eq!(world.rise().await, [held, lost]);
    // Waiting is neither, until it is over.
    world.acquire("k/a", 2, 60_000).await;
    assert_eq!(world.rise().await, [""; 0]);
    world.pass(2, &[1, 2]).await;
    world.lock("k/a", LockAction::Release { token, locks: None }).await;
    let held_sum = r#"tenure_lock_held_duration_seconds_sum{kind="k",operation=""} +2"#;
    let waited_sum = r#"tenure_lock_wait_time_seconds_sum{kind="k"} +2"#;
    let both = [GRANTED, HELD_COUNT, held_sum, WAITED_COUNT, waited_sum];
    assert_eq!(world.rise().await, both);
    // Who asks for the same once more changes nothing.
    world.lock("k/a", LockAction::Release { token, locks: None }).await;
    assert_eq!(world.rise().await, [""; 0]);
}

#[tokio::test]
async fn who_waits_in_vain_has_failed_once() {
    let mut world = World::new().await;
    world.acquire("k/a", 1, 0).await;
    world.acquire("k/a", 2, 1_000).await;
    world.rise().await;
    world.pass(2, &[1, 2]).await;
    let withdraw = LockAction::Withdraw { request: RequestId(world.requests) };
    world.lock("k/a", withdraw).await;
    let gave_up = r#"tenure_lock_acquisition_failures_total{reason="gave_up"} +1"#;
    let failed = r#"tenure_lock_acquisitions_total{kind="k",result="failed"} +1"#;
    assert_eq!(world.rise().await, [gave_up, failed]);
}

#[tokio::test]
async fn what_is_lost_says_how_and_only_the_lapsed_are_cleaned() {
    let mut world = World::new().await;
    let token = world.acquire("k/a", 1, 0).await.expect("it is free");
    world.acquire("k/b", 1, 0).await;
    world.open(3).await;
    world.acquire("k/c", 3, 0).await;
    world.rise().await;
    let (by, reason) = ("ann".into(), "host is gone".into());
    world.lock("k/a", LockAction::Break { token, locks: None, by, reason, end_job: false }).await;
    let broken = r#"tenure_lost_total{reason="broken"} +1"#;
    assert_eq!(world.rise().await, [HELD_COUNT, broken]);
    world.send(Command::Close { session: SessionId(3) }).await;
    assert_eq!(world.rise().await, [HELD_COUNT, r#"tenure_lost_total{reason="closed"} +1"#]);
    world.pass(11, &[2]).await;
    let held_sum = r#"tenure_lock_held_duration_seconds_sum{kind="k",operation=""} +10"#;
    let expired = r#"tenure_lost_total{reason="expired"} +1"#;
    let cleaned = "tenure_stale_locks_cleaned_total +1";
    assert_eq!(world.rise().await, [HELD_COUNT, held_sum, expired, cleaned]);
    // The late holder is refused, each time.
    for _ in 0..2 {
        world.lock("k/a", LockAction::Renew { token, ttl_ms: None }).await;
    }
    assert_eq!(world.rise().await, ["tenure_fenced_writes_total +2"]);
}

#[tokio::test]
async fn an_attempt_moves_its_outcome_and_the_tenure_of_its_operation() {
    let mut world = World::new().await;
    world.submit("task/a", "work").await;
    assert_eq!(world.rise().await, [""; 0]);
    world.pass(3, &[1]).await;
    let job = world.claim("task").await;
    let granted = r#"tenure_lock_acquisitions_total{kind="task",result="granted"} +1"#;
    let waited = [
        r#"tenure_lock_wait_time_seconds_count{kind="task"} +1"#,
        r#"tenure_lock_wait_time_seconds_sum{kind="task"} +3"#,
    ];
    assert_eq!(world.rise().await, [granted, waited[0], waited[1]]);
    world.pass(2, &[1]).await;
    for _ in 0..2 {
        world.finish(job, Finish::Ok { state: None, result: None }).await;
    }
    let attempt = |outcome: &str, code: &str| {
        format!(
            "tenure_job_attempts_total{{kind=\"task\",operation=\"work\",\
             outcome=\"{outcome}\",code=\"{code}\"}} +1"
        )
    };
    let held = r#"tenure_lock_held_duration_seconds_count{kind="task",operation="work"} +1"#;
    let held_sum = r#"tenure_lock_held_duration_seconds_sum{kind="task",operation="work"} +2"#;
    assert_eq!(world.rise().await, [&attempt("ok", ""), held, held_sum]);

    world.submit("task/b", "work").await;
    let job = world.claim("task").await;
    world.rise().await;
    world.finish(job, failed("BUSY")).await;
    assert_eq!(world.rise().await, [&attempt("failed", "BUSY"), held]);
    world.pass(60, &[1]).await;
    let job = world.claim("task").await;
    world.rise().await;
    // Its worker dies: the attempt is lost and the job is dead; a late finish is fenced.
    world.pass(10, &[]).await;
    let rise = world.rise().await;
    assert!(rise.contains(&attempt("lost", "WORKER_TIMEOUT")), "{rise:?}");
    assert!(rise.contains(&r#"tenure_lost_total{reason="expired"} +1"#.to_owned()), "{rise:?}");
    assert_eq!(rise.len(), 5, "{rise:?}");
    world.finish(job, Finish::Ok { state: None, result: None }).await;
    assert_eq!(world.rise().await, ["tenure_fenced_writes_total +1"]);
}

#[tokio::test]
async fn what_there_is_is_counted_from_rows_and_a_look_is_shared_for_a_moment() {
    let mut world = World::new().await;
    let token = world.acquire("k/a", 1, 0).await.expect("it is free");
    world.acquire("k/a", 2, 60_000).await;
    world.submit("cluster/c", "create").await;
    world.claim("cluster").await;
    world.submit("task/a", "work").await;
    world.submit("task/b", "work").await;
    world.pass(15, &[1, 2]).await;
    let seen = world.scrape().await;
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
    world
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
    assert_eq!(waiters(&world.scrape().await), 1.0, "the look of a moment ago is good enough");
    while waiters(&world.scrape().await) > 0.0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_thousand_invented_names_make_a_hundred_series() {
    let mut world = World::new().await;
    for n in 0..1_000 {
        let token = world.acquire(&format!("kind{n}/a"), 1, 0).await.expect("it is free");
        if n % 2 == 0 {
            let release = LockAction::Release { token, locks: None };
            world.lock(&format!("kind{n}/a"), release).await;
        }
    }
    for n in 0..100 {
        world.submit("pipeline/p", "run").await;
        let job = world.claim("pipeline").await;
        world.finish(job, failed(&format!("CODE{n}"))).await;
    }
    let seen = world.scrape().await;
    let kinds = values(&seen, "kind");
    assert_eq!(kinds.len(), 101, "{kinds:?}");
    assert!(kinds.contains("other") && kinds.contains("task"), "what is declared has its name");
    let codes = values(&seen, "code");
    assert_eq!(codes.len(), 47, "fifty but for four of our own, and the others: {codes:?}");
    let rest = &seen[r#"tenure_lock_acquisitions_total{kind="other",result="granted"}"#];
    assert!(*rest > 900.0, "{rest}");
    assert!(seen.len() < 6_000, "{} series", seen.len());
}

#[tokio::test]
async fn tenants_are_told_apart_only_when_that_is_wanted_and_only_so_many() {
    for wanted in [false, true] {
        let mut world = World::new().await;
        world.metrics.per_tenant(wanted);
        for n in 0..150 {
            let acquire = Acquire {
                locks: LockName::main().into(),
                claimant: Claimant::Solo { name: "s".into(), ttl_ms: 10_000 },
                request: RequestId(1_000 + n),
                wait_ms: 0,
                purpose: None,
            };
            let key = format!("tenant{n}/k/a").parse().expect("a good name");
            world.send(Command::Lock { key, action: LockAction::Acquire(acquire) }).await;
        }
        world.submit("task/a", "work").await;
        let seen = world.scrape().await;
        let tenants = values(&seen, "tenant");
        assert_eq!(tenants.len(), if wanted { 101 } else { 0 }, "{tenants:?}");
        let sum = |name: &str| {
            let of = seen.iter().filter(|(series, _)| series::name(series) == name);
            of.map(|(_, value)| value).sum::<f64>()
        };
        assert_eq!((sum("tenure_active_locks"), sum("tenure_queue_depth")), (150.0, 1.0));
    }
}

#[tokio::test]
async fn batches_and_sweeps_are_measured() {
    let world = World::new().await;
    let before = world.scrape().await;
    let open = |session| {
        let (tenant, name) = ("t".into(), "s".into());
        Command::Open { session: SessionId(session), tenant, name, ttl_ms: 10_000 }
    };
    world.store.apply(vec![open(11), open(12), open(13)]).await.expect("memory answers");
    world.store.sweep().await.expect("memory answers");
    let after = world.scrape().await;
    let risen = risen(&before, &after);
    for expected in [
        "tenure_store_batch_commands_sum +3",
        "tenure_store_batch_commands_count +1",
        "tenure_store_batch_seconds_count +1",
        "tenure_store_sweep_seconds_count +1",
    ] {
        assert!(risen.contains(&expected.to_owned()), "{risen:?}");
    }
    let refused = before.keys().filter(|series| series.contains("errors")).all(|s| after[s] == 0.0);
    assert!(refused, "{after:?}");
}
