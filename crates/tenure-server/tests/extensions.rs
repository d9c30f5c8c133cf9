//! Status, timers, conditional writes, groups, restricted claims and planned transfers over HTTP.

mod common;

use std::sync::Arc;

use common::{KEY, Server, Worker, answer, http};
use serde_json::{Value, json};
use tenure_store::{Memory, scenario};

async fn server() -> Server {
    Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await
}

/// Submits an operation and claims the job. Returns the path of the job and its token.
async fn start(server: &Server, resource: &str, operation: &str) -> (String, Value) {
    let path = format!("/v1/resources/{resource}/jobs");
    let (status, answer) = server.post(&path, json!({ "operation": operation })).await;
    assert_eq!(status, 202, "{answer}");
    let kind = resource.split('/').next().expect("KIND/NAME");
    let worker = Worker::open(server, "w1").await;
    let claimed = worker.claim(server, &[kind], 0).await;
    let id = claimed[0]["job"]["id"].as_str().expect("a job").to_owned();
    (format!("/v1/jobs/{id}"), claimed[0]["tenure"]["token"].clone())
}

/// Sends a request with a condition. Returns status, `ETag` and body.
async fn send_if(
    server: &Server,
    method: &str,
    path: &str,
    header: (&str, &str),
    body: Option<Value>,
) -> (u16, Option<String>, Value) {
    let url = format!("{}{path}", server.url);
    let mut request = common::http().request(method.parse().expect("a method"), url);
    request = request.header("x-api-key", KEY).header(header.0, header.1);
    if let Some(body) = body {
        request = request.body(body.to_string());
    }
    let answer = request.send().await.expect("the server is there");
    let status = answer.status().as_u16();
    let tag = answer.headers().get("etag").map(|tag| tag.to_str().expect("ASCII").to_owned());
    let body = answer.text().await.expect("a body");
    (status, tag, serde_json::from_str(&body).expect("JSON"))
}

#[tokio::test]
async fn a_status_is_merged_and_shown_with_resource_and_assignment() {
    let server = server().await;
    let (job, token) = start(&server, "cluster/c1", "create").await;
    let merge = json!({ "infra": "i-1", "zones": { "a": 1, "b": 2 } });
    let body = json!({ "token": token, "merge": merge });
    let (status, noted) = server.post(&format!("{job}/status"), body).await;
    assert_eq!((status, noted), (200, json!({ "cancelling": false })));
    let merge = json!({ "zones": { "a": null }, "n": 3 });
    let body = json!({ "token": token, "outcome": "failed", "code": "X", "merge": merge,
                       "delay_ms": 0 });
    let (status, done) = server.post(&format!("{job}/finish"), body).await;
    assert_eq!((status, &done["state"]), (200, &json!("backoff")), "{done}");

    let merged = json!({ "infra": "i-1", "zones": { "b": 2 }, "n": 3 });
    let (_, resource) = server.get("/v1/resources/cluster/c1").await;
    assert_eq!((&resource["status"], &resource["status_token"]), (&merged, &token));
    assert!(resource["status_at"].is_string(), "{resource}");
    let worker = Worker::open(&server, "w2").await;
    let claimed = worker.claim(&server, &["cluster"], 0).await;
    assert_eq!(claimed[0]["status"], merged, "the next attempt starts with the status");

    let body = json!({ "token": token, "merge": { "n": 4 } });
    let (status, refused) = server.post(&format!("{job}/status"), body).await;
    assert_eq!((status, &refused["code"]), (409, &json!("lost")));
    assert_eq!(server.get("/v1/resources/cluster/c1").await.1["status"], merged);
}

