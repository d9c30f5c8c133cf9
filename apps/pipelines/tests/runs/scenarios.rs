//! What users of pipelines rely on: duplicates get the running id, the lock goes with the run,
//! tenants are alone.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use crate::bed::{HOLD, HOLD_AGAIN, KEY, On, Site, id, lives, on_each_store, until};

on_each_store! {
    ten_triggers_at_once_make_one_run,
    a_thousand_triggers_at_once_make_one_run,
    a_run_that_is_complete_makes_room_for_the_next,
    a_run_that_failed_makes_room_for_the_next,
    a_cancelled_run_is_stopped_and_makes_room_for_the_next,
    a_run_may_take_its_limit_and_no_longer,
    tenants_run_the_same_pipeline_side_by_side_and_see_nothing_of_each_other,
    a_lock_is_released_by_force_with_its_token_and_a_reason,
    a_run_that_was_released_by_force_does_not_come_back,
    runs_are_listed_newest_first_and_by_status,
}

async fn ten_triggers_at_once_make_one_run(on: On) {
    triggers_at_once(on, 10).await;
}

async fn a_thousand_triggers_at_once_make_one_run(on: On) {
    triggers_at_once(on, 1_000).await;
}

async fn triggers_at_once(on: On, count: usize) {
    let site = Site::start(on, &[("default/billing", HOLD)]).await;
    let trigger = |n: usize| {
        let body = json!({ "trigger_by": format!("caller {n}") });
        let site = &site;
        async move {
            loop {
                let (status, answer) = site.try_trigger(0, "billing", &body).await;
                // A server that cannot carry all at once says so, and nothing has happened.
                if status != 503 {
                    assert_eq!(status, 200, "{answer}");
                    return answer;
                }
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    };
    let answers: Vec<Value> = futures_util::future::join_all((0..count).map(trigger)).await;
    let run = id(&answers[0]);
    let mut statuses: BTreeMap<&str, usize> = BTreeMap::new();
    for answer in &answers {
        assert_eq!(id(answer), run);
        assert_eq!(
            (&answer["tenant_id"], &answer["pipeline_id"]),
            (&json!("default"), &json!("billing"))
        );
        *statuses.entry(answer["status"].as_str().expect("a word")).or_default() += 1;
    }
    assert_eq!(statuses, BTreeMap::from([("PENDING", 1), ("RUNNING", count - 1)]));
    site.until_begun("default", "billing", 1).await;
    let seen = site.run(&run).await;
    assert_eq!(seen["duplicates"], count - 1);
    let attached = seen["attached"].as_array().expect("a list");
    assert_eq!(attached.len(), (count - 1).min(100), "the latest hundred are named");
    assert!(attached[0]["trigger_by"].as_str().expect("a name").starts_with("caller "));
    site.go("billing");
    site.over(&run, "COMPLETE").await;
    assert_eq!(site.begun("default", "billing"), 1, "it was executed once");
    site.verify().await;
}

async fn a_run_that_is_complete_makes_room_for_the_next(on: On) {
    let site = Site::start(on, &[("default/billing", HOLD)]).await;
    let first = site.begin("billing").await;
    site.until_begun("default", "billing", 1).await;
    let locks = site.get("/pipelines/locks").await;
    let lock = &locks["items"][0];
    assert_eq!(lock["pipeline_logging_id"], *first, "{locks}");
    assert_eq!((&lock["locked_by"], &lock["limit_ms"]), (&json!("a test"), &json!(3_600_000)));
    site.go("billing");
    let run = site.over(&first, "COMPLETE").await;
    assert_eq!(run["steps"][0]["status"], "COMPLETE", "{run:#}");
    assert_eq!(site.get("/pipelines/locks").await["items"], json!([]), "the lock went with it");
    let second = site.begin("billing").await;
    assert_ne!(first, second);
    site.over(&second, "COMPLETE").await;
    assert_eq!(site.begun("default", "billing"), 2);
}

async fn a_run_that_failed_makes_room_for_the_next(on: On) {
    let text = "[[steps]]\nname = \"query\"\n\
                command = [\"sh\", \"-c\", \"echo no such table >&2; exit 3\"]\n\
                [[steps]]\nname = \"never\"\ncommand = [\"true\"]\n";
    let site = Site::start(on, &[("default/billing", text)]).await;
    let first = site.begin("billing").await;
    let run = site.over(&first, "FAILED").await;
    assert_eq!(run["error"]["code"], "EXIT_3", "{run:#}");
    let why = run["error"]["message"].as_str().expect("a message");
    assert_eq!(why, "step query: exited with code 3: no such table");
    assert_eq!(
        (&run["steps"][0]["status"], &run["steps"][1]["status"]),
        (&json!("FAILED"), &json!("PENDING"))
    );
    let second = site.begin("billing").await;
    assert_ne!(first, second);
    site.over(&second, "FAILED").await;
    assert_eq!(site.get("/pipelines/locks").await["items"], json!([]));
}

async fn a_cancelled_run_is_stopped_and_makes_room_for_the_next(on: On) {
    let site = Site::start(on, &[("default/billing", HOLD)]).await;
    let first = site.begin("billing").await;
    let pid = site.until_begun("default", "billing", 1).await;
    let path = format!("/pipelines/runs/{first}?reason=not+needed");
    let (status, answer) = site.ask(0, KEY, Method::DELETE, &path, None).await;
    assert_eq!((status, &answer["status"]), (202, &json!("CANCELLING")), "{answer}");
    assert_eq!(answer["cancel"]["reason"], "not needed");
    let run = site.over(&first, "CANCELLED").await;
    assert!(!lives(pid), "the step was stopped before the run was over");
    assert_eq!(run["steps"][0]["status"], "STOPPED", "{run:#}");
    let (status, answer) = site.ask(0, KEY, Method::DELETE, &path, None).await;
    assert_eq!((status, &answer["status"]), (202, &json!("CANCELLED")), "asked again: {answer}");
    site.go("billing");
    let second = site.begin("billing").await;
    site.over(&second, "COMPLETE").await;
    let path = format!("/pipelines/runs/{second}");
    let (status, answer) = site.ask(0, KEY, Method::DELETE, &path, None).await;
    assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "it is over: {answer}");
    assert_eq!(site.begun("default", "billing"), 2);
}

/// A trigger in the last moment of the limit gets the run, one after it a run of its own.
async fn a_run_may_take_its_limit_and_no_longer(on: On) {
    let limited = format!("limit = \"60s\"\n{HOLD}");
    let site = Site::start(on, &[("default/billing", &limited)]).await;
    let first = site.begin("billing").await;
    let pid = site.until_begun("default", "billing", 1).await;
    let mut last_ms = 0;
    loop {
        let answer = site.trigger("billing", json!({})).await;
        if id(&answer) != first {
            assert_eq!(answer["status"], "PENDING", "{answer}");
            break;
        }
        let run = site.run(&first).await;
        if run["status"] == "RUNNING" {
            assert_eq!(answer["status"], "RUNNING", "{answer}");
            last_ms = run["duration_ms"].as_u64().expect("it has begun");
        }
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        assert!(last_ms < 70_000, "it goes on and on");
    }
    assert!(!lives(pid), "it was stopped before another could begin");
    let run = site.over(&first, "TIMEOUT").await;
    assert_eq!(run["error"]["code"], "TIME_LIMIT");
    let took_ms = run["duration_ms"].as_u64().expect("it has ended");
    assert!((60_000..68_000).contains(&took_ms), "it took {took_ms} ms");
    assert!(last_ms > 58_000, "it was there until the end: {last_ms} ms");
    site.go("billing");
    until(async || site.begun("default", "billing") == 2).await;
}

async fn tenants_run_the_same_pipeline_side_by_side_and_see_nothing_of_each_other(on: On) {
    let site = Site::start(on, &[("acme/billing", HOLD), ("umbrella/billing", HOLD)]).await;
    let (acme, umbrella) =
        (site.key("acme", "operator").await, site.key("umbrella", "operator").await);
    let trigger = async |key: &str| {
        let (status, answer) =
            site.ask(0, key, Method::POST, "/pipelines/run/billing", Some(&json!({}))).await;
        assert_eq!((status, &answer["status"]), (200, &json!("PENDING")), "{answer}");
        id(&answer)
    };
    let (first, second) = (trigger(&acme).await, trigger(&umbrella).await);
    assert_ne!(first, second);
    site.until_begun("acme", "billing", 1).await;
    site.until_begun("umbrella", "billing", 1).await;
    for (method, path) in [
        (Method::GET, format!("/pipelines/runs/{second}")),
        (Method::DELETE, format!("/pipelines/runs/{second}")),
        (Method::GET, format!("/v1/pipelines/runs/{second}")),
        (Method::GET, format!("/v1/jobs/{second}/logs")),
    ] {
        let (status, answer) = site.ask(0, &acme, method, &path, None).await;
        assert_eq!(status, 404, "{path}: {answer}");
        assert!(!answer.to_string().contains("umbrella"), "{answer}");
    }
    for path in ["/pipelines", "/pipelines/runs", "/pipelines/locks"] {
        let (status, answer) = site.ask(0, &acme, Method::GET, path, None).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["items"].as_array().map(Vec::len), Some(1), "{path}: {answer}");
        assert!(!answer.to_string().contains("umbrella"), "{path}: {answer}");
    }
    let (status, _) =
        site.ask(0, &acme, Method::GET, "/pipelines/runs?tenant=umbrella", None).await;
    assert_eq!(status, 403);
    site.go("billing");
    site.over(&first, "COMPLETE").await;
    site.over(&second, "COMPLETE").await;
}

