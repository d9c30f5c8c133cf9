//! Jobs and resources over HTTP, for operators and workers.

mod common;

use std::sync::Arc;

use common::{KEY, Server, Worker, until};
use serde_json::{Value, json};
use tenure_store::{Memory, scenario};

async fn server() -> Server {
    Server::start_with(Arc::new(Memory::new()), scenario::kinds()).await
}

async fn submit(server: &Server, resource: &str, operation: &str) -> Value {
    let path = format!("/v1/resources/{resource}/jobs");
    let (status, answer) = server.post(&path, json!({ "operation": operation })).await;
    assert_eq!(status, 202, "{answer}");
    answer["job"].clone()
}

fn id(job: &Value) -> &str {
    job["id"].as_str().expect("a job has an id")
}

#[tokio::test]
async fn a_job_is_submitted_claimed_and_finished() {
    let server = server().await;
    let body = json!({ "operation": "create", "args": { "size": [1, 2] }, "priority": 5 });
    let (status, answer) = server.post("/v1/resources/cluster/c1/jobs", body).await;
    assert_eq!((status, &answer["verdict"]), (202, &json!("started")), "{answer}");
    let job = format!("/v1/jobs/{}", id(&answer["job"]));
    assert_eq!(server.get(&format!("{job}/why")).await.1["why"], "no_worker");

    let worker = Worker::open(&server, "w1").await;
    let claimed = worker.claim(&server, &["cluster"], 0).await;
    let (mine, tenure) = (&claimed[0]["job"], &claimed[0]["tenure"]);
    assert_eq!(mine["args"], json!({ "size": [1, 2] }));
    assert_eq!((&mine["state"], &mine["attempt"]), (&json!("running"), &json!(1)));
    assert_eq!((&mine["by"], &mine["priority"]), (&json!("admin"), &json!(5)));
    assert_eq!(tenure["holder"]["job"], mine["id"]);
    assert_eq!((&claimed[0]["limit_ms"], &claimed[0]["attempts_max"]), (&json!(60_000), &json!(3)));

    let token = &tenure["token"];
    let body = json!({ "token": token, "percent": 40, "message": "copying" });
    let (status, noted) = server.post(&format!("{job}/progress"), body).await;
    assert_eq!((status, noted), (200, json!({ "cancelling": false })));
    let (_, shown) = server.get(&job).await;
    assert_eq!(shown["progress"]["percent"], 40);
    assert_eq!(shown["attempts"][0]["worker"], "w1");
    let (_, why) = server.get(&format!("{job}/why")).await;
    assert_eq!((&why["why"], &why["worker"]), (&json!("running"), &json!("w1")));
    let (_, resource) = server.get("/v1/resources/cluster/c1").await;
    assert_eq!(resource["state"], "CREATING");
    assert_eq!(resource["current_job"]["id"], shown["id"]);

    let body = json!({ "token": token, "outcome": "ok", "result": { "url": "x" } });
    let (status, done) = server.post(&format!("{job}/finish"), body).await;
    assert_eq!((status, done), (200, json!({ "state": "succeeded", "already": false })));
    let (_, shown) = server.get(&job).await;
    assert_eq!((&shown["state"], &shown["result"]), (&json!("succeeded"), &json!({ "url": "x" })));
    assert_eq!(shown["attempts"][0]["outcome"], "ok");
    let (_, resource) = server.get("/v1/resources/cluster/c1").await;
    assert_eq!((&resource["state"], &resource["current_job"]), (&json!("READY"), &Value::Null));
    assert_eq!(server.get("/v1/resources/cluster/c1/why").await.1["why"], "idle");
}

