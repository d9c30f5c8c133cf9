//! Progress, logs without secrets, and submissions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::{Context, Failure, Worker};
use tenure_core::{Code, JobState, Operation};

use crate::testbed::{RunningWorker, TestBed, kind, wait_until};
use crate::{Gate, ms};

#[tokio::test]
async fn progress_and_log_are_stored_while_the_job_runs_and_completed_at_its_end() {
    for bed in TestBed::each([kind(Operation::new("work"))]).await {
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
        let worker = RunningWorker::start(Worker::new(&bed.client, "w").handle("thing", handler));
        let id = bed.submit("thing/t", "work").await;
        wait_until("progress and log are stored", || async {
            let progress = bed.job(id).await.progress;
            let (percent, message) = progress.map_or((0, "".into()), |p| (p.percent, p.message));
            (percent, &*message) == (40, "copying rows") && bed.log(id).await == "one\ntwo\n"
        })
        .await;
        gate.open.notify_one();
        bed.wait_finished(id).await;
        assert_eq!(bed.log(id).await, "one\ntwo\nthree\n");
        worker.stop().await;
    }
}

#[tokio::test]
async fn secrets_are_redacted_in_log_and_progress() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
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
    let worker = RunningWorker::start(worker);
    let args = HashMap::from([("password", "hunter2hunter2")]);
    let submitted = bed.client.submit("thing/t", "work").args(&args).send().await.unwrap();
    let id = submitted.job.id();
    wait_until("progress is stored", || async { bed.job(id).await.progress.is_some() }).await;
    assert_eq!(&*bed.job(id).await.progress.unwrap().message, "as [redacted]");
    bed.client.job(id).by("ann").cancel("").await.unwrap();
    bed.wait_finished(id).await;
    assert_eq!(bed.log(id).await, "connecting with [redacted]\n[redacted private key]\nafter\n");
    worker.stop().await;
}

#[tokio::test]
async fn a_failure_is_redacted_and_truncated() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let handler = |_: Context| async move {
        let long = "ä".repeat(2_000);
        Err(Failure::new(&format!("A\n{}", "B".repeat(100)), format!("token=abcdef {long}")))
    };
    let worker = RunningWorker::start(Worker::new(&bed.client, "w").handle("thing", handler));
    let job = bed.submit("thing/t", "work").await;
    let error = bed.wait_finished(job).await.error.unwrap();
    assert_eq!(&*error.code, format!("A{}", "B".repeat(63)));
    assert!(error.message.starts_with("token=[redacted] ää"), "{}", error.message);
    assert!(error.message.len() <= 1_024);
    worker.stop().await;
}

#[tokio::test]
async fn a_submission_with_a_lost_response_creates_one_job() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let (client, faults) = bed.faulty_client();
    faults.drop_responses.store(true, Ordering::SeqCst);
    let submitted = client.submit("thing/t", "work").send();
    let restore = async {
        let jobs = || async {
            let query = tenure_store::store::JobQuery { limit: 10, ..Default::default() };
            bed.store.reads().jobs(query).await.unwrap().items.len()
        };
        wait_until("the submission is applied", || async { jobs().await == 1 }).await;
        faults.drop_responses.store(false, Ordering::SeqCst);
        jobs
    };
    let (submitted, jobs) = tokio::join!(submitted, restore);
    assert_eq!(bed.job(submitted.unwrap().job.id()).await.state, JobState::Queued);
    assert_eq!(jobs().await, 1);
}

#[tokio::test]
async fn an_invalid_submission_is_refused() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let refused = bed.client.submit("no-slash", "work").send().await.expect_err("no name");
    assert_eq!(refused.code(), Some(Code::Invalid));
    let bad = HashMap::from([(vec![1], 2)]);
    let refused = bed.client.submit("thing/t", "work").args(&bad).send().await;
    assert!(
        refused.expect_err("no JSON").to_string().contains("args cannot be serialized as JSON")
    );
    let later = std::time::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let refused = bed.client.submit("thing/t", "work").run_at(later).send().await;
    assert!(refused.expect_err("too far").to_string().contains("366 days ahead"));
}
