//! Batches: order on a resource, answers of their own, bounds, idempotency, access, refusals.

#[path = "../common/mod.rs"]
mod common;
mod gated;
mod refusals;
mod repeats;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{KEY, Server, answer, http, key, until};
use gated::Gated;
use serde_json::{Value, json};
use tenure_server::auth::limits::Rate;
use tenure_server::{Config, HttpConfig};
use tenure_store::{Memory, scenario};
use tenure_wire::{BATCH_BODY_BYTES_MAX, BATCH_REQUESTS_MAX};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

async fn server() -> Server {
    Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await
}

fn put(resource: &str, spec: impl Into<Value>) -> Value {
    let path = format!("/v1/resources/{resource}");
    json!({ "method": "PUT", "path": path, "body": { "spec": spec.into() } })
}

fn submit(resource: &str, operation: &str) -> Value {
    let path = format!("/v1/resources/{resource}/jobs");
    json!({ "method": "POST", "path": path, "body": { "operation": operation } })
}

fn request(method: &str, path: &str) -> Value {
    json!({ "method": method, "path": path })
}

/// Sends a batch with a key of the caller, and an `Idempotency-Key`. Returns the answers.
async fn send_as(server: &Server, key: &str, id: &str, requests: &[Value]) -> Vec<Value> {
    let body = json!({ "requests": requests }).to_string();
    let headers = [("x-api-key", key), ("idempotency-key", id)];
    let (status, answer) = server.post_with("/v1/batch", &headers, body).await;
    assert_eq!(status, 200, "{answer}");
    let answers = answer["answers"].as_array().expect("answers").clone();
    assert_eq!(answers.len(), requests.len());
    answers
}

async fn send(server: &Server, id: &str, requests: &[Value]) -> Vec<Value> {
    send_as(server, KEY, id, requests).await
}

fn statuses(answers: &[Value]) -> Vec<u64> {
    answers.iter().map(|answer| answer["status"].as_u64().expect("a status")).collect()
}

#[tokio::test]
async fn requests_on_one_resource_are_applied_in_the_order_of_the_batch() {
    let server = server().await;
    // Interleaved, so that order within a resource is not the order of arrival of neighbours.
    let names: Vec<String> = (0..50).map(|n| format!("task/t{n}")).collect();
    let mut requests = Vec::new();
    let of_all = |requests: &mut Vec<Value>, one: &dyn Fn(&str) -> Value| {
        requests.extend(names.iter().map(|name| one(name)));
    };
    for round in 1..=5 {
        of_all(&mut requests, &|name| put(name, json!({ "round": round })));
    }
    of_all(&mut requests, &|name| request("GET", &format!("/v1/resources/{name}")));
    // Puts are new work, deletes are not, which take precedence in the committer.
    of_all(&mut requests, &|name| request("DELETE", &format!("/v1/resources/{name}")));
    of_all(&mut requests, &|name| request("GET", &format!("/v1/resources/{name}")));
    of_all(&mut requests, &|name| put(name, json!("again")));
    of_all(&mut requests, &|name| submit(name, "work"));
    // The escaped name is the same resource.
    of_all(&mut requests, &|name| {
        request(
            "DELETE",
            &format!("/v1/resources/{}", name.replace('t', "%74").replace("%74ask", "task")),
        )
    });
    let answers = send(&server, "ordered", &requests).await;
    for n in 0..names.len() {
        let of = |step: usize| &answers[step * names.len() + n];
        for round in 1..=5 {
            assert_eq!(of(round - 1)["body"]["generation"], round, "{}", of(round - 1));
            assert_eq!(of(round - 1)["body"]["spec"]["round"], round);
        }
        assert_eq!(
            (of(5)["status"].as_u64(), &of(5)["body"]["generation"]),
            (Some(200), &json!(5))
        );
        assert_eq!(of(6)["status"], 200, "{}", of(6));
        assert_eq!(of(7)["status"], 404, "{}", of(7));
        assert_eq!((&of(8)["status"], &of(8)["body"]["generation"]), (&json!(200), &json!(1)));
        assert_eq!((&of(9)["status"], &of(9)["body"]["verdict"]), (&json!(202), &json!("started")));
        assert_eq!(of(10)["body"]["reason"], "in_use", "{}", of(10));
    }
}

