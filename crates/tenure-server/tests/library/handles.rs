//! Handles of jobs and resources, over HTTP and on a store in the same process.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure::{Client, Context, Done, Error, Failure, JobState, Verdict, Worker};
use tenure::{Kind, Kinds, Operation, Retry};
use tenure_store::{Memory, Store as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::common::{KEY, Server};

/// A client over HTTP with its server, and one of a store in this process.
async fn clients() -> (Server, [Client; 2]) {
    let retry = Retry { attempts: 1, ..Retry::default() };
    let work = Operation::new("work").retry(retry);
    let kinds = Kinds::new([Kind::new("thing").operation(work)]).expect("valid kinds");
    let store = Arc::new(Memory::new());
    let server = Server::start_with(store, Arc::new(kinds.clone())).await;
    let remote = Client::connect(&server.url, KEY).await.expect("a running server");
    let local = Client::in_memory(kinds).await.expect("valid kinds");
    (server, [remote, local])
}

/// Runs `test` while a worker runs `handler`.
async fn with_worker<T>(client: &Client, test: impl Future<Output = T>) -> T {
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(client, "w").slots(4).handle("thing", handler);
    let worker = tokio::spawn(worker.run(async { drop(stopped.await) }));
    let result = tokio::time::timeout(Duration::from_secs(30), test).await;
    drop(stop);
    worker.await.expect("no panic").expect("authorized");
    result.expect("the test is done in time")
}

/// Logs two lines, then succeeds, fails, or waits until it is cancelled.
async fn handler(job: Context) -> Result<Done, Failure> {
    let args: String = job.args()?;
    job.log("first");
    job.log("second");
    match args.as_str() {
        "fail" => Err(Failure::permanent("DISK_FULL", "no space left")),
        "hang" => {
            job.cancelled().await;
            Err(Failure::new("STOPPED", "stopped"))
        }
        _ => Ok(Done::with(&json!({ "echo": args }))?),
    }
}

#[tokio::test]
async fn a_submitter_waits_for_the_result() {
    let (_server, clients) = clients().await;
    for client in clients {
        let submitted = client.submit("thing/a", "work").args(&"hello").send().await.unwrap();
        assert_eq!(submitted.verdict, Verdict::Started);
        let status = submitted.job.status().await.unwrap();
        assert_eq!((status.state, status.attempts_max), (JobState::Queued, Some(1)));
        assert_eq!(submitted.job.why().await.unwrap().why, "no_worker");
        let result = with_worker(&client, submitted.wait()).await.unwrap();
        assert_eq!(result, json!({ "echo": "hello" }));
        // A handle works after the end of the job, and in another process.
        let again = client.job(submitted.job.id());
        assert_eq!(again.wait().await.unwrap(), result);
        assert_eq!(again.why().await.unwrap().why, "succeeded");
    }
}

#[tokio::test]
async fn a_wait_fails_if_the_job_does_not_succeed() {
    let (_server, clients) = clients().await;
    for client in clients {
        let failing = client.submit("thing/a", "work").args(&"fail").send().await.unwrap();
        let error = with_worker(&client, failing.wait()).await.unwrap_err();
        assert!(error.to_string().ends_with("is failed: DISK_FULL: no space left"), "{error}");
        let Error::JobFailed(job) = error else { panic!("{error}") };
        assert_eq!((job.id, job.state), (failing.job.id(), JobState::Failed));

        // Without a worker the cancelled job ends at once.
        let waiting = client.submit("thing/b", "work").args(&"x").send().await.unwrap();
        let state = waiting.job.clone().by("ann").cancel("not needed").await.unwrap();
        assert_eq!(state, JobState::Cancelled);
        let error = waiting.wait().await.unwrap_err().to_string();
        assert!(error.contains("was cancelled by ") && error.ends_with(": not needed"), "{error}");

        let retried = failing.job.retry("the disk is empty").await.unwrap();
        assert_ne!(retried.job.id(), failing.job.id());
        assert_eq!(retried.job.status().await.unwrap().retry_of, Some(failing.job.id()));

        let unknown = client.job("0123456789abcdef0123456789abcdef".parse().unwrap());
        let error = unknown.wait().await.unwrap_err();
        assert_eq!(error.code(), Some(tenure::Code::NotFound), "{error}");
    }
}

#[tokio::test]
async fn logs_are_streamed_while_the_job_runs_and_end_with_it() {
    let (_server, clients) = clients().await;
    for client in clients {
        let submitted = client.submit("thing/a", "work").args(&"hang").send().await.unwrap();
        let texts = with_worker(&client, async {
            let mut logs = submitted.job.logs();
            let mut text = String::new();
            while !text.contains("second") {
                text += &logs.next().await.expect("the job is running").unwrap().text;
            }
            let status = submitted.job.status().await.unwrap();
            assert_eq!(status.state, JobState::Running, "the log did not wait for the end");
            submitted.job.cancel("enough").await.unwrap();
            while let Some(chunk) = logs.next().await {
                text += &chunk.unwrap().text;
            }
            text
        });
        assert!(texts.await.starts_with("first\nsecond\n"));
        assert!(submitted.job.status().await.unwrap().state.is_finished());
    }
}

#[tokio::test]
async fn a_resource_is_put_shown_explained_and_deleted() {
    let (_server, clients) = clients().await;
    for client in clients {
        let thing = client.resource("thing/a").unwrap();
        assert!(thing.get().await.unwrap().is_none());
        assert_eq!(thing.why().await.unwrap_err().code(), Some(tenure::Code::NotFound));
        let put = thing.put(&json!({ "size": 1 })).await.unwrap();
        assert_eq!((put.generation, put.job.is_none()), (1, true));
        thing.pause("maintenance").await.unwrap();
        let job = thing.submit("work").args(&"x").send().await.unwrap().job;
        assert_eq!(thing.why().await.unwrap().why, "paused");
        thing.resume("done").await.unwrap();
        assert_eq!(thing.why().await.unwrap().why, "no_worker");
        let shown = thing.get().await.unwrap().expect("it was put");
        assert_eq!((shown.spec, shown.queue_length), (Some(json!({ "size": 1 })), 1));
        assert!(thing.delete().await.is_err(), "a resource with a job is in use");
        job.cancel("cleanup").await.unwrap();
        thing.delete().await.unwrap();
        assert!(thing.get().await.unwrap().is_none());
    }
    let error = Client::in_memory(Kinds::default()).await.unwrap().resource("no-slash");
    assert!(error.is_err(), "a name is required");
}

#[tokio::test]
async fn history_is_streamed_over_all_pages() {
    let (_server, clients) = clients().await;
    let puts = 1_100;
    for client in clients {
        let thing = client.resource("thing/a").unwrap();
        for n in 0..puts {
            thing.put(&n).await.unwrap();
        }
        let (mut history, mut positions) = (thing.history(), Vec::new());
        while let Some(entry) = history.next().await {
            positions.push(entry.unwrap().position);
        }
        assert_eq!(positions.len(), puts + 1, "the creation, and each put");
        assert!(positions.is_sorted_by(|newer, older| newer > older), "newest first, each once");
    }
}

#[tokio::test]
async fn a_wait_survives_a_restart_of_the_server() {
    let kinds =
        Arc::new(Kinds::new([Kind::new("thing").operation(Operation::new("work"))]).unwrap());
    let store = Arc::new(Memory::new());
    let mut first = Server::start_with(Arc::clone(&store) as _, Arc::clone(&kinds)).await;
    let address = first.url.trim_start_matches("http://").to_owned();
    let client = Client::connect(&first.url, KEY).await.unwrap();
    let submitted = client.submit("thing/a", "work").args(&"x").send().await.unwrap();
    let wait = tokio::spawn({
        let job = submitted.job.clone();
        async move { job.wait().await }
    });
    first.stop().await.expect("no panic").expect("a graceful stop");
    assert!(client.job(submitted.job.id()).status().await.unwrap_err().is_unavailable());
    let listener = TcpListener::bind(&address).await.expect("the port is free again");
    let (stop, stopped) = oneshot::channel::<()>();
    let config = crate::common::config(kinds);
    let shutdown = async { drop(stopped.await) };
    let second = tokio::spawn(tenure_server::run(listener, store, config, shutdown));
    let client = Client::connect(&format!("http://{address}"), KEY).await.unwrap();
    let result = with_worker(&client, wait).await.expect("no panic").unwrap();
    assert_eq!(result, json!({ "echo": "x" }));
    drop(stop);
    second.await.expect("no panic").expect("a graceful stop");
}

#[tokio::test]
async fn a_local_wait_survives_lost_hints() {
    let kinds = || Kinds::new([Kind::new("thing").operation(Operation::new("work"))]).unwrap();
    let store = Arc::new(Memory::new());
    store.declare(Arc::new(kinds())).await.unwrap();
    let client = Client::local(Arc::clone(&store) as _);
    let submitted = client.submit("thing/a", "work").args(&"x").send().await.unwrap();
    let job = submitted.job.clone();
    let wait = tokio::spawn(async move { job.wait().await });
    let let_the_waiter_run = async || {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    let_the_waiter_run().await;
    // Two batches have more hints than a receiver keeps: the waiter sees a gap after each pair.
    for batch in 0..4 {
        let submit = |n: usize| {
            let request = tenure::RequestId((batch * 4_096 + n + 1) as u128);
            let submit = tenure::model::Submit::new(request, "work", "ann".into());
            let action = tenure::model::ResourceAction::Submit(submit);
            let name = format!("b{batch}n{n}");
            let key = tenure::ResourceKey::new("other", "thing", &name).expect("a valid name");
            tenure::model::Command::Resource { key, action }
        };
        store.apply((0..4_096).map(submit).collect()).await.unwrap();
        if batch % 2 == 1 {
            let_the_waiter_run().await;
            assert!(!wait.is_finished(), "the job is still waiting");
        }
    }
    let result = with_worker(&client, wait).await.expect("no panic").unwrap();
    assert_eq!(result, json!({ "echo": "x" }));
}

#[tokio::test]
async fn the_name_of_the_caller_follows_from_handle_to_handle() {
    let (_server, [_, local]) = clients().await;
    let thing = local.resource("thing/a").unwrap().by("ann");
    let submitted = thing.submit("work").args(&"x").send().await.unwrap();
    assert_eq!(submitted.job.status().await.unwrap().by, "ann");
    submitted.job.cancel("enough").await.unwrap();
    let cancel = submitted.job.status().await.unwrap().cancel.expect("it was cancelled");
    assert_eq!((cancel.by.as_str(), cancel.reason.as_str()), ("ann", "enough"));
    let retried = submitted.job.retry("again").await.unwrap();
    assert_eq!(retried.job.status().await.unwrap().by, "ann");
}

#[tokio::test]
async fn an_answer_of_a_proxy_without_its_server_is_unavailable() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", port.local_addr().unwrap());
    let answer = async || (axum::http::StatusCode::BAD_GATEWAY, "bad gateway");
    let proxy = axum::Router::new().fallback(answer);
    let proxy = tokio::spawn(async { axum::serve(port, proxy).await });
    let error = Client::connect(&url, KEY).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    proxy.abort();
}

#[tokio::test]
async fn connect_verifies_the_server_and_the_key() {
    let (server, _) = clients().await;
    let wrong = KEY.replace('0', "1");
    let error = Client::connect(&server.url, &wrong).await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error}");

    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", port.local_addr().unwrap());
    let other = axum::Router::new().fallback(async || "hello");
    let other = tokio::spawn(async { axum::serve(port, other).await });
    let error = Client::connect(&url, KEY).await.unwrap_err();
    assert!(error.to_string().contains(&format!("{url} is not a Tenure server")), "{error}");
    other.abort();
    drop(other.await);
    let error = Client::connect(&url, KEY).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let error = Client::connect("ftp://127.0.0.1", KEY).await.unwrap_err();
    assert!(error.to_string().contains("expected https://HOST"), "{error}");
}
