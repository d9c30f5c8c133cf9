//! What happens to a run when its server stops, dies, freezes or loses the store.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tenure_testbed::{Durability, Postgres};

use crate::bed::{HOLD, HOLD_AGAIN, KEY, On, QUICK, Site, id, lives, on_each_store, until};

on_each_store! {
    a_restart_in_the_middle_of_a_run_settles_it,
    a_killed_server_leaves_no_step_behind_and_its_run_is_begun_again,
    a_run_of_a_killed_server_that_may_not_be_tried_again_has_failed,
}

async fn a_restart_in_the_middle_of_a_run_settles_it(on: On) {
    let mut site = Site::start(on, &[("default/billing", HOLD)]).await;
    let run = site.begin("billing").await;
    let pid = site.until_begun("default", "billing", 1).await;
    site.servers[0].signal("TERM");
    let server = &mut site.servers[0];
    until(async || server.poll_exit().is_some()).await;
    assert!(!lives(pid), "what it ran was stopped");
    site.launch(0).await;
    let again = site.trigger("billing", json!({})).await;
    assert_eq!((id(&again), &again["status"]), (run.clone(), &json!("RUNNING")), "{again}");
    site.until_begun("default", "billing", 2).await;
    site.go("billing");
    let done = site.over(&run, "COMPLETE").await;
    assert_eq!(done["attempt"], 1, "it was handed back, which does not count: {done:#}");
    assert_eq!(site.begun("default", "billing"), 2);
    site.verify().await;
}

async fn a_killed_server_leaves_no_step_behind_and_its_run_is_begun_again(on: On) {
    let mut site = Site::start(on, &[("default/billing", HOLD_AGAIN)]).await;
    let run = site.begin("billing").await;
    let pid = site.until_begun("default", "billing", 1).await;
    site.servers[0].kill();
    until(async || !lives(pid)).await;
    site.launch(0).await;
    let again = site.trigger("billing", json!({})).await;
    assert_eq!((id(&again), &again["status"]), (run.clone(), &json!("RUNNING")), "{again}");
    site.until_begun("default", "billing", 2).await;
    site.go("billing");
    let done = site.over(&run, "COMPLETE").await;
    assert_eq!(done["attempt"], 2, "{done:#}");
    let trace = site.trace("default", "billing");
    let token = |at: usize| trace[at][2].parse::<u64>().expect("a token");
    assert!(token(1) > token(0), "a later run has a higher token: {trace:?}");
    assert_eq!(site.begun("default", "billing"), 2);
    site.verify().await;
}

