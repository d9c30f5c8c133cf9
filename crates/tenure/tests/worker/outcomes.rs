//! Ends of an attempt: by its handler, by a panic, by its time limit, or by cancellation.

use std::time::Duration;

use tenure::worker::CancelReason;
use tenure::{Context, Done, Failure, Worker};
use tenure_core::job::AttemptOutcome;
use tenure_core::retry::{Retry, TIME_LIMIT};
use tenure_core::{JobState, Kind, Operation};

use crate::testbed::{RunningWorker, TTL, TestBed, kind, retries};
use crate::{Gate, ms};

#[tokio::test]
async fn a_panic_is_retried_up_to_the_maximum_number_of_attempts() {
    for bed in TestBed::each([kind(Operation::new("work").retry(retries(3)))]).await {
        let handler = |job: Context| async move {
            if job.attempt() < 3 {
                panic!("attempt {} of {} went wrong", job.attempt(), job.attempts_max());
            }
            Ok(Done::with(&job.attempt())?)
        };
        let worker = Worker::new(&bed.client, "w").handle("thing", handler);
        let worker = RunningWorker::start(worker);
        let job = bed.submit("thing/t", "work").await;
        let job = bed.wait_finished(job).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 3));
        assert_eq!(job.result.as_deref(), Some("3"));
        let error = job.attempts[0].error.as_ref().unwrap();
        assert_eq!((&*error.code, &*error.message), ("PANIC", "attempt 1 of 3 went wrong"));
        worker.stop().await;
    }
}

#[tokio::test]
async fn a_panic_is_transient_unless_the_retry_rule_lists_it_as_permanent() {
    let strict = Retry { permanent: vec!["PANIC".into()], ..retries(3) };
    let kinds = [
        kind(Operation::new("work")),
        Kind::new("strict").operation(Operation::new("work").retry(strict)),
    ];
    let bed = TestBed::memory(kinds).await;
    let panics = |_: Context| async { panic!("no") };
    let worker = Worker::new(&bed.client, "w").handle("thing", panics).handle("strict", panics);
    let worker = RunningWorker::start(worker);
    let exhausted = bed.submit("thing/t", "work").await;
    let permanent = bed.submit("strict/t", "work").await;
    assert_eq!(bed.wait_finished(exhausted).await.state, JobState::Dead);
    let job = bed.wait_finished(permanent).await;
    assert_eq!((job.state, job.attempt), (JobState::Failed, 1));
    worker.stop().await;
}

#[tokio::test]
async fn the_result_of_the_handler_determines_the_end_of_the_job() {
    let create = Operation::new("create").path(&["NEW"], "CREATING", "READY", "BROKEN");
    let kind = Kind::new("thing").states(&["NEW", "CREATING", "READY", "BROKEN", "SMALL"]);
    let mut create = create.retry(retries(5));
    create.ends = vec!["SMALL".into()];
    let bed = TestBed::memory([kind.operation(create)]).await;
    let handler = |job: Context| async move {
        match job.args::<String>()?.as_str() {
            "small" => Ok(Done::with(&[1, 2])?.state("SMALL")),
            "quota" => Err(Failure::permanent("QUOTA", "too much").state("SMALL")),
            "later" if job.attempt() == 1 => Err(Failure::transient("BUSY", "later")),
            "typo" => Ok(Done::default().state("SMAL")),
            "garbage" => Ok(Done { result: Some("{".to_owned()), ..Done::default() }),
            "big" => Ok(Done { result: Some("1".repeat(70_000)), ..Done::default() }),
            _ => Ok(().into()),
        }
    };
    let worker = RunningWorker::start(Worker::new(&bed.client, "w").handle("thing", handler));
    let run = async |args: &str, bed: &TestBed| {
        let resource = format!("thing/{args}");
        let submitted = bed.client.submit(&resource, "create").args(&args).send().await.unwrap();
        let job = bed.wait_finished(submitted.job.id()).await;
        let key = format!("default/{resource}").parse().unwrap();
        let view = bed.store.reads().show(&key).await.unwrap().unwrap();
        let code = job.error.as_ref().map(|error| error.code.to_string());
        (job.state, view.record.resource.unwrap().state.to_string(), code, job)
    };
    let (state, end, code, job) = run("small", &bed).await;
    assert_eq!((state, end.as_str(), code), (JobState::Succeeded, "SMALL", None));
    assert_eq!(job.result.as_deref(), Some("[1,2]"));
    let (state, end, code, _) = run("quota", &bed).await;
    assert_eq!((state, end.as_str()), (JobState::Failed, "SMALL"));
    assert_eq!(code.as_deref(), Some("QUOTA"));
    let (state, end, _, job) = run("later", &bed).await;
    assert_eq!((state, end.as_str(), job.attempt), (JobState::Succeeded, "READY", 2));
    // A result that the store refuses must not leave the job running for ever.
    for args in ["typo", "big", "garbage"] {
        let (state, end, code, _) = run(args, &bed).await;
        assert_eq!((state, end.as_str()), (JobState::Failed, "BROKEN"), "{args}");
        assert_eq!(code.as_deref(), Some("BAD_RESULT"), "{args}");
    }
    let submitted = bed.client.submit("thing/number", "create").args(&1).send().await.unwrap();
    assert_eq!(&*bed.wait_finished(submitted.job.id()).await.error.unwrap().code, "BAD_ARGS");
    worker.stop().await;
}

