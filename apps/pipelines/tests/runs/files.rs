//! Files of pipelines: reloaded while a server runs. An invalid one disables its own pipeline only.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_testbed::shared;

use crate::testbed::{Cluster, HOLD, KEY, StoreKind, until};

const SUCCEEDS: &str = "[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_file_takes_effect_and_an_invalid_one_disables_its_pipeline() {
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/billing", SUCCEEDS)]).await;
    let (status, response) = cluster.try_trigger(0, "costs", &json!({})).await;
    assert_eq!((status, &response["code"]), (404, &json!("not_found")), "{response}");
    cluster.declare("default/costs", SUCCEEDS);
    until(async || cluster.output().contains("1 operation, 2 pipelines")).await;
    let run = cluster.start_run("costs").await;
    cluster.wait_for_end(&run, "COMPLETE").await;

    cluster.declare("default/costs", "limit = \"1s\"\n[[steps]]\nname = \"a\"\n");
    cluster.declare("default/third", SUCCEEDS);
    until(async || cluster.output().contains("1 operation, 2 pipelines, 1 broken file")).await;
    let output = cluster.output();
    for problem in ["costs.toml:1: limit: the time limit", "costs.toml:2: steps[0]: a step needs"] {
        assert!(output.contains(problem), "{output}");
    }
    assert_broken(&cluster, "costs", "default/costs.toml:1: limit: the time limit").await;
    // All others are in effect.
    for pipeline in ["billing", "third"] {
        let run = cluster.start_run(pipeline).await;
        cluster.wait_for_end(&run, "COMPLETE").await;
    }

    cluster.declare("default/costs", SUCCEEDS);
    until(async || cluster.output().contains("1 operation, 3 pipelines")).await;
    assert_eq!(broken_files(&cluster).await, (Vec::<String>::new(), "0".to_owned()));
    let run = cluster.start_run("costs").await;
    cluster.wait_for_end(&run, "COMPLETE").await;
    std::fs::remove_file(cluster.file("pipelines/default/third.toml")).expect("file");
    until(async || cluster.try_trigger(0, "third", &json!({})).await.0 == 404).await;
}

