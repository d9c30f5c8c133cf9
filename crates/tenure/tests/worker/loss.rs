//! What is lost stays lost, what only seems lost is found: sessions, locks, and answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::{Context, Done, Worker};
use tenure_core::retry::WORKER_TIMEOUT;
use tenure_core::{Command, Finish, JobAction, JobState, LockAction, Operation, Outcome, Refusal};

use crate::bed::{Bed, Running, TTL, kind, retries, until};
use crate::{Gate, done, ms};

#[tokio::test]
async fn a_frozen_session_loses_its_job_and_its_report_is_refused() {
    for bed in Bed::each([kind(Operation::new("work").retry(retries(2)))]).await {
        let (client, faults) = bed.cable();
        let gate = Gate::default();
        let worker = Worker::new(&client, "frozen").ttl(TTL).handle("thing", gate.handler());
        let frozen = Running::start(worker);
        let id = bed.submit("thing/t", "work").await;
        gate.has_started(1).await;
        let token = bed.job(id).await.token().unwrap();
        faults.cut.store(true, Ordering::SeqCst);
        until("the handler is dropped", || async { gate.dropped.load(Ordering::SeqCst) == 1 })
            .await;
        assert_eq!(bed.job(id).await.token(), Some(token), "it stopped before the store let go");
        assert!(gate.halts().is_empty(), "it was dropped, not asked");
        let healthy = Worker::new(&bed.client, "healthy").handle("thing", done);
        let healthy = Running::start(healthy);
        let job = bed.over(id).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 2));
        assert_eq!(&*job.attempts[0].error.as_ref().unwrap().code, WORKER_TIMEOUT);
        assert_eq!(&*job.attempts[1].worker, "healthy");
        // What the frozen one would have said late.
        let finish = Finish::Ok { state: None, result: None };
        let action = JobAction::Finish { token, finish };
        let late = bed.committer.submit(Command::Job { id, action }).await.unwrap();
        assert!(matches!(late, Outcome::Refused(Refusal::Lost { .. })), "{late:?}");
        healthy.end().await;
        // The connection comes back: the worker goes on with a new session.
        faults.cut.store(false, Ordering::SeqCst);
        let next = bed.submit("thing/t", "work").await;
        bed.running(next).await;
        gate.open.notify_one();
        assert_eq!(bed.over(next).await.state, JobState::Succeeded);
        let summary = frozen.end().await;
        assert_eq!((summary.lost, summary.sessions, summary.succeeded), (1, 2, 1));
    }
}

#[tokio::test]
async fn a_broken_lock_stops_the_handler_and_nothing_else() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let gate = Gate::default();
    let worker = Worker::new(&bed.client, "w").slots(2).handle("thing", gate.handler());
    let worker = Running::start(worker);
    let broken = bed.submit("thing/broken", "work").await;
    let kept = bed.submit("thing/kept", "work").await;
    gate.has_started(2).await;
    let token = bed.job(broken).await.token().unwrap();
    let (by, reason) = ("ann".into(), "stuck".into());
    let action = LockAction::Break { token, locks: None, by, reason };
    let key = "default/thing/broken".parse().unwrap();
    bed.committer.submit(Command::Lock { key, action }).await.unwrap();
    assert_eq!(&*bed.over(broken).await.error.unwrap().code, "LOCK_BROKEN");
    until("the handler is dropped", || async { gate.dropped.load(Ordering::SeqCst) == 1 }).await;
    gate.open.notify_one();
    assert_eq!(bed.over(kept).await.state, JobState::Succeeded);
    let summary = worker.end().await;
    assert_eq!((summary.lost, summary.succeeded, summary.sessions), (1, 1, 1));
}

#[tokio::test]
async fn a_lost_answer_to_a_report_or_a_claim_changes_nothing() {
    for bed in Bed::each([kind(Operation::new("work"))]).await {
        let (client, faults) = bed.cable();
        faults.mute_claim_once.store(true, Ordering::SeqCst);
        faults.mute_finish_once.store(true, Ordering::SeqCst);
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let handler = move |_: Context| {
            let count = Arc::clone(&count);
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                Ok(Done::default())
            }
        };
        let worker = Running::start(Worker::new(&client, "w").handle("thing", handler));
        let job = bed.submit("thing/t", "work").await;
        let job = bed.over(job).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
        assert!(!faults.mute_claim_once.load(Ordering::SeqCst), "the claim's answer was lost");
        let summary = worker.end().await;
        assert!(!faults.mute_finish_once.load(Ordering::SeqCst), "the report's answer was lost");
        assert_eq!((summary.succeeded, runs.load(Ordering::SeqCst)), (1, 1));
    }
}

#[tokio::test]
async fn a_report_waits_for_a_store_that_is_away() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let (client, faults) = bed.cable();
    let gate = Gate::default();
    let ttl = Duration::from_secs(60);
    let worker = Worker::new(&client, "w").ttl(ttl).handle("thing", gate.handler());
    let worker = Running::start(worker);
    let job = bed.submit("thing/t", "work").await;
    gate.has_started(1).await;
    faults.cut.store(true, Ordering::SeqCst);
    gate.open.notify_one();
    until("the handler has ended", || async { gate.dropped.load(Ordering::SeqCst) == 1 }).await;
    assert_eq!(bed.job(job).await.state, JobState::Running);
    faults.cut.store(false, Ordering::SeqCst);
    assert_eq!(bed.over(job).await.state, JobState::Succeeded);
    assert_eq!(worker.end().await.sessions, 1);
}

#[tokio::test]
async fn a_handler_that_blocks_its_runtime_for_three_times_to_live_keeps_its_lock() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let ttl = ms(1_000);
    let handler = move |job: Context| async move {
        // This is the only thread of the runtime: nothing else of the test can run meanwhile.
        let until = BootInstant::now() + ttl * 3;
        while !until.has_passed() {
            std::hint::spin_loop();
        }
        job.check()?;
        Ok(Done::default())
    };
    let worker = Running::start(Worker::new(&bed.client, "w").ttl(ttl).handle("thing", handler));
    let job = bed.submit("thing/t", "work").await;
    let job = bed.over(job).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
    assert_eq!(worker.end().await.sessions, 1);
}