#[tokio::test]
async fn a_handler_that_ignores_its_time_limit_is_dropped_and_reported() {
    for bed in TestBed::each([kind(Operation::new("work").limit_ms(200))]).await {
        let worker = Worker::new(&bed.client, "w")
            .grace(ms(100))
            .handle("thing", Gate::default().ignoring_stop());
        let worker = RunningWorker::start(worker);
        let job = bed.submit("thing/t", "work").await;
        let job = bed.wait_finished(job).await;
        assert_eq!(&*job.error.unwrap().code, TIME_LIMIT);
        assert_eq!(job.state, JobState::Failed);
        assert_eq!(worker.stop().await.reported, 1);
    }
}

#[tokio::test]
async fn a_handler_that_completes_after_its_time_limit_still_succeeds() {
    let bed = TestBed::memory([kind(Operation::new("work").limit_ms(100))]).await;
    let handler = |job: Context| async move {
        assert!(job.deadline().is_some_and(|deadline| deadline.remaining() <= ms(100)));
        assert_eq!(job.cancelled().await, CancelReason::TimeLimit);
        Ok(Done::default())
    };
    let worker = RunningWorker::start(Worker::new(&bed.client, "w").handle("thing", handler));
    let job = bed.submit("thing/t", "work").await;
    assert_eq!(bed.wait_finished(job).await.state, JobState::Succeeded);
    worker.stop().await;
}

#[tokio::test]
async fn a_running_job_observes_its_cancellation_at_once() {
    for bed in TestBed::each([kind(Operation::new("work"))]).await {
        let gate = Gate::default();
        // With an hour between heartbeats only the store's hint can arrive in time.
        let worker = Worker::new(&bed.client, "w").ttl(ms(3 * 3_600_000));
        let worker = RunningWorker::start(worker.handle("thing", gate.handler()));
        let job = bed.submit("thing/t", "work").await;
        bed.wait_running(job).await;
        let state = bed.client.job(job).by("ann").cancel("changed my mind").await.unwrap();
        assert_eq!(state, JobState::Cancelling);
        let job = bed.wait_finished(job).await;
        assert_eq!(job.state, JobState::Cancelled);
        assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::Cancelled));
        assert_eq!(gate.cancel_reasons(), [CancelReason::JobCancelled]);
        worker.stop().await;
    }
}

#[tokio::test]
async fn cancellation_also_arrives_by_heartbeat_and_by_progress_responses() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    for (ttl, progress) in [(TTL, false), (ms(3 * 3_600_000), true)] {
        let (client, _) = bed.faulty_client();
        let handler = move |job: Context| async move {
            let mut percent = 0;
            loop {
                tokio::select! {
                    _ = job.cancelled() => return Err(Failure::new("CANCELLED", "")),
                    () = tokio::time::sleep(ms(20)), if progress => {
                        percent = (percent + 1) % 100;
                        job.progress(percent, "");
                    }
                }
            }
        };
        let worker =
            RunningWorker::start(Worker::new(&client, "w").ttl(ttl).handle("thing", handler));
        let job = bed.submit("thing/t", "work").await;
        bed.wait_running(job).await;
        bed.client.job(job).by("ann").cancel("").await.unwrap();
        let job = bed.wait_finished(job).await;
        assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::Cancelled));
        worker.stop().await;
    }
}

#[tokio::test]
async fn a_handler_that_ignores_cancellation_ends_at_its_time_limit() {
    let bed = TestBed::memory([kind(Operation::new("work").limit_ms(1_000))]).await;
    let worker = Worker::new(&bed.client, "w").grace(Duration::from_secs(3_600));
    let worker = RunningWorker::start(worker.handle("thing", Gate::default().ignoring_stop()));
    let job = bed.submit("thing/t", "work").await;
    bed.wait_running(job).await;
    bed.client.job(job).by("ann").cancel("").await.unwrap();
    let job = bed.wait_finished(job).await;
    assert_eq!(job.state, JobState::Cancelled);
    worker.stop().await;
}

#[tokio::test]
async fn a_handler_that_ignores_cancellation_without_time_limit_is_dropped() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let worker = Worker::new(&bed.client, "w")
        .grace(ms(100))
        .handle("thing", Gate::default().ignoring_stop());
    let worker = RunningWorker::start(worker);
    let job = bed.submit("thing/t", "work").await;
    bed.wait_running(job).await;
    bed.client.job(job).by("ann").cancel("").await.unwrap();
    assert_eq!(bed.wait_finished(job).await.state, JobState::Cancelled);
    worker.stop().await;
}
