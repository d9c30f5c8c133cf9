//! Batches and restricted workers, over HTTP and on a store in the same process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tenure::wire::BATCH_REQUESTS_MAX;
use tenure::{BatchResult, Client, Context, Done, Error, Failure, Precondition, Refusal, Worker};
use tenure_store::{Memory, Store as _, scenario};
use tokio::sync::oneshot;

use crate::common::{KEY, Server, until};

/// A client over HTTP with its server, and one of a store in this process.
async fn clients() -> (Server, [Client; 2]) {
    let server = Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await;
    let remote = Client::connect(&server.url, KEY).await.expect("a running server");
    let store = Arc::new(Memory::new());
    store.declare(scenario::kinds()).await.expect("memory is available");
    (server, [remote, Client::local(store)])
}

#[tokio::test]
async fn every_request_of_a_batch_has_its_own_result() {
    let (_server, clients) = clients().await;
    for client in clients {
        let mut batch = client.batch();
        batch
            .put("task/a", &json!({ "n": 1 }))
            .put_if("task/a", &json!({ "n": 2 }), Precondition::Generation(1))
            .put_if("task/a", &json!({ "n": 3 }), Precondition::Absent)
            .submit("task/a", "work")
            .add(client.submit("task/a", "work").args(&json!([1])).priority(3))
            .delete("task/a")
            .pause("task/a", "maintenance")
            .resume("task/a", "done")
            .submit("task/a", "nonsense")
            .put("no name", &1)
            .put("task/b", &json!("b"))
            .delete_if("task/b", Precondition::Generation(7))
            .delete("task/b");
        assert_eq!(batch.len(), 13);
        let results = batch.send().await;
        let put = |n: usize| match &results[n] {
            Ok(BatchResult::Put(put)) => put.generation,
            other => panic!("{n}: {other:?}"),
        };
        let refused = |n: usize| match &results[n] {
            Err(Error::Refused(refusal)) => refusal,
            other => panic!("{n}: {other:?}"),
        };
        assert_eq!((put(0), put(1), put(10)), (1, 2, 1));
        assert!(matches!(refused(2), Refusal::PreconditionFailed { generation: Some(2), .. }));
        let job = |n: usize| match &results[n] {
            Ok(BatchResult::Submitted(submitted)) => submitted.job.clone(),
            other => panic!("{n}: {other:?}"),
        };
        assert_ne!(job(3).id(), job(4).id());
        assert_eq!(job(4).status().await.unwrap().priority, 3);
        assert!(matches!(refused(5), Refusal::InUse { .. }), "after the submissions");
        assert!(matches!(results[6], Ok(BatchResult::Paused)), "{:?}", results[6]);
        assert!(matches!(results[7], Ok(BatchResult::Resumed)), "{:?}", results[7]);
        assert!(matches!(refused(8), Refusal::NotDeclared(_)));
        assert!(matches!(results[9], Err(Error::BadName(_))), "{:?}", results[9]);
        assert!(matches!(refused(11), Refusal::PreconditionFailed { .. }));
        assert!(matches!(results[12], Ok(BatchResult::Deleted)), "{:?}", results[12]);
        assert!(client.batch().send().await.is_empty());
    }
}

#[tokio::test]
async fn a_batch_may_exceed_what_a_server_takes_at_once() {
    let (_server, clients) = clients().await;
    for client in clients {
        let mut batch = client.batch();
        for n in 0..BATCH_REQUESTS_MAX {
            batch.put(&format!("task/t{}", n % 100), &n);
        }
        // The last puts are in the second part.
        batch.put("task/t0", &"last").delete("task/t1");
        // More than the maximum size of a body.
        for n in 0..150 {
            batch.put("task/large", &"x".repeat(60_000 + n));
        }
        let results = batch.send().await;
        assert_eq!(results.len(), BATCH_REQUESTS_MAX + 152);
        assert!(results.iter().all(Result::is_ok), "{:?}", results.iter().find(|r| r.is_err()));
        let spec = async |name: &str| {
            let resource = client.resource(name).unwrap().get().await.unwrap();
            resource.map(|resource| (resource.spec, resource.generation))
        };
        let puts_of_t0 = BATCH_REQUESTS_MAX.div_ceil(100) as u64 + 1;
        assert_eq!(spec("task/t0").await, Some((Some(json!("last")), puts_of_t0)));
        assert_eq!(spec("task/t1").await, None);
        assert_eq!(spec("task/large").await, Some((Some(json!("x".repeat(60_149))), 150)));
    }
}