async fn a_lock_is_released_by_force_with_its_token_and_a_reason(on: On) {
    let site = Site::start(on, &[("default/billing", HOLD)]).await;
    let first = site.begin("billing").await;
    let pid = site.until_begun("default", "billing", 1).await;
    let token = site.get("/pipelines/locks").await["items"][0]["token"].clone();
    let release = async |key: &str, body: Value| {
        site.ask(0, key, Method::POST, "/pipelines/locks/billing/release", Some(&body)).await
    };
    let wrong = json!({ "token": token.as_u64().expect("a number") + 7, "reason": "stuck" });
    let (status, answer) = release(KEY, wrong).await;
    assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "{answer}");
    let (status, answer) = release(KEY, json!({ "token": token, "reason": " " })).await;
    assert_eq!(status, 422, "without a reason nothing is broken: {answer}");
    let worker = site.key("default", "worker").await;
    assert_eq!(release(&worker, json!({ "token": token, "reason": "stuck" })).await.0, 403);
    assert_eq!(site.run(&first).await["status"], "RUNNING");
    let (status, answer) = release(KEY, json!({ "token": token, "reason": "stuck" })).await;
    assert_eq!((status, &answer["released"]), (200, &json!(true)), "{answer}");
    let run = site.over(&first, "FAILED").await;
    assert_eq!(run["error"]["code"], "LOCK_BROKEN", "{run:#}");
    until(async || !lives(pid)).await;
    site.go("billing");
    let second = site.begin("billing").await;
    site.over(&second, "COMPLETE").await;
}

