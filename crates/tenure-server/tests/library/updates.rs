//! Status, timers, deferrals and conditional writes, over HTTP and on a store in the same process.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tenure::{
    Client, Code, Context, Done, Error, Failure, JobState, Kind, Kinds, Operation, Precondition,
    Refusal, Retry, Update, Worker,
};
use tenure_store::Memory;
use tokio::sync::oneshot;

use crate::common::{KEY, Server};

async fn clients() -> (Server, [Client; 2]) {
    let retry = Retry { attempts: 2, initial_ms: 60_000, max_ms: 60_000, ..Retry::default() };
    let thing = Kind::new("thing")
        .operation(Operation::new("work").retry(retry))
        .operation(Operation::new("expire"));
    let kinds = Kinds::new([thing]).expect("valid kinds");
    let server = Server::start_with(Arc::new(Memory::new()), Arc::new(kinds.clone())).await;
    let remote = Client::connect(&server.url, KEY).await.expect("a running server");
    let local = Client::in_memory(kinds).await.expect("valid kinds");
    (server, [remote, local])
}

/// Runs `test` while a worker runs `handler`.
async fn with_worker<T>(client: &Client, test: impl Future<Output = T>) -> T {
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(client, "w").handle("thing", handler);
    let worker = tokio::spawn(worker.run(async { drop(stopped.await) }));
    let result = tokio::time::timeout(Duration::from_secs(30), test).await;
    drop(stop);
    worker.await.expect("no panic").expect("authorized");
    result.expect("the test is done in time")
}

/// Does what the arguments say with status and timers. Its results are the statuses it found.
async fn handler(job: Context) -> Result<Done, Failure> {
    if job.operation() == "expire" {
        return Ok(().into());
    }
    let known: Value = serde_json::from_str(job.status().unwrap_or("null"))?;
    let once = |key: &str| known.get(key).is_none();
    match job.args::<String>()?.as_str() {
        "merge" => {
            job.update(Update::new().merge(&json!({ "a": 1, "b": { "c": 2, "d": 3 } }))?).await?;
            job.update(Update::new().merge(&json!({ "b": { "c": null } }))?).await?;
            job.update(Update::new()).await?;
            Ok(Done::with(&known)?.update(Update::new().merge(&json!({ "done": true }))?))
        }
        "defer" if once("deferred") => {
            let update = Update::new().merge(&json!({ "deferred": job.attempt() }))?;
            Err(Failure::deferred(Duration::ZERO, "QUOTA", "not yet").update(update))
        }
        // The rule of the kind would wait for a minute.
        "hurry" if once("failed") => {
            let update = Update::new().merge(&json!({ "failed": job.attempt() }))?;
            Err(Failure::transient("BUSY", "later").retry_after(Duration::ZERO).update(update))
        }
        "timers" => {
            let update = Update::new()
                .timer_after("expire", Duration::from_secs(3_600))
                .timer_after("work", Duration::from_secs(7_200));
            job.update(update).await?;
            Ok(Done::default().update(Update::new().remove_timer("work")))
        }
        "large" => {
            let update = Update::new().merge(&json!({ "x": "x".repeat(70_000) }))?;
            match job.update(update.clone()).await {
                Err(Error::Refused(Refusal::TooLarge(_))) => Ok(Done::default().update(update)),
                other => Err(Failure::permanent("UNEXPECTED", format!("{other:?}"))),
            }
        }
        _ => Ok(Done::with(&json!({ "found": known, "attempt": job.attempt() }))?),
    }
}

async fn run(client: &Client, resource: &str, args: &str) -> Value {
    let submitted = client.submit(resource, "work").args(&args).send().await;
    let submitted = submitted.expect("submitted");
    with_worker(client, submitted.wait()).await.expect("it succeeds")
}

async fn status(client: &Client, resource: &str) -> Value {
    let resource = client.resource(resource).expect("a valid name").get().await;
    resource.expect("the server is there").expect("it exists").status.unwrap_or_default()
}

#[tokio::test]
async fn a_status_survives_the_job_that_wrote_it() {
    let (_server, clients) = clients().await;
    for client in clients {
        assert_eq!(run(&client, "thing/a", "merge").await, Value::Null);
        let merged = json!({ "a": 1, "b": { "d": 3 }, "done": true });
        assert_eq!(status(&client, "thing/a").await, merged);
        assert_eq!(run(&client, "thing/a", "look").await["found"], merged);
    }
}

