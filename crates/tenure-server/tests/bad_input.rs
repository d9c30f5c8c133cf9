//! Bad input for jobs: every request is refused with the name of the field, and changes nothing.

mod common;

use std::sync::Arc;

use common::{KEY, Server, Worker};
use serde_json::{Value, json};
use tenure_store::{Memory, scenario};

/// Starts a job and returns its id and token.
async fn start_job(server: &Server) -> (String, Value) {
    server.post("/v1/resources/task/t1/jobs", json!({ "operation": "work" })).await;
    let claimed = Worker::open(server, "w1").await.claim(server, &["task"], 0).await;
    let id = claimed[0]["job"]["id"].as_str().expect("a job").to_owned();
    (id, claimed[0]["tenure"]["token"].clone())
}

/// Sends a body and expects a problem with this status whose detail contains `word`.
async fn assert_refused(server: &Server, path: &str, body: &str, status: u16, word: &str) {
    let (got, problem) = server.post_with(path, &[("x-api-key", KEY)], body.to_owned()).await;
    let shown: String = body.chars().take(120).collect();
    assert_eq!(got, status, "{path} {shown}: {problem}");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(detail.contains(word), "{path} {shown}: {detail:?} does not name {word}");
    assert!(problem["code"].is_string(), "{problem}");
}

