//! The worker of the library over HTTP.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{KEY, Server, until};
use serde_json::{Value, json};
use tenure::worker::{CancelReason, Summary};
use tenure::{Client, Context, Done, Error, Failure, Worker};
use tenure_core::{JobId, JobState, Kind, Kinds, Operation};
use tenure_store::Memory;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server, a client, and a worker that runs until it is stopped.
struct Testbed {
    server: Server,
    client: Client,
    stop: oneshot::Sender<()>,
    worker: JoinHandle<Result<Summary, Error>>,
}

impl Testbed {
    async fn new(configure: impl FnOnce(Worker) -> Worker) -> Self {
        let kind = Kind::new("thing").operation(Operation::new("work"));
        let kinds = Arc::new(Kinds::new([kind]).expect("valid kinds"));
        let server = Server::start_with(Arc::new(Memory::new()), kinds).await;
        let client = Client::connect(&server.url, KEY).await.expect("a running server");
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            stopped.await.ok();
        };
        let worker = configure(Worker::new(&client, "remote").ttl(Duration::from_secs(3)));
        let worker = tokio::spawn(worker.run(shutdown));
        Self { server, client, stop, worker }
    }

    async fn submit(&self, name: &str, args: Value) -> JobId {
        let submit = self.client.submit(&format!("thing/{name}"), "work").args(&args);
        submit.send().await.expect("accepted").job.id()
    }

    async fn job(&self, id: JobId) -> Value {
        self.server.get(&format!("/v1/jobs/{id}")).await.1
    }

    async fn until(&self, id: JobId, state: &str) -> Value {
        until(|| async { self.job(id).await["state"] == state }).await;
        self.job(id).await
    }

    async fn end(self) -> Summary {
        drop(self.stop);
        self.worker.await.expect("no panic").expect("authorized")
    }
}

#[tokio::test]
async fn jobs_run_and_their_logs_and_results_arrive() {
    let handler = |job: Context| async move {
        let rows: u32 = job.args::<Value>()?["rows"].as_u64().unwrap_or(0).try_into()?;
        job.log(&format!("copying {rows} rows with password=hunter2"));
        Ok(Done::with(&json!({ "copied": rows }))?)
    };
    let testbed = Testbed::new(|worker| worker.slots(4).handle("thing", handler)).await;
    let mut jobs = Vec::new();
    for n in 0..20 {
        jobs.push(testbed.submit(&format!("t{n}"), json!({ "rows": n })).await);
    }
    for (n, id) in jobs.iter().enumerate() {
        let job = testbed.until(*id, "succeeded").await;
        assert_eq!(job["result"], json!({ "copied": n }));
        assert_eq!(job["attempt"], 1);
    }
    let (_, logs) = testbed.server.get(&format!("/v1/jobs/{}/logs", jobs[7])).await;
    assert_eq!(logs["items"][0]["text"], "copying 7 rows with password=[redacted]\n");
    let summary = testbed.end().await;
    assert_eq!((summary.succeeded, summary.sessions, summary.lost), (20, 1, 0));
}

#[tokio::test]
async fn a_cancel_reaches_a_remote_worker() {
    let handler = |job: Context| async move {
        assert_eq!(job.cancelled().await, CancelReason::JobCancelled);
        Err(Failure::new("STOPPED", "as requested"))
    };
    let testbed = Testbed::new(|worker| worker.handle("thing", handler)).await;
    let id = testbed.submit("t", Value::Null).await;
    testbed.until(id, "running").await;
    let state = testbed.client.job(id).by("ann").cancel("enough").await.expect("running");
    assert_eq!(state, JobState::Cancelling);
    testbed.until(id, "cancelled").await;
    testbed.end().await;
}

#[tokio::test]
async fn a_worker_that_shuts_down_hands_its_job_back() {
    let handler = |_: Context| std::future::pending::<Result<Done, Failure>>();
    let short = Duration::from_millis(50);
    let testbed =
        Testbed::new(|worker| worker.drain(short).grace(short).handle("thing", handler)).await;
    let id = testbed.submit("t", Value::Null).await;
    testbed.until(id, "running").await;
    drop(testbed.stop);
    let summary = testbed.worker.await.expect("no panic").expect("authorized");
    assert_eq!((summary.handed_back, summary.abandoned), (1, 0));
    let (_, job) = testbed.server.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("queued"), &json!(0)));
    let (_, workers) = testbed.server.get("/v1/workers").await;
    assert_eq!(workers["items"], json!([]), "its session is closed");
}

#[tokio::test]
async fn a_refused_result_fails_the_job_instead_of_leaving_it_running() {
    let handler = |_: Context| async { Ok(Done::default().state("NO_SUCH_STATE")) };
    let testbed = Testbed::new(|worker| worker.handle("thing", handler)).await;
    let id = testbed.submit("t", Value::Null).await;
    let job = testbed.until(id, "failed").await;
    assert_eq!(job["error"]["code"], "BAD_RESULT");
    testbed.end().await;
}
