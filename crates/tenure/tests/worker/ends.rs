//! How an attempt can end: as its handler says, by a panic, by its limit, or by a cancel.

use std::time::Duration;

use tenure::worker::Halt;
use tenure::{Context, Done, Failure, Worker};
use tenure_core::job::AttemptOutcome;
use tenure_core::retry::{Retry, TIME_LIMIT};
use tenure_core::{JobState, Kind, Operation};

use crate::bed::{Bed, Running, TTL, kind, retries};
use crate::{Gate, ms};

#[tokio::test]
async fn a_panic_is_a_failure_that_is_tried_again_until_the_attempts_are_used_up() {
    for bed in Bed::each([kind(Operation::new("work").retry(retries(3)))]).await {
        let handler = |job: Context| async move {
            if job.attempt() < 3 {
                panic!("attempt {} of {} went wrong", job.attempt(), job.attempts_max());
            }
            Ok(Done::with(&job.attempt())?)
        };
        let worker = Worker::new(&bed.client, "w").handle("thing", handler);
        let worker = Running::start(worker);
        let job = bed.submit("thing/t", "work").await;
        let job = bed.over(job).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 3));
        assert_eq!(job.result.as_deref(), Some("3"));
        let error = job.attempts[0].error.as_ref().unwrap();
        assert_eq!((&*error.code, &*error.message), ("PANIC", "attempt 1 of 3 went wrong"));
        worker.end().await;
    }
}

#[tokio::test]
async fn a_panic_is_transient_unless_the_retry_rule_says_else() {
    let strict = Retry { permanent: vec!["PANIC".into()], ..retries(3) };
    let kinds = [
        kind(Operation::new("work")),
        Kind::new("strict").operation(Operation::new("work").retry(strict)),
    ];
    let bed = Bed::memory(kinds).await;
    let panics = |_: Context| async { panic!("no") };
    let worker = Worker::new(&bed.client, "w").handle("thing", panics).handle("strict", panics);
    let worker = Running::start(worker);
    let used_up = bed.submit("thing/t", "work").await;
    let final_at_once = bed.submit("strict/t", "work").await;
    assert_eq!(bed.over(used_up).await.state, JobState::Dead);
    let job = bed.over(final_at_once).await;
    assert_eq!((job.state, job.attempt), (JobState::Failed, 1));
    worker.end().await;
}

#[tokio::test]
async fn what_the_handler_says_ends_the_job() {
    let create = Operation::new("create").path(&["NEW"], "CREATING", "READY", "BROKEN");
    let kind = Kind::new("thing").states(&["NEW", "CREATING", "READY", "BROKEN", "SMALL"]);
    let mut create = create.retry(retries(5));
    create.ends = vec!["SMALL".into()];
    let bed = Bed::memory([kind.operation(create)]).await;
    let handler = |job: Context| async move {
        match job.args::<String>()?.as_str() {
            "small" => Ok(Done::with(&[1, 2])?.state("SMALL")),
            "quota" => Err(Failure::permanent("QUOTA", "too much").state("SMALL")),
            "later" if job.attempt() == 1 => Err(Failure::transient("BUSY", "later")),
            "typo" => Ok(Done::default().state("SMAL")),
            "garbage" => Ok(Done { state: None, result: Some("{".to_owned()) }),
            "big" => Ok(Done { state: None, result: Some("1".repeat(70_000)) }),
            _ => Ok(().into()),
        }
    };
    let worker = Running::start(Worker::new(&bed.client, "w").handle("thing", handler));
    let run = async |args: &str, bed: &Bed| {
        let resource = format!("thing/{args}");
        let asked = bed.client.submit(&resource, "create").args(&args).send().await.unwrap();
        let job = bed.over(asked.job).await;
        let key = format!("default/{resource}").parse().unwrap();
        let shown = bed.store.reads().show(&key).await.unwrap().unwrap();
        let code = job.error.as_ref().map(|error| error.code.to_string());
        (job.state, shown.record.resource.unwrap().state.to_string(), code, job)
    };
    let (state, end, code, job) = run("small", &bed).await;
    assert_eq!((state, end.as_str(), code), (JobState::Succeeded, "SMALL", None));
    assert_eq!(job.result.as_deref(), Some("[1,2]"));
    let (state, end, code, _) = run("quota", &bed).await;
    assert_eq!((state, end.as_str()), (JobState::Failed, "SMALL"));
    assert_eq!(code.as_deref(), Some("QUOTA"));
    let (state, end, _, job) = run("later", &bed).await;
    assert_eq!((state, end.as_str(), job.attempt), (JobState::Succeeded, "READY", 2));
    // What the store does not take must not leave the job running for ever.
    for args in ["typo", "big", "garbage"] {
        let (state, end, code, _) = run(args, &bed).await;
        assert_eq!((state, end.as_str()), (JobState::Failed, "BROKEN"), "{args}");
        assert_eq!(code.as_deref(), Some("BAD_RESULT"), "{args}");
    }
    let asked = bed.client.submit("thing/number", "create").args(&1).send().await.unwrap();
    assert_eq!(&*bed.over(asked.job).await.error.unwrap().code, "BAD_ARGS");
    worker.end().await;
}

