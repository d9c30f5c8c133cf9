//! The end of a worker: no job is left running, and nothing takes longer than it may.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::worker::Halt;
use tenure::{Context, Failure, Worker};
use tenure_core::job::AttemptOutcome;
use tenure_core::{JobState, Operation};

use crate::bed::{Bed, Running, kind, retries, until};
use crate::{Gate, ms};

#[tokio::test]
async fn a_worker_that_is_told_to_stop_lets_its_jobs_end_and_takes_no_more() {
    for bed in Bed::each([kind(Operation::new("work"))]).await {
        let gate = Gate::default();
        let mut worker =
            Running::start(Worker::new(&bed.client, "w").handle("thing", gate.handler()));
        let first = bed.submit("thing/t", "work").await;
        gate.has_started(1).await;
        let second = bed.submit("thing/t", "work").await;
        worker.tell();
        gate.open.notify_one();
        assert_eq!(bed.over(first).await.state, JobState::Succeeded);
        let summary = worker.end().await;
        assert_eq!((summary.succeeded, summary.handed_back, summary.abandoned), (1, 0, 0));
        let second = bed.job(second).await;
        assert_eq!((second.state, second.attempt), (JobState::Queued, 0));
        assert_eq!(bed.store.status().await.unwrap().sessions, 0, "it said goodbye");
    }
}

#[tokio::test]
async fn jobs_that_do_not_end_in_time_are_handed_back_within_the_bound() {
    for bed in Bed::each([kind(Operation::new("work").retry(retries(2)))]).await {
        let gate = Gate::default();
        let worker = Worker::new(&bed.client, "w").slots(3).drain(ms(100));
        let worker = Running::start(worker.handle("thing", gate.handler()));
        let mut jobs = Vec::new();
        for name in ["a", "b", "c"] {
            jobs.push(bed.submit(&format!("thing/{name}"), "work").await);
        }
        gate.has_started(3).await;
        let start = BootInstant::now();
        let summary = worker.end().await;
        let took = BootInstant::now().saturating_duration_since(start);
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!((summary.handed_back, summary.abandoned), (3, 0));
        assert_eq!(gate.halts(), [Halt::Shutdown; 3]);
        for job in jobs {
            let job = bed.job(job).await;
            assert_eq!((job.state, job.attempt), (JobState::Queued, 0), "it does not count");
        }
        assert_eq!(bed.store.status().await.unwrap().sessions, 0, "it said goodbye");
    }
}

#[tokio::test]
async fn a_handler_that_ignores_the_end_is_dropped_and_its_job_handed_back() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let worker = Worker::new(&bed.client, "w").drain(ms(50)).grace(ms(50));
    let gate = Gate::default();
    let worker = Running::start(worker.handle("thing", gate.deaf()));
    let job = bed.submit("thing/t", "work").await;
    gate.has_started(1).await;
    assert_eq!(worker.end().await.handed_back, 1);
    assert_eq!(bed.job(job).await.state, JobState::Queued);
}

/// Lets a handler go that blocks its thread, also when the test has failed.
struct Release(Arc<AtomicBool>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_cannot_be_stopped_is_left_alone_and_keeps_its_lock_until_it_ends() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
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
    let worker = Running::start(worker.hand_back(ms(300)).handle("thing", handler));
    let job = bed.submit("thing/t", "work").await;
    gate.has_started(1).await;
    let token = bed.job(job).await.token();
    assert_eq!(worker.end().await.abandoned, 1);
    let later = BootInstant::now() + ms(2_000);
    until("the time to live is over", || async { later.has_passed() }).await;
    assert_eq!(bed.job(job).await.token(), token, "nobody else may begin while it goes on");
    drop(release);
    let job = bed.job_in(job, &[JobState::Queued]).await;
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::HandedBack));
}

#[tokio::test]
async fn a_worker_that_is_dropped_hands_its_jobs_back() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let gate = Gate::default();
    let worker = Running::start(Worker::new(&bed.client, "w").handle("thing", gate.handler()));
    let job = bed.submit("thing/t", "work").await;
    gate.has_started(1).await;
    worker.abort();
    let job = bed.job_in(job, &[JobState::Queued]).await;
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::HandedBack));
    assert_eq!(gate.halts(), [Halt::Shutdown]);
}

#[test]
fn a_runtime_that_ends_hands_its_jobs_back() {
    let outer = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bed = outer.block_on(Bed::memory([kind(Operation::new("work"))]));
    let inner = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (client, job) = (bed.client.clone(), outer.block_on(bed.submit("thing/t", "work")));
    let gate = Gate::default();
    let worker = Worker::new(&client, "w").handle("thing", gate.deaf());
    inner.spawn(worker.run(std::future::pending()));
    outer.block_on(gate.has_started(1));
    drop(inner);
    let job = outer.block_on(bed.job_in(job, &[JobState::Queued]));
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::HandedBack));
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_at_the_end_is_found_and_given_back() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let (client, faults) = bed.cable();
    let mut worker =
        Running::start(Worker::new(&client, "w").handle("thing", Gate::default().deaf()));
    until("it asks", || async { bed.store.reads().workers().await.unwrap().len() == 1 }).await;
    faults.mute.store(true, Ordering::SeqCst);
    faults.mute_claim_once.store(true, Ordering::SeqCst);
    let job = bed.submit("thing/t", "work").await;
    until("it is lost", || async { !faults.mute_claim_once.load(Ordering::SeqCst) }).await;
    worker.tell();
    faults.mute.store(false, Ordering::SeqCst);
    let summary = worker.end().await;
    assert_eq!((summary.handed_back, summary.lost), (1, 0));
    let job = bed.job(job).await;
    assert_eq!((job.state, job.attempt), (JobState::Queued, 0));
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::HandedBack));
}
