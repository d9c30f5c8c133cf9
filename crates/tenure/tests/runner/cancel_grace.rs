//! The grace period after a cancel: it applies then, and never when the tenure is lost.

use std::fs;
use std::sync::atomic::Ordering;

use tenure::clock::BootInstant;
use tenure::worker::Command;
use tenure::{Context, Done, Worker};
use tenure_core::job::AttemptOutcome;
use tenure_core::retry::{TIME_LIMIT, WORKER_TIMEOUT};
use tenure_core::{Command as StoreCommand, JobId, JobState, LockAction, Operation};

use crate::testbed::processes::PRELUDE;
use crate::testbed::{RunningWorker, TestBed, retries, wait_until};
use crate::{CommandTest, ENDLESS, GRACE, error, ms, script, stubborn};

/// Like the stubborn command, but it records that it got TERM.
pub(crate) const CLEANING: &str = r#"
(setsid sh -c 'trap "" TERM; echo $$ > $D/far.new; mv $D/far.new $D/far; exec sleep 60' &)
trap ': > $D/termed' TERM
id command
while [ ! -e $D/go ]; do sleep 0.02; done
echo cleaned
"#;

fn cleaning() -> Operation {
    script("work", &format!("{PRELUDE}{CLEANING}"))
}

pub(crate) async fn break_lock(bed: &TestBed, id: JobId) {
    let token = bed.job(id).await.token().expect("it is running");
    let (by, reason) = ("ann".into(), "stuck".into());
    let action = LockAction::Break { token, locks: None, by, reason, end_job: false };
    let key = "default/thing/t".parse().expect("a key");
    bed.committer.submit(StoreCommand::Lock { key, action }).await.expect("it is applied");
}

#[tokio::test]
async fn a_short_grace_after_a_cancel_replaces_a_long_one() {
    let adapt = |command: Command| command.grace(ENDLESS).cancel_grace(ms(200));
    let mut test = CommandTest::with(stubborn(), adapt).await;
    let (worker, id, [command, far]) = test.start_stubborn().await;
    test.cancel(id).await;
    let job = test.bed.wait_finished(id).await;
    assert!(command.is_dead() && far.is_dead());
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::Cancelled));
    worker.stop().await;
}

#[tokio::test]
async fn the_grace_after_a_cancel_also_applies_at_the_time_limit() {
    let adapt = |command: Command| command.grace(ENDLESS).cancel_grace(ms(200));
    let mut test = CommandTest::with(stubborn().limit_ms(500), adapt).await;
    let (worker, id, [command, far]) = test.start_stubborn().await;
    let job = test.bed.wait_finished(id).await;
    assert!(command.is_dead() && far.is_dead());
    assert_eq!(error(&job).0, TIME_LIMIT);
    worker.stop().await;
}

#[tokio::test]
async fn a_cancelled_command_may_clean_up_for_long_but_what_it_leaves_behind_may_not() {
    let mut test = CommandTest::with(cleaning(), |command| command.cancel_grace(ENDLESS)).await;
    let (worker, id, [command, far]) = test.start_stubborn().await;
    test.cancel(id).await;
    test.markers.wait_for("termed").await;
    let normally_killed = BootInstant::now() + GRACE * 2;
    wait_until("the normal grace is over", || async { normally_killed.has_passed() }).await;
    assert!(!command.is_dead() && !far.is_dead());
    fs::write(test.markers.path("go"), "").unwrap();
    // Far ignores TERM, and is killed long before the end of the grace after a cancel.
    assert_eq!(test.bed.wait_finished(id).await.state, JobState::Cancelled);
    assert!(command.is_dead() && far.is_dead());
    assert!(test.bed.log(id).await.ends_with("cleaned\n"));
    worker.stop().await;
}

#[tokio::test]
async fn after_a_loss_the_deadline_counts_and_not_the_grace_after_a_cancel() {
    let operation = stubborn().retry(retries(2));
    let (mut test, faults) =
        CommandTest::start(operation, |command| command.cancel_grace(ENDLESS)).await;
    let (frozen, id, [command, far]) = test.start_stubborn().await;
    let handler = move |_: Context| {
        let dead = command.is_dead() && far.is_dead();
        async move { Ok(Done::with(&dead)?) }
    };
    let next = RunningWorker::start(Worker::new(&test.bed.client, "next").handle("thing", handler));
    faults.drop_requests.store(true, Ordering::SeqCst);
    let job = test.bed.wait_finished(id).await;
    assert_eq!(job.result.as_deref(), Some("true"), "the next attempt overlapped");
    assert_eq!(&*job.attempts[0].error.as_ref().unwrap().code, WORKER_TIMEOUT);
    next.stop().await;
    faults.drop_requests.store(false, Ordering::SeqCst);
    assert_eq!(frozen.stop().await.lost, 1);
}

#[tokio::test]
async fn an_expiry_during_the_grace_after_a_cancel_finds_the_command_dead() {
    let (mut test, faults) =
        CommandTest::start(cleaning(), |command| command.cancel_grace(ENDLESS)).await;
    let (frozen, id, [command, far]) = test.start_stubborn().await;
    test.cancel(id).await;
    test.markers.wait_for("termed").await;
    faults.drop_requests.store(true, Ordering::SeqCst);
    // The store ends the attempt when the session has expired: the lock is free from then on.
    let job = test.bed.wait_finished(id).await;
    assert!(command.is_dead() && far.is_dead(), "the next attempt could overlap");
    assert_eq!(job.state, JobState::Cancelled);
    faults.drop_requests.store(false, Ordering::SeqCst);
    assert_eq!(frozen.stop().await.lost, 1);
}

#[tokio::test]
async fn a_lock_broken_during_the_grace_after_a_cancel_ends_it() {
    let mut test = CommandTest::with(cleaning(), |command| command.cancel_grace(ENDLESS)).await;
    let (worker, id, [command, far]) = test.start_stubborn().await;
    test.cancel(id).await;
    test.markers.wait_for("termed").await;
    // The session lives on, so no deadline of the watchdog passes.
    break_lock(&test.bed, id).await;
    wait_until("the command is dead", || async { command.is_dead() && far.is_dead() }).await;
    assert_eq!(worker.stop().await.lost, 1);
}

#[tokio::test]
async fn a_worker_that_shuts_down_does_not_wait_for_the_grace_after_a_cancel() {
    for cancelled in [false, true] {
        let mut test = CommandTest::with(cleaning(), |command| command.cancel_grace(ENDLESS)).await;
        let (worker, id, [command, far]) = test.start_stubborn().await;
        if cancelled {
            test.cancel(id).await;
            test.markers.wait_for("termed").await;
        }
        let summary = worker.stop().await;
        assert_eq!((summary.handed_back, summary.abandoned), (u64::from(!cancelled), 0));
        assert!(command.is_dead() && far.is_dead());
        let state = if cancelled { JobState::Cancelled } else { JobState::Queued };
        assert_eq!(test.bed.job(id).await.state, state);
    }
}
