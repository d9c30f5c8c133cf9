//! Shutdown of a worker: no job is left running, and all timeouts are kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::worker::CancelReason;
use tenure::{Context, Failure, Worker};
use tenure_core::job::AttemptOutcome;
use tenure_core::{JobState, Operation};

use crate::testbed::{RunningWorker, TestBed, kind, retries, wait_until};
use crate::{Gate, ms};

#[tokio::test]
async fn a_worker_that_shuts_down_finishes_its_jobs_and_claims_no_more() {
    for bed in TestBed::each([kind(Operation::new("work"))]).await {
        let gate = Gate::default();
        let mut worker =
            RunningWorker::start(Worker::new(&bed.client, "w").handle("thing", gate.handler()));
        let first = bed.submit("thing/t", "work").await;
        gate.wait_started(1).await;
        let second = bed.submit("thing/t", "work").await;
        worker.request_stop();
        gate.open.notify_one();
        assert_eq!(bed.wait_finished(first).await.state, JobState::Succeeded);
        let summary = worker.stop().await;
        assert_eq!((summary.succeeded, summary.handed_back, summary.abandoned), (1, 0, 0));
        let second = bed.job(second).await;
        assert_eq!((second.state, second.attempt), (JobState::Queued, 0));
        assert_eq!(bed.store.status().await.unwrap().sessions, 0, "the session is closed");
    }
}

#[tokio::test]
async fn jobs_that_exceed_the_drain_are_handed_back_in_time() {
    for bed in TestBed::each([kind(Operation::new("work").retry(retries(2)))]).await {
        let gate = Gate::default();
        let worker = Worker::new(&bed.client, "w").slots(3).drain(ms(100));
        let worker = RunningWorker::start(worker.handle("thing", gate.handler()));
        let mut jobs = Vec::new();
        for name in ["a", "b", "c"] {
            jobs.push(bed.submit(&format!("thing/{name}"), "work").await);
        }
        gate.wait_started(3).await;
        let start = BootInstant::now();
        let summary = worker.stop().await;
        let took = BootInstant::now().saturating_duration_since(start);
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!((summary.handed_back, summary.abandoned), (3, 0));
        assert_eq!(gate.cancel_reasons(), [CancelReason::Shutdown; 3]);
        for job in jobs {
            let job = bed.job(job).await;
            assert_eq!(
                (job.state, job.attempt),
                (JobState::Queued, 0),
                "the attempt does not count"
            );
        }
        assert_eq!(bed.store.status().await.unwrap().sessions, 0, "the session is closed");
    }
}

#[tokio::test]
async fn a_handler_that_ignores_shutdown_is_dropped_and_its_job_handed_back() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let worker = Worker::new(&bed.client, "w").drain(ms(50)).grace(ms(50));
    let gate = Gate::default();
    let worker = RunningWorker::start(worker.handle("thing", gate.ignoring_stop()));
    let job = bed.submit("thing/t", "work").await;
    gate.wait_started(1).await;
    assert_eq!(worker.stop().await.handed_back, 1);
    assert_eq!(bed.job(job).await.state, JobState::Queued);
}

/// Releases a handler that blocks its thread, also when the test fails.
struct Release(Arc<AtomicBool>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_cannot_be_aborted_keeps_its_lock_until_it_ends() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let release = Release(Arc::default());
    let (gate, blocked) = (Gate::default(), Arc::clone(&release.0));
    let started = Arc::clone(&gate.started);
    let handler = move |_: Context| {
        let (started, blocked) = (Arc::clone(&started), Arc::clone(&blocked));
        async move {
            started.fetch_add(1, Ordering::SeqCst);
            while !blocked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Err(Failure::new("LATE", "at last"))
        }
    };
    let worker = Worker::new(&bed.client, "w").ttl(ms(1_000)).drain(ms(50)).grace(ms(50));
    let worker = RunningWorker::start(worker.hand_back(ms(300)).handle("thing", handler));
    let job = bed.submit("thing/t", "work").await;
    gate.wait_started(1).await;
    let token = bed.job(job).await.token();
    assert_eq!(worker.stop().await.abandoned, 1);
    let later = BootInstant::now() + ms(2_000);
    wait_until("the ttl has passed", || async { later.has_passed() }).await;
    assert_eq!(bed.job(job).await.token(), token, "no other attempt may start while it runs");
    drop(release);
    let job = bed.wait_for_state(job, &[JobState::Queued]).await;
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::HandedBack));
}

#[tokio::test]
async fn a_dropped_worker_hands_its_jobs_back() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let gate = Gate::default();
    let worker =
        RunningWorker::start(Worker::new(&bed.client, "w").handle("thing", gate.handler()));
    let job = bed.submit("thing/t", "work").await;
    gate.wait_started(1).await;
    worker.abort();
    let job = bed.wait_for_state(job, &[JobState::Queued]).await;
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::HandedBack));
    assert_eq!(gate.cancel_reasons(), [CancelReason::Shutdown]);
}

#[test]
fn a_runtime_shutdown_hands_its_jobs_back() {
    let outer = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bed = outer.block_on(TestBed::memory([kind(Operation::new("work"))]));
    let inner = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (client, job) = (bed.client.clone(), outer.block_on(bed.submit("thing/t", "work")));
    let gate = Gate::default();
    let worker = Worker::new(&client, "w").handle("thing", gate.ignoring_stop());
    inner.spawn(worker.run(std::future::pending()));
    outer.block_on(gate.wait_started(1));
    drop(inner);
    let job = outer.block_on(bed.wait_for_state(job, &[JobState::Queued]));
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::HandedBack));
}

#[tokio::test]
async fn jobs_of_a_lost_claim_response_are_recovered_and_handed_back_on_shutdown() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let (client, faults) = bed.faulty_client();
    let mut worker = RunningWorker::start(
        Worker::new(&client, "w").handle("thing", Gate::default().ignoring_stop()),
    );
    wait_until("the worker claims", || async {
        bed.store.reads().workers().await.unwrap().len() == 1
    })
    .await;
    faults.drop_responses.store(true, Ordering::SeqCst);
    faults.drop_claim_response_once.store(true, Ordering::SeqCst);
    let job = bed.submit("thing/t", "work").await;
    wait_until("the response is lost", || async {
        !faults.drop_claim_response_once.load(Ordering::SeqCst)
    })
    .await;
    worker.request_stop();
    faults.drop_responses.store(false, Ordering::SeqCst);
    let summary = worker.stop().await;
    assert_eq!((summary.handed_back, summary.lost), (1, 0));
    let job = bed.job(job).await;
    assert_eq!((job.state, job.attempt), (JobState::Queued, 0));
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::HandedBack));
}