async fn a_run_that_was_released_by_force_does_not_come_back(on: On) {
    let site = Site::start(on, &[("default/billing", HOLD_AGAIN)]).await;
    let first = site.begin("billing").await;
    let pid = site.until_begun("default", "billing", 1).await;
    let token = site.get("/pipelines/locks").await["items"][0]["token"].clone();
    let body = json!({ "token": token, "reason": "stuck" });
    let path = "/pipelines/locks/billing/release";
    let (status, answer) = site.ask(0, KEY, Method::POST, path, Some(&body)).await;
    assert_eq!(status, 200, "{answer}");
    let run = site.over(&first, "CANCELLED").await;
    assert_eq!(run["error"]["code"], "LOCK_BROKEN", "{run:#}");
    until(async || !lives(pid)).await;
    site.go("billing");
    let second = site.begin("billing").await;
    assert_ne!(second, first);
    site.over(&second, "COMPLETE").await;
    assert_eq!(site.begun("default", "billing"), 2);
}

async fn runs_are_listed_newest_first_and_by_status(on: On) {
    let fails = "[[steps]]\nname = \"a\"\ncommand = [\"false\"]\n";
    let works = "[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";
    let site =
        Site::start(on, &[("default/bad", fails), ("default/good", works), ("default/on", HOLD)])
            .await;
    let mut runs = Vec::new();
    for (pipeline, status) in [("good", "COMPLETE"), ("bad", "FAILED"), ("good", "COMPLETE")] {
        let run = site.begin(pipeline).await;
        site.over(&run, status).await;
        runs.push(run);
    }
    let going = site.begin("on").await;
    site.until_status(&going, "RUNNING").await;
    let list = async |query: &str| {
        let answer = site.get(&format!("/pipelines/runs?{query}")).await;
        let ids: Vec<String> = answer["items"].as_array().expect("a list").iter().map(id).collect();
        (ids, answer["next"].clone())
    };
    let all = vec![going.clone(), runs[2].clone(), runs[1].clone(), runs[0].clone()];
    assert_eq!(list("").await.0, all);
    assert_eq!(list("status=RUNNING").await.0, std::slice::from_ref(&going));
    assert_eq!(list("status=FAILED").await.0, std::slice::from_ref(&runs[1]));
    assert_eq!(list("status=TIMEOUT").await.0, [] as [String; 0]);
    assert_eq!(list("pipeline_id=good").await.0, [runs[2].clone(), runs[0].clone()]);
    assert_eq!(list("pipeline_id=good&status=FAILED").await.0, [] as [String; 0]);
    let (page, next) = list("limit=3").await;
    assert_eq!(page, all[..3]);
    let cursor = next.as_str().expect("there is more");
    assert_eq!(list(&format!("limit=3&cursor={cursor}")).await.0, all[3..]);
    let (status, answer) = site.ask(0, KEY, Method::GET, "/pipelines/runs?status=DONE", None).await;
    assert_eq!(status, 422, "{answer}");
    site.go("on");
    site.over(&going, "COMPLETE").await;
}
