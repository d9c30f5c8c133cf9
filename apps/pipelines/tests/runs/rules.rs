//! What the settings say: how many at once, how patiently a trigger asks, when runs begin by
//! themselves; and what counts.

use reqwest::Method;
use serde_json::json;

use crate::bed::{HOLD, KEY, On, QUICK, Site, id, on_each_store, until};

on_each_store! {
    several_runs_at_once_are_as_many_as_the_pipeline_says,
    caps_hold_for_a_tenant_and_for_all,
    a_trigger_that_is_repeated_gets_the_same_answer,
    a_patient_trigger_waits_for_the_end_of_the_run,
    a_schedule_triggers_once_for_each_tick,
    metrics_tell_of_runs_and_of_duplicates,
}

async fn several_runs_at_once_are_as_many_as_the_pipeline_says(on: On) {
    let wait = "while [ ! -e DIR/go.billing ]; do sleep 0.02; done";
    let two = format!(
        "max_runs = 2\n[[steps]]\nname = \"work\"\ncommand = [\"sh\", \"-c\", \"{wait}\"]\n"
    );
    let site = Site::start(on, &[]).await;
    let dir = site.dir.path().display().to_string();
    site.pipeline("default/billing", &two.replace("DIR", &dir));
    until(async || site.said().contains("reloaded: 1 kind, 1 operation, 1 pipeline")).await;
    let first = site.begin("billing").await;
    let second = site.begin("billing").await;
    assert_ne!(first, second);
    let third = site.trigger("billing", json!({})).await;
    assert_eq!(third["status"], "RUNNING", "{third}");
    assert!([&first, &second].contains(&&id(&third)), "{third}");
    site.until_status(&first, "RUNNING").await;
    site.until_status(&second, "RUNNING").await;
    let locks = site.get("/pipelines/locks").await;
    let locks = locks["items"].as_array().expect("a list").clone();
    assert!(locks.len() == 2 && locks.iter().all(|lock| lock["pipeline_id"] == "billing"));
    let listed = site.get("/pipelines").await;
    assert_eq!(listed["items"][0]["running"].as_array().map(Vec::len), Some(2), "{listed}");
    // Both have their first token: the run says which is meant.
    let release = |body: serde_json::Value| {
        let site = &site;
        let path = "/pipelines/locks/billing/release";
        async move { site.ask(0, KEY, Method::POST, path, Some(&body)).await }
    };
    let (status, answer) = release(json!({ "token": locks[0]["token"], "reason": "test" })).await;
    assert_eq!(status, 409, "{answer}");
    let body = json!({
        "token": locks[0]["token"], "reason": "test", "pipeline_logging_id": first,
    });
    let (status, answer) = release(body).await;
    assert_eq!(status, 200, "{answer}");
    site.over(&first, "FAILED").await;
    site.go("billing");
    site.over(&second, "COMPLETE").await;
    let listed = site.get("/pipelines/runs?pipeline_id=billing").await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
}

async fn caps_hold_for_a_tenant_and_for_all(on: On) {
    let pipelines =
        [("acme/one", HOLD), ("acme/two", HOLD), ("umbrella/three", HOLD), ("umbrella/four", HOLD)];
    let settings = "tenant_max_runs = 1\nmax_runs = 2\n";
    let site = Site::start_with(on, 1, QUICK, settings, &pipelines).await;
    let one = site.begin("acme/one").await;
    site.until_status(&one, "RUNNING").await;
    let two = site.begin("acme/two").await;
    let three = site.begin("umbrella/three").await;
    site.until_status(&three, "RUNNING").await;
    let four = site.begin("umbrella/four").await;
    assert_eq!(site.run(&two).await["status"], "PENDING");
    assert_eq!(site.run(&four).await["status"], "PENDING");
    assert_eq!(site.run(&two).await["steps"][0]["status"], "PENDING", "its steps are known");
    for pipeline in ["one", "two", "three", "four"] {
        site.go(pipeline);
    }
    for run in [one, two, three, four] {
        site.over(&run, "COMPLETE").await;
    }
}

async fn a_trigger_that_is_repeated_gets_the_same_answer(on: On) {
    let site = Site::start(on, &[("default/billing", HOLD)]).await;
    let trigger = async || {
        let key = ["x-api-key: ".to_owned() + KEY, "idempotency-key: nightly-7".to_owned()];
        let lines = ["POST /pipelines/run/billing HTTP/1.1", &key[0], &key[1]];
        crate::common::http(&site.listen[0], &lines, "{}").expect("it answers")
    };
    let body = |answer: String| answer.split("\r\n\r\n").nth(1).expect("a body").to_owned();
    let first = body(trigger().await);
    assert!(first.contains("PENDING"), "{first}");
    assert_eq!(body(trigger().await), first, "a lost answer is had again");
    site.go("billing");
    let run: serde_json::Value = serde_json::from_str(&first).expect("JSON");
    site.over(&id(&run), "COMPLETE").await;
    assert_eq!(body(trigger().await), first, "also when the run is over");
    assert_eq!(site.begun("default", "billing"), 1);
}

