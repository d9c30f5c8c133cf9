//! Prechecks: triggers and ticks that find a run in an external system start nothing.

use std::fs;

use serde_json::{Value, json};
use tenure_testbed::shared;

use crate::steps::MockServer;
use crate::testbed::{Cluster, HOLD, SHORT_TTL, StoreKind, id, until};

/// Cluster with a pipeline `p` that has a precheck and runs until it may finish. `DIR` in the
/// precheck is the directory of the cluster.
async fn start(precheck: &str) -> Cluster {
    let cluster = Cluster::start(StoreKind::Embedded, &[]).await;
    declare(&cluster, precheck).await;
    cluster
}

async fn declare(cluster: &Cluster, precheck: &str) {
    let precheck = precheck.replace("DIR", &cluster.dir.path().display().to_string());
    cluster.declare("default/p", &format!("{precheck}{HOLD}"));
    until(async || cluster.get("/pipelines").await["items"] != json!([])).await;
}

/// Triggers `p` and expects that the external run is returned.
async fn expect_external(cluster: &Cluster, external_id: &str) {
    let response = cluster.trigger("p", json!({})).await;
    assert_eq!(response["status"], "RUNNING", "{response}");
    assert_eq!(response["external_id"], external_id, "{response}");
    assert!(response["pipeline_logging_id"].is_null(), "{response}");
    expect_no_run(cluster).await;
}

/// Triggers `p` and expects that it is refused. Returns the detail.
async fn expect_refused(cluster: &Cluster) -> String {
    let (status, response) = cluster.try_trigger(0, "p", &json!({})).await;
    assert_eq!((status, &response["code"]), (503, &json!("unavailable")), "{response}");
    let detail = response["detail"].as_str().expect("detail").to_owned();
    assert!(detail.contains("the precheck of p failed"), "{detail}");
    expect_no_run(cluster).await;
    detail
}

async fn expect_no_run(cluster: &Cluster) {
    let runs = cluster.get("/pipelines/runs").await;
    assert_eq!(runs["items"], json!([]), "{runs}");
}

