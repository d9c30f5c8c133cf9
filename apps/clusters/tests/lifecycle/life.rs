//! The life of a cluster: created, scaled, extended, destroyed, created again.

use serde_json::{Value, json};

use crate::bed::{Bed, StoreKind, path};
use crate::common::until;

/// Defines a test on each store.
macro_rules! on_each_store {
    ($($name:ident)+) => {
        mod embedded {
            $(#[test] fn $name() { super::$name(super::StoreKind::Embedded); })+
        }
        mod postgres {
            $(#[test] fn $name() { super::$name(super::StoreKind::Postgres); })+
        }
    };
}

on_each_store! {
    a_cluster_is_created_destroyed_and_created_again
    a_failed_create_leaves_nothing_unless_it_is_to_be_kept
}

fn a_cluster_is_created_destroyed_and_created_again(store: StoreKind) {
    let bed = Bed::start(store);
    let _worker = bed.worker("a");
    bed.plan("demo", &json!({"create cluster": [{"hold": "infrastructure"}]}));
    let (status, answer) = bed.create("demo");
    assert_eq!((status, &answer["verdict"]), (202, &json!("started")), "{answer}");
    bed.reached("demo", "infrastructure");
    until(|| bed.show("demo")["operation"]["progress"]["percent"].as_u64() >= Some(20));
    let shown = bed.show("demo");
    assert_eq!(shown["state"], "CREATING");
    let infra = shown["infra_id"].as_str().expect("it is durable before the first resource");
    assert!(infra.starts_with("demo-"), "{infra}");
    bed.go("demo", "infrastructure");
    bed.settled("demo", "READY");
    let shown = bed.show("demo");
    assert_eq!(shown["outputs"]["api_url"], "https://api.demo.dev.example.com:6443");
    let console = "https://console-openshift-console.apps.demo.dev.example.com";
    assert_eq!(shown["outputs"]["console_url"], console);
    let log = bed.job_log(&answer["job"]["id"]);
    assert!(log.contains("Install complete!") && !log.contains("kNoT-a-reAl"), "{log}");
    // The same request is answered by the cluster that exists, another one is refused.
    assert_eq!(bed.create("demo").1["verdict"], "exists");
    assert_eq!(bed.create_with("demo", &json!({"workers": 5})).0, 409);
    let (status, credentials) =
        bed.api("POST", &format!("{}/credentials", path("demo")), &Value::Null);
    assert_eq!(status, 200, "{credentials}");
    assert_eq!(credentials["password"], "kNoT-a-reAl-PaSSw0rd");
    assert_eq!(bed.destroy("demo").0, 202);
    bed.settled("demo", "DESTROYED");
    bed.check(&[]);
    // Destroyed once more, it is verified only.
    assert_eq!(bed.destroy("demo").0, 202);
    bed.settled("demo", "DESTROYED");
    assert_eq!(bed.runs("demo", "destroy cluster"), 1);
    assert_eq!(bed.create("demo").0, 202);
    bed.settled("demo", "READY");
    assert_eq!(bed.runs("demo", "create cluster"), 2);
    let (code, text) = bed.run(&["verify"]);
    assert_eq!(code, Some(0), "{text}");
}

fn a_failed_create_leaves_nothing_unless_it_is_to_be_kept(store: StoreKind) {
    let bed = Bed::start(store);
    let _worker = bed.worker("a");
    let quota = "Error: error creating EC2 VPC: VpcLimitExceeded: The maximum number of VPCs";
    let plan = json!({"create cluster": [{"exit": 4, "log": [quota]}]});
    for name in ["gone", "kept"] {
        bed.plan(name, &plan);
        bed.create_with(name, &json!({"preserve_on_failure": name == "kept"}));
        bed.settled(name, "FAILED");
        assert_eq!(bed.runs(name, "create cluster"), 1, "a quota is permanent");
        assert_eq!(bed.show(name)["last_error"]["class"], "QUOTA");
    }
    assert_eq!(bed.show("kept")["preserved"], true);
    assert!(bed.show("gone")["infra_id"].is_null());
    bed.check(&["kept"]);
    assert_eq!(bed.create("kept").0, 409, "it is kept for an investigation");
    bed.destroy("kept");
    bed.settled("kept", "DESTROYED");
    bed.check(&[]);
}

#[test]
fn a_transient_failure_is_retried_after_a_cleanup() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    let reset = "Error: RequestError: send request failed: read: connection reset by peer";
    bed.plan("demo", &json!({"create cluster": [{"exit": 4, "log": [reset]}, {}]}));
    let (_, answer) = bed.create("demo");
    bed.settled("demo", "READY");
    assert_eq!(bed.job(&answer["job"]["id"])["attempt"], 2);
    assert_eq!(bed.runs("demo", "destroy cluster"), 1);
    bed.check(&["demo"]);
}

#[test]
fn operators_that_are_late_are_waited_for_again() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    bed.plan(
        "late",
        &json!({
            "create cluster": [{"exit": 6}], "wait-for install-complete": [{"exit": 6}, {}],
        }),
    );
    bed.create("late");
    bed.settled("late", "READY");
    assert_eq!(bed.runs("late", "wait-for install-complete"), 2);
    assert_eq!(bed.runs("late", "create cluster"), 1);
}

