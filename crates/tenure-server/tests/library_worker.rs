//! The library's worker over HTTP: the same worker that runs beside a store, far from it.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{KEY, Server, until};
use serde_json::{Value, json};
use tenure::worker::{CancelReason, Summary};
use tenure::{Client, Context, Done, Error, Failure, Worker};
use tenure_core::{JobId, JobState, Kind, Kinds, Operation};
use tenure_store::Memory;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server, a client of it, and a worker that runs until it is told to stop.
struct Stage {
    server: Server,
    client: Client,
    stop: oneshot::Sender<()>,
    worker: JoinHandle<Result<Summary, Error>>,
}

impl Stage {
    async fn new(hire: impl FnOnce(Worker) -> Worker) -> Self {
        let kind = Kind::new("thing").operation(Operation::new("work"));
        let kinds = Arc::new(Kinds::new([kind]).expect("a kind that makes sense"));
        let server = Server::start_with(Arc::new(Memory::new()), kinds).await;
        let client = Client::connect(&server.url, KEY).expect("a good address");
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            stopped.await.ok();
        };
        let worker = hire(Worker::new(&client, "far away").ttl(Duration::from_secs(3)));
        let worker = tokio::spawn(worker.run(shutdown));
        Self { server, client, stop, worker }
    }

    async fn submit(&self, name: &str, args: Value) -> JobId {
        let asked = self.client.submit(&format!("thing/{name}"), "work").args(&args);
        asked.send().await.expect("it is taken").job
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
        self.worker.await.expect("no panic").expect("it may work")
    }
}

#[tokio::test]
async fn jobs_are_done_and_their_words_and_results_arrive() {
    let handler = |job: Context| async move {
        let rows: u32 = job.args::<Value>()?["rows"].as_u64().unwrap_or(0).try_into()?;
        job.log(&format!("copying {rows} rows with password=hunter2"));
        Ok(Done::with(&json!({ "copied": rows }))?)
    };
    let stage = Stage::new(|worker| worker.slots(4).handle("thing", handler)).await;
    let mut jobs = Vec::new();
    for n in 0..20 {
        jobs.push(stage.submit(&format!("t{n}"), json!({ "rows": n })).await);
    }
    for (n, id) in jobs.iter().enumerate() {
        let job = stage.until(*id, "succeeded").await;
        assert_eq!(job["result"], json!({ "copied": n }));
        assert_eq!(job["attempt"], 1);
    }
    let (_, logs) = stage.server.get(&format!("/v1/jobs/{}/logs", jobs[7])).await;
    assert_eq!(logs["items"][0]["text"], "copying 7 rows with password=[redacted]\n");
    let summary = stage.end().await;
    assert_eq!((summary.succeeded, summary.sessions, summary.lost), (20, 1, 0));
}

#[tokio::test]
async fn a_cancel_reaches_a_worker_that_is_far_away() {
    let handler = |job: Context| async move {
        assert_eq!(job.cancelled().await, CancelReason::JobCancelled);
        Err(Failure::new("STOPPED", "as asked"))
    };
    let stage = Stage::new(|worker| worker.handle("thing", handler)).await;
    let id = stage.submit("t", Value::Null).await;
    stage.until(id, "running").await;
    let state = stage.client.cancel(id, "ann", "enough").await.expect("it runs");
    assert_eq!(state, JobState::Cancelling);
    stage.until(id, "cancelled").await;
    stage.end().await;
}

#[tokio::test]
async fn a_worker_that_goes_hands_its_job_back() {
    let handler = |_: Context| std::future::pending::<Result<Done, Failure>>();
    let short = Duration::from_millis(50);
    let stage =
        Stage::new(|worker| worker.drain(short).grace(short).handle("thing", handler)).await;
    let id = stage.submit("t", Value::Null).await;
    stage.until(id, "running").await;
    drop(stage.stop);
    let summary = stage.worker.await.expect("no panic").expect("it may work");
    assert_eq!((summary.handed_back, summary.abandoned), (1, 0));
    let (_, job) = stage.server.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("queued"), &json!(0)));
    let (_, workers) = stage.server.get("/v1/workers").await;
    assert_eq!(workers["items"], json!([]), "it said goodbye");
}

#[tokio::test]
async fn what_the_server_does_not_take_ends_the_job_instead_of_leaving_it_running() {
    let handler = |_: Context| async { Ok(Done::default().state("NO_SUCH_STATE")) };
    let stage = Stage::new(|worker| worker.handle("thing", handler)).await;
    let id = stage.submit("t", Value::Null).await;
    let job = stage.until(id, "failed").await;
    assert_eq!(job["error"]["code"], "BAD_RESULT");
    stage.end().await;
}
