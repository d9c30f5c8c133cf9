//! Settings: concurrent runs, retries of triggers, schedules and metrics.

use reqwest::Method;
use serde_json::json;

use crate::testbed::{Cluster, HOLD, KEY, SHORT_TTL, StoreKind, id, on_each_store, until};

on_each_store! {
    max_runs_limits_concurrent_runs,
    repeated_trigger_keeps_its_run_when_defaults_change,
    run_limits_apply_per_tenant_and_in_total,
    repeated_trigger_gets_the_same_response,
    trigger_with_retries_waits_for_the_end_of_the_run,
    schedule_triggers_once_per_tick,
    tick_is_the_same_in_every_attempt,
    tick_before_the_first_start_does_not_run,
    metrics_count_runs_and_duplicates,
}

async fn max_runs_limits_concurrent_runs(store: StoreKind) {
    let wait = "while [ ! -e DIR/go.billing ]; do sleep 0.02; done";
    let two = format!(
        "max_runs = 2\n[[steps]]\nname = \"work\"\ncommand = [\"sh\", \"-c\", \"{wait}\"]\n"
    );
    let cluster = Cluster::start(store, &[]).await;
    let dir = cluster.dir.path().display().to_string();
    cluster.declare("default/billing", &two.replace("DIR", &dir));
    until(async || cluster.output().contains("reloaded: 1 kind, 1 operation, 1 pipeline")).await;
    let first = cluster.start_run("billing").await;
    let second = cluster.start_run("billing").await;
    assert_ne!(first, second);
    let third = cluster.trigger("billing", json!({})).await;
    assert_eq!(third["status"], "RUNNING", "{third}");
    assert!([&first, &second].contains(&&id(&third)), "{third}");
    cluster.wait_for_status(&first, "RUNNING").await;
    cluster.wait_for_status(&second, "RUNNING").await;
    let locks = cluster.get("/pipelines/locks").await;
    let locks = locks["items"].as_array().expect("list").clone();
    assert!(locks.len() == 2 && locks.iter().all(|lock| lock["pipeline_id"] == "billing"));
    let listed = cluster.get("/pipelines").await;
    assert_eq!(listed["items"][0]["running"].as_array().map(Vec::len), Some(2), "{listed}");
    // Both have the same token: the run id selects one.
    let release = |body: serde_json::Value| {
        let cluster = &cluster;
        let path = "/pipelines/locks/billing/release";
        async move { cluster.send(0, KEY, Method::POST, path, Some(&body)).await }
    };
    let (status, response) = release(json!({ "token": locks[0]["token"], "reason": "test" })).await;
    assert_eq!(status, 409, "{response}");
    let body = json!({
        "token": locks[0]["token"], "reason": "test", "pipeline_logging_id": first,
    });
    let (status, response) = release(body).await;
    assert_eq!(status, 200, "{response}");
    cluster.wait_for_end(&first, "FAILED").await;
    cluster.let_finish("billing");
    cluster.wait_for_end(&second, "COMPLETE").await;
    let listed = cluster.get("/pipelines/runs?pipeline_id=billing").await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
}

async fn run_limits_apply_per_tenant_and_in_total(store: StoreKind) {
    let pipelines =
        [("acme/one", HOLD), ("acme/two", HOLD), ("umbrella/three", HOLD), ("umbrella/four", HOLD)];
    let settings = "tenant_max_runs = 1\nmax_runs = 2\n";
    let cluster = Cluster::start_with(store, 1, SHORT_TTL, settings, &pipelines).await;
    let one = cluster.start_run("acme/one").await;
    cluster.wait_for_status(&one, "RUNNING").await;
    let two = cluster.start_run("acme/two").await;
    let three = cluster.start_run("umbrella/three").await;
    cluster.wait_for_status(&three, "RUNNING").await;
    let four = cluster.start_run("umbrella/four").await;
    assert_eq!(cluster.run(&two).await["status"], "PENDING");
    assert_eq!(cluster.run(&four).await["status"], "PENDING");
    assert_eq!(cluster.run(&two).await["steps"][0]["status"], "PENDING", "its steps are listed");
    for pipeline in ["one", "two", "three", "four"] {
        cluster.let_finish(pipeline);
    }
    for run in [one, two, three, four] {
        cluster.wait_for_end(&run, "COMPLETE").await;
    }
}

async fn repeated_trigger_gets_the_same_response(store: StoreKind) {
    let cluster = Cluster::start(store, &[("default/billing", HOLD)]).await;
    let trigger = async || {
        let key = ["x-api-key: ".to_owned() + KEY, "idempotency-key: nightly-7".to_owned()];
        let lines = ["POST /pipelines/run/billing HTTP/1.1", &key[0], &key[1]];
        crate::common::http(&cluster.listen[0], &lines, "{}").expect("response")
    };
    let body = |response: String| response.split("\r\n\r\n").nth(1).expect("body").to_owned();
    let first = body(trigger().await);
    assert!(first.contains("PENDING"), "{first}");
    assert_eq!(body(trigger().await), first, "the response is repeated");
    cluster.let_finish("billing");
    let run: serde_json::Value = serde_json::from_str(&first).expect("JSON");
    cluster.wait_for_end(&id(&run), "COMPLETE").await;
    assert_eq!(body(trigger().await), first, "also after the run has ended");
    assert_eq!(cluster.start_count("default", "billing"), 1);
}

