//! Lost sessions and locks stay lost; lost responses are recovered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::{Context, Done, Worker};
use tenure_core::retry::WORKER_TIMEOUT;
use tenure_core::{Command, Finish, JobAction, JobState, LockAction, Operation, Outcome, Refusal};

use crate::testbed::{RunningWorker, TTL, TestBed, kind, retries, wait_until};
use crate::{Gate, done, ms};

#[tokio::test]
async fn a_frozen_session_loses_its_job_and_its_late_report_is_refused() {
    for bed in TestBed::each([kind(Operation::new("work").retry(retries(2)))]).await {
        let (client, faults) = bed.faulty_client();
        let gate = Gate::default();
        let worker = Worker::new(&client, "frozen").ttl(TTL).handle("thing", gate.handler());
        let frozen = RunningWorker::start(worker);
        let id = bed.submit("thing/t", "work").await;
        gate.wait_started(1).await;
        let token = bed.job(id).await.token().unwrap();
        faults.drop_requests.store(true, Ordering::SeqCst);
        wait_until("the handler is dropped", || async { gate.dropped.load(Ordering::SeqCst) == 1 })
            .await;
        assert_eq!(
            bed.job(id).await.token(),
            Some(token),
            "it stopped before the store released the lock"
        );
        assert!(gate.cancel_reasons().is_empty(), "dropped without a stop request");
        let healthy = Worker::new(&bed.client, "healthy").handle("thing", done);
        let healthy = RunningWorker::start(healthy);
        let job = bed.wait_finished(id).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 2));
        assert_eq!(&*job.attempts[0].error.as_ref().unwrap().code, WORKER_TIMEOUT);
        assert_eq!(&*job.attempts[1].worker, "healthy");
        // The report that the frozen worker would have sent late.
        let finish = Finish::Ok { state: None, result: None };
        let action = JobAction::Finish { token, finish, update: None };
        let late = bed.committer.submit(Command::Job { id, action }).await.unwrap();
        assert!(matches!(late, Outcome::Refused(Refusal::Lost { .. })), "{late:?}");
        healthy.stop().await;
        // The connection recovers: the worker continues with a new session.
        faults.drop_requests.store(false, Ordering::SeqCst);
        let next = bed.submit("thing/t", "work").await;
        bed.wait_running(next).await;
        gate.open.notify_one();
        assert_eq!(bed.wait_finished(next).await.state, JobState::Succeeded);
        let summary = frozen.stop().await;
        assert_eq!((summary.lost, summary.sessions, summary.succeeded), (1, 2, 1));
    }
}

#[tokio::test]
async fn a_broken_lock_stops_only_its_handler() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let gate = Gate::default();
    let worker = Worker::new(&bed.client, "w").slots(2).handle("thing", gate.handler());
    let worker = RunningWorker::start(worker);
    let broken = bed.submit("thing/broken", "work").await;
    let kept = bed.submit("thing/kept", "work").await;
    gate.wait_started(2).await;
    let token = bed.job(broken).await.token().unwrap();
    let (by, reason) = ("ann".into(), "stuck".into());
    let action = LockAction::Break { token, locks: None, by, reason, end_job: false };
    let key = "default/thing/broken".parse().unwrap();
    bed.committer.submit(Command::Lock { key, action }).await.unwrap();
    assert_eq!(&*bed.wait_finished(broken).await.error.unwrap().code, "LOCK_BROKEN");
    wait_until("the handler is dropped", || async { gate.dropped.load(Ordering::SeqCst) == 1 })
        .await;
    gate.open.notify_one();
    assert_eq!(bed.wait_finished(kept).await.state, JobState::Succeeded);
    let summary = worker.stop().await;
    assert_eq!((summary.lost, summary.succeeded, summary.sessions), (1, 1, 1));
}

#[tokio::test]
async fn a_lost_response_to_a_finish_or_a_claim_is_retried_safely() {
    for bed in TestBed::each([kind(Operation::new("work"))]).await {
        let (client, faults) = bed.faulty_client();
        faults.drop_claim_response_once.store(true, Ordering::SeqCst);
        faults.drop_finish_response_once.store(true, Ordering::SeqCst);
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let handler = move |_: Context| {
            let count = Arc::clone(&count);
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                Ok(Done::default())
            }
        };
        let worker = RunningWorker::start(Worker::new(&client, "w").handle("thing", handler));
        let job = bed.submit("thing/t", "work").await;
        let job = bed.wait_finished(job).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
        assert!(
            !faults.drop_claim_response_once.load(Ordering::SeqCst),
            "the response to the claim was lost"
        );
        let summary = worker.stop().await;
        assert!(
            !faults.drop_finish_response_once.load(Ordering::SeqCst),
            "the response to the finish was lost"
        );
        assert_eq!((summary.succeeded, runs.load(Ordering::SeqCst)), (1, 1));
    }
}

#[tokio::test]
async fn a_report_is_retried_until_the_store_is_available() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let (client, faults) = bed.faulty_client();
    let gate = Gate::default();
    let ttl = Duration::from_secs(60);
    let worker = Worker::new(&client, "w").ttl(ttl).handle("thing", gate.handler());
    let worker = RunningWorker::start(worker);
    let job = bed.submit("thing/t", "work").await;
    gate.wait_started(1).await;
    faults.drop_requests.store(true, Ordering::SeqCst);
    gate.open.notify_one();
    wait_until("the handler has ended", || async { gate.dropped.load(Ordering::SeqCst) == 1 })
        .await;
    assert_eq!(bed.job(job).await.state, JobState::Running);
    faults.drop_requests.store(false, Ordering::SeqCst);
    assert_eq!(bed.wait_finished(job).await.state, JobState::Succeeded);
    assert_eq!(worker.stop().await.sessions, 1);
}

#[tokio::test]
async fn a_handler_that_blocks_its_runtime_for_three_ttls_keeps_its_lock() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let ttl = ms(1_000);
    let handler = move |job: Context| async move {
        // This is the only thread of the runtime: nothing else in the test can run meanwhile.
        let until = BootInstant::now() + ttl * 3;
        while !until.has_passed() {
            std::hint::spin_loop();
        }
        job.check()?;
        Ok(Done::default())
    };
    let worker =
        RunningWorker::start(Worker::new(&bed.client, "w").ttl(ttl).handle("thing", handler));
    let job = bed.submit("thing/t", "work").await;
    let job = bed.wait_finished(job).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
    assert_eq!(worker.stop().await.sessions, 1);
}
