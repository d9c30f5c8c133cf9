//! Cases about facts and the census.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::job::AttemptOutcome;
use tenure_core::metric_event::GAVE_UP;
use tenure_core::record::EndKind;
use tenure_core::{
    Acquire, Command, Finish, JobAction, JobId, JobState, Kind, Kinds, LockAction, MetricEvent,
    Outcome, RequestId, SessionId, Token,
};

use super::jobs::{claim, claimed, key as key_of, prepare, submit};
use super::{Harness, acquire, apply_one, key, open, release};
use crate::census::{CENSUS_PAGE_MAX, Census, Group};
use crate::observer::Observer;
use crate::store::{StoreError, Swept};

/// Observer that records facts.
#[derive(Default)]
struct FactRecorder(Mutex<Vec<MetricEvent>>);

impl FactRecorder {
    fn take(&self) -> Vec<MetricEvent> {
        std::mem::take(&mut self.0.lock().expect("no panic while locked"))
    }
}

impl Observer for FactRecorder {
    fn on_facts(&self, facts: &[MetricEvent]) {
        self.0.lock().expect("no panic while locked").extend_from_slice(facts);
    }
    fn on_apply(&self, _: usize, _: Duration) {}
    fn on_sweep(&self, _: &Swept, _: Duration) {}
    fn on_failure(&self, _: &'static str, _: &StoreError) {}
}

fn granted(name: &str, waited_ms: u64) -> MetricEvent {
    MetricEvent::Granted { key: key(name), waited_ms }
}

fn failed(name: &str, reason: &'static str) -> MetricEvent {
    MetricEvent::AcquireFailed { key: key(name), reason }
}

fn ended(name: &str, held_ms: u64, how: EndKind) -> MetricEvent {
    MetricEvent::TenureEnded { key: key(name), operation: None, held_ms, how }
}

fn fail(id: JobId, token: Token, code: &str) -> Command {
    let (code, message) = (code.into(), "no".into());
    let finish = Finish::Failed { code, message, class: None, state: None, delay_ms: None };
    Command::Job { id, action: JobAction::Finish { token, finish, update: None } }
}

/// Advances the clock in steps and sweeps after each.
async fn advance(harness: &impl Harness, ms: u64) {
    for _ in 0..ms / 500 {
        harness.clock().advance(500);
        harness.store().sweep().await.expect("the store is available");
    }
}

/// Every grant, end, failure and fenced write is reported once, with its duration; repetitions and
/// reads are not.
pub async fn every_fact_is_reported_once(harness: &mut impl Harness) {
    let store = harness.store();
    let recorder = Arc::new(FactRecorder::default());
    let observer: Arc<dyn Observer> = Arc::clone(&recorder) as _;
    store.observe(&observer);
    apply_one(&*store, open(1, "A")).await;
    apply_one(&*store, open(2, "B")).await;
    assert_eq!(recorder.take(), []);
    for _ in 0..2 {
        apply_one(&*store, acquire("c1", 1, 11, 0)).await;
    }
    assert_eq!(recorder.take(), [granted("c1", 0)]);
    apply_one(&*store, acquire("c1", 2, 12, 0)).await;
    for _ in 0..2 {
        apply_one(&*store, acquire("c1", 2, 13, 60_000)).await;
    }
    apply_one(&*store, acquire("c1", 2, 14, 1_000)).await;
    assert_eq!(recorder.take(), [failed("c1", "held")]);
    harness.clock().advance(1_000);
    store.sweep().await.expect("the store is available");
    assert_eq!(recorder.take(), [failed("c1", GAVE_UP)]);
    apply_one(&*store, acquire("c1", 2, 15, 60_000)).await;
    for _ in 0..2 {
        let action = LockAction::Withdraw { request: RequestId(15) };
        apply_one(&*store, Command::Lock { key: key("c1"), action }).await;
    }
    assert_eq!(recorder.take(), [failed("c1", GAVE_UP)]);
    harness.clock().advance(500);
    for _ in 0..2 {
        apply_one(&*store, release("c1", 1)).await;
    }
    assert_eq!(recorder.take(), [ended("c1", 1_500, EndKind::Released), granted("c1", 1_500)]);
    for _ in 0..2 {
        let action = LockAction::Renew { token: Token(1), ttl_ms: None };
        apply_one(&*store, Command::Lock { key: key("c1"), action }).await;
    }
    assert_eq!(recorder.take(), [MetricEvent::Fenced, MetricEvent::Fenced]);
    // Both sessions expire: one holds the lock, the other waits for it.
    apply_one(&*store, acquire("c1", 1, 16, 60_000)).await;
    advance(harness, 8_500).await;
    let expired = ended("c1", 8_500, EndKind::Expired);
    assert_eq!(recorder.take(), [expired, failed("c1", "session_over")]);
    drop(observer);
    apply_one(&*store, open(3, "C")).await;
    apply_one(&*store, acquire("c1", 3, 17, 0)).await;
    assert_eq!(
        recorder.take(),
        [granted("c1", 0)],
        "an observer is called while a reference exists"
    );
}

fn group<'a>(census: &'a Census, kind: &str) -> &'a Group {
    let found = census.groups().find(|(tenant, name, _)| *tenant == "t" && *name == kind);
    found.expect("the kind has rows").2
}