#[test]
fn a_destroy_that_leaves_resources_is_repeated_although_it_reports_success() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    bed.plan("demo", &json!({"destroy cluster": [{"keep": 2}, {"keep": 1}, {}]}));
    bed.create("demo");
    bed.settled("demo", "READY");
    bed.destroy("demo");
    bed.settled("demo", "DESTROYED");
    assert_eq!(bed.runs("demo", "destroy cluster"), 3);
    bed.check(&[]);
}

#[test]
fn one_empty_answer_of_the_cloud_proves_nothing() {
    let bed = Bed::with(StoreKind::Embedded, "verify = [\"./list\"]");
    // Its answers lag: nothing, then what is left, then nothing.
    bed.program(
        "list",
        "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho >> calls\n\
         [ \"$(wc -l < calls)\" != 2 ] || echo vol-late\n",
    );
    let _worker = bed.worker("a");
    bed.create("demo");
    bed.settled("demo", "READY");
    bed.destroy("demo");
    bed.settled("demo", "DESTROYED");
    assert_eq!(bed.runs("demo", "destroy cluster"), 2);
    assert_eq!(bed.read("calls").lines().count(), 4);
}

#[test]
fn a_destroy_without_progress_ends_as_destroy_failed_and_can_be_repeated() {
    let bed = Bed::with(StoreKind::Embedded, "attempts = 1");
    let _worker = bed.worker("a");
    bed.plan("stuck", &json!({"destroy cluster": [{"keep": 1}]}));
    bed.create("stuck");
    bed.settled("stuck", "READY");
    let (_, answer) = bed.destroy("stuck");
    bed.settled("stuck", "DESTROY_FAILED");
    let error = bed.job(&answer["job"]["id"])["error"].clone();
    assert_eq!(error["code"], "RESOURCES_LEFT", "{error}");
    assert!(!bed.show("stuck")["infra_id"].is_null(), "it is known what is left");
    bed.plan("stuck", &json!({}));
    bed.destroy("stuck");
    bed.settled("stuck", "DESTROYED");
    bed.check(&[]);
}

#[test]
fn an_install_config_error_costs_one_attempt_and_creates_nothing() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    let error = "failed to fetch Master Machines: failed to load asset \"Install Config\"";
    bed.plan("bad", &json!({"create manifests": [{"exit": 3, "log": [error]}]}));
    bed.create("bad");
    bed.settled("bad", "FAILED");
    let shown = bed.show("bad");
    assert_eq!(shown["last_error"]["class"], "INVALID_CONFIG", "{shown}");
    assert!(shown["infra_id"].is_null());
    assert_eq!(bed.runs("bad", "create cluster"), 0);
    assert_eq!(bed.runs("bad", "destroy cluster"), 0);
}

#[test]
fn all_violations_of_a_profile_are_reported_together() {
    let bed = Bed::start(StoreKind::Embedded);
    let body = json!({"workers": 99, "version": "3.11", "region": "moon", "ttl_ms": 1});
    let (status, problem) = bed.create_with("Bad_Name", &body);
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert_eq!(status, 422);
    for part in ["name:", "workers:", "version:", "region:", "ttl_ms:"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    assert_eq!(bed.create_with("a", &json!({"profile": "none"})).0, 422);
    assert_eq!(bed.api("GET", &path("unknown"), &Value::Null).0, 404);
    assert_eq!(bed.destroy("unknown").0, 404);
}