/// Returns the reasons of `/readyz` that name a file, and the value of the metric.
async fn broken_files(cluster: &Cluster) -> (Vec<String>, String) {
    let ready = cluster.get("/readyz").await;
    let reasons = ready["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let reasons = reasons.filter(|reason| reason.contains(".toml")).map(str::to_owned).collect();
    let metrics = cluster.get("/metrics").await;
    let series = "tenure_config_broken_files{app=\"pipelines\"} ";
    let value = metrics.as_str().expect("text").lines().find_map(|line| line.strip_prefix(series));
    (reasons, value.expect("series").to_owned())
}

/// Checks that one pipeline of the tenant `default` is disabled, and that this is visible.
async fn assert_broken(cluster: &Cluster, pipeline: &str, why: &str) {
    let (status, response) = cluster.try_trigger(0, pipeline, &json!({})).await;
    assert_eq!((status, &response["code"]), (404, &json!("not_found")), "{response}");
    assert!(response["detail"].as_str().expect("detail").contains(why), "{response}");
    let (reasons, metric) = broken_files(cluster).await;
    assert_eq!((reasons.len(), metric.as_str()), (1, "1"), "{reasons:?}");
    let file = format!("pipelines/default/{pipeline}.toml:1 is invalid");
    assert!(reasons[0].contains(&file), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_starts_with_a_broken_file_and_recovers_without_a_restart() {
    let pipelines = [("acme/billing", SUCCEEDS), ("default/costs", "limt = \"1h\"\n")];
    let cluster = Cluster::start(StoreKind::Embedded, &pipelines).await;
    let output = cluster.output();
    assert!(output.contains("warning: "), "{output}");
    assert!(output.contains("default/costs.toml:1: limt: unknown key `limt`"), "{output}");
    assert_broken(&cluster, "costs", "default/costs.toml:1: limt: unknown key `limt`").await;
    let path = "/v1/resources/pipeline/costs/jobs";
    let body = json!({ "operation": "run" });
    let (status, response) = cluster.send(0, KEY, Method::POST, path, Some(&body)).await;
    assert_eq!(status, 404, "{response}");
    assert!(response["detail"].as_str().expect("detail").contains("costs.toml:1"), "{response}");
    let run = cluster.start_run("acme/billing").await;
    cluster.wait_for_end(&run, "COMPLETE").await;
    cluster.declare("default/costs", SUCCEEDS);
    until(async || cluster.output().contains("1 operation, 2 pipelines")).await;
    assert_eq!(broken_files(&cluster).await, (Vec::<String>::new(), "0".to_owned()));
    let run = cluster.start_run("costs").await;
    cluster.wait_for_end(&run, "COMPLETE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_run_of_a_broken_file_completes() {
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/billing", HOLD)]).await;
    let run = cluster.start_run("billing").await;
    cluster.wait_for_starts("default", "billing", 1).await;
    cluster.declare("default/billing", "limt = \"1h\"\n");
    until(async || cluster.output().contains("0 pipelines, 1 broken file")).await;
    assert_broken(&cluster, "billing", "default/billing.toml:1: limt").await;
    assert_eq!(cluster.run(&run).await["status"], "RUNNING");
    cluster.let_finish("billing");
    cluster.wait_for_end(&run, "COMPLETE").await;
    cluster.verify().await;
}

/// The example of the guide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_works() {
    let mut cluster = Cluster::new(StoreKind::Embedded, shared(), 1);
    let app = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apps/pipelines");
    let text = std::fs::read_to_string(app.join("example.toml")).expect("file");
    let dir = format!("dir = {:?}", app.join("example"));
    cluster.write("tenure.toml", &text.replace("dir = \"example\"", &dir));
    cluster.launch(0).await;
    let response = cluster.trigger("gcp_billing_export", json!({ "rows": 2 })).await;
    let run = cluster.wait_for_end(&crate::testbed::id(&response), "COMPLETE").await;
    assert_eq!(run["result"], json!({ "publish": { "ok": true } }), "{run:#}");
    let nightly = cluster.get("/pipelines?tenant=acme").await;
    assert!(nightly["items"][0]["next_at"].is_string(), "{nightly}");
}

/// A FIFO would block the reload forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifo_is_rejected() {
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/billing", SUCCEEDS)]).await;
    let pipe = cluster.file("pipelines/default/pipe.toml");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    until(async || {
        cluster.output().contains("pipe.toml:1:") && cluster.output().contains("not a regular file")
    })
    .await;
    let run = cluster.start_run("billing").await;
    cluster.wait_for_end(&run, "COMPLETE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_keeps_the_steps_it_started_with() {
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/billing", HOLD)]).await;
    let run = cluster.start_run("billing").await;
    cluster.wait_for_starts("default", "billing", 1).await;
    cluster.declare("default/billing", SUCCEEDS);
    until(async || cluster.output().contains("reloaded")).await;
    cluster.let_finish("billing");
    let done = cluster.wait_for_end(&run, "COMPLETE").await;
    assert_eq!(done["steps"][0]["name"], "work", "{done:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_problems_of_a_trigger_are_reported_at_once() {
    let text = "[parameters]\ndate = { type = \"date\" }\n\
                rows = { type = \"integer\", default = 1 }\n[[steps]]\nname = \"a\"\n\
                command = [\"echo\", \"rows of {{ parameters.date }}\"]\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/billing", text)]).await;
    let bad = json!({ "rows": "many", "dat": 1 });
    let (status, response) = cluster.try_trigger(0, "billing", &bad).await;
    assert_eq!((status, &response["code"]), (422, &json!("invalid")), "{response}");
    let why = response["detail"].as_str().expect("detail");
    for part in ["did you mean `date`?", "date: it is missing", "rows: it must be of type integer"]
    {
        assert!(why.contains(part), "{why}");
    }
    let response =
        cluster.trigger("billing", json!({ "date": "2026-01-31", "trigger_by": "ann" })).await;
    let run = cluster.wait_for_end(&crate::testbed::id(&response), "COMPLETE").await;
    assert_eq!(run["parameters"], json!({ "date": "2026-01-31", "rows": 1 }));
    assert_eq!(run["trigger_by"], "ann");
    let log = cluster.log(&crate::testbed::id(&response)).await;
    assert!(log.contains("a | rows of 2026-01-31"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_with_other_parameters_is_reported() {
    let text =
        format!("[parameters]\nday = {{ type = \"date\", default = \"2026-01-31\" }}\n{HOLD}");
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/billing", &text)]).await;
    let run = cluster.start_run("billing").await;
    let same = cluster.trigger("billing", json!({ "day": "2026-01-31" })).await;
    assert!(!same["message"].as_str().expect("text").contains("other parameters"), "{same}");
    let other = cluster.trigger("billing", json!({ "day": "2026-02-01" })).await;
    assert!(other["message"].as_str().expect("text").contains("other parameters"), "{other}");
    cluster.let_finish("billing");
    cluster.wait_for_end(&run, "COMPLETE").await;
}

/// A run is a job: the general API can submit one, and its parameters are checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_can_be_submitted_as_jobs() {
    let text =
        "[parameters]\nday = { type = \"date\" }\n[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/billing", text)]).await;
    let submit = async |name: &str, args: Value| {
        let body = json!({ "operation": "run", "args": args });
        let path = format!("/v1/resources/pipeline/{name}/jobs");
        cluster.send(0, KEY, Method::POST, &path, Some(&body)).await
    };
    let (status, response) = submit("billing", json!({ "day": "2026-01-31" })).await;
    assert_eq!(status, 202, "{response}");
    cluster.wait_for_end(response["job"]["id"].as_str().expect("id"), "COMPLETE").await;
    // The general API bypasses neither the parameters nor the limit of concurrent runs.
    for (name, args, expected) in [
        ("billing", json!({ "day": 1 }), 422),
        ("billing", json!([]), 422),
        ("billing", Value::Null, 422),
        ("billing+2", json!({ "day": "2026-01-31" }), 404),
        ("nothing", json!({}), 404),
    ] {
        let (status, response) = submit(name, args).await;
        assert_eq!(status, expected, "{name}: {response}");
    }
    // An invalid id is rejected.
    let (status, _) = cluster.send(0, KEY, Method::GET, "/pipelines/runs/nonsense", None).await;
    assert_eq!(status, 422);
}