#[tokio::test]
async fn a_bad_status_is_refused_and_writes_nothing() {
    let server = server().await;
    let (job, token) = start(&server, "cluster/c1", "create").await;
    let half = "x".repeat(40_000);
    let body = json!({ "token": token, "merge": { "a": half } });
    assert_eq!(server.post(&format!("{job}/status"), body).await.0, 200);
    for (verb, extra, wanted, word) in [
        ("status", json!({ "merge": [1] }), 400, "object"),
        ("status", json!({ "merge": "x" }), 400, "object"),
        ("finish", json!({ "outcome": "ok", "merge": 7 }), 400, "object"),
        ("status", json!({}), 422, "merge"),
        ("status", json!({ "merge": { "b": half } }), 413, "65536"),
        ("finish", json!({ "outcome": "ok", "merge": { "b": half } }), 413, "65536"),
        ("status", json!({ "timers": { "melt": { "after_ms": 1 } } }), 404, "melt"),
        ("status", json!({ "timers": { "create": {} } }), 422, "after_ms"),
        ("status", json!({ "timers": { "create": { "at": "soon" } } }), 422, "instant"),
        ("finish", json!({ "outcome": "deferred", "code": "X" }), 422, "delay_ms"),
        ("finish", json!({ "outcome": "deferred", "delay_ms": 1 }), 422, "code"),
        (
            "finish",
            json!({ "outcome": "deferred", "delay_ms": u64::MAX, "code": "X" }),
            422,
            "delay_ms",
        ),
        ("finish", json!({ "outcome": "ok", "delay_ms": 1 }), 422, "delay_ms"),
    ] {
        let mut body = extra.clone();
        body["token"] = token.clone();
        let (status, answer) = server.post(&format!("{job}/{verb}"), body).await;
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(status == wanted && detail.contains(word), "{verb} {extra:.99}: {status} {answer}");
    }
    let (_, resource) = server.get("/v1/resources/cluster/c1").await;
    assert_eq!(resource["status"], json!({ "a": half }));
    assert_eq!(resource["timers"], Value::Null);
    assert_eq!(server.get(&job).await.1["state"], "running");
}

#[tokio::test]
async fn a_deferred_attempt_is_shown_and_not_counted() {
    let server = server().await;
    let (job, token) = start(&server, "cluster/c1", "create").await;
    let body = json!({ "token": token, "outcome": "deferred", "delay_ms": 600_000,
                       "code": "QUOTA", "message": "no quota yet" });
    let (status, done) = server.post(&format!("{job}/finish"), body).await;
    assert_eq!((status, &done["state"]), (200, &json!("backoff")), "{done}");
    let (_, shown) = server.get(&job).await;
    assert_eq!((&shown["attempt"], &shown["deferrals"]), (&json!(0), &json!(1)));
    assert_eq!(shown["attempts"][0]["outcome"], "deferred");
    assert_eq!(shown["error"], json!({ "code": "QUOTA", "message": "no quota yet" }));
    let (_, why) = server.get(&format!("{job}/why")).await;
    assert_eq!(why["why"], "deferred", "{why}");
}

#[tokio::test]
async fn conditions_are_checked_in_the_step() {
    let server = server().await;
    let path = "/v1/resources/shoot/s1";
    let spec = |n: u64| Some(json!({ "spec": { "n": n } }));
    let (status, tag, _) = send_if(&server, "PUT", path, ("if-none-match", "*"), spec(1)).await;
    assert_eq!((status, tag.as_deref()), (200, Some("\"1\"")));
    let (status, _, answer) = send_if(&server, "PUT", path, ("if-none-match", "*"), spec(2)).await;
    assert_eq!((status, &answer["code"]), (412, &json!("precondition_failed")), "{answer}");
    assert_eq!((&answer["generation"], &answer["wanted_generation"]), (&json!(1), &Value::Null));
    let (status, tag, _) = send_if(&server, "PUT", path, ("if-match", "\"1\""), spec(3)).await;
    assert_eq!((status, tag.as_deref()), (200, Some("\"2\"")));
    let (status, _, answer) = send_if(&server, "PUT", path, ("if-match", "\"1\""), spec(4)).await;
    assert_eq!((status, &answer["generation"]), (412, &json!(2)));
    assert_eq!(answer["wanted_generation"], 1);
    assert_eq!(server.get(path).await.1["spec"], json!({ "n": 3 }));

    let jobs = format!("{path}/jobs");
    let body = Some(json!({ "operation": "hibernate" }));
    let (status, _, _) = send_if(&server, "POST", &jobs, ("if-match", "\"7\""), body.clone()).await;
    assert_eq!(status, 412);
    let (status, _, _) = send_if(&server, "DELETE", path, ("if-match", "\"7\""), None).await;
    assert_eq!(status, 412);
    for (name, value) in [
        ("if-match", "1"),
        ("if-match", "W/\"1\""),
        ("if-match", "*"),
        ("if-match", "\"x\""),
        ("if-match", "\"\""),
        ("if-none-match", "\"1\""),
    ] {
        let (status, _, answer) = send_if(&server, "PUT", path, (name, value), spec(5)).await;
        assert_eq!(status, 422, "{name}: {value}: {answer}");
    }
    assert_eq!(server.get(path).await.1["generation"], 2);
}

