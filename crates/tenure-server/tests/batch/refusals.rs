//! Batches that are refused as a whole, and garbage.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_server::{Config, HttpConfig};
use tenure_store::scenario;

use crate::common::{self, KEY, Server, answer, http, until};
use crate::gated::Gated;
use crate::{put, request, send, server, statuses, submit};

#[tokio::test]
async fn a_batch_with_a_request_that_waits_or_streams_is_refused_as_a_whole() {
    let server = server().await;
    let post = |path: &str, body: Value| json!({ "method": "POST", "path": path, "body": body });
    let acquire = "/v1/locks/cluster/c1/acquire";
    let session = "00000000000000000000000000000001";
    for (refused, says) in [
        (post("/v1/batch", json!({ "requests": [] })), "a batch"),
        (post("/v1/batch?tenant=default", json!({ "requests": [] })), "a batch"),
        (request("GET", "/v1/events"), "event stream"),
        (request("GET", "/v1/events?cursor=1"), "event stream"),
        (request("GET", &format!("/v1/jobs/{session}/logs?wait_ms=1")), "wait_ms"),
        (request("GET", &format!("/v1/jobs/{session}?after=1&wait%5Fms=20000")), "wait_ms"),
        (post(acquire, json!({ "holder": "a", "ttl_ms": 1_000, "wait_ms": 1 })), "wait_ms"),
        (post(acquire, json!({ "holder": "a", "ttl_ms": 1_000, "poll_ms": 7 })), "poll_ms"),
        (
            post("/v1/jobs/claim", json!({ "session": session, "kinds": ["task"], "wait_ms": 5 })),
            "wait_ms",
        ),
        (request("PATCH", "/v1/resources/task/t1"), "PATCH"),
        (request("HEAD", "/v1/events"), "HEAD"),
        (request("get", "/v1/resources/task/t1"), "get"),
        (request("GET", "/metrics"), "/v1/"),
        (request("GET", "http://example.org/v1/whoami"), "/v1/"),
        (request("GET", ""), "/v1/"),
        (request("GET", "/v1/a b"), "path"),
        (
            json!({ "method": "GET", "path": "/v1/whoami", "idempotency_key": "a\nb" }),
            "idempotency_key",
        ),
        (json!({ "method": "GET", "path": "/v1/whoami", "idempotency_key": " a" }), "blanks"),
        (json!({ "method": "GET", "path": "/v1/whoami", "if_match": "\u{0}" }), "if_match"),
        (json!({ "method": "GET", "path": "/v1/whoami", "if_match": "3" }), "in quotes"),
        (json!({ "method": "GET", "path": "/v1/whoami", "if_none_match": "a" }), "must be *"),
    ] {
        let requests = [put("task/t1", json!(1)), submit("task/t1", "work"), refused.clone()];
        let (status, problem) = server.post("/v1/batch", json!({ "requests": requests })).await;
        assert_eq!((status, &problem["code"]), (400, &json!("invalid")), "{refused}: {problem}");
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(
            detail.starts_with("requests[2]: ") && detail.contains(says),
            "{refused}: {detail}"
        );
        assert_eq!(server.get("/v1/resources/task/t1").await.0, 404, "nothing was executed");
    }
    // A wait in a document is none, and neither is one of zero.
    let fine = [
        put("task/t1", json!({ "wait_ms": 5 })),
        post("/v1/jobs/claim", json!({ "session": session, "kinds": ["task"], "wait_ms": 0 })),
        request("GET", "/v1/jobs?wait_ms=0"),
    ];
    assert_eq!(statuses(&send(&server, "fine", &fine).await), [200, 409, 200]);
}

#[tokio::test]
async fn garbage_is_answered_with_a_problem() {
    let server = server().await;
    for body in [
        "",
        "{}",
        "[]",
        "null",
        "[1,2",
        "{\"requests\":null}",
        "{\"requests\":{}}",
        "{\"requests\":[1]}",
        "{\"requests\":[{}]}",
        "{\"requests\":[{\"method\":1}]}",
        "{\"requests\":[{\"method\":\"GET\",\"path\":\"/v1/whoami\",\"x\":1}]}",
        "{\"requests\":[],\"more\":1}",
        "\u{0}",
    ] {
        let (status, problem) =
            server.post_with("/v1/batch", &[("x-api-key", KEY)], body.to_owned()).await;
        assert_eq!((status, &problem["code"]), (422, &json!("invalid")), "{body}: {problem}");
    }
    let odd = [
        "/v1/",
        "/v1/resources/%zz/%",
        "/v1/resources/%ff/x",
        "/v1//",
        "/v1/resources/task/%",
        "/v1/jobs/%00/cancel",
        "/v1/../v1/whoami",
        "/v1/jobs?limit=%zz",
        "/v1/resources/é/ü",
    ];
    for path in odd {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            let bodies =
                [Value::Null, json!([[[]]]), json!("text"), json!(1.5e300), json!({ "": {} })];
            let requests: Vec<Value> = bodies
                .into_iter()
                .map(|body| json!({ "method": method, "path": path, "body": body }))
                .collect();
            let (status, answer) = server.post("/v1/batch", json!({ "requests": requests })).await;
            let known = status == 400 || status == 200;
            assert!(known, "{method} {path}: {status} {answer}");
            for one in answer["answers"].as_array().into_iter().flatten() {
                assert!((400..500).contains(&one["status"].as_u64().unwrap()), "{path}: {one}");
                assert!(one["body"]["code"].is_string(), "{method} {path}: {one}");
            }
        }
    }
}

#[tokio::test]
async fn bodies_of_batches_that_are_being_applied_count() {
    let (gate, store) = Gated::new();
    let http_config = HttpConfig { bodies_bytes_max: 1024 * 1024, ..HttpConfig::default() };
    let config = Config { http: http_config, ..common::config(scenario::kinds()) };
    let server = Server::run(Arc::new(store), config).await;
    let send_large = || {
        let requests = json!({ "requests": [put("task/t1", json!(1))] }).to_string();
        let body = format!("{requests}{}", " ".repeat(600 * 1024));
        let request = http().post(format!("{}/v1/batch", server.url));
        answer(request.header("x-api-key", KEY).body(body))
    };
    let applied = gate.applied.load(Ordering::SeqCst);
    gate.close.send_replace(true);
    let first = tokio::spawn(send_large());
    until(|| async { gate.applied.load(Ordering::SeqCst) > applied }).await;
    let second = tokio::time::timeout(Duration::from_secs(10), send_large());
    let (status, problem) = second.await.expect("it does not wait for the first one");
    assert_eq!(status, 503, "{problem}");
    gate.close.send_replace(false);
    assert_eq!(first.await.expect("no panic").0, 200);
    assert_eq!(send_large().await.0, 200);
}
