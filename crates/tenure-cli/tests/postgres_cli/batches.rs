//! Batches over HTTP on a database that two servers share.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::http::HttpTransport;
use tenure_testbed::shared;

use crate::testbed::TestServer;

/// Resources of the batch.
const RESOURCES: usize = 50;

fn client(server: &TestServer) -> HttpTransport {
    HttpTransport::new(&server.url(), &server.key(), "default").expect("a URL")
}

/// Sends a batch with an `Idempotency-Key` and returns statuses and bodies.
async fn send(http: &HttpTransport, key: &str, requests: &[Value]) -> Vec<Value> {
    let body = json!({ "requests": requests });
    let timeout = Duration::from_secs(60);
    let answer: Value = http
        .post("/v1/batch", Some(key.to_owned()), &body, timeout)
        .await
        .expect("the server answers");
    answer["answers"].as_array().expect("answers").clone()
}

fn requests() -> Vec<Value> {
    let of = |n: usize| {
        let path = format!("/v1/resources/report/r{n:02}");
        let put = |spec: u32| json!({ "method": "PUT", "path": path, "body": { "spec": spec } });
        [
            json!({ "method": "DELETE", "path": path }),
            put(1),
            json!({ "method": "POST", "path": format!("{path}/pause"),
                    "body": { "reason": "a test" } }),
            put(2),
            json!({ "method": "DELETE", "path": path }),
            put(3),
            json!({ "method": "POST", "path": format!("{path}/jobs"),
                    "body": { "operation": "build" } }),
        ]
    };
    (0..RESOURCES).flat_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_applied_in_order_and_its_repetition_on_another_server_changes_nothing() {
    let database = shared();
    let url = database.url(&database.new_database().expect("the server is there"));
    let (a, b) = (TestServer::start(&url), TestServer::start(&url));
    let (to_a, to_b) = (client(&a), client(&b));
    let first = send(&to_a, "reports-1", &requests()).await;
    let statuses = |answers: &[Value]| -> Vec<u64> {
        answers.iter().map(|answer| answer["status"].as_u64().expect("a status")).collect()
    };
    let expected: Vec<u64> =
        (0..RESOURCES).flat_map(|_| [404, 200, 200, 200, 200, 200, 202]).collect();
    assert_eq!(statuses(&first), expected, "{first:?}");
    for of_resource in first.chunks(7) {
        assert_eq!(of_resource[3]["body"]["generation"], 2, "in order: {of_resource:?}");
        assert_eq!(of_resource[5]["body"]["generation"], 1, "after the delete: {of_resource:?}");
    }
    let history = async |http: &HttpTransport, n: usize| -> Value {
        http.get(&format!("/v1/resources/report/r{n:02}/history")).await.expect("it is there")
    };
    let before = history(&to_a, 7).await;

    let again = send(&to_b, "reports-1", &requests()).await;
    assert_eq!(statuses(&again), expected);
    for (first, again) in first.iter().zip(&again) {
        let of = |answer: &Value| {
            let body = &answer["body"];
            [&body["generation"], &body["spec"], &body["paused"], &body["job"]["id"]]
                .map(Clone::clone)
        };
        assert_eq!(of(first), of(again));
    }
    assert_eq!(history(&to_b, 7).await, before, "nothing was done again");
    let jobs: Value = to_b.get("/v1/jobs?limit=1000").await.expect("a list");
    assert_eq!(jobs["items"].as_array().map(Vec::len), Some(RESOURCES));
    assert!(b.ok(&["verify"]).contains("every lock had at most one holder"));
}