/// Reports the first line of the file `active`; fails if the file `broken` exists.
const SCRIPT: &str = "[precheck]\nlimit = \"20s\"\nenv = { WHICH = \"{{ run.pipeline }}\" }\n\
    dir = \"DIR\"\ncommand = [\"sh\", \"-c\", \"\"\"echo x >> checks; env > seen\n\
    [ -e broken ] && exit 3; [ -e slow ] && exec sleep 60; cat active 2> /dev/null; true\"\"\"]\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_finds_the_external_run() {
    let cluster = start(SCRIPT).await;
    cluster.write("active", "job_4711\nmore\n");
    expect_external(&cluster, "job_4711").await;
    let seen = fs::read_to_string(cluster.file("seen")).expect("environment");
    assert!(seen.lines().any(|line| line == "WHICH=p"), "{seen}");
    assert!(!seen.contains("CARGO"), "the environment of the server: {seen}");
    fs::remove_file(cluster.file("active")).expect("removable");
    let run = cluster.start_run("p").await;
    let checks = || fs::read_to_string(cluster.file("checks")).expect("checks").lines().count();
    assert_eq!(checks(), 2);
    // Tenure knows the run, so that its id is returned, whatever the external system says.
    cluster.write("active", "job_4711");
    let again = cluster.trigger("p", json!({})).await;
    assert_eq!((id(&again), &again["status"]), (run.clone(), &json!("RUNNING")), "{again}");
    assert_eq!(checks(), 2, "no check while a run is active");
    cluster.let_finish("p");
    cluster.wait_for_end(&run, "COMPLETE").await;
    let response = cluster.trigger("p", json!({})).await;
    assert_eq!(response["external_id"], "job_4711", "{response}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_command_refuses_or_starts_as_declared() {
    let cluster = start(SCRIPT).await;
    cluster.write("broken", "");
    assert!(expect_refused(&cluster).await.contains("exited with code 3"));
    declare(&cluster, &SCRIPT.replacen('\n', "\non_error = \"start\"\n", 1)).await;
    until(async || cluster.try_trigger(0, "p", &json!({})).await.0 == 200).await;
    cluster.wait_for_starts("default", "p", 1).await;
    assert!(cluster.output().contains("precheck failed; starting anyway"), "{}", cluster.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_is_stopped_at_its_limit() {
    let cluster = start(&SCRIPT.replacen("20s", "1s", 1)).await;
    cluster.write("slow", "");
    assert!(expect_refused(&cluster).await.contains("exceeded its limit of 1s"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_finds_the_external_run() {
    let body = r#"{"runs":[{"id":4711},{"id":"4712"}]}"#;
    let statuses = &["200 OK", "503 Busy", "404 None", "200 OK"];
    let server = MockServer::start_with(statuses, body);
    let precheck = |id: &str| {
        format!(
            "[parameters]\nday = {{ type = \"string\", default = \"a b\" }}\n[precheck.http]\n\
             url = \"http://{}/runs?day={{{{ parameters.day }}}}\"\nid = \"{id}\"\nnone = 404\n\
             headers = {{ authorization = \"Bearer {{{{ secrets.api }}}}\" }}\n",
            server.address
        )
    };
    let cluster = Cluster::start(StoreKind::Embedded, &[]).await;
    cluster.write("secrets/default/api", "s3cret-of-the-api");
    declare(&cluster, &precheck("/runs/0/id")).await;
    expect_external(&cluster, "4711").await;
    assert!(expect_refused(&cluster).await.contains("responded with 503"));
    let run = cluster.start_run("p").await;
    cluster.let_finish("p");
    cluster.wait_for_end(&run, "COMPLETE").await;
    let requests = server.requests();
    assert!(requests[0].starts_with("GET /runs?day=a%20b HTTP/1.1"), "{requests:?}");
    assert!(requests[0].contains("authorization: Bearer s3cret-of-the-api"), "{requests:?}");
    assert!(!cluster.output().contains("s3cret"), "{}", cluster.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_without_an_id_in_its_response_finds_no_run() {
    let server = MockServer::start_with(&["200 OK"], r#"{"runs":[]}"#);
    let precheck =
        format!("[precheck.http]\nurl = \"http://{}/\"\nid = \"/runs/0/id\"\n", server.address);
    let cluster = start(&precheck).await;
    cluster.start_run("p").await;
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_to_a_refused_address_fails() {
    let precheck = "[precheck.http]\nurl = \"http://169.254.169.254/\"\nid = \"/id\"\n";
    let cluster = start(precheck).await;
    assert!(expect_refused(&cluster).await.contains("http_allow"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_finds_the_external_run() {
    let database = shared().new_database().expect("database");
    let sql = |text: &str| shared().psql(&database, text).expect("SQL succeeds");
    sql("CREATE TABLE runs (id bigint, name text, ended bool)");
    sql("INSERT INTO runs VALUES (1, 'p', true), (2, 'q', false), (3, 'p', false)");
    let cluster = Cluster::start(StoreKind::Embedded, &[]).await;
    cluster.write("secrets/default/db", &shared().url(&database));
    let precheck = "[precheck]\nlimit = \"20s\"\n[precheck.sql]\nurl = \"{{ secrets.db }}\"\n\
        run = \"SELECT id FROM runs WHERE name = :run_pipeline AND NOT ended\"\n";
    declare(&cluster, precheck).await;
    expect_external(&cluster, "3").await;
    sql("ALTER TABLE runs RENAME TO moved");
    assert!(expect_refused(&cluster).await.contains("runs"));
    sql("ALTER TABLE moved RENAME TO runs; UPDATE runs SET ended = true");
    cluster.start_run("p").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_is_stopped_at_its_limit() {
    let database = shared().new_database().expect("database");
    let precheck = format!(
        "[precheck]\nlimit = \"5s\"\n[precheck.sql]\nurl = \"{}\"\n\
         run = \"SELECT pg_sleep(600)::text\"\n",
        shared().url(&database)
    );
    let cluster = start(&precheck).await;
    let active = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' \
                  AND datname = current_database()";
    let active = async || shared().psql(&database, active).expect("SQL succeeds") != "0";
    tokio::join!(expect_refused(&cluster), until(&active));
    until(async || !active().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tick_starts_a_run_only_if_none_is_active_elsewhere() {
    let text = SCRIPT.replace(
        "cat active",
        "echo $PIPELINE_SCHEDULED_AT {{ run.scheduled_at }} >> ticks; cat active",
    );
    let text = format!("schedule = {{ cron = \"* * * * * *\" }}\n{text}");
    let cluster = Cluster::start_with(StoreKind::Embedded, 1, SHORT_TTL, "", &[]).await;
    cluster.write("active", "job_4711");
    declare(&cluster, &text).await;
    let found = || cluster.output().matches("the precheck of a tick found an active run").count();
    until(async || found() >= 2).await;
    expect_no_run(&cluster).await;
    let ticks = fs::read_to_string(cluster.file("ticks")).expect("ticks");
    let same = |line: &str| line.split_once(' ').is_some_and(|(a, b)| a == b && a.ends_with('Z'));
    assert!(ticks.lines().all(same), "{ticks}");
    cluster.write("broken", "");
    until(async || cluster.output().contains("the precheck of a tick failed")).await;
    fs::remove_file(cluster.file("active")).expect("removable");
    expect_no_run(&cluster).await;
    fs::remove_file(cluster.file("broken")).expect("removable");
    cluster.wait_for_starts("default", "p", 1).await;
    let runs: Value = cluster.get("/pipelines/runs").await;
    assert_eq!(runs["items"][0]["trigger_by"], "schedule", "{runs}");
    assert!(runs["items"][0]["scheduled_at"].is_string(), "{runs}");
}
