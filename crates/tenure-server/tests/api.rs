//! Locks over HTTP: acquire, wait, disconnect, and bad input.

mod common;

use std::sync::Arc;

use common::{KEY, Server, until};
use serde_json::{Value, json};
use tenure_store::{Memory, Store};

async fn server() -> Server {
    Server::start(Arc::new(Memory::new())).await
}

fn solo(name: &str) -> Value {
    json!({ "holder": name, "ttl_ms": 30_000 })
}

#[tokio::test]
async fn a_lock_is_acquired_shown_renewed_and_released() {
    let server = server().await;
    let lock = "/v1/locks/cluster/c1";
    let body = json!({ "holder": "ann", "ttl_ms": 30_000, "purpose": "install" });
    let (status, tenure) = server.post(&format!("{lock}/acquire"), body).await;
    assert_eq!(status, 200, "{tenure}");
    assert_eq!(tenure["lock"], "cluster/c1");
    assert_eq!(tenure["tenant"], "default");
    assert_eq!(tenure["token"], 1);
    assert_eq!(tenure["holder"]["purpose"], "install");
    let (_, shown) = server.get(lock).await;
    assert_eq!(shown["tenures"][0]["holder"]["name"], "ann");
    let (status, _) = server.post(&format!("{lock}/renew"), json!({ "token": 1 })).await;
    assert_eq!(status, 200);
    let (status, _) = server.post(&format!("{lock}/release"), json!({ "token": 1 })).await;
    assert_eq!(status, 200);
    let (status, problem) = server.post(&format!("{lock}/renew"), json!({ "token": 1 })).await;
    assert_eq!(
        (status, &problem["code"], &problem["how"]),
        (409, &json!("lost"), &json!("released"))
    );
    let (_, history) = server.get("/v1/resources/cluster/c1/history").await;
    assert_eq!(history["items"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_refused_acquire_names_the_holder() {
    let server = server().await;
    server.post("/v1/locks/cluster/c1/acquire", solo("ann")).await;
    let (status, problem) = server.post("/v1/locks/cluster/c1/acquire", solo("bob")).await;
    assert_eq!(status, 409);
    assert_eq!(problem["code"], "held");
    assert_eq!(problem["held_by"]["holder"]["name"], "ann");
    assert_eq!(problem["queue_length"], 0);
    assert!(problem["request_id"].as_str().unwrap().len() == 32);
    let (_, list) = server.get("/v1/locks?kind=cluster&holder=ann").await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_release_wakes_the_waiting_request() {
    let server = Arc::new(server().await);
    server.post("/v1/locks/cluster/c1/acquire", solo("ann")).await;
    let waiter = wait_behind(&server).await;
    server.post("/v1/locks/cluster/c1/release", json!({ "token": 1 })).await;
    let (status, tenure) = waiter.await.unwrap();
    assert_eq!((status, &tenure["token"]), (200, &json!(2)));
}

#[tokio::test]
async fn a_disconnected_client_leaves_the_queue() {
    let server = Arc::new(server().await);
    server.post("/v1/locks/cluster/c1/acquire", solo("ann")).await;
    let waiter = wait_behind(&server).await;
    waiter.abort();
    until(|| async { queue(&server).await == 0 }).await;
}

#[tokio::test]
async fn copies_of_a_waiting_request_get_the_same_answer() {
    let server = Arc::new(server().await);
    server.post("/v1/locks/cluster/c1/acquire", solo("ann")).await;
    let send = |wait_ms: u64| {
        let server = Arc::clone(&server);
        let body = json!({ "holder": "bob", "ttl_ms": 30_000, "wait_ms": wait_ms });
        tokio::spawn(
            async move { server.post_as("/v1/locks/cluster/c1/acquire", "bob-1", body).await },
        )
    };
    let gone = send(60_000);
    until(|| async { queue(&server).await == 1 }).await;
    let copies = [send(60_000), send(59_000), send(59_000)];
    let other = json!({ "holder": "carl", "ttl_ms": 30_000, "wait_ms": 60_000 });
    let (status, refused) = server.post_as("/v1/locks/cluster/c1/acquire", "bob-1", other).await;
    assert_eq!((status, &refused["reason"]), (409, &json!("request_reused")), "{refused}");
    gone.abort();
    server.post("/v1/locks/cluster/c1/release", json!({ "token": 1 })).await;
    for copy in copies {
        let (status, tenure) = copy.await.unwrap();
        assert_eq!((status, &tenure["token"]), (200, &json!(2)), "{tenure}");
    }
    let (status, _) = server.post("/v1/locks/cluster/c1/renew", json!({ "token": 2 })).await;
    assert_eq!(status, 200, "it was not withdrawn with the one that is gone");
}

#[tokio::test]
async fn a_poll_returns_the_position_and_keeps_it() {
    let server = server().await;
    server.post("/v1/locks/cluster/c1/acquire", solo("ann")).await;
    let bearer = format!("Bearer {KEY}");
    let headers = [("authorization", bearer.as_str()), ("idempotency-key", "bob-1")];
    let body =
        json!({ "holder": "bob", "ttl_ms": 30_000, "wait_ms": 60_000, "poll_ms": 0 }).to_string();
    for _ in 0..2 {
        let path = "/v1/locks/cluster/c1/acquire";
        let (status, problem) = server.post_with(path, &headers, body.clone()).await;
        assert_eq!((status, &problem["position"]), (409, &json!(1)), "{problem}");
    }
    assert_eq!(queue(&server).await, 1);
    let withdraw = json!({ "request": "bob-1" });
    let (status, _) = server.post("/v1/locks/cluster/c1/withdraw", withdraw).await;
    assert_eq!((status, queue(&server).await), (200, 0));
}

#[tokio::test]
async fn a_shutdown_answers_waiting_requests() {
    let mut server = server().await;
    server.post("/v1/locks/cluster/c1/acquire", solo("ann")).await;
    let (url, body) = (
        format!("{}/v1/locks/cluster/c1/acquire", server.url),
        json!({ "holder": "bob", "ttl_ms": 30_000, "wait_ms": 60_000 }).to_string(),
    );
    let request = common::http().post(url).header("x-api-key", KEY).body(body);
    let waiter = tokio::spawn(async move { request.send().await.expect("an answer").status() });
    until(|| async { queue(&server).await == 1 }).await;
    let task = server.stop();
    assert_eq!(waiter.await.unwrap(), 503);
    task.await.unwrap().expect("a graceful end");
}

#[tokio::test]
async fn without_a_valid_key_requests_are_unauthenticated() {
    let server = server().await;
    for headers in [
        &[][..],
        &[("authorization", "Bearer wrong")],
        &[("x-api-key", "")],
        &[("authorization", KEY)],
    ] {
        let path = "/v1/locks/cluster/c1/acquire";
        let (status, problem) = server.post_with(path, headers, solo("x").to_string()).await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")));
        assert!(!problem.to_string().contains(KEY));
    }
    let (status, body) = {
        let response = common::http().get(format!("{}/healthz", server.url)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!((status, body.as_str()), (200, "ok\n"));
    let (status, ready) = server.get("/readyz").await;
    assert_eq!((status, &ready["safety"]), (200, &json!("best effort")));
}

#[tokio::test]
async fn bad_input_is_refused_and_changes_nothing() {
    let server = server().await;
    let acquire = "/v1/locks/cluster/c1/acquire";
    let big = "x".repeat(70_000);
    let long_path = format!("/v1/locks/cluster/{}/acquire", "n".repeat(201));
    let cases: &[(&str, String, u16, &str)] = &[
        (acquire, "{".into(), 422, "invalid"),
        (acquire, "[]".into(), 422, "invalid"),
        (acquire, "null".into(), 422, "invalid"),
        (acquire, r#"{"holder":"a"}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"a","ttl_ms":0}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"a","ttl_ms":-1}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"a","ttl_ms":99999999999}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"a","ttl_ms":9000,"wait_ms":-1}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"a","ttl_ms":9000,"wait_ms":99999999999}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"","ttl_ms":9000}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"a\nb","ttl_ms":9000}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"a","ttl_ms":9000,"tll":1}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"a","ttl_ms":9000,"lock":"a b"}"#.into(), 422, "invalid"),
        (acquire, r#"{"holder":"a","ttl_ms":9000,"lock":[]}"#.into(), 422, "invalid"),
        (acquire, r#"{"session":"xyz"}"#.into(), 422, "invalid"),
        (acquire, format!(r#"{{"session":"{}"}}"#, "0".repeat(32)), 409, "lost"),
        (acquire, big, 413, "too_large"),
        (&long_path, solo("a").to_string(), 422, "invalid"),
        ("/v1/locks/cluster/a%20b/acquire", solo("a").to_string(), 422, "invalid"),
        ("/v1/locks/cluster/c1/release", r#"{"token":7}"#.into(), 409, "lost"),
        ("/v1/locks/cluster/c1/release", r#"{"token":"7"}"#.into(), 422, "invalid"),
        ("/v1/locks/cluster/c1/break", r#"{"token":7}"#.into(), 422, "invalid"),
        ("/v1/locks/cluster/c1/break", r#"{"token":7,"reason":" "}"#.into(), 422, "invalid"),
        ("/v1/locks/cluster/c1/break", r#"{"token":7,"reason":"x"}"#.into(), 409, "conflict"),
        ("/v1/sessions", r#"{"name":"a"}"#.into(), 422, "invalid"),
        ("/v1/sessions/nonsense/beat", "{}".into(), 422, "invalid"),
        ("/v1/nonsense", "{}".into(), 404, "not_found"),
    ];
    let bearer = format!("Bearer {KEY}");
    for (path, body, status, code) in cases {
        let headers = [("authorization", bearer.as_str())];
        let (got, problem) = server.post_with(path, &headers, body.clone()).await;
        let shown: String = body.chars().take(80).collect();
        assert_eq!((got, problem["code"].as_str()), (*status, Some(*code)), "{path} {shown}");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
    for path in
        ["/v1/locks?limit=0", "/v1/locks?limit=1001", "/v1/locks?cursor=x", "/v1/history?limit=a"]
    {
        assert_eq!(server.get(path).await.0, 422, "{path}");
    }
    assert_eq!(server.get("/v1/locks/cluster/c1").await.0, 404);
    assert_eq!(server.get("/v1/locks").await.1["items"], json!([]));
}

#[tokio::test]
async fn lists_continue_at_the_cursor() {
    let server = server().await;
    for n in 0..5 {
        server.post(&format!("/v1/locks/cluster/c{n}/acquire"), solo("ann")).await;
    }
    let (mut path, mut names) = ("/v1/locks?limit=2".to_owned(), Vec::new());
    loop {
        let (status, page) = server.get(&path).await;
        assert_eq!(status, 200, "{page}");
        let locks = page["items"].as_array().unwrap().iter();
        names.extend(locks.map(|tenure| tenure["lock"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/locks?limit=2&cursor={next}");
    }
    assert_eq!(names, ["cluster/c0", "cluster/c1", "cluster/c2", "cluster/c3", "cluster/c4"]);
}

#[tokio::test]
async fn tenants_have_separate_locks() {
    let server = server().await;
    server.post("/v1/locks/cluster/c1/acquire?tenant=acme", solo("ann")).await;
    let (status, _) = server.post("/v1/locks/cluster/c1/acquire?tenant=other", solo("bob")).await;
    assert_eq!(status, 200);
    let (_, list) = server.get("/v1/locks?tenant=other").await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let (_, history) = server.get("/v1/history?tenant=nobody").await;
    assert_eq!(history["items"], json!([]));
    assert_eq!(server.get("/v1/locks?tenant=a/b").await.0, 422);
}

#[tokio::test]
async fn an_unavailable_store_is_a_503() {
    use tenure_store::fault_injector::{FaultInjector, FaultRates};
    let rates = FaultRates { drop_requests: 100, ..FaultRates::default() };
    let store: Arc<dyn Store> = Arc::new(FaultInjector::new(Memory::new(), rates, 1));
    let server = Server::start(store).await;
    let (status, problem) = server.post("/v1/locks/cluster/c1/acquire", solo("ann")).await;
    assert_eq!((status, &problem["code"]), (503, &json!("unavailable")));
}

/// Starts a request that waits in the queue.
async fn wait_behind(server: &Arc<Server>) -> tokio::task::JoinHandle<(u16, Value)> {
    let waiting = Arc::clone(server);
    let waiter = tokio::spawn(async move {
        let body = json!({ "holder": "bob", "ttl_ms": 30_000, "wait_ms": 60_000 });
        waiting.post("/v1/locks/cluster/c1/acquire", body).await
    });
    until(|| async { queue(server).await == 1 }).await;
    waiter
}

async fn queue(server: &Server) -> usize {
    let (_, shown) = server.get("/v1/locks/cluster/c1").await;
    shown["queue"].as_array().map_or(0, Vec::len)
}