/// Held and stale locks, waiters, and queued, running and dead jobs are counted with their ages.
pub async fn a_census_counts_locks_waiters_and_jobs(harness: &mut impl Harness) {
    let store = harness.store();
    let recorder = Arc::new(FactRecorder::default());
    let observer: Arc<dyn Observer> = Arc::clone(&recorder) as _;
    store.observe(&observer);
    prepare(&*store).await;
    let census = async || store.reads().census().await.expect("the store is available");
    assert_eq!(census().await.groups().count(), 0);
    apply_one(&*store, open(2, "B")).await;
    apply_one(&*store, acquire("c1", 1, 11, 0)).await;
    apply_one(&*store, acquire("c2", 1, 12, 0)).await;
    apply_one(&*store, acquire("c1", 2, 13, 60_000)).await;
    let expected = Group { locks: 2, waiters: 1, ..Group::default() };
    assert_eq!(*group(&census().await, "cluster"), expected);

    recorder.take();
    let (first, second) = (key_of("task", "t1"), key_of("task", "t2"));
    apply_one(&*store, submit(&first, "work", 21)).await;
    harness.clock().advance(300);
    apply_one(&*store, submit(&second, "work", 22)).await;
    harness.clock().advance(100);
    let seen = census().await;
    let task = group(&seen, "task");
    assert_eq!((task.queued(), task.queue_oldest_ms, task.locks), (2, 400, 0));
    let (id, token) = claimed(&*store, claim("task", 31, 1)).await[0];
    harness.clock().advance(200);
    let seen = census().await;
    let task = group(&seen, "task");
    assert_eq!((task.queued(), task.queue_oldest_ms, task.locks), (1, 300, 1));
    assert_eq!((task.jobs(JobState::Running), task.running_ms["work"]), (1, 200));

    let state = fail_all(harness, id, token).await;
    assert_eq!(state, JobState::Dead);
    harness.clock().advance(700);
    let seen = census().await;
    let task = group(&seen, "task");
    assert_eq!((task.jobs(JobState::Dead), task.dead_oldest_ms), (1, 700));
    let tried = |fact: &MetricEvent| {
        let MetricEvent::AttemptEnded { key, operation, outcome, code } = fact else {
            return false;
        };
        (key, &**operation, *outcome) == (&first, "work", AttemptOutcome::Failed)
            && code.as_deref() == Some("BUSY")
    };
    let attempts = recorder.take().iter().filter(|fact| tried(fact)).count();
    let view = store.reads().job(id).await.expect("the store is available").expect("a job");
    assert_eq!(attempts, usize::try_from(view.job.attempt).expect("a small number"));
    let discard = JobAction::Discard { by: "ann".into(), reason: "enough".into() };
    apply_one(&*store, Command::Job { id, action: discard }).await;
    let seen = census().await;
    assert!(seen.groups().all(|(_, _, group)| group.jobs(JobState::Dead) == 0));

    // Its time limit is a minute.
    apply_one(&*store, submit(&key_of("cluster", "c9"), "create", 41)).await;
    claimed(&*store, claim("cluster", 51, 1)).await;
    assert_eq!(group(&census().await, "cluster").age_ratio, Some(0.0));
    harness.clock().advance(1_500);
    assert_eq!(group(&census().await, "cluster").age_ratio, Some(0.025));
    // A claim is no heartbeat: its session has expired but was not swept.
    harness.clock().advance(10_000);
    let seen = census().await;
    let cluster = group(&seen, "cluster");
    assert_eq!((cluster.stale, cluster.locks), (cluster.locks, 3));
}

/// A submit that attaches to another job is reported, a repetition is not; and a resource can
/// override the time limit of its kind.
pub async fn attaching_is_reported_and_a_resource_can_override_limits(harness: &mut impl Harness) {
    let store = harness.store();
    let recorder = Arc::new(FactRecorder::default());
    let observer: Arc<dyn Observer> = Arc::clone(&recorder) as _;
    store.observe(&observer);
    prepare(&*store).await;
    let patient = key_of("pipeline", "patient");
    apply_one(&*store, submit(&patient, "run", 61)).await;
    recorder.take();
    for _ in 0..2 {
        apply_one(&*store, submit(&patient, "run", 62)).await;
    }
    assert_eq!(recorder.take(), [MetricEvent::Attached { key: patient }]);
    claimed(&*store, claim("pipeline", 71, 1)).await;
    harness.clock().advance(600);
    let census = store.reads().census().await.expect("the store is available");
    assert_eq!(group(&census, "pipeline").age_ratio, Some(0.01), "of a minute");
}