#[tokio::test]
async fn a_put_with_a_key_is_applied_once() {
    let server = server().await;
    let path = "/v1/resources/shoot/s1";
    let put = async |n: u64| {
        let spec = Some(json!({ "spec": n }));
        let (status, _, answer) =
            send_if(&server, "PUT", path, ("idempotency-key", "p-1"), spec).await;
        (status, answer["generation"].clone(), answer["reason"].clone())
    };
    assert_eq!(put(1).await, (200, json!(1), Value::Null));
    assert_eq!(put(1).await, (200, json!(1), Value::Null));
    let (status, _, reason) = put(2).await;
    assert_eq!((status, reason), (409, json!("request_reused")));
    // Other timers or another condition are another request, too.
    let send = async |timers: Value, condition: &str| {
        let body = json!({ "spec": 3, "timers": timers });
        let headers = [("x-api-key", KEY), ("idempotency-key", "p-2"), ("if-match", condition)];
        let mut request = http().put(format!("{}/v1/resources/lease/l1", server.url));
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let (status, answer) = answer(request.body(body.to_string())).await;
        (status, answer["reason"].clone())
    };
    let timers = |ms: u64| json!({ "end": { "after_ms": ms } });
    assert_eq!(send(timers(60_000), "").await.0, 200);
    assert_eq!(send(timers(60_000), "").await.0, 200);
    for (timers, condition) in [
        (timers(90_000), ""),
        (json!({}), ""),
        (json!({ "end": null }), ""),
        (timers(60_000), "\"1\""),
    ] {
        let refused = send(timers.clone(), condition).await;
        assert_eq!(refused, (409, json!("request_reused")), "{timers} {condition}");
    }
}

#[tokio::test]
async fn a_timer_is_set_shown_fired_and_removed() {
    let server = server().await;
    let path = "/v1/resources/lease/l1";
    let timers = json!({ "end": { "at": "2099-01-31T12:00:00Z" } });
    let (status, answer) = server.put(path, json!({ "spec": 1, "timers": timers })).await;
    assert_eq!(status, 422, "further ahead than the limit: {answer}");
    let timers = json!({ "end": { "after_ms": 3_600_000 } });
    let (status, answer) = server.put(path, json!({ "spec": 1, "timers": timers })).await;
    assert_eq!(status, 200, "{answer}");
    let shown = &answer["timers"][0];
    assert_eq!((&shown["operation"], &shown["by"]), (&json!("end"), &json!("admin")));

    let timer = format!("{path}/timers/end");
    for (body, word) in [(json!({}), "after_ms"), (json!({ "at": "x" }), "instant")] {
        let (status, answer) = server.put(&timer, body).await;
        assert!(status == 422 && answer["detail"].as_str().unwrap().contains(word), "{answer}");
    }
    let (status, answer) = server.delete(&timer).await;
    assert_eq!((status, &answer["timers"]), (200, &Value::Null), "{answer}");
    assert_eq!(server.delete(&timer).await.0, 200, "removing it again changes nothing");
    let (status, answer) = server.put(&timer, json!({ "at": "2020-01-31T12:00:00Z" })).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["queue"][0]["operation"], "end", "a past instant fires at once");
    assert_eq!(answer["queue"][0]["by"], "admin");
    assert_eq!(server.put(&format!("{path}/timers/melt"), json!({ "after_ms": 1 })).await.0, 404);
    let missing = "/v1/resources/lease/l9/timers/end";
    assert_eq!(server.put(missing, json!({ "after_ms": 1 })).await.0, 404);
}