#[tokio::test]
async fn requests_on_a_job_are_in_order_with_those_on_its_resource() {
    let server = server().await;
    let first = send(&server, "a", &[submit("task/t1", "work")]).await;
    let job = first[0]["body"]["job"]["id"].as_str().expect("a job").to_owned();
    let path = format!("/v1/jobs/{}/cancel", job.to_uppercase());
    let cancel = json!({ "method": "POST", "path": path,
                         "body": { "reason": "a test" } });
    let delete = request("DELETE", "/v1/resources/task/t1");
    for id in 0..20 {
        // A job in the lane prevents the deletion, before it is cancelled and after.
        let batch = [delete.clone(), cancel.clone(), delete.clone()];
        let answers = send(&server, &format!("c{id}"), &batch).await;
        let expected = if id == 0 { [409, 202, 200] } else { [404, 202, 404] };
        assert_eq!(statuses(&answers), expected, "{answers:?}");
    }
}

#[tokio::test]
async fn every_request_is_answered_like_a_single_one() {
    let server = server().await;
    let requests = [
        put("cluster/c1", json!({ "size": 3 })),
        put("nonsense/n1", json!(1)),
        submit("cluster/c1", "destroy"),
        submit("cluster/c1", "nonsense"),
        json!({ "method": "PUT", "path": "/v1/resources/cluster/c2", "body": { "unknown": 1 } }),
        json!({ "method": "PUT", "path": "/v1/resources/cluster/c2" }),
        request("GET", "/v1/resources/cluster/c1"),
        request("GET", "/v1/resources/cluster/none"),
        request("GET", "/v1/jobs?limit=0"),
        request("GET", "/v1/nothing"),
        request("DELETE", "/v1/locks"),
        submit("cluster/c1", "create"),
        json!({ "method": "POST", "path": "/v1/locks/cluster/c9/acquire",
                "body": { "holder": "ann", "ttl_ms": 60_000, "wait_ms": 0 } }),
    ];
    let answers = send(&server, "mixed", &requests).await;
    let single = common::Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await;
    for (request, answer) in requests.iter().zip(&answers) {
        let (method, path) =
            (request["method"].as_str().unwrap(), request["path"].as_str().unwrap());
        let (status, body) = single.request(KEY, method, path, request.get("body")).await;
        assert_eq!(answer["status"], status, "{request} {answer} {body}");
        for field in ["code", "reason", "detail", "verdict", "generation", "state", "spec"] {
            assert_eq!(answer["body"][field], body[field], "{request}: {field}");
        }
    }
    let expected = [200, 404, 409, 404, 422, 422, 200, 404, 422, 404, 405, 202, 200];
    assert_eq!(statuses(&answers), expected, "{answers:?}");
    let id = |answer: &Value| answer["body"]["request_id"].as_str().unwrap().to_owned();
    assert!(id(&answers[1]).ends_with(".1") && id(&answers[9]).ends_with(".9"), "{answers:?}");
}

#[tokio::test]
async fn conditions_of_requests_are_checked() {
    let server = server().await;
    let with = |field: &str, value: &str, mut request: Value| {
        request[field] = json!(value);
        request
    };
    let requests = [
        with("if_none_match", "*", put("task/t1", json!(1))),
        with("if_none_match", "*", put("task/t1", json!(2))),
        with("if_match", "\"1\"", put("task/t1", json!(3))),
        with("if_match", "\"1\"", put("task/t1", json!(4))),
        with("if_match", "\"9\"", request("DELETE", "/v1/resources/task/t1")),
    ];
    let answers = send(&server, "conditions", &requests).await;
    assert_eq!(statuses(&answers), [200, 412, 200, 412, 412], "{answers:?}");
    assert_eq!(server.get("/v1/resources/task/t1").await.1["spec"], 3);
}

