//! Cases about what is counted: facts are told once, and the census counts rows.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::job::AttemptOutcome;
use tenure_core::metric_event::GAVE_UP;
use tenure_core::record::EndKind;
use tenure_core::{
    Command, Finish, JobAction, JobId, JobState, LockAction, MetricEvent, RequestId, SessionId,
    Token,
};

use super::jobs::{claim, claimed, key as key_of, prepare, submit};
use super::{Harness, acquire, key, one, open, release};
use crate::census::{Census, Group, PART_MAX};
use crate::observer::Observer;
use crate::store::{StoreError, Swept};

/// Notes what it is told.
#[derive(Default)]
struct Notebook(Mutex<Vec<MetricEvent>>);

impl Notebook {
    fn take(&self) -> Vec<MetricEvent> {
        std::mem::take(&mut self.0.lock().expect("nothing panics while it is locked"))
    }
}

impl Observer for Notebook {
    fn happened(&self, facts: &[MetricEvent]) {
        self.0.lock().expect("nothing panics while it is locked").extend_from_slice(facts);
    }
    fn applied(&self, _: usize, _: Duration) {}
    fn swept(&self, _: &Swept, _: Duration) {}
    fn failed(&self, _: &'static str, _: &StoreError) {}
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

fn failing(id: JobId, token: Token, code: &str) -> Command {
    let (code, message) = (code.into(), "no".into());
    let finish = Finish::Failed { code, message, class: None, state: None };
    Command::Job { id, action: JobAction::Finish { token, finish } }
}

/// Lets time pass as a running store does.
async fn pass(harness: &impl Harness, ms: u64) {
    for _ in 0..ms / 500 {
        harness.clock().advance(500);
        harness.store().sweep().await.expect("the store is there");
    }
}

/// Every grant, end, failure and fenced write is told once, with how long it took; repetitions and
/// questions are not.
pub async fn what_happened_is_told_once(harness: &mut impl Harness) {
    let store = harness.store();
    let notes = Arc::new(Notebook::default());
    let observer: Arc<dyn Observer> = Arc::clone(&notes) as _;
    store.observe(&observer);
    one(&*store, open(1, "A")).await;
    one(&*store, open(2, "B")).await;
    assert_eq!(notes.take(), []);
    for _ in 0..2 {
        one(&*store, acquire("c1", 1, 11, 0)).await;
    }
    assert_eq!(notes.take(), [granted("c1", 0)]);
    one(&*store, acquire("c1", 2, 12, 0)).await;
    for _ in 0..2 {
        one(&*store, acquire("c1", 2, 13, 60_000)).await;
    }
    one(&*store, acquire("c1", 2, 14, 1_000)).await;
    assert_eq!(notes.take(), [failed("c1", "held")]);
    harness.clock().advance(1_000);
    store.sweep().await.expect("the store is there");
    assert_eq!(notes.take(), [failed("c1", GAVE_UP)]);
    one(&*store, acquire("c1", 2, 15, 60_000)).await;
    for _ in 0..2 {
        let action = LockAction::Withdraw { request: RequestId(15) };
        one(&*store, Command::Lock { key: key("c1"), action }).await;
    }
    assert_eq!(notes.take(), [failed("c1", GAVE_UP)]);
    harness.clock().advance(500);
    for _ in 0..2 {
        one(&*store, release("c1", 1)).await;
    }
    assert_eq!(notes.take(), [ended("c1", 1_500, EndKind::Released), granted("c1", 1_500)]);
    for _ in 0..2 {
        let action = LockAction::Renew { token: Token(1), ttl_ms: None };
        one(&*store, Command::Lock { key: key("c1"), action }).await;
    }
    assert_eq!(notes.take(), [MetricEvent::Fenced, MetricEvent::Fenced]);
    // Both sessions lapse: one held the lock, the other waited for it.
    one(&*store, acquire("c1", 1, 16, 60_000)).await;
    pass(harness, 8_500).await;
    let expired = ended("c1", 8_500, EndKind::Expired);
    assert_eq!(notes.take(), [expired, failed("c1", "session_over")]);
    drop(observer);
    one(&*store, open(3, "C")).await;
    one(&*store, acquire("c1", 3, 17, 0)).await;
    assert_eq!(notes.take(), [granted("c1", 0)], "it is told for as long as somebody keeps it");
}

fn of<'a>(census: &'a Census, kind: &str) -> &'a Group {
    let found = census.groups().find(|(tenant, of, _)| *tenant == "t" && *of == kind);
    found.expect("there is something of it").2
}