#[tokio::test]
async fn a_timer_whose_submit_is_refused_says_why_until_it_is_moved() {
    let server = server().await;
    let path = "/v1/resources/cluster/c1";
    assert_eq!(server.put(path, json!({ "spec": 1 })).await.0, 200);
    // It is due, and the state does not allow it.
    let timer = format!("{path}/timers/destroy");
    let (status, answer) = server.put(&timer, json!({ "after_ms": 0 })).await;
    assert_eq!(status, 200, "{answer}");
    let (_, shown) = server.get(path).await;
    let shown = &shown["timers"][0];
    assert_eq!(shown["operation"], "destroy", "it stays");
    assert_eq!(shown["refused"]["code"], "bad_transition", "{shown}");
    let message = shown["refused"]["message"].as_str().expect("a message");
    assert!(message.contains("the resource is PENDING"), "{message}");
    let refused_at = shown["refused_at"].as_str().expect("an instant").to_owned();
    assert!(refused_at.as_str() >= shown["at"].as_str().expect("an instant"), "{shown}");
    let refusals = async || {
        let (_, history) = server.get(&format!("{path}/history")).await;
        history["items"].to_string().matches("timer_refused").count()
    };
    assert_eq!(refusals().await, 1);

    // Repeated by the next step, and recorded once.
    let (_, answer) = server.put(path, json!({ "spec": 2 })).await;
    assert_eq!(answer["timers"][0]["refused_at"], refused_at, "{answer}");
    assert_eq!(refusals().await, 1);
    let (_, answer) = server.put(&timer, json!({ "after_ms": 3_600_000 })).await;
    assert_eq!(answer["timers"][0]["refused"], Value::Null, "it is not due: {answer}");

    // A state that allows it lets it fire.
    assert_eq!(server.put(&timer, json!({ "after_ms": 0 })).await.0, 200);
    let (job, token) = start(&server, "cluster/c1", "create").await;
    let body = json!({ "token": token, "outcome": "ok" });
    assert_eq!(server.post(&format!("{job}/finish"), body).await.0, 200);
    let (_, shown) = server.get(path).await;
    assert_eq!((&shown["state"], &shown["timers"]), (&json!("READY"), &Value::Null), "{shown}");
    assert_eq!(shown["queue"][0]["operation"], "destroy");
}