#[tokio::test]
async fn bad_submits_and_claims_are_refused() {
    let server = Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await;
    let jobs = "/v1/resources/task/t1/jobs";
    let deep = format!(r#"{{"operation":"work","args":{}{}}}"#, "[".repeat(65), "]".repeat(65));
    let deeper = format!(r#"{{"operation":"work","args":{}{}}}"#, "[".repeat(500), "]".repeat(500));
    let large = format!(r#"{{"operation":"work","args":"{}"}}"#, "x".repeat(65_535));
    for (body, status, word) in [
        ("{", 422, "body"),
        ("[]", 422, "body"),
        (r#"["work"]"#, 422, "an object"),
        ("{}", 422, "operation"),
        (r#"{"operation":7}"#, 422, "operation"),
        (r#"{"operation":"work","arg":1}"#, 422, "arg"),
        (r#"{"operation":"work"} x"#, 422, "trailing"),
        (r#"{"operation":"work","priority":"high"}"#, 422, "priority"),
        (r#"{"operation":"work","priority":1001}"#, 422, "priority"),
        (r#"{"operation":"work","priority":1e99}"#, 422, "priority"),
        (r#"{"operation":"work","run_at":"tomorrow"}"#, 422, "run_at"),
        (r#"{"operation":"work","run_at":7}"#, 422, "run_at"),
        (r#"{"operation":"work","run_at":"1960-01-01T00:00:00Z"}"#, 422, "run_at"),
        (r#"{"operation":"work","run_at":"9000-01-01T00:00:00Z"}"#, 422, "run_at"),
        (r#"{"operation":""}"#, 404, "operation"),
        (r#"{"operation":"w\u0000\n"}"#, 404, "operation"),
        (&deep, 422, "args"),
        (&deeper, 422, "args"),
        (&large, 422, "args has 65537 bytes"),
        (&"x".repeat(600_000), 413, "524288"),
    ] {
        assert_refused(&server, jobs, body, status, word).await;
    }
    for path in ["/v1/resources/task/a%20b/jobs", "/v1/resources/ta!sk/t1/jobs"] {
        assert_refused(&server, path, r#"{"operation":"work"}"#, 422, "character").await;
    }
    let session = Worker::open(&server, "w1").await.session;
    let kind = "k".repeat(64);
    for (body, status, word) in [
        (json!({}), 422, "session"),
        (json!({ "session": "x", "kinds": ["task"] }), 422, "session"),
        (json!({ "session": "0".repeat(32), "kinds": ["task"] }), 409, "session"),
        (json!({ "session": session, "kinds": "task" }), 422, "kinds"),
        (json!({ "session": session, "kinds": [] }), 422, "kinds"),
        (json!({ "session": session, "kinds": [7] }), 422, "kinds[0]"),
        (json!({ "session": session, "kinds": ["a b"] }), 422, "kinds"),
        (json!({ "session": session, "kinds": [kind] }), 422, "kinds"),
        (json!({ "session": session, "kinds": vec!["a"; 257] }), 422, "kinds"),
        (json!({ "session": session, "kinds": ["task"], "max": 0 }), 422, "max"),
        (json!({ "session": session, "kinds": ["task"], "max": 257 }), 422, "max"),
        (json!({ "session": session, "kinds": ["task"], "max": -1 }), 422, "max"),
        (json!({ "session": session, "kinds": ["task"], "wait_ms": -1 }), 422, "wait_ms"),
        (json!({ "session": session, "kinds": ["task"], "wait": 1 }), 422, "wait"),
    ] {
        assert_refused(&server, "/v1/jobs/claim", &body.to_string(), status, word).await;
    }
    assert_eq!(server.get("/v1/jobs").await.1["items"], json!([]));
    assert_eq!(server.get("/v1/resources/task/t1").await.0, 404);
}

#[tokio::test]
async fn bad_requests_of_workers_are_refused() {
    let server = Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await;
    let (job, token) = start_job(&server).await;
    let large = "x".repeat(65_535);
    for (verb, body, status, word) in [
        ("progress", json!({ "percent": 1 }), 422, "token"),
        ("progress", json!({ "token": "1", "percent": 1 }), 422, "token"),
        ("progress", json!({ "token": token }), 422, "percent"),
        ("progress", json!({ "token": token, "percent": 101 }), 422, "percent"),
        ("progress", json!({ "token": token, "percent": 300 }), 422, "percent"),
        ("progress", json!({ "token": token, "percent": -1 }), 422, "percent"),
        ("progress", json!({ "token": token, "percent": 1.5 }), 422, "percent"),
        ("progress", json!({ "token": token, "percent": 1, "message": "a\nb" }), 422, "message"),
        (
            "progress",
            json!({ "token": token, "percent": 1, "message": "x".repeat(1_025) }),
            422,
            "message",
        ),
        ("progress", json!({ "token": 99, "percent": 1 }), 409, "99"),
        ("logs", json!({ "token": token }), 422, "text"),
        ("logs", json!({ "token": token, "text": 7 }), 422, "text"),
        ("logs", json!({ "token": token, "text": "x".repeat(65_537) }), 422, "text"),
        ("logs", json!({ "token": 99, "text": "x" }), 409, "99"),
        ("finish", json!({ "token": token }), 422, "outcome"),
        ("finish", json!({ "token": token, "outcome": "done" }), 422, "outcome"),
        ("finish", json!({ "outcome": "ok" }), 422, "token"),
        ("finish", json!({ "token": token, "outcome": "ok", "code": "X" }), 422, "code"),
        ("finish", json!({ "token": token, "outcome": "ok", "state": "READY" }), 422, "state"),
        ("finish", json!({ "token": token, "outcome": "ok", "result": large }), 422, "result"),
        ("finish", json!({ "token": token, "outcome": "failed" }), 422, "code"),
        ("finish", json!({ "token": token, "outcome": "failed", "code": "" }), 422, "code"),
        (
            "finish",
            json!({ "token": token, "outcome": "failed", "code": "x".repeat(65) }),
            422,
            "code",
        ),
        (
            "finish",
            json!({ "token": token, "outcome": "failed", "code": "X", "result": 1 }),
            422,
            "result",
        ),
        (
            "finish",
            json!({ "token": token, "outcome": "failed", "code": "X", "transient": 1 }),
            422,
            "transient",
        ),
        ("finish", json!({ "token": token, "outcome": "cancelled", "result": 1 }), 422, "result"),
        ("finish", json!({ "token": 99, "outcome": "ok" }), 409, "99"),
    ] {
        assert_refused(&server, &format!("/v1/jobs/{job}/{verb}"), &body.to_string(), status, word)
            .await;
    }
    let (_, shown) = server.get(&format!("/v1/jobs/{job}")).await;
    assert_eq!((&shown["state"], &shown["progress"]), (&json!("running"), &Value::Null));
    assert_eq!(server.get(&format!("/v1/jobs/{job}/logs")).await.1["items"], json!([]));
    let nul = json!({ "token": token, "text": "\0".repeat(65_536) });
    let (status, answer) = server.post(&format!("/v1/jobs/{job}/logs"), nul).await;
    assert_eq!(status, 200, "the longest text, in its longest encoding: {answer}");
}

#[tokio::test]
async fn bad_requests_of_operators_are_refused() {
    let server = Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await;
    let (job, _) = start_job(&server).await;
    let (_, before) = server.get("/v1/history?limit=1000").await;
    let reason = "x".repeat(513);
    let missing = format!("/v1/jobs/{}", "0".repeat(32));
    for (path, body, status, word) in [
        (format!("/v1/jobs/{job}/cancel"), json!({ "why": "x" }), 422, "why"),
        (format!("/v1/jobs/{job}/cancel"), json!({ "reason": 7 }), 422, "reason"),
        (format!("/v1/jobs/{job}/cancel"), json!({ "reason": reason }), 422, "reason"),
        (format!("/v1/jobs/{job}/retry"), json!({}), 422, "reason"),
        (format!("/v1/jobs/{job}/retry"), json!({ "reason": "x" }), 409, "running"),
        (format!("/v1/jobs/{job}/discard"), json!({}), 422, "reason"),
        (format!("/v1/jobs/{job}/discard"), json!({ "reason": "x" }), 409, "running"),
        (format!("{missing}/cancel"), json!({}), 404, "job"),
        (format!("{missing}/finish"), json!({ "token": 1, "outcome": "ok" }), 404, "job"),
        ("/v1/jobs/nonsense/cancel".into(), json!({}), 422, "job"),
        ("/v1/resources/task/t1/pause".into(), json!({ "reason": " " }), 422, "reason"),
        ("/v1/resources/task/t1/pause".into(), json!({ "reason": "a\nb" }), 422, "reason"),
        ("/v1/resources/task/t1/resume".into(), json!({ "reason": reason }), 422, "reason"),
        ("/v1/dead/redrive".into(), json!({ "reason": "x" }), 422, "filter"),
        ("/v1/dead/redrive".into(), json!({ "filter": { "cod": "x" } }), 422, "filter.cod"),
        ("/v1/dead/redrive".into(), json!({ "filter": { "ids": ["x"] } }), 422, "filter.ids[0]"),
        ("/v1/dead/redrive".into(), json!({ "filter": {}, "dry_run": "no" }), 422, "dry_run"),
        ("/v1/dead/redrive".into(), json!({ "filter": [null], "dry_run": true }), 422, "filter"),
        ("/v1/dead/redrive".into(), json!({ "filter": {} }), 422, "reason"),
        ("/v1/dead/redrive".into(), json!({ "filter": {}, "reason": "a\u{84}" }), 422, "reason"),
        ("/v1/sessions/%ff/beat".into(), json!({}), 422, "UTF-8"),
        ("/v1/sessions/nonsense/beat".into(), json!({}), 422, "the session"),
        ("/v1/dead/discard".into(), json!({ "filter": {} }), 422, "reason"),
        (
            "/v1/dead/discard".into(),
            json!({ "filter": { "ids": vec!["0".repeat(32); 1_001] }, "reason": "x" }),
            422,
            "ids",
        ),
    ] {
        assert_refused(&server, &path, &body.to_string(), status, word).await;
    }
    for (body, status) in [
        (json!({}), 422),
        (json!({ "spec": {}, "state": "READY" }), 422),
        (json!({ "spec": "x".repeat(65_535) }), 422),
    ] {
        let (got, problem) = server.put("/v1/resources/cluster/c1", body).await;
        assert_eq!(got, status, "{problem}");
    }
    for (path, word) in [
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=1001", "limit"),
        ("/v1/jobs?limit=x", "limit"),
        ("/v1/jobs?cursor=x", "cursor"),
        ("/v1/jobs?state=sleeping", "state"),
        ("/v1/jobs/nonsense", "job"),
        ("/v1/resources?limit=0", "limit"),
        ("/v1/resources?cursor=x", "cursor"),
        ("/v1/dead?limit=0", "limit"),
        ("/v1/dead?cursor=x", "cursor"),
        ("/v1/jobs?tenant=a/b", "tenant"),
    ] {
        let (status, problem) = server.get(path).await;
        assert_eq!(status, 422, "{path}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(word), "{path}: {problem}");
    }
    for query in ["limit=0", "limit=1001", "after=-1", "attempt=x", "wait_ms=-5"] {
        let (status, problem) = server.get(&format!("/v1/jobs/{job}/logs?{query}")).await;
        assert_eq!(status, 422, "{query}: {problem}");
    }
    assert_eq!(server.get(&format!("/v1/jobs/{job}?wait_ms=x")).await.0, 422);
    let (_, after) = server.get("/v1/history?limit=1000").await;
    let events = |page: &Value| page["items"].as_array().unwrap().len();
    assert_eq!(events(&before), events(&after), "no event was recorded");
}

#[tokio::test]
async fn the_largest_and_deepest_documents_are_accepted() {
    let server = Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await;
    let deep: Value =
        serde_json::from_str(&format!("{}{}", "[".repeat(64), "]".repeat(64))).unwrap();
    let args = [deep, json!("x".repeat(65_534))];
    let worker = Worker::open(&server, "w1").await;
    for args in args {
        let body = json!({ "operation": "run", "args": args });
        let (status, answer) = server.post("/v1/resources/pipeline/p1/jobs", body).await;
        assert_eq!(status, 202, "{answer}");
        let claimed = worker.claim(&server, &["pipeline"], 0).await;
        assert_eq!(claimed[0]["job"]["args"], args);
        let job = claimed[0]["job"]["id"].as_str().unwrap();
        let body =
            json!({ "token": claimed[0]["tenure"]["token"], "outcome": "ok", "result": args });
        let (status, answer) = server.post(&format!("/v1/jobs/{job}/finish"), body).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(server.get(&format!("/v1/jobs/{job}")).await.1["result"], args);
    }
}

#[tokio::test]
async fn a_repeated_request_is_validated_like_the_first() {
    let server = Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await;
    let jobs = "/v1/resources/task/t1/jobs";
    let (status, first) = server.post_as(jobs, "key-1", json!({ "operation": "work" })).await;
    assert_eq!(status, 202, "{first}");
    let body = json!({ "operation": "work", "priority": 1001 });
    assert_eq!(server.post_as(jobs, "key-1", body).await.0, 422);
    let id = first["job"]["id"].as_str().expect("an id");
    let cancel = format!("/v1/jobs/{id}/cancel");
    assert_eq!(server.post(&cancel, json!({})).await.0, 202);
    let (status, problem) = server.post(&cancel, json!({ "reason": "a\u{84}" })).await;
    assert_eq!(status, 422, "{problem}");
}