/// Held, stale, awaited, queued, running, dead: each is counted, with the age of the oldest.
pub async fn a_census_counts_what_there_is(harness: &mut impl Harness) {
    let store = harness.store();
    let notes = Arc::new(Notebook::default());
    let observer: Arc<dyn Observer> = Arc::clone(&notes) as _;
    store.observe(&observer);
    prepare(&*store).await;
    let census = async || store.reads().census().await.expect("the store is there");
    assert_eq!(census().await.groups().count(), 0);
    one(&*store, open(2, "B")).await;
    one(&*store, acquire("c1", 1, 11, 0)).await;
    one(&*store, acquire("c2", 1, 12, 0)).await;
    one(&*store, acquire("c1", 2, 13, 60_000)).await;
    let expected = Group { locks: 2, waiters: 1, ..Group::default() };
    assert_eq!(*of(&census().await, "cluster"), expected);

    notes.take();
    let (first, second) = (key_of("task", "t1"), key_of("task", "t2"));
    one(&*store, submit(&first, "work", 21)).await;
    harness.clock().advance(300);
    one(&*store, submit(&second, "work", 22)).await;
    harness.clock().advance(100);
    let seen = census().await;
    let task = of(&seen, "task");
    assert_eq!((task.queued(), task.queue_oldest_ms, task.locks), (2, 400, 0));
    let (id, token) = claimed(&*store, claim("task", 31, 1)).await[0];
    harness.clock().advance(200);
    let seen = census().await;
    let task = of(&seen, "task");
    assert_eq!((task.queued(), task.queue_oldest_ms, task.locks), (1, 300, 1));
    assert_eq!((task.jobs(JobState::Running), task.running_ms["work"]), (1, 200));

    let state = fail_all(harness, id, token).await;
    assert_eq!(state, JobState::Dead);
    harness.clock().advance(700);
    let seen = census().await;
    let task = of(&seen, "task");
    assert_eq!((task.jobs(JobState::Dead), task.dead_oldest_ms), (1, 700));
    let tried = |fact: &MetricEvent| {
        let MetricEvent::AttemptEnded { key, operation, outcome, code } = fact else {
            return false;
        };
        (key, &**operation, *outcome) == (&first, "work", AttemptOutcome::Failed)
            && code.as_deref() == Some("BUSY")
    };
    let attempts = notes.take().iter().filter(|fact| tried(fact)).count();
    let shown = store.reads().job(id).await.expect("the store is there").expect("it is kept");
    assert_eq!(attempts, usize::try_from(shown.job.attempt).expect("a few"));
    let discard = JobAction::Discard { by: "ann".into(), reason: "enough".into() };
    one(&*store, Command::Job { id, action: discard }).await;
    let left = census().await;
    assert!(left.groups().all(|(_, _, group)| group.jobs(JobState::Dead) == 0));

    // The limit of this one is a minute.
    one(&*store, submit(&key_of("cluster", "c9"), "create", 41)).await;
    claimed(&*store, claim("cluster", 51, 1)).await;
    assert_eq!(of(&census().await, "cluster").age_ratio, Some(0.0));
    harness.clock().advance(1_500);
    assert_eq!(of(&census().await, "cluster").age_ratio, Some(0.025));
    // The claim was no heartbeat: its session is over, and nobody has swept.
    harness.clock().advance(10_000);
    let seen = census().await;
    let cluster = of(&seen, "cluster");
    assert_eq!((cluster.stale, cluster.locks), (cluster.locks, 3));
}

/// Whoever gets the id of another's job is told of, a repetition is not; and the limit of a
/// resource may be its own.
pub async fn joining_is_told_and_limits_may_be_a_resources_own(harness: &mut impl Harness) {
    let store = harness.store();
    let notes = Arc::new(Notebook::default());
    let observer: Arc<dyn Observer> = Arc::clone(&notes) as _;
    store.observe(&observer);
    prepare(&*store).await;
    let patient = key_of("pipeline", "patient");
    one(&*store, submit(&patient, "run", 61)).await;
    notes.take();
    for _ in 0..2 {
        one(&*store, submit(&patient, "run", 62)).await;
    }
    assert_eq!(notes.take(), [MetricEvent::Attached { key: patient }]);
    claimed(&*store, claim("pipeline", 71, 1)).await;
    harness.clock().advance(600);
    let census = store.reads().census().await.expect("the store is there");
    assert_eq!(of(&census, "pipeline").age_ratio, Some(0.01), "of a minute");
}

/// What is counted in parts is counted once, on both sides of the bound.
pub async fn a_census_of_many_parts_is_whole(harness: &mut impl Harness) {
    let store = harness.store();
    one(&*store, open(1, "A")).await;
    let mut held = 0;
    for more in [PART_MAX - 1, 1, 1] {
        let batch = (held..held + more).map(|n| acquire(&format!("c{n}"), 1, 100 + n as u128, 0));
        store.apply(batch.collect()).await.expect("the store is there");
        held += more;
        let census = store.reads().census().await.expect("the store is there");
        assert_eq!(*of(&census, "cluster"), Group { locks: held, ..Group::default() });
    }
}

/// Fails attempt after attempt until the job is over. Gives its last state.
async fn fail_all(harness: &impl Harness, id: JobId, token: Token) -> JobState {
    let store = harness.store();
    one(&*store, failing(id, token, "BUSY")).await;
    for n in 0..20 {
        let shown = store.reads().job(id).await.expect("the store is there").expect("it is kept");
        if shown.job.state.is_finished() {
            return shown.job.state;
        }
        for session in [1, 2] {
            one(&*store, Command::Heartbeat { session: SessionId(session), seen: 0 }).await;
        }
        pass(harness, 5_000).await;
        for (job, token) in claimed(&*store, claim("task", 100 + n, 1)).await {
            if job == id {
                one(&*store, failing(id, token, "BUSY")).await;
            }
        }
    }
    panic!("it is tried again and again")
}
