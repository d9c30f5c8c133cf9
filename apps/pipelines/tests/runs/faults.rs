//! Runs whose server stops, is killed, freezes or loses the store.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tenure_testbed::{Durability, Postgres};

use crate::testbed::{
    Cluster, HOLD, HOLD_WITH_RETRIES, KEY, SHORT_TTL, StoreKind, id, is_alive, on_each_store, until,
};

on_each_store! {
    restarted_server_hands_its_run_back,
    run_of_a_killed_server_is_retried_and_its_step_is_dead,
    run_of_a_killed_server_fails_without_retries,
}

async fn restarted_server_hands_its_run_back(store: StoreKind) {
    let mut cluster = Cluster::start(store, &[("default/billing", HOLD)]).await;
    let run = cluster.start_run("billing").await;
    let pid = cluster.wait_for_starts("default", "billing", 1).await;
    cluster.servers[0].signal("TERM");
    let server = &mut cluster.servers[0];
    until(async || server.poll_exit().is_some()).await;
    assert!(!is_alive(pid), "its step was stopped");
    cluster.launch(0).await;
    let again = cluster.trigger("billing", json!({})).await;
    assert_eq!((id(&again), &again["status"]), (run.clone(), &json!("RUNNING")), "{again}");
    cluster.wait_for_starts("default", "billing", 2).await;
    cluster.let_finish("billing");
    let done = cluster.wait_for_end(&run, "COMPLETE").await;
    assert_eq!(done["attempt"], 1, "it was handed back, which does not count: {done:#}");
    assert_eq!(cluster.start_count("default", "billing"), 2);
    cluster.verify().await;
}

async fn run_of_a_killed_server_is_retried_and_its_step_is_dead(store: StoreKind) {
    let mut cluster = Cluster::start(store, &[("default/billing", HOLD_WITH_RETRIES)]).await;
    let run = cluster.start_run("billing").await;
    let pid = cluster.wait_for_starts("default", "billing", 1).await;
    cluster.servers[0].kill();
    until(async || !is_alive(pid)).await;
    cluster.launch(0).await;
    let again = cluster.trigger("billing", json!({})).await;
    assert_eq!((id(&again), &again["status"]), (run.clone(), &json!("RUNNING")), "{again}");
    cluster.wait_for_starts("default", "billing", 2).await;
    cluster.let_finish("billing");
    let done = cluster.wait_for_end(&run, "COMPLETE").await;
    assert_eq!(done["attempt"], 2, "{done:#}");
    let trace = cluster.trace("default", "billing");
    let token = |index: usize| trace[index][2].parse::<u64>().expect("token");
    assert!(token(1) > token(0), "a later run has a higher token: {trace:?}");
    assert_eq!(cluster.start_count("default", "billing"), 2);
    cluster.verify().await;
}