async fn a_run_of_a_killed_server_that_may_not_be_tried_again_has_failed(on: On) {
    let mut site = Site::start(on, &[("default/billing", HOLD)]).await;
    let run = site.begin("billing").await;
    site.until_begun("default", "billing", 1).await;
    until(async || site.run(&run).await["steps"][0]["status"] == "RUNNING").await;
    site.servers[0].kill();
    site.launch(0).await;
    let lost = site.over(&run, "FAILED").await;
    assert_eq!(lost["error"]["code"], "WORKER_TIMEOUT", "{lost:#}");
    assert_eq!(lost["steps"][0]["status"], "STOPPED", "{lost:#}");
    site.go("billing");
    let next = site.begin("billing").await;
    site.over(&next, "COMPLETE").await;
    assert_eq!(site.begun("default", "billing"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_make_one_run_and_either_goes_on_with_it() {
    let pipelines = [("default/billing", HOLD_AGAIN)];
    let mut site = Site::start_with(On::Postgres, 2, QUICK, "", &pipelines).await;
    let trigger = |n: usize| {
        let site = &site;
        async move { site.try_trigger(n % 2, "billing", &json!({})).await }
    };
    let answers = futures_util::future::join_all((0..200).map(trigger)).await;
    let run = id(&answers[0].1);
    assert!(answers.iter().all(|(status, answer)| *status == 200 && id(answer) == run));
    let pending = answers.iter().filter(|(_, answer)| answer["status"] == "PENDING").count();
    assert_eq!(pending, 1);
    let pid = site.until_begun("default", "billing", 1).await;
    // Whoever has the step is killed; the other one goes on.
    let holder = (0..2).find(|n| holds(&site, *n, pid)).expect("one of them");
    site.servers[holder].kill();
    let other = 1 - holder;
    let begun = async |times| {
        until(async || site.begun("default", "billing") >= times).await;
    };
    begun(2).await;
    let (status, answer) = site.try_trigger(other, "billing", &json!({})).await;
    assert_eq!((status, id(&answer)), (200, run.clone()));
    site.go("billing");
    let path = format!("/pipelines/runs/{run}?wait_ms=20000");
    let (_, done) = site.ask(other, KEY, Method::GET, &path, None).await;
    assert_eq!((&done["status"], &done["attempt"]), (&json!("COMPLETE"), &json!(2)), "{done:#}");
    site.launch(holder).await;
    site.verify().await;
}

/// Whether a process belongs to a server: its session is that of one of the server's children.
fn holds(site: &Site, n: usize, pid: u32) -> bool {
    let status =
        |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = |pid: u32| {
        let status = status(pid);
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
    };
    let (mut at, server) = (pid, site.servers[n].pid());
    while at > 1 {
        if at == server {
            return true;
        }
        at = parent(at);
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_has_no_step_alive_when_another_goes_on() {
    let pipelines = [("default/billing", HOLD_AGAIN)];
    let site = Site::start_with(On::Postgres, 2, QUICK, "", &pipelines).await;
    let run = site.begin("billing").await;
    let pid = site.until_begun("default", "billing", 1).await;
    let holder = (0..2).find(|n| holds(&site, *n, pid)).expect("one of them");
    site.servers[holder].signal("STOP");
    // The script itself looks whether an earlier one is alive.
    site.until_begun("default", "billing", 2).await;
    assert!(!lives(pid));
    site.go("billing");
    let path = format!("/pipelines/runs/{run}?wait_ms=20000");
    let (_, done) = site.ask(1 - holder, KEY, Method::GET, &path, None).await;
    assert_eq!(done["status"], "COMPLETE", "{done:#}");
    site.servers[holder].signal("CONT");
    // What it says now comes too late, and changes nothing.
    until(async || site.servers[holder].log().contains("is lost")).await;
    assert_eq!(site.over(&run, "COMPLETE").await["attempt"], 2);
    assert_eq!(site.begun("default", "billing"), 2);
    site.verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_is_away_nothing_starts_and_everybody_is_told() {
    let mut postgres = Postgres::start(Durability::Disk).expect("PostgreSQL starts");
    let mut site = Site::new(On::Postgres, &postgres, 1);
    site.write("tenure.toml", &format!("{QUICK}[pipelines]\ndir = \"pipelines\"\n"));
    site.pipeline("default/billing", HOLD);
    site.launch(0).await;
    postgres.kill();
    until(async || site.try_trigger(0, "billing", &json!({})).await.0 == 503).await;
    let (status, answer) = site.try_trigger(0, "billing", &json!({})).await;
    assert_eq!((status, &answer["code"]), (503, &json!("unavailable")), "{answer}");
    assert!(answer["retry_after_s"].is_u64(), "{answer}");
    let metrics = site.get("/metrics").await;
    let text = metrics.as_str().expect("a text");
    assert!(text.contains("tenure_store_up 0"), "{text}");
    assert_eq!(site.begun("default", "billing"), 0);
    postgres.resume().expect("it starts again");
    until(async || site.try_trigger(0, "billing", &json!({})).await.0 == 200).await;
    site.until_begun("default", "billing", 1).await;
    site.go("billing");
    let all = site.get("/pipelines/runs").await;
    let run = id(&all["items"][0]);
    assert_eq!(all["items"].as_array().map(Vec::len), Some(1), "one run: {all}");
    site.over(&run, "COMPLETE").await;
    tokio::time::timeout(Duration::from_secs(5), site.verify()).await.expect("it answers");
}