#[tokio::test]
async fn lists_counts_and_claims_are_restricted_to_a_group() {
    let server = server().await;
    for name in ["b1:t1", "b1:t2", "b2:t1"] {
        let path = format!("/v1/resources/check/{name}/jobs");
        assert_eq!(server.post(&path, json!({ "operation": "run" })).await.0, 202);
    }
    let names = async |path: &str| {
        let (status, page) = server.get(path).await;
        assert_eq!(status, 200, "{path}: {page}");
        let mut names: Vec<String> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["name"].as_str().unwrap_or_default().to_owned())
            .collect();
        names.sort();
        names
    };
    for list in ["resources", "jobs"] {
        assert_eq!(names(&format!("/v1/{list}?kind=check&group=b1")).await, ["b1:t1", "b1:t2"]);
        assert_eq!(names(&format!("/v1/{list}?kind=check&group=b3")).await, [""; 0]);
        let (status, answer) = server.get(&format!("/v1/{list}?group=b1")).await;
        assert!(status == 422 && answer["detail"].as_str().unwrap().contains("kind"), "{answer}");
    }
    let worker = Worker::open(&server, "w1").await;
    let claim = async |only: Value| {
        let body = json!({ "session": worker.session, "only": only, "max": 9 });
        server.post("/v1/jobs/claim", body).await
    };
    let (status, claimed) = claim(json!({ "kind": "check", "group": "b2" })).await;
    assert_eq!((status, claimed["jobs"].as_array().unwrap().len()), (200, 1), "{claimed}");
    let (_, claimed) = claim(json!({ "kind": "check", "name": "b1:t2" })).await;
    assert_eq!(claimed["jobs"][0]["job"]["name"], "b1:t2");
    let (_, counts) = server.get("/v1/groups/check/b1").await;
    let wanted = json!({ "tenant": "default", "kind": "check", "group": "b1",
                         "running": 1, "waiting": 1, "ready": 1 });
    assert_eq!(counts, wanted);
    let (_, page) = server.get("/v1/locks?kind=check&group=b1").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 1);

    for only in [json!({ "kind": "check", "group": "a", "name": "b" }), json!({ "group": "b1" })] {
        assert_eq!(claim(only.clone()).await.0, 422, "{only}");
    }
    let body = json!({ "session": worker.session, "kinds": ["task"], "only": { "kind": "check" } });
    assert_eq!(server.post("/v1/jobs/claim", body).await.0, 422);
    assert_eq!(server.get("/v1/groups/task/b1").await.0, 422, "the kind has no groups");
    assert_eq!(server.get("/v1/groups/nothing/b1").await.0, 404);
}

#[tokio::test]
async fn a_waiting_restricted_claim_gets_the_job_of_its_group() {
    let server = server().await;
    let worker = Worker::open(&server, "w1").await;
    let only = json!({ "kind": "check", "group": "b1" });
    let body = json!({ "session": worker.session, "only": only, "wait_ms": 30_000 });
    let waiting = server.post("/v1/jobs/claim", body);
    let submits = async {
        for name in ["b2:t1", "b1:t1"] {
            let path = format!("/v1/resources/check/{name}/jobs");
            assert_eq!(server.post(&path, json!({ "operation": "run" })).await.0, 202);
        }
    };
    let ((status, claimed), ()) = tokio::join!(waiting, submits);
    assert_eq!((status, &claimed["jobs"][0]["job"]["name"]), (200, &json!("b1:t1")));
}

#[tokio::test]
async fn a_lock_is_handed_to_a_named_waiter() {
    let server = server().await;
    let path = "/v1/locks/leader/l1";
    let acquire = |holder: &str, wait_ms: u64| -> Value {
        json!({ "holder": holder, "ttl_ms": 60_000, "wait_ms": wait_ms, "poll_ms": 0 })
    };
    let (_, tenure) = server.post(&format!("{path}/acquire"), acquire("a", 0)).await;
    let token = &tenure["token"];
    assert!(tenure["heartbeat_age_ms"].is_u64(), "{tenure}");
    let release = |to: &str| json!({ "token": token, "to": to });
    let (status, answer) = server.post(&format!("{path}/release"), release("c")).await;
    assert_eq!((status, &answer["reason"]), (409, &json!("not_waiting")), "{answer}");
    for (holder, key) in [("b", "k-b"), ("c", "k-c")] {
        let body = acquire(holder, 60_000);
        let (status, answer) = server.post_as(&format!("{path}/acquire"), key, body).await;
        assert_eq!((status, &answer["code"]), (409, &json!("held")), "{answer}");
    }
    let (status, answer) = server.post(&format!("{path}/release"), release("c")).await;
    assert_eq!((status, &answer["released"]), (200, &json!(true)), "{answer}");
    let (_, shown) = server.get(path).await;
    assert_eq!(shown["tenures"][0]["holder"]["name"], "c");
    assert_eq!(shown["tenures"][0]["token"], token.as_u64().unwrap() + 1);
    assert_eq!(shown["queue"][0]["name"], "b");
}