async fn a_patient_trigger_waits_for_the_end_of_the_run(on: On) {
    let settings = "lock_acquisition_retries = 3\nlock_acquisition_retry_delay_seconds = 20\n";
    let pipelines = [("default/billing", HOLD)];
    let site = Site::start_with(on, 1, QUICK, settings, &pipelines).await;
    let first = site.begin("billing").await;
    site.until_begun("default", "billing", 1).await;
    let second = async {
        let answer = site.trigger("billing", json!({})).await;
        assert_eq!(answer["status"], "PENDING", "{answer}");
        id(&answer)
    };
    let end = async {
        // It is held back while the run goes on: one request beside the one that asks this.
        until(async || {
            let metrics = site.get("/metrics").await;
            let lines = metrics.as_str().expect("a text").lines();
            lines.filter_map(|line| line.strip_prefix("tenure_http_in_flight ")).any(|n| n == "2")
        })
        .await;
        site.go("billing");
        site.over(&first, "COMPLETE").await;
    };
    let (second, ()) = tokio::join!(second, end);
    assert_ne!(second, first);
    site.over(&second, "COMPLETE").await;
    assert_eq!(site.begun("default", "billing"), 2);
}

async fn a_schedule_triggers_once_for_each_tick(on: On) {
    let quick =
        "schedule = { cron = \"* * * * * *\" }\n[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";
    let servers = if on == On::Postgres { 2 } else { 1 };
    let site = Site::start_with(on, servers, QUICK, "", &[("default/tick", quick)]).await;
    let runs = async || {
        let answer = site.get("/pipelines/runs?pipeline_id=tick").await;
        answer["items"].as_array().expect("a list").clone()
    };
    until(async || runs().await.iter().filter(|run| run["status"] == "COMPLETE").count() >= 6)
        .await;
    let runs = runs().await;
    assert!(runs.iter().all(|run| run["trigger_by"] == "schedule"), "{runs:?}");
    // A tick a second, each with one run; where they fall within their seconds varies.
    let at = |run: &serde_json::Value| {
        let text = run["triggered_at"].as_str().expect("an instant");
        tenure::wire::parse_instant(text).expect("an instant")
    };
    let (last, first) = (at(&runs[0]), at(&runs[runs.len() - 1]));
    let ticks = usize::try_from(last.since(first) / 1_000).expect("a few") + 2;
    assert!(runs.len() <= ticks, "more runs than ticks: {runs:?}");
    let listed = site.get("/pipelines").await;
    assert!(listed["items"][0]["next_at"].is_string(), "{listed}");
}

async fn metrics_tell_of_runs_and_of_duplicates(on: On) {
    let site = Site::start(on, &[("acme/billing", HOLD)]).await;
    let run = site.begin("acme/billing").await;
    for _ in 0..3 {
        site.trigger("acme/billing", json!({})).await;
    }
    site.until_begun("acme", "billing", 1).await;
    let labels = "tenant_id=\"acme\",pipeline_id=\"billing\"";
    let has = async |line: String| {
        let metrics = site.get("/metrics").await;
        metrics.as_str().expect("a text").lines().any(|one| one.starts_with(&line))
    };
    for line in [
        format!("pipeline_lock_acquisitions_total{{{labels},result=\"success\"}} 1"),
        format!("pipeline_lock_acquisitions_total{{{labels},result=\"conflict\"}} 3"),
        format!("pipeline_active_locks{{{labels}}} 1"),
        format!("pipeline_running_count{{{labels}}} 1"),
        format!("pipeline_lock_timeout_seconds{{{labels}}} 3600"),
        format!("pipeline_lock_wait_time_seconds_count{{{labels}}} 1"),
    ] {
        until(async || has(line.clone()).await).await;
    }
    site.go("billing");
    site.over(&run, "COMPLETE").await;
    for line in [
        format!("pipeline_active_locks{{{labels}}} 0"),
        format!("pipeline_lock_duration_seconds_count{{{labels}}} 1"),
        format!("pipeline_lock_age_seconds{{{labels}}} 0"),
    ] {
        until(async || has(line.clone()).await).await;
    }
}