#[tokio::test]
async fn a_thousand_concurrent_submits_create_one_job_and_return_its_id() {
    let server = Arc::new(server().await);
    // Both ends of a connection are in this process, whose file descriptors are limited.
    let permits = Arc::new(tokio::sync::Semaphore::new(200));
    let http = common::http();
    let submits: Vec<_> = (0..1_000)
        .map(|_| {
            let (permits, http) = (Arc::clone(&permits), http.clone());
            let url = format!("{}/v1/resources/pipeline/p1/jobs", server.url);
            tokio::spawn(async move {
                let _permit = permits.acquire().await.unwrap();
                let request = http.post(url).header("x-api-key", KEY);
                let answer = request.body(r#"{"operation":"run"}"#).send().await.unwrap();
                assert_eq!(answer.status(), 202);
                let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
                let verdict = answer["verdict"].as_str().unwrap().to_owned();
                (id(&answer["job"]).to_owned(), verdict)
            })
        })
        .collect();
    let (mut ids, mut attached) = (std::collections::BTreeSet::new(), 0);
    for submit in submits {
        let (id, verdict) = submit.await.unwrap();
        ids.insert(id);
        attached += usize::from(verdict == "attached");
    }
    assert_eq!((ids.len(), attached), (1, 999));
    let only = ids.first().unwrap();
    assert_eq!(server.get(&format!("/v1/jobs/{only}")).await.1["joined"], 999);
    let (_, list) = server.get("/v1/jobs").await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn repeated_requests_are_applied_once() {
    let server = server().await;
    let path = "/v1/resources/task/t1/jobs";
    let body = json!({ "operation": "work" });
    let (_, first) = server.post_as(path, "s-1", body.clone()).await;
    let (_, again) = server.post_as(path, "s-1", body.clone()).await;
    let (_, other) = server.post_as(path, "s-2", body.clone()).await;
    assert_eq!((&first["job"]["id"], &first["verdict"]), (&again["job"]["id"], &again["verdict"]));
    assert_ne!(first["job"]["id"], other["job"]["id"]);
    // Another resource may use the same key.
    let (_, elsewhere) = server.post_as("/v1/resources/task/t2/jobs", "s-1", body).await;
    assert_ne!(first["job"]["id"], elsewhere["job"]["id"]);

    let worker = Worker::open(&server, "w1").await;
    let claim = json!({ "session": worker.session, "kinds": ["task"], "max": 1 });
    let (_, mine) = server.post_as("/v1/jobs/claim", "c-1", claim.clone()).await;
    let (_, same) = server.post_as("/v1/jobs/claim", "c-1", claim).await;
    assert_eq!(mine["jobs"][0]["tenure"]["token"], same["jobs"][0]["tenure"]["token"]);
    assert_eq!(mine["jobs"][0]["job"]["id"], same["jobs"][0]["job"]["id"]);

    let job = format!("/v1/jobs/{}", id(&mine["jobs"][0]["job"]));
    let token = &mine["jobs"][0]["tenure"]["token"];
    let finish = json!({ "token": token, "outcome": "failed", "code": "QUOTA",
                         "transient": false });
    let (_, done) = server.post(&format!("{job}/finish"), finish.clone()).await;
    assert_eq!(done, json!({ "state": "failed", "already": false }));
    let (_, done) = server.post(&format!("{job}/finish"), finish).await;
    assert_eq!(done, json!({ "state": "failed", "already": true }));

    let why = json!({ "reason": "the quota was raised" });
    let (status, retried) = server.post_as(&format!("{job}/retry"), "r-1", why.clone()).await;
    assert_eq!(status, 202, "{retried}");
    let (_, again) = server.post_as(&format!("{job}/retry"), "r-1", why).await;
    assert_eq!(retried["job"]["id"], again["job"]["id"]);
    assert_eq!(retried["job"]["retry_of"], mine["jobs"][0]["job"]["id"]);
}

#[tokio::test]
async fn cancel_ends_a_waiting_job_and_stops_a_running_one() {
    let server = server().await;
    let waiting = submit(&server, "task/t1", "work").await;
    let path = format!("/v1/jobs/{}/cancel", id(&waiting));
    let (status, answer) = server.post(&path, json!({})).await;
    assert_eq!((status, answer), (202, json!({ "state": "cancelled" })));
    let running = submit(&server, "task/t1", "work").await;
    let worker = Worker::open(&server, "w1").await;
    let claimed = worker.claim(&server, &["task"], 0).await;
    let path = format!("/v1/jobs/{}", id(&running));
    let body = json!({ "reason": "wrong size" });
    let (status, answer) = server.post(&format!("{path}/cancel"), body).await;
    assert_eq!((status, answer), (202, json!({ "state": "cancelling" })));
    let heartbeat = format!("/v1/sessions/{}/beat", worker.session);
    assert_eq!(server.post(&heartbeat, json!({})).await.1["revoked"][0]["cancel"], true);
    let token = &claimed[0]["tenure"]["token"];
    let body = json!({ "token": token, "text": "stopping\n" });
    assert_eq!(server.post(&format!("{path}/logs"), body).await.1["cancelling"], true);
    let body = json!({ "token": token, "outcome": "ok" });
    assert_eq!(server.post(&format!("{path}/finish"), body).await.1["state"], "cancelled");
    let (status, problem) = server.post(&format!("{path}/retry"), json!({ "reason": " " })).await;
    assert_eq!(status, 422, "{problem}");
    let (_, shown) = server.get(&path).await;
    assert_eq!(
        (&shown["cancel"]["by"], &shown["cancel"]["reason"]),
        (&json!("admin"), &json!("wrong size"))
    );
    let done = submit(&server, "pipeline/p1", "run").await;
    let claimed = worker.claim(&server, &["pipeline"], 0).await;
    let body = json!({ "token": claimed[0]["tenure"]["token"], "outcome": "ok" });
    server.post(&format!("/v1/jobs/{}/finish", id(&done)), body).await;
    let (status, problem) = server.post(&format!("/v1/jobs/{}/cancel", id(&done)), json!({})).await;
    assert_eq!((status, &problem["reason"]), (409, &json!("job_state")), "{problem}");
    assert_eq!(problem["state"], "succeeded");
}

#[tokio::test]
async fn refusals_name_the_conflicting_job_or_state() {
    let server = server().await;
    let create = submit(&server, "cluster/c1", "create").await;
    let worker = Worker::open(&server, "w1").await;
    let claimed = worker.claim(&server, &["cluster"], 0).await;
    let body = json!({ "token": claimed[0]["tenure"]["token"], "outcome": "ok" });
    server.post(&format!("/v1/jobs/{}/finish", id(&create)), body).await;

    let jobs = "/v1/resources/cluster/c1/jobs";
    let (status, problem) = server.post(jobs, json!({ "operation": "create" })).await;
    assert_eq!((status, &problem["code"]), (409, &json!("bad_transition")));
    assert_eq!(problem["state"], "READY");
    assert_eq!(problem["from"], json!(["PENDING", "DESTROYED"]));

    let destroy = submit(&server, "cluster/c1", "destroy").await;
    let (status, problem) = server.post(jobs, json!({ "operation": "create" })).await;
    assert_eq!((status, &problem["code"]), (409, &json!("rejected")));
    assert_eq!((&problem["present_job"], &problem["state"]), (&destroy["id"], &json!("queued")));

    let claimed = worker.claim(&server, &["cluster"], 0).await;
    let body = json!({ "token": claimed[0]["tenure"]["token"] });
    let (status, problem) = server.post("/v1/locks/cluster/c1/release", body).await;
    assert_eq!((status, &problem["reason"]), (409, &json!("job_tenure")), "{problem}");
    assert_eq!(problem["job"], destroy["id"]);
    let (status, problem) = server.delete("/v1/resources/cluster/c1").await;
    assert_eq!((status, &problem["reason"]), (409, &json!("in_use")));
    assert_eq!(problem["job"], destroy["id"]);

    for (path, body, reason) in [
        ("/v1/resources/nothing/x/jobs", json!({ "operation": "run" }), "not_declared"),
        (jobs, json!({ "operation": "fly" }), "not_declared"),
        ("/v1/resources/cluster/no/pause", json!({ "reason": "x" }), "no_such_resource"),
    ] {
        let (status, problem) = server.post(path, body).await;
        assert_eq!((status, &problem["reason"]), (404, &json!(reason)), "{path}");
    }
}

#[tokio::test]
async fn a_resource_is_put_paused_resumed_and_deleted() {
    let server = server().await;
    let path = "/v1/resources/shoot/s1";
    let (status, put) = server.put(path, json!({ "spec": { "nodes": 3 } })).await;
    assert_eq!((status, &put["generation"]), (200, &json!(1)), "{put}");
    let job = put["job"].as_str().expect("it is reconciled").to_owned();
    assert_eq!(put["queue"][0]["id"], json!(job));
    let (_, same) = server.put(path, json!({ "spec": { "nodes": 3 } })).await;
    assert_eq!((&same["generation"], &same["job"]), (&json!(1), &Value::Null));

    let body = json!({ "reason": "migration" });
    assert_eq!(server.post(&format!("{path}/pause"), json!({})).await.0, 422);
    let (_, paused) = server.post(&format!("{path}/pause"), body).await;
    assert_eq!(paused, json!({ "paused": true }));
    let (_, why) = server.get(&format!("{path}/why")).await;
    assert_eq!((&why["why"], &why["job"]), (&json!("paused"), &json!(job)));
    assert_eq!(why["paused"]["reason"], "migration");
    let worker = Worker::open(&server, "w1").await;
    assert_eq!(worker.claim(&server, &["shoot"], 0).await, json!([]));
    let (_, paused) = server.post(&format!("{path}/resume"), json!({})).await;
    assert_eq!(paused, json!({ "paused": false }));
    let claimed = worker.claim(&server, &["shoot"], 0).await;
    assert_eq!(claimed[0]["spec"], json!({ "nodes": 3 }));
    let body = json!({ "token": claimed[0]["tenure"]["token"], "outcome": "ok" });
    server.post(&format!("/v1/jobs/{job}/finish"), body).await;

    server.put("/v1/resources/cluster/c1", json!({ "spec": null })).await;
    let (_, list) = server.get("/v1/resources?kind=shoot&state=READY").await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["observed_generation"], 1);
    let (_, first) = server.get("/v1/resources?limit=1").await;
    assert_eq!(first["items"][0]["name"], "c1");
    let next = first["next"].as_str().expect("there is more");
    let (_, rest) = server.get(&format!("/v1/resources?limit=1&cursor={next}")).await;
    assert_eq!((&rest["items"][0]["name"], &rest["next"]), (&json!("s1"), &Value::Null));

    assert_eq!(server.delete(path).await, (200, json!({ "deleted": true })));
    let (status, problem) = server.get(path).await;
    assert_eq!((status, &problem["reason"]), (404, &json!("no_such_resource")));
}

#[tokio::test]
async fn jobs_of_another_tenant_are_not_found() {
    let server = server().await;
    let path = "/v1/resources/task/t1/jobs?tenant=acme";
    let (_, answer) = server.post(path, json!({ "operation": "work" })).await;
    let job = format!("/v1/jobs/{}", id(&answer["job"]));
    let worker = Worker::open_for(&server, "w1", "acme").await;
    let claimed = worker.claim(&server, &["task"], 0).await;
    let token = claimed[0]["tenure"]["token"].clone();
    let reason = json!({ "reason": "mine now" });
    for (verb, body) in [
        ("cancel", reason.clone()),
        ("retry", reason.clone()),
        ("discard", reason.clone()),
        ("progress", json!({ "token": token, "percent": 1 })),
        ("logs", json!({ "token": token, "text": "x" })),
        ("finish", json!({ "token": token, "outcome": "ok" })),
    ] {
        for tenant in ["", "?tenant=other"] {
            let (status, problem) =
                server.post(&format!("{job}/{verb}{tenant}"), body.clone()).await;
            assert_eq!((status, &problem["reason"]), (404, &json!("no_such_job")), "{verb}");
        }
    }
    for path in [job.clone(), format!("{job}/why"), format!("{job}/logs")] {
        assert_eq!(server.get(&path).await.0, 404, "{path}");
        assert_eq!(server.get(&format!("{path}?tenant=acme")).await.0, 200, "{path}");
        assert_eq!(server.get(&format!("{path}?tenant=*")).await.0, 200, "{path}");
    }
    let ids = json!({ "filter": { "ids": [answer["job"]["id"]] }, "reason": "x" });
    let (_, redriven) = server.post("/v1/dead/redrive", ids).await;
    assert_eq!(redriven["refused"][0]["code"], "not_found");
    for list in ["/v1/jobs", "/v1/resources", "/v1/workers", "/v1/dead"] {
        assert_eq!(server.get(list).await.1["items"], json!([]), "{list}");
    }
    assert_eq!(server.get("/v1/jobs?tenant=*").await.1["items"].as_array().unwrap().len(), 1);
    let (_, shown) = server.get(&format!("{job}?tenant=acme")).await;
    assert_eq!((&shown["state"], &shown["cancel"]), (&json!("running"), &Value::Null));
    assert_eq!(server.get(&format!("{job}/logs?tenant=acme")).await.1["items"], json!([]));
}

#[tokio::test]
async fn a_session_of_all_tenants_claims_jobs_of_every_tenant() {
    let server = server().await;
    for tenant in ["acme", "other"] {
        let path = format!("/v1/resources/task/t1/jobs?tenant={tenant}");
        server.post(&path, json!({ "operation": "work" })).await;
    }
    let worker = Worker::open_for(&server, "w1", "*").await;
    let claim = json!({ "session": worker.session, "kinds": ["task"], "max": 10 });
    let (_, claimed) = server.post("/v1/jobs/claim?tenant=*", claim).await;
    let jobs = claimed["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2, "{claimed}");
    let (_, workers) = server.get("/v1/workers?tenant=acme").await;
    assert_eq!(workers["items"][0]["jobs"].as_array().unwrap().len(), 1, "{workers}");
    for claimed in jobs {
        let path = format!("/v1/jobs/{}/finish?tenant=*", id(&claimed["job"]));
        let body = json!({ "token": claimed["tenure"]["token"], "outcome": "ok" });
        assert_eq!(server.post(&path, body).await.0, 200);
    }
    let (status, problem) = server.get("/v1/resources/task/t1?tenant=*").await;
    assert_eq!(status, 422, "{problem}");
}

#[tokio::test]
async fn kinds_and_workers_are_listed() {
    let server = server().await;
    let (_, kinds) = server.get("/v1/kinds").await;
    let kinds = kinds["items"].as_array().unwrap();
    let cluster = kinds.iter().find(|kind| kind["name"] == "cluster").unwrap();
    let check = kinds.iter().find(|kind| kind["name"] == "check").unwrap();
    assert_eq!((&check["grouped"], &check["ephemeral_ms"]), (&json!(true), &json!(600_000)));
    assert_eq!(cluster["operations"][0]["meets"]["destroy"], "reject");
    assert_eq!(cluster["operations"][0]["retry"]["attempts"], 3);
    let job = submit(&server, "task/t1", "work").await;
    let worker = Worker::open(&server, "w1").await;
    worker.claim(&server, &["task", "report"], 0).await;
    let (_, workers) = server.get("/v1/workers").await;
    assert_eq!(workers["items"][0]["kinds"], json!(["task", "report"]));
    let mine = json!([{ "kind": "task", "name": "t1", "job": job["id"] }]);
    assert_eq!(workers["items"][0]["jobs"], mine);
}

#[tokio::test]
async fn a_request_that_waits_for_a_job_returns_when_it_finishes() {
    let server = Arc::new(server().await);
    let job = submit(&server, "pipeline/p1", "run").await;
    let path = format!("/v1/jobs/{}", id(&job));
    let (status, shown) = server.get(&format!("{path}?wait_ms=20")).await;
    assert_eq!((status, &shown["state"]), (200, &json!("queued")));
    let worker = Worker::open(&server, "w1").await;
    let claimed = worker.claim(&server, &["pipeline"], 0).await;
    let waiter = {
        let (server, path) = (Arc::clone(&server), format!("{path}?wait_ms=60000"));
        tokio::spawn(async move { server.get(&path).await })
    };
    let body = json!({ "token": claimed[0]["tenure"]["token"], "outcome": "ok" });
    server.post(&format!("{path}/finish"), body).await;
    let (_, shown) = waiter.await.unwrap();
    assert_eq!(shown["state"], "succeeded");
}

#[tokio::test]
async fn logs_are_filtered_by_attempt_and_can_be_followed() {
    let server = Arc::new(server().await);
    let job = submit(&server, "task/t1", "work").await;
    let path = format!("/v1/jobs/{}", id(&job));
    let worker = Worker::open(&server, "w1").await;
    for attempt in 1..=2 {
        let claimed = worker.claim(&server, &["task"], 0).await;
        let token = claimed[0]["tenure"]["token"].clone();
        for line in ["one\n", "two\n"] {
            let text = format!("{attempt} {line}");
            let body = json!({ "token": token, "text": text });
            assert_eq!(server.post(&format!("{path}/logs"), body).await.0, 200);
        }
        if attempt == 1 {
            let body = json!({ "token": token, "outcome": "failed", "code": "BUSY" });
            server.post(&format!("{path}/finish"), body).await;
            // Ends the backoff.
            server.post(&format!("{path}/retry"), json!({ "reason": "now" })).await;
        }
    }
    let texts = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap().iter();
        items.map(|item| item["text"].as_str().unwrap().to_owned()).collect()
    };
    let logs = format!("{path}/logs");
    let (_, all) = server.get(&logs).await;
    assert_eq!(texts(&all), ["1 one\n", "1 two\n", "2 one\n", "2 two\n"]);
    let (_, second) = server.get(&format!("{logs}?attempt=2&limit=1")).await;
    assert_eq!(
        (texts(&second), &second["items"][0]["attempt"]),
        (vec!["2 one\n".into()], &json!(2))
    );
    let (_, rest) = server.get(&format!("{logs}?attempt=2&after={}", second["next"])).await;
    assert_eq!(texts(&rest), ["2 two\n"]);

    let follow = |after: &Value| {
        let (server, path) = (Arc::clone(&server), format!("{logs}?after={after}&wait_ms=60000"));
        tokio::spawn(async move { server.get(&path).await.1 })
    };
    let follower = follow(&all["next"]);
    let (_, shown) = server.get(&path).await;
    let token = &shown["attempts"][1]["token"];
    server.post(&logs, json!({ "token": token, "text": "2 three\n" })).await;
    let more = follower.await.unwrap();
    assert_eq!(texts(&more), ["2 three\n"]);
    let follower = follow(&more["next"]);
    let body = json!({ "token": token, "outcome": "ok" });
    server.post(&format!("{path}/finish"), body).await;
    let end = follower.await.unwrap();
    assert_eq!((texts(&end).len(), &end["next"]), (0, &more["next"]));
}

#[tokio::test]
async fn lists_of_jobs_continue_at_the_cursor() {
    let server = server().await;
    for n in 0..5 {
        submit(&server, &format!("task/t{n}"), "work").await;
    }
    submit(&server, "pipeline/p1", "run").await;
    let (mut cursor, mut names) = (String::new(), Vec::new());
    until(|| async { server.get("/v1/jobs").await.1["items"].as_array().unwrap().len() == 6 })
        .await;
    loop {
        let path = format!("/v1/jobs?kind=task&state=queued&operation=work&limit=2{cursor}");
        let (status, page) = server.get(&path).await;
        assert_eq!(status, 200, "{page}");
        let items = page["items"].as_array().unwrap().iter();
        names.extend(items.map(|job| job["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    names.sort();
    assert_eq!(names, ["t0", "t1", "t2", "t3", "t4"]);
}