async fn repeated_trigger_keeps_its_run_when_defaults_change(store: StoreKind) {
    let text = |rows: u32, more: &str| {
        let rows = format!("rows = {{ type = \"integer\", default = {rows} }}");
        format!("[parameters]\nday = {{ type = \"string\" }}\n{rows}\n{more}{HOLD}")
    };
    let cluster = Cluster::start(store, &[("default/billing", &text(1, ""))]).await;
    let trigger = |body: &str| {
        let key = ["x-api-key: ".to_owned() + KEY, "idempotency-key: nightly-7".to_owned()];
        let lines = ["POST /pipelines/run/billing HTTP/1.1", &key[0], &key[1]];
        let response = crate::common::http(&cluster.listen[0], &lines, body).expect("response");
        let body = response.split("\r\n\r\n").nth(1).expect("body");
        serde_json::from_str::<serde_json::Value>(body).expect("JSON")
    };
    let first = trigger(r#"{"day":"monday"}"#);
    cluster.declare("default/billing", &text(2, "full = { type = \"boolean\", default = true }\n"));
    until(async || {
        let parameters = &cluster.get("/pipelines").await["items"][0]["parameters"];
        parameters.as_array().is_some_and(|all| all.len() == 3)
    })
    .await;
    assert_eq!(trigger(r#"{"day":"monday"}"#), first);
    assert_eq!(trigger(r#"{"day":"tuesday"}"#)["reason"], "request_reused");
    assert_eq!(trigger(r#"{"day":"monday","rows":2}"#)["reason"], "request_reused");
    let parameters = &cluster.run(&id(&first)).await["parameters"];
    assert_eq!(parameters, &json!({ "day": "monday", "rows": 1 }), "it keeps its defaults");
    cluster.let_finish("billing");
    cluster.wait_for_end(&id(&first), "COMPLETE").await;
    assert_eq!(trigger(r#"{"day":"monday"}"#), first, "also after the run has ended");
}

async fn trigger_with_retries_waits_for_the_end_of_the_run(store: StoreKind) {
    let settings = "lock_acquisition_retries = 3\nlock_acquisition_retry_delay_seconds = 20\n";
    let pipelines = [("default/billing", HOLD)];
    let cluster = Cluster::start_with(store, 1, SHORT_TTL, settings, &pipelines).await;
    let first = cluster.start_run("billing").await;
    cluster.wait_for_starts("default", "billing", 1).await;
    let second = async {
        let response = cluster.trigger("billing", json!({})).await;
        assert_eq!(response["status"], "PENDING", "{response}");
        id(&response)
    };
    let end = async {
        // The trigger waits during the run: one request besides that for the metrics.
        until(async || {
            let metrics = cluster.get("/metrics").await;
            let lines = metrics.as_str().expect("text").lines();
            lines.filter_map(|line| line.strip_prefix("tenure_http_in_flight ")).any(|n| n == "2")
        })
        .await;
        cluster.let_finish("billing");
        cluster.wait_for_end(&first, "COMPLETE").await;
    };
    let (second, ()) = tokio::join!(second, end);
    assert_ne!(second, first);
    cluster.wait_for_end(&second, "COMPLETE").await;
    assert_eq!(cluster.start_count("default", "billing"), 2);
}

async fn schedule_triggers_once_per_tick(store: StoreKind) {
    let quick =
        "schedule = { cron = \"* * * * * *\" }\n[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";
    let servers = if store == StoreKind::Postgres { 2 } else { 1 };
    let cluster =
        Cluster::start_with(store, servers, SHORT_TTL, "", &[("default/tick", quick)]).await;
    let runs = async || {
        let response = cluster.get("/pipelines/runs?pipeline_id=tick").await;
        response["items"].as_array().expect("list").clone()
    };
    until(async || runs().await.iter().filter(|run| run["status"] == "COMPLETE").count() >= 6)
        .await;
    let runs = runs().await;
    assert!(runs.iter().all(|run| run["trigger_by"] == "schedule"), "{runs:?}");
    // One tick per second, each with one run; the offset within the second varies.
    let at = |run: &serde_json::Value| {
        let text = run["triggered_at"].as_str().expect("instant");
        tenure::wire::parse_instant(text).expect("instant")
    };
    let (last, first) = (at(&runs[0]), at(&runs[runs.len() - 1]));
    let ticks = usize::try_from(last.since(first) / 1_000).expect("small number") + 2;
    assert!(runs.len() <= ticks, "more runs than ticks: {runs:?}");
    let listed = cluster.get("/pipelines").await;
    assert!(listed["items"][0]["next_at"].is_string(), "{listed}");
}

async fn tick_is_the_same_in_every_attempt(store: StoreKind) {
    let text = "retry = { attempts = 2, initial = \"10ms\" }\nschedule = { cron = \"CRON\" }\n\
        [[steps]]\nname = \"a\"\ncommand = [\"sh\", \"-c\", \"\"\"\n\
        echo \"$PIPELINE_LOGGING_ID <$TEXT> <$PIPELINE_SCHEDULED_AT>\" >> DIR/ticks\n\
        [ $TENURE_ATTEMPT = 2 ]\"\"\"]\nenv = { TEXT = \"{{ run.scheduled_at }}\" }\n";
    let cluster = Cluster::start(store, &[]).await;
    let text = text.replace("DIR", &cluster.dir.path().display().to_string());
    cluster.declare("default/tick", &text.replace("CRON", "* * * * * *"));
    cluster.declare("default/manual", &text.replace("CRON", "0 0 1 1 *"));
    until(async || cluster.output().contains("2 pipelines")).await;
    let manual = cluster.start_run("manual").await;
    let manual = cluster.wait_for_end(&manual, "COMPLETE").await;
    let path = "/pipelines/runs?pipeline_id=tick&status=COMPLETE";
    until(async || cluster.get(path).await["items"].as_array().is_some_and(|l| l.len() > 1)).await;
    let runs = cluster.get(path).await["items"].as_array().expect("list").clone();
    let recorded = std::fs::read_to_string(cluster.file("ticks")).expect("recorded");
    for run in runs.iter().chain([&manual]) {
        let at = run["scheduled_at"].as_str().unwrap_or("");
        let line = format!("{} <{at}> <{at}>", id(run));
        let of_run: Vec<_> = recorded.lines().filter(|line| line.contains(&id(run))).collect();
        assert_eq!(of_run, [line.as_str(), line.as_str()], "two attempts: {run:#}");
        assert_eq!(run["parameters"], json!({}), "{run:#}");
    }
    assert!(manual["scheduled_at"].is_null(), "{manual:#}");
    let parse = |at: &serde_json::Value| {
        tenure::wire::parse_instant(at.as_str().expect("instant")).expect("instant")
    };
    for run in runs {
        let (at, triggered) = (parse(&run["scheduled_at"]), parse(&run["triggered_at"]));
        assert!(at.0 % 1_000 == 0 && at <= triggered, "{run:#}");
    }
}

async fn tick_before_the_first_start_does_not_run(store: StoreKind) {
    let servers = if store == StoreKind::Postgres { 2 } else { 1 };
    let mut cluster = Cluster::start_with(store, servers, SHORT_TTL, "", &[]).await;
    let text = format!("schedule = {{ cron = \"{}\" }}\n{HOLD}", recent_cron());
    for n in 0..servers {
        stop(&mut cluster, n).await;
    }
    cluster.declare("default/tick", &text);
    // The second server takes over the schedules of the first.
    for n in 0..servers {
        cluster.launch(n).await;
        let has_run = async || {
            let (_, janitor) = cluster.send(n, KEY, Method::GET, "/v1/janitor", None).await;
            let duties = janitor["items"].as_array().expect("list");
            duties.iter().any(|duty| duty["duty"] == "schedule" && duty["last_run"].is_string())
        };
        until(has_run).await;
        let (_, runs) = cluster.send(n, KEY, Method::GET, "/pipelines/runs", None).await;
        assert_eq!(runs["items"], json!([]), "{runs}");
        stop(&mut cluster, n).await;
    }
}

/// Returns a schedule that runs once a day, last a moment ago.
#[expect(clippy::disallowed_methods, reason = "servers schedule by the wall clock")]
fn recent_cron() -> String {
    let recent = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(2);
    recent.strftime("%-S %-M %-H * * *").to_string()
}

async fn stop(cluster: &mut Cluster, n: usize) {
    cluster.servers[n].signal("TERM");
    let server = &mut cluster.servers[n];
    until(async || server.poll_exit().is_some()).await;
}

async fn metrics_count_runs_and_duplicates(store: StoreKind) {
    let cluster = Cluster::start(store, &[("acme/billing", HOLD)]).await;
    let run = cluster.start_run("acme/billing").await;
    for _ in 0..3 {
        cluster.trigger("acme/billing", json!({})).await;
    }
    cluster.wait_for_starts("acme", "billing", 1).await;
    let labels = "tenant_id=\"acme\",pipeline_id=\"billing\"";
    let has = async |line: String| {
        let metrics = cluster.get("/metrics").await;
        metrics.as_str().expect("text").lines().any(|one| one.starts_with(&line))
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
    cluster.let_finish("billing");
    cluster.wait_for_end(&run, "COMPLETE").await;
    for line in [
        format!("pipeline_active_locks{{{labels}}} 0"),
        format!("pipeline_lock_duration_seconds_count{{{labels}}} 1"),
        format!("pipeline_lock_age_seconds{{{labels}}} 0"),
    ] {
        until(async || has(line.clone()).await).await;
    }
}