#[tokio::test]
async fn a_batch_and_its_body_are_bounded() {
    let server = server().await;
    let lists: Vec<Value> = (0..=BATCH_REQUESTS_MAX)
        .map(|n| request("DELETE", &format!("/v1/resources/task/t{n}")))
        .collect();
    let answers = send(&server, "full", &lists[..BATCH_REQUESTS_MAX]).await;
    assert!(statuses(&answers).iter().all(|status| *status == 404));
    let (status, problem) = server.post("/v1/batch", json!({ "requests": lists })).await;
    assert_eq!((status, &problem["code"]), (413, &json!("too_large")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("4096"), "{problem}");
    assert_eq!(
        server.post("/v1/batch", json!({ "requests": [] })).await,
        (200, json!({ "answers": [] }))
    );

    let start = r#"{"requests":[{"method":"GET","path":"/v1/whoami"}]"#;
    for (size, expected) in [(BATCH_BODY_BYTES_MAX, 200), (BATCH_BODY_BYTES_MAX + 1, 413)] {
        let body = format!("{start}{}}}", " ".repeat(size - start.len() - 1));
        let (status, answer) = server.post_with("/v1/batch", &[("x-api-key", KEY)], body).await;
        assert_eq!(status, expected, "{answer}");
    }
}

#[tokio::test]
async fn a_repeated_batch_changes_nothing() {
    let server = server().await;
    let requests: Vec<Value> = (0..100)
        .flat_map(|n| {
            let name = format!("task/t{n}");
            [put(&name, json!({ "n": n })), submit(&name, "work")]
        })
        .collect();
    let first = send(&server, "once", &requests).await;
    let again = send(&server, "once", &requests).await;
    for (first, again) in first.iter().zip(&again) {
        assert_eq!(first["status"], again["status"]);
        assert_eq!(first["body"]["job"]["id"], again["body"]["job"]["id"]);
        let generation = |answer: &Value| answer["body"]["generation"].clone();
        assert_eq!(generation(first), generation(again));
    }
    let jobs = server.get("/v1/jobs?limit=1000").await.1["items"].as_array().unwrap().len();
    assert_eq!(jobs, 100, "each operation was submitted once");
    // The same key for other requests is refused by each of them.
    let changed = [put("task/t0", json!("other")), submit("task/t0", "work")];
    let answers = send(&server, "once", &changed).await;
    assert_eq!(answers[0]["body"]["reason"], "request_reused", "{answers:?}");
    assert_eq!(answers[1]["status"], 202, "{answers:?}");
    let third = send(&server, "another", &requests[1..2]).await;
    assert_ne!(third[0]["body"]["job"]["id"], first[1]["body"]["job"]["id"]);
}

#[tokio::test]
async fn a_batch_is_repeated_after_a_dropped_connection() {
    let (blocked, store) = Gated::new();
    let server = Server::start_with(Arc::new(store), scenario::kinds()).await;
    let requests: Vec<Value> = (0..500).map(|n| submit(&format!("task/t{n}"), "work")).collect();
    let body = json!({ "requests": requests }).to_string();
    let applied = blocked.applied.load(Ordering::SeqCst);
    blocked.close.send_replace(true);
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let head = format!(
        "POST /v1/batch HTTP/1.1\r\nHost: t\r\nx-api-key: {KEY}\r\nidempotency-key: dropped\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    // The first commands are at the store when the client disconnects.
    until(|| async { blocked.applied.load(Ordering::SeqCst) > applied }).await;
    drop(stream);
    blocked.close.send_replace(false);
    let answers = send(&server, "dropped", &requests).await;
    assert!(statuses(&answers).iter().all(|status| *status == 202), "{answers:?}");
    let jobs = server.get("/v1/jobs?limit=1000").await.1["items"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), 500, "nothing was submitted twice");
}

#[tokio::test]
async fn a_key_of_a_request_overrides_that_of_the_batch() {
    let server = server().await;
    let keyed = |mut request: Value, key: &str| {
        request["idempotency_key"] = json!(key);
        request
    };
    let own = keyed(submit("task/t1", "work"), "mine");
    let requests = [own.clone(), own.clone(), submit("task/t1", "work"), submit("task/t1", "work")];
    let answers = send(&server, "batch", &requests).await;
    let id = |answer: &Value| answer["body"]["job"]["id"].as_str().expect("a job").to_owned();
    let ids: Vec<String> = answers.iter().map(id).collect();
    assert!(ids[0] == ids[1] && ids[1] != ids[2] && ids[2] != ids[3], "{ids:?}");
    // It is the key of a single request.
    let body = json!({ "operation": "work" });
    let (_, single) = server.post_as("/v1/resources/task/t1/jobs", "mine", body).await;
    assert_eq!(single["job"]["id"], ids[0]);
    assert_eq!(id(&send(&server, "other batch", &[own]).await[0]), ids[0]);
}

#[tokio::test]
async fn a_batch_reaches_what_its_key_reaches() {
    let server = server().await;
    let [ann, bob] = [key(&server, "a", "admin").await, key(&server, "b", "admin").await];
    let made = [put("task/t1", json!("secret")), submit("task/t1", "work")];
    let made = send_as(&server, &bob, "b", &made).await;
    let job = made[1]["body"]["job"]["id"].as_str().expect("a job").to_owned();
    let requests = [
        request("GET", "/v1/resources/task/t1"),
        request("GET", "/v1/resources/task/t1?tenant=b"),
        request("GET", &format!("/v1/jobs/{job}")),
        json!({ "method": "POST", "path": format!("/v1/jobs/{job}/cancel"),
                "body": { "reason": "x" } }),
        request("DELETE", "/v1/resources/task/t1?tenant=b"),
        request("GET", "/v1/resources?tenant=*"),
        put("task/t1", json!("mine")),
    ];
    let answers = send_as(&server, &ann, "a", &requests).await;
    assert_eq!(statuses(&answers), [404, 403, 404, 404, 403, 403, 200], "{answers:?}");
    assert_eq!(answers[6]["body"]["tenant"], "a");
    let seen = server.request(&bob, "GET", "/v1/resources/task/t1", None).await.1;
    assert_eq!((&seen["spec"], &seen["queue_length"]), (&json!("secret"), &json!(1)));

    // A key of all tenants names one with the batch, or with a request.
    let both =
        [request("GET", "/v1/resources/task/t1"), request("GET", "/v1/resources/task/t1?tenant=a")];
    let headers = [("x-api-key", KEY)];
    let body = json!({ "requests": both }).to_string();
    let (_, answer) = server.post_with("/v1/batch?tenant=b", &headers, body).await;
    let specs = answer["answers"].as_array().unwrap().iter().map(|answer| &answer["body"]["spec"]);
    assert_eq!(specs.collect::<Vec<_>>(), [&json!("secret"), &json!("mine")], "{answer}");
}

#[tokio::test]
async fn each_request_needs_the_role_of_its_route() {
    let server = server().await;
    let requests = [
        request("GET", "/v1/resources"),
        submit("task/t1", "work"),
        put("task/t1", json!(1)),
        json!({ "method": "POST", "path": "/v1/keys",
                "body": { "name": "x", "role": "viewer", "reason": "a test" } }),
        request("GET", "/v1/janitor"),
    ];
    for (role, expected) in [
        ("viewer", [200, 403, 403, 403, 403]),
        ("worker", [200, 202, 403, 403, 403]),
        ("operator", [200, 202, 200, 403, 403]),
        ("admin", [200, 202, 200, 201, 403]),
    ] {
        let key = key(&server, "acme", role).await;
        let answers = send_as(&server, &key, role, &requests).await;
        assert_eq!(statuses(&answers), expected, "{role}: {answers:?}");
    }
    for key in ["nonsense", ""] {
        let body = json!({ "requests": requests }).to_string();
        assert_eq!(server.post_with("/v1/batch", &[("x-api-key", key)], body).await.0, 401);
    }
}

#[tokio::test]
async fn a_batch_costs_few_transactions() {
    let (store, gated) = Gated::new();
    let server = Server::start_with(Arc::new(gated), scenario::kinds()).await;
    let puts: Vec<Value> = (0..1_000).map(|n| put(&format!("task/t{n}"), json!(n))).collect();
    let submits: Vec<Value> =
        (0..1_000).map(|n| submit(&format!("task/t{}", n % 100), "work")).collect();
    for (id, requests) in [("puts", puts), ("submits", submits)] {
        let before = store.applied.load(Ordering::SeqCst);
        let answers = send(&server, id, &requests).await;
        assert!(statuses(&answers).iter().all(|status| (200..300).contains(status)), "{answers:?}");
        let transactions = store.applied.load(Ordering::SeqCst) - before;
        // Those of the janitor count, too.
        assert!(transactions <= 20, "{id}: {transactions}");
    }
}

#[tokio::test]
async fn each_request_counts_for_limits_and_metrics() {
    let http =
        HttpConfig { tenant_rate: Some(Rate { burst: 6, per_s: 1 }), ..HttpConfig::default() };
    let config = Config { http, ..common::config(scenario::kinds()) };
    let server = Server::run(Arc::new(Memory::new()), config).await;
    let key = key(&server, "acme", "operator").await;
    let puts: Vec<Value> = (0..20).map(|n| put(&format!("task/t{n}"), json!(n))).collect();
    let answers = send_as(&server, &key, "many", &puts).await;
    let limited = statuses(&answers).iter().filter(|status| **status == 429).count();
    assert!((14..=15).contains(&limited), "the batch and five requests fit: {answers:?}");
    let (_, metrics) = answer(http_get(&server, "/metrics")).await;
    let line = "tenure_http_requests_total{method=\"PUT\",\
                route=\"/v1/resources/{kind}/{name}\",status=\"429\"}";
    let metrics = metrics.as_str().expect("text");
    assert!(metrics.contains(&format!("{line} {limited}")), "{metrics}");
}

fn http_get(server: &Server, path: &str) -> reqwest::RequestBuilder {
    http().get(format!("{}{path}", server.url)).header("x-api-key", KEY)
}