#[tokio::test]
async fn a_deferred_attempt_does_not_count_and_a_failure_names_its_delay() {
    let (_server, clients) = clients().await;
    for client in clients {
        let found = run(&client, "thing/a", "defer").await;
        assert_eq!((&found["found"], &found["attempt"]), (&json!({ "deferred": 1 }), &json!(1)));
        let found = run(&client, "thing/b", "hurry").await;
        assert_eq!((&found["found"], &found["attempt"]), (&json!({ "failed": 1 }), &json!(2)));
    }
}

#[tokio::test]
async fn a_worker_sets_and_removes_timers() {
    let (_server, clients) = clients().await;
    for client in clients {
        run(&client, "thing/a", "timers").await;
        let resource = client.resource("thing/a").unwrap().get().await.unwrap().unwrap();
        let operations: Vec<_> = resource.timers.iter().map(|timer| &*timer.operation).collect();
        assert_eq!(operations, ["expire"]);
    }
}

#[tokio::test]
async fn an_update_that_is_refused_fails_the_job_instead_of_leaving_it_running() {
    let (_server, clients) = clients().await;
    for client in clients {
        let submitted = client.submit("thing/a", "work").args(&"large").send().await.unwrap();
        let error = with_worker(&client, submitted.wait()).await.unwrap_err();
        let Error::JobFailed(job) = error else { panic!("{error}") };
        assert_eq!(job.state, JobState::Failed);
        assert_eq!(job.error.unwrap().code, "BAD_RESULT");
        assert_eq!(status(&client, "thing/a").await, Value::Null);
    }
}

#[tokio::test]
async fn an_operator_sets_moves_and_removes_timers() {
    let (_server, clients) = clients().await;
    for client in clients {
        let resource = client.resource("thing/a").unwrap();
        let error = resource.set_timer_after("expire", Duration::ZERO).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::NotFound), "{error}");
        let timer = Update::new().timer_after("expire", Duration::from_secs(60));
        resource.put_with(&1, timer).await.unwrap();
        let at = async || {
            let timers = resource.get().await.unwrap().unwrap().timers;
            timers.first().map(|timer| timer.at.clone())
        };
        let first = at().await.expect("a timer");
        resource.set_timer_after("expire", Duration::from_secs(3_600)).await.unwrap();
        assert!(at().await.expect("a timer") > first, "it moved");
        resource.remove_timer("expire").await.unwrap();
        assert_eq!(at().await, None);
        resource.set_timer("expire", SystemTime::UNIX_EPOCH).await.unwrap();
        let shown = resource.get().await.unwrap().unwrap();
        assert_eq!(shown.queue[0].operation, "expire", "a past instant fires at once");
        let merge = Update::new().merge(&json!({})).unwrap();
        assert_eq!(resource.put_with(&1, merge).await.unwrap_err().code(), Some(Code::Invalid));
    }
}

#[tokio::test]
async fn writes_may_be_conditional() {
    let (_server, clients) = clients().await;
    for client in clients {
        let only_if = |condition| client.resource("thing/a").unwrap().only_if(condition);
        let failed = |error: Error| match error {
            Error::Refused(Refusal::PreconditionFailed { generation, .. }) => generation,
            other => panic!("{other}"),
        };
        assert_eq!(only_if(Precondition::Absent).put(&1).await.unwrap().generation, 1);
        let error = only_if(Precondition::Absent).put(&2).await.unwrap_err();
        assert_eq!(failed(error), Some(1));
        assert_eq!(only_if(Precondition::Generation(1)).put(&3).await.unwrap().generation, 2);
        let late = only_if(Precondition::Generation(1));
        assert_eq!(failed(late.put(&4).await.unwrap_err()), Some(2));
        assert_eq!(failed(late.submit("work").send().await.unwrap_err()), Some(2));
        assert_eq!(failed(late.delete().await.unwrap_err()), Some(2));
        let timer = late.set_timer_after("expire", Duration::ZERO).await;
        assert_eq!(failed(timer.unwrap_err()), Some(2));
        only_if(Precondition::Generation(2)).delete().await.unwrap();
        let missing = only_if(Precondition::Generation(2)).put(&5).await;
        assert_eq!(failed(missing.unwrap_err()), None);
    }
}
