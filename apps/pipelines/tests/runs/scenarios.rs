//! Guarantees: duplicates get the id of the active run, the lock ends with the run, tenants are
//! isolated.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use crate::testbed::{
    Cluster, HOLD, HOLD_WITH_RETRIES, KEY, StoreKind, id, is_alive, on_each_store, until,
};

on_each_store! {
    ten_concurrent_triggers_create_one_run,
    a_thousand_concurrent_triggers_create_one_run,
    completed_run_frees_its_lock,
    failed_run_frees_its_lock,
    cancelled_run_is_stopped_and_frees_its_lock,
    run_is_stopped_at_its_time_limit,
    tenants_are_isolated,
    forced_release_needs_the_token_and_a_reason,
    forced_release_prevents_retries,
    runs_are_listed_newest_first_and_by_status,
}

async fn ten_concurrent_triggers_create_one_run(store: StoreKind) {
    concurrent_triggers(store, 10).await;
}

async fn a_thousand_concurrent_triggers_create_one_run(store: StoreKind) {
    concurrent_triggers(store, 1_000).await;
}

async fn concurrent_triggers(store: StoreKind, count: usize) {
    let cluster = Cluster::start(store, &[("default/billing", HOLD)]).await;
    let trigger = |n: usize| {
        let body = json!({ "trigger_by": format!("caller {n}") });
        let cluster = &cluster;
        async move {
            loop {
                let (status, response) = cluster.try_trigger(0, "billing", &body).await;
                // An overloaded server rejects the trigger without an effect.
                if status != 503 {
                    assert_eq!(status, 200, "{response}");
                    return response;
                }
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    };
    let responses: Vec<Value> = futures_util::future::join_all((0..count).map(trigger)).await;
    let run = id(&responses[0]);
    let mut statuses: BTreeMap<&str, usize> = BTreeMap::new();
    for response in &responses {
        assert_eq!(id(response), run);
        assert_eq!(
            (&response["tenant_id"], &response["pipeline_id"]),
            (&json!("default"), &json!("billing"))
        );
        *statuses.entry(response["status"].as_str().expect("status")).or_default() += 1;
    }
    assert_eq!(statuses, BTreeMap::from([("PENDING", 1), ("RUNNING", count - 1)]));
    cluster.wait_for_starts("default", "billing", 1).await;
    let detail = cluster.run(&run).await;
    assert_eq!(detail["duplicates"], count - 1);
    let attached = detail["attached"].as_array().expect("list");
    assert_eq!(attached.len(), (count - 1).min(100), "the latest hundred are listed");
    assert!(attached[0]["trigger_by"].as_str().expect("name").starts_with("caller "));
    cluster.let_finish("billing");
    cluster.wait_for_end(&run, "COMPLETE").await;
    assert_eq!(cluster.start_count("default", "billing"), 1, "executed once");
    cluster.verify().await;
}

async fn completed_run_frees_its_lock(store: StoreKind) {
    let cluster = Cluster::start(store, &[("default/billing", HOLD)]).await;
    let first = cluster.start_run("billing").await;
    cluster.wait_for_starts("default", "billing", 1).await;
    let locks = cluster.get("/pipelines/locks").await;
    let lock = &locks["items"][0];
    assert_eq!(lock["pipeline_logging_id"], *first, "{locks}");
    assert_eq!((&lock["locked_by"], &lock["limit_ms"]), (&json!("a test"), &json!(3_600_000)));
    cluster.let_finish("billing");
    let run = cluster.wait_for_end(&first, "COMPLETE").await;
    assert_eq!(run["steps"][0]["status"], "COMPLETE", "{run:#}");
    assert_eq!(
        cluster.get("/pipelines/locks").await["items"],
        json!([]),
        "the lock ended with the run"
    );
    let second = cluster.start_run("billing").await;
    assert_ne!(first, second);
    cluster.wait_for_end(&second, "COMPLETE").await;
    assert_eq!(cluster.start_count("default", "billing"), 2);
}

async fn failed_run_frees_its_lock(store: StoreKind) {
    let text = "[[steps]]\nname = \"query\"\n\
                command = [\"sh\", \"-c\", \"echo no such table >&2; exit 3\"]\n\
                [[steps]]\nname = \"never\"\ncommand = [\"true\"]\n";
    let cluster = Cluster::start(store, &[("default/billing", text)]).await;
    let first = cluster.start_run("billing").await;
    let run = cluster.wait_for_end(&first, "FAILED").await;
    assert_eq!(run["error"]["code"], "EXIT_3", "{run:#}");
    let why = run["error"]["message"].as_str().expect("message");
    assert_eq!(why, "step query: exited with code 3: no such table");
    assert_eq!(
        (&run["steps"][0]["status"], &run["steps"][1]["status"]),
        (&json!("FAILED"), &json!("PENDING"))
    );
    let second = cluster.start_run("billing").await;
    assert_ne!(first, second);
    cluster.wait_for_end(&second, "FAILED").await;
    assert_eq!(cluster.get("/pipelines/locks").await["items"], json!([]));
}

async fn cancelled_run_is_stopped_and_frees_its_lock(store: StoreKind) {
    let cluster = Cluster::start(store, &[("default/billing", HOLD)]).await;
    let first = cluster.start_run("billing").await;
    let pid = cluster.wait_for_starts("default", "billing", 1).await;
    let path = format!("/pipelines/runs/{first}?reason=not+needed");
    let (status, response) = cluster.send(0, KEY, Method::DELETE, &path, None).await;
    assert_eq!((status, &response["status"]), (202, &json!("CANCELLING")), "{response}");
    assert_eq!(response["cancel"]["reason"], "not needed");
    let run = cluster.wait_for_end(&first, "CANCELLED").await;
    assert!(!is_alive(pid), "the step was stopped before the run ended");
    assert_eq!(run["steps"][0]["status"], "STOPPED", "{run:#}");
    let (status, response) = cluster.send(0, KEY, Method::DELETE, &path, None).await;
    assert_eq!((status, &response["status"]), (202, &json!("CANCELLED")), "repeated: {response}");
    cluster.let_finish("billing");
    let second = cluster.start_run("billing").await;
    cluster.wait_for_end(&second, "COMPLETE").await;
    let path = format!("/pipelines/runs/{second}");
    let (status, response) = cluster.send(0, KEY, Method::DELETE, &path, None).await;
    assert_eq!(
        (status, &response["code"]),
        (409, &json!("conflict")),
        "already finished: {response}"
    );
    assert_eq!(cluster.start_count("default", "billing"), 2);
}

/// A trigger right before the limit attaches, one right after it starts a new run.
async fn run_is_stopped_at_its_time_limit(store: StoreKind) {
    let limited = format!("limit = \"60s\"\n{HOLD}");
    let cluster = Cluster::start(store, &[("default/billing", &limited)]).await;
    let first = cluster.start_run("billing").await;
    let pid = cluster.wait_for_starts("default", "billing", 1).await;
    let mut last_ms = 0;
    loop {
        let response = cluster.trigger("billing", json!({})).await;
        if id(&response) != first {
            assert_eq!(response["status"], "PENDING", "{response}");
            break;
        }
        let run = cluster.run(&first).await;
        if run["status"] == "RUNNING" {
            assert_eq!(response["status"], "RUNNING", "{response}");
            last_ms = run["duration_ms"].as_u64().expect("duration");
        }
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        assert!(last_ms < 70_000, "the run is not stopped");
    }
    assert!(!is_alive(pid), "it was stopped before another one could start");
    let run = cluster.wait_for_end(&first, "TIMEOUT").await;
    assert_eq!(run["error"]["code"], "TIME_LIMIT");
    let took_ms = run["duration_ms"].as_u64().expect("duration");
    assert!((60_000..68_000).contains(&took_ms), "it took {took_ms} ms");
    assert!(last_ms > 58_000, "it ran until the limit: {last_ms} ms");
    cluster.let_finish("billing");
    until(async || cluster.start_count("default", "billing") == 2).await;
}

async fn tenants_are_isolated(store: StoreKind) {
    let cluster =
        Cluster::start(store, &[("acme/billing", HOLD), ("umbrella/billing", HOLD)]).await;
    let (acme, umbrella) =
        (cluster.key("acme", "operator").await, cluster.key("umbrella", "operator").await);
    let trigger = async |key: &str| {
        let (status, response) =
            cluster.send(0, key, Method::POST, "/pipelines/run/billing", Some(&json!({}))).await;
        assert_eq!((status, &response["status"]), (200, &json!("PENDING")), "{response}");
        id(&response)
    };
    let (first, second) = (trigger(&acme).await, trigger(&umbrella).await);
    assert_ne!(first, second);
    cluster.wait_for_starts("acme", "billing", 1).await;
    cluster.wait_for_starts("umbrella", "billing", 1).await;
    for (method, path) in [
        (Method::GET, format!("/pipelines/runs/{second}")),
        (Method::DELETE, format!("/pipelines/runs/{second}")),
        (Method::GET, format!("/v1/pipelines/runs/{second}")),
        (Method::GET, format!("/v1/jobs/{second}/logs")),
    ] {
        let (status, response) = cluster.send(0, &acme, method, &path, None).await;
        assert_eq!(status, 404, "{path}: {response}");
        assert!(!response.to_string().contains("umbrella"), "{response}");
    }
    for path in ["/pipelines", "/pipelines/runs", "/pipelines/locks"] {
        let (status, response) = cluster.send(0, &acme, Method::GET, path, None).await;
        assert_eq!(status, 200, "{response}");
        assert_eq!(response["items"].as_array().map(Vec::len), Some(1), "{path}: {response}");
        assert!(!response.to_string().contains("umbrella"), "{path}: {response}");
    }
    let (status, _) =
        cluster.send(0, &acme, Method::GET, "/pipelines/runs?tenant=umbrella", None).await;
    assert_eq!(status, 403);
    cluster.let_finish("billing");
    cluster.wait_for_end(&first, "COMPLETE").await;
    cluster.wait_for_end(&second, "COMPLETE").await;
}

async fn forced_release_needs_the_token_and_a_reason(store: StoreKind) {
    let cluster = Cluster::start(store, &[("default/billing", HOLD)]).await;
    let first = cluster.start_run("billing").await;
    let pid = cluster.wait_for_starts("default", "billing", 1).await;
    let token = cluster.get("/pipelines/locks").await["items"][0]["token"].clone();
    let release = async |key: &str, body: Value| {
        cluster.send(0, key, Method::POST, "/pipelines/locks/billing/release", Some(&body)).await
    };
    let wrong = json!({ "token": token.as_u64().expect("number") + 7, "reason": "stuck" });
    let (status, response) = release(KEY, wrong).await;
    assert_eq!((status, &response["code"]), (409, &json!("conflict")), "{response}");
    let (status, response) = release(KEY, json!({ "token": token, "reason": " " })).await;
    assert_eq!(status, 422, "a reason is required: {response}");
    let worker = cluster.key("default", "worker").await;
    assert_eq!(release(&worker, json!({ "token": token, "reason": "stuck" })).await.0, 403);
    assert_eq!(cluster.run(&first).await["status"], "RUNNING");
    let (status, response) = release(KEY, json!({ "token": token, "reason": "stuck" })).await;
    assert_eq!((status, &response["released"]), (200, &json!(true)), "{response}");
    let run = cluster.wait_for_end(&first, "FAILED").await;
    assert_eq!(run["error"]["code"], "LOCK_BROKEN", "{run:#}");
    until(async || !is_alive(pid)).await;
    cluster.let_finish("billing");
    let second = cluster.start_run("billing").await;
    cluster.wait_for_end(&second, "COMPLETE").await;
}

async fn forced_release_prevents_retries(store: StoreKind) {
    let cluster = Cluster::start(store, &[("default/billing", HOLD_WITH_RETRIES)]).await;
    let first = cluster.start_run("billing").await;
    let pid = cluster.wait_for_starts("default", "billing", 1).await;
    let token = cluster.get("/pipelines/locks").await["items"][0]["token"].clone();
    let body = json!({ "token": token, "reason": "stuck" });
    let path = "/pipelines/locks/billing/release";
    let (status, response) = cluster.send(0, KEY, Method::POST, path, Some(&body)).await;
    assert_eq!(status, 200, "{response}");
    let run = cluster.wait_for_end(&first, "CANCELLED").await;
    assert_eq!(run["error"]["code"], "LOCK_BROKEN", "{run:#}");
    until(async || !is_alive(pid)).await;
    cluster.let_finish("billing");
    let second = cluster.start_run("billing").await;
    assert_ne!(second, first);
    cluster.wait_for_end(&second, "COMPLETE").await;
    assert_eq!(cluster.start_count("default", "billing"), 2);
}

async fn runs_are_listed_newest_first_and_by_status(store: StoreKind) {
    let fails = "[[steps]]\nname = \"a\"\ncommand = [\"false\"]\n";
    let works = "[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";
    let cluster = Cluster::start(
        store,
        &[("default/bad", fails), ("default/good", works), ("default/on", HOLD)],
    )
    .await;
    let mut runs = Vec::new();
    for (pipeline, status) in [("good", "COMPLETE"), ("bad", "FAILED"), ("good", "COMPLETE")] {
        let run = cluster.start_run(pipeline).await;
        cluster.wait_for_end(&run, status).await;
        runs.push(run);
    }
    let active = cluster.start_run("on").await;
    cluster.wait_for_status(&active, "RUNNING").await;
    let list = async |query: &str| {
        let response = cluster.get(&format!("/pipelines/runs?{query}")).await;
        let ids: Vec<String> = response["items"].as_array().expect("list").iter().map(id).collect();
        (ids, response["next"].clone())
    };
    let all = vec![active.clone(), runs[2].clone(), runs[1].clone(), runs[0].clone()];
    assert_eq!(list("").await.0, all);
    assert_eq!(list("status=RUNNING").await.0, std::slice::from_ref(&active));
    assert_eq!(list("status=FAILED").await.0, std::slice::from_ref(&runs[1]));
    assert_eq!(list("status=TIMEOUT").await.0, [] as [String; 0]);
    assert_eq!(list("pipeline_id=good").await.0, [runs[2].clone(), runs[0].clone()]);
    assert_eq!(list("pipeline_id=good&status=FAILED").await.0, [] as [String; 0]);
    let (page, next) = list("limit=3").await;
    assert_eq!(page, all[..3]);
    let cursor = next.as_str().expect("cursor");
    assert_eq!(list(&format!("limit=3&cursor={cursor}")).await.0, all[3..]);
    let (status, response) =
        cluster.send(0, KEY, Method::GET, "/pipelines/runs?status=DONE", None).await;
    assert_eq!(status, 422, "{response}");
    cluster.let_finish("on");
    cluster.wait_for_end(&active, "COMPLETE").await;
}