/// A census below, at and above the page size counts every row once.
pub async fn a_census_of_several_pages_is_complete(harness: &mut impl Harness) {
    let store = harness.store();
    apply_one(&*store, open(1, "A")).await;
    let mut held = 0;
    for more in [CENSUS_PAGE_MAX - 1, 1, 1] {
        let batch = (held..held + more).map(|n| acquire(&format!("c{n}"), 1, 100 + n as u128, 0));
        store.apply(batch.collect()).await.expect("the store is available");
        held += more;
        let census = store.reads().census().await.expect("the store is available");
        assert_eq!(*group(&census, "cluster"), Group { locks: held, ..Group::default() });
    }
}

/// The age of the oldest lock, and the highest share of a maximum age: that of the acquire, else
/// that of the kind.
pub async fn the_age_of_every_held_lock_is_measured(harness: &mut impl Harness) {
    let store = harness.store();
    apply_one(&*store, open(1, "A")).await;
    apply_one(&*store, acquire("c1", 1, 11, 0)).await;
    harness.clock().advance(400);
    let ages = |census: &Census| {
        let group = group(census, "cluster");
        let ages = (group.lock_oldest_ms, group.lock_unlimited_oldest_ms);
        (group.locks, ages, group.lock_max_age_ratio)
    };
    let census = async || store.reads().census().await.expect("the store is available");
    assert_eq!(ages(&census().await), (1, (400, 400), None));
    apply_one(&*store, acquire_with_max_age("c2", 12, 0, 1_000)).await;
    harness.clock().advance(500);
    assert_eq!(ages(&census().await), (2, (900, 900), Some(0.5)));
    // The kind's is for locks without their own.
    store.declare(kinds_with_max_age(1_800)).await.expect("the store is available");
    assert_eq!(ages(&census().await), (2, (900, 0), Some(0.5)));
    harness.clock().advance(1_800);
    assert_eq!(ages(&census().await), (2, (2_700, 0), Some(2.3)));
    apply_one(&*store, release("c2", 1)).await;
    assert_eq!(ages(&census().await), (1, (2_700, 0), Some(1.5)));
    let shown = store.reads().show(&key("c1")).await.expect("the store is available");
    assert_eq!(shown.expect("a record").tenures[0].max_age_ms, Some(1_800));
}

/// The maximum age of a tenure, and of one that waits, is kept across restarts.
pub async fn maximum_ages_of_locks_survive_a_restart(harness: &mut impl Harness) {
    let store = harness.store();
    apply_one(&*store, open(1, "A")).await;
    apply_one(&*store, acquire_with_max_age("c1", 11, 0, 1_000)).await;
    apply_one(&*store, acquire_with_max_age("c1", 12, 60_000, 2_000)).await;
    drop(store);
    for (request, token, max_age_ms) in [(11, 1, 1_000), (12, 2, 2_000)] {
        harness.restart().await;
        let store = harness.store();
        let shown = store.reads().show(&key("c1")).await.expect("the store is available");
        assert_eq!(shown.expect("a record").tenures[0].max_age_ms, Some(max_age_ms));
        let repeated =
            apply_one(&*store, acquire_with_max_age("c1", request, 60_000, max_age_ms)).await;
        assert!(matches!(repeated, Outcome::Granted(_)), "{repeated:?}");
        apply_one(&*store, release("c1", token)).await;
    }
}

fn acquire_with_max_age(name: &str, request: u128, wait_ms: u64, max_age_ms: u64) -> Command {
    let Command::Lock { key, action: LockAction::Acquire(acquire) } =
        acquire(name, 1, request, wait_ms)
    else {
        unreachable!("acquire builds a lock command")
    };
    let acquire = Acquire { max_age_ms: Some(max_age_ms), ..acquire };
    Command::Lock { key, action: LockAction::Acquire(acquire) }
}

fn kinds_with_max_age(ms: u64) -> Arc<Kinds> {
    let kind = Kind { lock_max_age_ms: Some(ms), ..Kind::new("cluster") };
    Arc::new(Kinds::new([kind]).expect("a valid kind"))
}

/// Fails every attempt until the job is finished. Returns its final state.
async fn fail_all(harness: &impl Harness, id: JobId, token: Token) -> JobState {
    let store = harness.store();
    apply_one(&*store, fail(id, token, "BUSY")).await;
    for n in 0..20 {
        let view = store.reads().job(id).await.expect("the store is available").expect("a job");
        if view.job.state.is_finished() {
            return view.job.state;
        }
        for session in [1, 2] {
            apply_one(
                &*store,
                Command::Heartbeat { session: SessionId(session), seen: 0, tenant: None },
            )
            .await;
        }
        advance(harness, 5_000).await;
        for (job, token) in claimed(&*store, claim("task", 100 + n, 1)).await {
            if job == id {
                apply_one(&*store, fail(id, token, "BUSY")).await;
            }
        }
    }
    panic!("the job is still retried")
}