async fn run_of_a_killed_server_fails_without_retries(store: StoreKind) {
    let mut cluster = Cluster::start(store, &[("default/billing", HOLD)]).await;
    let run = cluster.start_run("billing").await;
    cluster.wait_for_starts("default", "billing", 1).await;
    until(async || cluster.run(&run).await["steps"][0]["status"] == "RUNNING").await;
    cluster.servers[0].kill();
    cluster.launch(0).await;
    let lost = cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(lost["error"]["code"], "WORKER_TIMEOUT", "{lost:#}");
    assert_eq!(lost["steps"][0]["status"], "STOPPED", "{lost:#}");
    cluster.let_finish("billing");
    let next = cluster.start_run("billing").await;
    cluster.wait_for_end(&next, "COMPLETE").await;
    assert_eq!(cluster.start_count("default", "billing"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_share_one_run_and_either_takes_it_over() {
    let pipelines = [("default/billing", HOLD_WITH_RETRIES)];
    let mut cluster = Cluster::start_with(StoreKind::Postgres, 2, SHORT_TTL, "", &pipelines).await;
    let trigger = |n: usize| {
        let cluster = &cluster;
        async move { cluster.try_trigger(n % 2, "billing", &json!({})).await }
    };
    let responses = futures_util::future::join_all((0..200).map(trigger)).await;
    let run = id(&responses[0].1);
    assert!(responses.iter().all(|(status, response)| *status == 200 && id(response) == run));
    let pending = responses.iter().filter(|(_, response)| response["status"] == "PENDING").count();
    assert_eq!(pending, 1);
    let pid = cluster.wait_for_starts("default", "billing", 1).await;
    // The server that runs the step is killed; the other one takes over.
    let holder = (0..2).find(|n| owns_process(&cluster, *n, pid)).expect("owner");
    cluster.servers[holder].kill();
    let other = 1 - holder;
    let wait_for_starts = async |times| {
        until(async || cluster.start_count("default", "billing") >= times).await;
    };
    wait_for_starts(2).await;
    let (status, response) = cluster.try_trigger(other, "billing", &json!({})).await;
    assert_eq!((status, id(&response)), (200, run.clone()));
    cluster.let_finish("billing");
    let path = format!("/pipelines/runs/{run}?wait_ms=20000");
    let (_, done) = cluster.send(other, KEY, Method::GET, &path, None).await;
    assert_eq!((&done["status"], &done["attempt"]), (&json!("COMPLETE"), &json!(2)), "{done:#}");
    cluster.launch(holder).await;
    cluster.verify().await;
}

/// Returns whether a process is a descendant of a server.
fn owns_process(cluster: &Cluster, n: usize, pid: u32) -> bool {
    let status =
        |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = |pid: u32| {
        let status = status(pid);
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
    };
    let (mut ancestor, server) = (pid, cluster.servers[n].pid());
    while ancestor > 1 {
        if ancestor == server {
            return true;
        }
        ancestor = parent(ancestor);
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_of_a_frozen_server_is_dead_before_the_take_over() {
    let pipelines = [("default/billing", HOLD_WITH_RETRIES)];
    let cluster = Cluster::start_with(StoreKind::Postgres, 2, SHORT_TTL, "", &pipelines).await;
    let run = cluster.start_run("billing").await;
    let pid = cluster.wait_for_starts("default", "billing", 1).await;
    let holder = (0..2).find(|n| owns_process(&cluster, *n, pid)).expect("owner");
    cluster.servers[holder].signal("STOP");
    // The script itself checks whether an earlier one is alive.
    cluster.wait_for_starts("default", "billing", 2).await;
    assert!(!is_alive(pid));
    cluster.let_finish("billing");
    let path = format!("/pipelines/runs/{run}?wait_ms=20000");
    let (_, done) = cluster.send(1 - holder, KEY, Method::GET, &path, None).await;
    assert_eq!(done["status"], "COMPLETE", "{done:#}");
    cluster.servers[holder].signal("CONT");
    // Its reports come too late and change nothing.
    until(async || cluster.servers[holder].log().contains("session lost")).await;
    assert_eq!(cluster.wait_for_end(&run, "COMPLETE").await["attempt"], 2);
    assert_eq!(cluster.start_count("default", "billing"), 2);
    cluster.verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_run_starts_while_the_store_is_unavailable() {
    let mut postgres = Postgres::start(Durability::Disk).expect("PostgreSQL");
    let mut cluster = Cluster::new(StoreKind::Postgres, &postgres, 1);
    cluster.write("tenure.toml", &format!("{SHORT_TTL}[pipelines]\ndir = \"pipelines\"\n"));
    cluster.declare("default/billing", HOLD);
    cluster.launch(0).await;
    postgres.kill();
    until(async || cluster.try_trigger(0, "billing", &json!({})).await.0 == 503).await;
    let (status, response) = cluster.try_trigger(0, "billing", &json!({})).await;
    assert_eq!((status, &response["code"]), (503, &json!("unavailable")), "{response}");
    assert!(response["retry_after_s"].is_u64(), "{response}");
    let metrics = cluster.get("/metrics").await;
    let text = metrics.as_str().expect("text");
    assert!(text.contains("tenure_store_up 0"), "{text}");
    assert_eq!(cluster.start_count("default", "billing"), 0);
    postgres.resume().expect("restart");
    until(async || cluster.try_trigger(0, "billing", &json!({})).await.0 == 200).await;
    cluster.wait_for_starts("default", "billing", 1).await;
    cluster.let_finish("billing");
    let all = cluster.get("/pipelines/runs").await;
    let run = id(&all["items"][0]);
    assert_eq!(all["items"].as_array().map(Vec::len), Some(1), "one run: {all}");
    cluster.wait_for_end(&run, "COMPLETE").await;
    tokio::time::timeout(Duration::from_secs(5), cluster.verify()).await.expect("response in time");
}
