//! A batch with a key is executed once, whatever its requests are.

use serde_json::{Value, json};

use crate::common::{KEY, Server};
use crate::{put, request, send, server, statuses, submit};

/// Returns the history of a resource, without the ids of entries.
async fn history(server: &Server, resource: &str) -> Value {
    server.get(&format!("/v1/resources/{resource}/history")).await.1
}

fn post(path: &str, body: impl Into<Value>) -> Value {
    json!({ "method": "POST", "path": path, "body": body.into() })
}

#[tokio::test]
async fn a_repeated_batch_with_deletes_timers_and_pauses_changes_nothing() {
    let server = server().await;
    let lease = "/v1/resources/lease/l1";
    let requests = [
        // Refused at first. Later requests make way for it.
        request("DELETE", lease),
        put("lease/l1", json!({ "n": 1 })),
        put("lease/l1", json!({ "n": 2 })),
        request("DELETE", lease),
        submit("lease/l1", "nonsense"),
        put("lease/l1", json!({ "n": 3 })),
        json!({ "method": "PUT", "path": format!("{lease}/timers/end"),
                "body": { "after_ms": 3_600_000 } }),
        json!({ "method": "PUT", "path": format!("{lease}/timers/end"),
                "body": { "after_ms": 7_200_000 } }),
        request("DELETE", &format!("{lease}/timers/end")),
        post(&format!("{lease}/resume"), json!({ "reason": "a test" })),
        post(&format!("{lease}/pause"), json!({ "reason": "a test" })),
        post(&format!("{lease}/resume"), json!({ "reason": "a test" })),
        put("lease/l1", json!({ "n": 4 })),
    ];
    let first = send(&server, "once", &requests).await;
    let expected = [404, 200, 200, 200, 404, 200, 200, 200, 200, 200, 200, 200, 200];
    assert_eq!(statuses(&first), expected, "{first:?}");
    let (before, shown) = (history(&server, "lease/l1").await, server.get(lease).await);
    for _ in 0..3 {
        let again = send(&server, "once", &requests).await;
        for (index, (first, again)) in first.iter().zip(&again).enumerate() {
            let without_id = |answer: &Value| {
                let mut answer = answer.clone();
                answer["body"]["request_id"].take();
                answer
            };
            assert_eq!(without_id(first), without_id(again), "{index}");
        }
        assert_eq!(history(&server, "lease/l1").await, before, "nothing was done again");
        assert_eq!(server.get(lease).await, shown);
    }
}

#[tokio::test]
async fn a_refused_request_of_a_repeated_batch_takes_no_effect() {
    let server = server().await;
    let missing = json!({ "method": "PUT", "path": "/v1/resources/cluster/c1",
                          "body": { "spec": 1 }, "if_none_match": "*" });
    let requests = [
        put("cluster/c1", json!(0)),
        submit("cluster/c1", "destroy"),
        submit("cluster/c1", "create"),
        missing.clone(),
    ];
    let first = send(&server, "refused", &requests).await;
    assert_eq!(statuses(&first), [200, 409, 202, 412], "{first:?}");
    let job = first[2]["body"]["job"]["id"].as_str().expect("a job").to_owned();
    let cancel = post(&format!("/v1/jobs/{job}/cancel"), json!({ "reason": "a test" }));
    let delete = request("DELETE", "/v1/resources/cluster/c1");
    let cleared = send(&server, "clear", &[cancel.clone(), delete.clone()]).await;
    assert_eq!(statuses(&cleared), [202, 200], "{cleared:?}");
    // Each of them would be accepted now.
    let again = send(&server, "refused", &requests).await;
    assert_eq!(statuses(&again), [200, 409, 202, 412], "{again:?}");
    assert_eq!(server.get("/v1/resources/cluster/c1").await.0, 404, "the resource is not back");
    let again = send(&server, "clear", &[cancel, delete]).await;
    assert_eq!(again, cleared);
}

#[tokio::test]
async fn a_key_of_a_batch_cannot_be_used_for_other_requests() {
    let server = server().await;
    let first = [put("task/t1", json!(1)), request("DELETE", "/v1/resources/task/t1")];
    assert_eq!(statuses(&send(&server, "same", &first).await), [200, 200]);
    let other = [put("task/t1", json!(2)), post("/v1/resources/task/t1/resume", json!({}))];
    let answers = send(&server, "same", &other).await;
    for answer in &answers {
        assert_eq!(answer["body"]["reason"], "request_reused", "{answer}");
    }
    assert_eq!(server.get("/v1/resources/task/t1").await.0, 404);
}

#[tokio::test]
async fn single_requests_with_a_key_are_executed_once() {
    let server = server().await;
    let path = "/v1/resources/task/t1";
    assert_eq!(server.put(path, json!({ "spec": 1 })).await.0, 200);
    let call = async |method: &str, path: &str, key: &str| {
        let url = format!("{}{path}", server.url);
        let request = crate::http().request(method.parse().expect("a method"), url);
        let request = request.header("x-api-key", KEY).header("idempotency-key", key);
        let answer = request.body(r#"{"reason":"a test"}"#).send().await.expect("an answer");
        answer.status().as_u16()
    };
    let (pause, resume) = (format!("{path}/pause"), format!("{path}/resume"));
    for (method, path, key) in
        [("POST", &pause, "p"), ("POST", &resume, "r"), ("POST", &pause, "p")]
    {
        assert_eq!(call(method, path, key).await, 200);
    }
    assert_eq!(server.get(path).await.1["paused"], Value::Null, "the late pause has no effect");
    assert_eq!(call("DELETE", path, "d").await, 200);
    assert_eq!(server.put(path, json!({ "spec": 2 })).await.0, 200);
    assert_eq!(call("DELETE", path, "d").await, 200);
    assert_eq!(server.get(path).await.1["spec"], 2, "the late delete has no effect");
}
