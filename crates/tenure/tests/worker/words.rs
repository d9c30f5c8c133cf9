//! What jobs say and what is said to them: progress, logs without secrets, and submissions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::{Context, Failure, Worker};
use tenure_core::{Code, JobState, Operation};

use crate::bed::{Bed, Running, kind, until};
use crate::{Gate, ms};

#[tokio::test]
async fn progress_and_log_are_in_the_store_while_the_job_runs_and_the_last_words_after() {
    for bed in Bed::each([kind(Operation::new("work"))]).await {
        let gate = Gate::default();
        let open = Arc::clone(&gate.open);
        let handler = move |job: Context| {
            let open = Arc::clone(&open);
            async move {
                job.progress(40, "copying\nrows");
                job.log("one\ntwo");
                open.notified().await;
                (41..=99).for_each(|percent| job.progress(percent, "more"));
                job.log("three");
                Err(Failure::new("NO", "enough"))
            }
        };
        let worker = Running::start(Worker::new(&bed.client, "w").handle("thing", handler));
        let id = bed.submit("thing/t", "work").await;
        until("it said so", || async {
            let progress = bed.job(id).await.progress;
            let (percent, message) = progress.map_or((0, "".into()), |p| (p.percent, p.message));
            (percent, &*message) == (40, "copying rows") && bed.log(id).await == "one\ntwo\n"
        })
        .await;
        gate.open.notify_one();
        bed.over(id).await;
        assert_eq!(bed.log(id).await, "one\ntwo\nthree\n");
        worker.end().await;
    }
}

#[tokio::test]
async fn secrets_reach_neither_the_log_nor_the_error_nor_the_progress() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let handler = |job: Context| async move {
        let secret = job.args::<HashMap<String, String>>()?["password"].clone();
        job.log(&format!("connecting with {secret}"));
        job.log("-----BEGIN PRIVATE KEY-----\nMIIE");
        job.log("Zm9v\n-----END PRIVATE KEY-----\nafter");
        job.progress(10, &format!("as {secret}"));
        job.cancelled().await;
        Err(Failure::new("NO", format!("cannot reach postgres://u:pw@host with {secret}")))
    };
    let worker = Worker::new(&bed.client, "w").drain(ms(10)).handle("thing", handler);
    let worker = Running::start(worker);
    let args = HashMap::from([("password", "hunter2hunter2")]);
    let asked = bed.client.submit("thing/t", "work").args(&args).send().await.unwrap();
    let id = asked.job;
    until("it says something", || async { bed.job(id).await.progress.is_some() }).await;
    assert_eq!(&*bed.job(id).await.progress.unwrap().message, "as [redacted]");
    bed.client.cancel(id, "ann", "").await.unwrap();
    bed.over(id).await;
    assert_eq!(bed.log(id).await, "connecting with [redacted]\n[redacted private key]\nafter\n");
    worker.end().await;
}

#[tokio::test]
async fn a_failure_is_stored_without_secrets_and_within_its_bounds() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let handler = |_: Context| async move {
        let long = "ä".repeat(2_000);
        Err(Failure::new(&format!("A\n{}", "B".repeat(100)), format!("token=abcdef {long}")))
    };
    let worker = Running::start(Worker::new(&bed.client, "w").handle("thing", handler));
    let job = bed.submit("thing/t", "work").await;
    let error = bed.over(job).await.error.unwrap();
    assert_eq!(&*error.code, format!("A{}", "B".repeat(63)));
    assert!(error.message.starts_with("token=[redacted] ää"), "{}", error.message);
    assert!(error.message.len() <= 1_024);
    worker.end().await;
}

#[tokio::test]
async fn a_submission_whose_answer_was_lost_makes_one_job() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let (client, faults) = bed.cable();
    faults.mute.store(true, Ordering::SeqCst);
    let asked = client.submit("thing/t", "work").send();
    let unmute = async {
        let jobs = || async {
            let query = tenure_store::store::JobQuery { limit: 10, ..Default::default() };
            bed.store.reads().jobs(query).await.unwrap().items.len()
        };
        until("it arrived", || async { jobs().await == 1 }).await;
        faults.mute.store(false, Ordering::SeqCst);
        jobs
    };
    let (asked, jobs) = tokio::join!(asked, unmute);
    assert_eq!(bed.job(asked.unwrap().job).await.state, JobState::Queued);
    assert_eq!(jobs().await, 1);
}

#[tokio::test]
async fn a_submission_that_makes_no_sense_is_refused_before_it_is_sent() {
    let bed = Bed::memory([kind(Operation::new("work"))]).await;
    let refused = bed.client.submit("no-slash", "work").send().await.expect_err("no name");
    assert_eq!(refused.code(), Some(Code::Invalid));
    let bad = HashMap::from([(vec![1], 2)]);
    let refused = bed.client.submit("thing/t", "work").args(&bad).send().await;
    assert!(refused.expect_err("no JSON").to_string().contains("args cannot be written as JSON"));
    let later = std::time::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let refused = bed.client.submit("thing/t", "work").run_at(later).send().await;
    assert!(refused.expect_err("too far").to_string().contains("366 days ahead"));
}