#[tokio::test]
async fn a_batch_without_an_answer_is_repeated() {
    let store = Arc::new(Memory::new());
    let mut server = Server::start_with(Arc::clone(&store) as _, scenario::kinds()).await;
    let client = Client::connect(&server.url, KEY).await.expect("a running server");
    let address = server.url.strip_prefix("http://").expect("a URL").to_owned();
    server.stop().await.expect("no panic").expect("a clean shutdown");
    let mut batch = client.batch();
    batch.submit("task/a", "work").put("task/a", &1);
    let sending = tokio::spawn(batch.send());
    // The first attempts find no server.
    tokio::task::yield_now().await;
    let listener = tokio::net::TcpListener::bind(&address).await.expect("the address is free");
    let config = crate::common::config(scenario::kinds());
    let shutdown = std::future::pending();
    let serving = tokio::spawn(tenure_server::run(listener, store, config, shutdown));
    let results = sending.await.expect("no panic");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    serving.abort();
}

/// Runs a worker until `done` names have been handled, and returns them.
async fn handled(
    client: &Client,
    restrict: impl FnOnce(Worker) -> Worker,
    done: usize,
) -> Vec<String> {
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&names);
    let handler = move |job: Context| {
        let seen = Arc::clone(&seen);
        async move {
            seen.lock().expect("no panic").push(job.key().name().to_owned());
            Ok::<_, Failure>(Done::default())
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = restrict(Worker::new(client, "w").slots(2)).handle("check", handler);
    let worker = tokio::spawn(worker.run(async { drop(stopped.await) }));
    until(|| async { names.lock().expect("no panic").len() >= done }).await;
    drop(stop);
    let summary = worker.await.expect("no panic").expect("authorized");
    assert_eq!(summary.succeeded, done as u64, "{names:?}");
    let mut names = names.lock().expect("no panic").clone();
    names.sort();
    names
}

#[tokio::test]
async fn a_restricted_worker_claims_only_its_group_or_resource() {
    let (_server, clients) = clients().await;
    for client in clients {
        let mut batch = client.batch();
        for name in ["a:1", "b:1", "b:2", "c:1", "c:2"] {
            batch.submit(&format!("check/{name}"), "run");
        }
        assert!(batch.send().await.iter().all(Result::is_ok));
        let group = handled(&client, |worker| worker.only_group("check", "b"), 2).await;
        assert_eq!(group, ["b:1", "b:2"]);
        let resource = handled(&client, |worker| worker.only_resource("check", "c:2"), 1).await;
        assert_eq!(resource, ["c:2"]);
        // The jobs of others are untouched; a worker without a restriction takes them.
        assert_eq!(handled(&client, |worker| worker, 2).await, ["a:1", "c:1"]);
    }
}

#[tokio::test]
async fn a_contradictory_restriction_is_refused() {
    let (_server, [_, client]) = clients().await;
    let handler = |_: Context| async { Ok::<_, Failure>(Done::default()) };
    let worker = || Worker::new(&client, "w").ttl(Duration::from_secs(3)).handle("check", handler);
    for (worker, says) in [
        (worker().only_group("task", "b"), "a handler for this kind"),
        (worker().handle("task", handler).only_resource("check", "b:1"), "and for no other"),
        (worker().only_group("check", "b/c"), "invalid name"),
        (worker().only_resource("check", ""), "invalid name"),
    ] {
        let error = worker.run(std::future::pending()).await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[tokio::test]
async fn jobs_of_a_group_are_counted() {
    let (_server, clients) = clients().await;
    for client in clients {
        for name in ["b1:t1", "b1:t2", "b2:t1"] {
            client.submit(&format!("check/{name}"), "run").send().await.expect("submitted");
        }
        let counts = client.group("check/b1").await.expect("counted");
        assert_eq!((&*counts.kind, &*counts.group), ("check", "b1"));
        assert_eq!((counts.running, counts.waiting, counts.ready), (0, 2, 2));
        assert_eq!(client.group("check/b3").await.expect("counted").waiting, 0);
        assert!(client.group("check").await.is_err(), "it is not KIND/GROUP");
    }
}

#[tokio::test]
async fn a_batch_deletes_and_pauses_once() {
    let (_server, clients) = clients().await;
    for client in clients {
        let mut batch = client.batch();
        batch.put("task/t1", &1).pause("task/t1", "a test").resume("task/t1", "a test");
        batch.delete("task/t1").put("task/t1", &2);
        let results = batch.send().await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        let shown = client.resource("task/t1").unwrap().get().await.unwrap().expect("it is back");
        assert_eq!((shown.generation, shown.paused), (1, None));
    }
}