#[tokio::test]
async fn a_handler_that_ignores_its_limit_is_dropped_and_reported() {
    for bed in Bed::each([kind(Operation::new("work").limit_ms(200))]).await {
        let worker =
            Worker::new(&bed.client, "w").grace(ms(100)).handle("thing", Gate::default().deaf());
        let worker = Running::start(worker);
        let job = bed.submit("thing/t", "work").await;
        let job = bed.over(job).await;
        assert_eq!(&*job.error.unwrap().code, TIME_LIMIT);
        assert_eq!(job.state, JobState::Failed);
        assert_eq!(worker.end().await.reported, 1);
    }
}

#[tokio::test]
async fn a_handler_is_told_that_its_time_is_up_and_what_it_completed_counts() {
    let bed = Bed::memory([kind(Operation::new("work").limit_ms(100))]).await;
    let handler = |job: Context| async move {
        assert!(job.deadline().is_some_and(|deadline| deadline.remaining() <= ms(100)));
        assert_eq!(job.cancelled().await, Halt::TimeLimit);
        Ok(Done::default())
    };
    let worker = Running::start(Worker::new(&bed.client, "w").handle("thing", handler));
    let job = bed.submit("thing/t", "work").await;
    assert_eq!(bed.over(job).await.state, JobState::Succeeded);
    worker.end().await;
}

#[tokio::test]
async fn a_cancelled_job_is_told_at_once_and_ends_cancelled() {
    for bed in Bed::each([kind(Operation::new("work"))]).await {
        let gate = Gate::default();
        // With an hour between heartbeats only the store's hint can be in time.
        let worker = Worker::new(&bed.client, "w").ttl(ms(3 * 3_600_000));
        let worker = Running::start(worker.handle("thing", gate.handler()));
        let job = bed.submit("thing/t", "work").await;
        bed.running(job).await;
        let state = bed.client.cancel(job, "ann", "changed my mind").await.unwrap();
        assert_eq!(state, JobState::Cancelling);
        let job = bed.over(job).await;
        assert_eq!(job.state, JobState::Cancelled);
        assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::Cancelled));
        assert_eq!(gate.halts(), [Halt::Cancelled]);
        worker.end().await;
    }
}

#[tokio::test]
async fn the_heartbeat_and_the_answers_to_progress_tell_of_a_cancel_too() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    for (ttl, progress) in [(TTL, false), (ms(3 * 3_600_000), true)] {
        let (client, _) = bed.cable();
        let handler = move |job: Context| async move {
            let mut percent = 0;
            loop {
                tokio::select! {
                    _ = job.cancelled() => return Err(Failure::new("TOLD", "")),
                    () = tokio::time::sleep(ms(20)), if progress => {
                        percent = (percent + 1) % 100;
                        job.progress(percent, "");
                    }
                }
            }
        };
        let worker = Running::start(Worker::new(&client, "w").ttl(ttl).handle("thing", handler));
        let job = bed.submit("thing/t", "work").await;
        bed.running(job).await;
        bed.client.cancel(job, "ann", "").await.unwrap();
        let job = bed.over(job).await;
        assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::Cancelled));
        worker.end().await;
    }
}

#[tokio::test]
async fn a_handler_that_ignores_the_cancel_ends_with_its_limit() {
    let bed = Bed::memory([kind(Operation::new("work").limit_ms(1_000))]).await;
    let worker = Worker::new(&bed.client, "w").grace(Duration::from_secs(3_600));
    let worker = Running::start(worker.handle("thing", Gate::default().deaf()));
    let job = bed.submit("thing/t", "work").await;
    bed.running(job).await;
    bed.client.cancel(job, "ann", "").await.unwrap();
    let job = bed.over(job).await;
    assert_eq!(job.state, JobState::Cancelled);
    worker.end().await;
}

#[tokio::test]
async fn a_handler_that_ignores_the_cancel_and_has_no_limit_is_dropped() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let worker =
        Worker::new(&bed.client, "w").grace(ms(100)).handle("thing", Gate::default().deaf());
    let worker = Running::start(worker);
    let job = bed.submit("thing/t", "work").await;
    bed.running(job).await;
    bed.client.cancel(job, "ann", "").await.unwrap();
    assert_eq!(bed.over(job).await.state, JobState::Cancelled);
    worker.end().await;
}
