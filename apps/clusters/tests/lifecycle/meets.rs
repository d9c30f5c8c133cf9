//! Operations that meet: cancels, attachments, the time to live.

use std::sync::Barrier;

use serde_json::{Value, json};

use crate::bed::{Bed, StoreKind, path};
use crate::common::until;

#[test]
fn a_destroy_cancels_a_create_and_waits_until_the_installer_is_dead() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    let held = json!({"hold": "infrastructure", "ignore_term": true});
    bed.plan("demo", &json!({"create cluster": [held]}));
    let (_, created) = bed.create("demo");
    bed.reached("demo", "infrastructure");
    let (status, answer) = bed.destroy("demo");
    assert_eq!((status, &answer["verdict"]), (202, &json!("queued")), "{answer}");
    let second = bed.destroy("demo").1;
    assert_eq!(second["verdict"], "attached");
    assert_eq!(second["job"]["id"], answer["job"]["id"]);
    assert_eq!(bed.create("demo").0, 409, "nothing is created during a destroy");
    bed.settled("demo", "DESTROYED");
    assert_eq!(bed.job(&created["job"]["id"])["state"], "cancelled");
    bed.check(&[]);
}

#[test]
fn a_destroy_during_the_backoff_of_a_create_removes_what_is_left() {
    let bed = Bed::with(StoreKind::Embedded, "");
    let mut worker = bed.worker("a");
    bed.plan("demo", &json!({"create cluster": [{"hold": "infrastructure"}, {}]}));
    bed.create("demo");
    bed.reached("demo", "infrastructure");
    worker.kill();
    until(|| bed.show("demo")["operation"]["state"] == "backoff");
    assert_eq!(bed.state("demo"), "PENDING", "the state before the attempt");
    bed.destroy("demo");
    let _other = bed.worker("b");
    bed.settled("demo", "DESTROYED");
    assert_eq!(bed.runs("demo", "create cluster"), 1);
    bed.check(&[]);
}

/// The integration test of the document: of concurrent destroys one works, and the others succeed
/// with it.
#[test]
fn lock_acquisition_concurrent() {
    let bed = Bed::start(StoreKind::Postgres);
    let _workers = [bed.worker("a"), bed.worker("b")];
    bed.create("demo");
    bed.settled("demo", "READY");
    let barrier = Barrier::new(3);
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let request = || {
            barrier.wait();
            let (status, answer) = bed.destroy("demo");
            assert_eq!(status, 202, "{answer}");
            answer
        };
        let threads = [scope.spawn(request), scope.spawn(request), scope.spawn(request)];
        threads.map(|thread| thread.join().expect("an answer")).into()
    });
    bed.settled("demo", "DESTROYED");
    let first = &answers[0]["job"]["id"];
    let same = answers.iter().filter(|answer| answer["job"]["id"] == *first).count();
    // A destroy that came after the first had finished verifies once more.
    assert!(same == 3 || bed.runs("demo", "destroy cluster") == 1, "{answers:?}");
    assert_eq!(bed.runs("demo", "destroy cluster"), 1);
    bed.check(&[]);
}

#[test]
fn the_time_to_live_destroys_running_and_failed_clusters() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    let quota = "Error: VpcLimitExceeded: The maximum number of VPCs has been reached";
    bed.plan("failed", &json!({"create cluster": [{"exit": 4, "log": [quota]}]}));
    for name in ["runs", "failed"] {
        bed.create_with(name, &json!({"ttl_ms": 4_000}));
    }
    for name in ["runs", "failed"] {
        bed.settled(name, "DESTROYED");
    }
    bed.check(&[]);
}

#[test]
fn a_kept_failure_outlives_its_time_to_live() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    let quota = "Error: VpcLimitExceeded: The maximum number of VPCs has been reached";
    bed.plan("kept", &json!({"create cluster": [{"exit": 4, "log": [quota]}]}));
    bed.create_with("kept", &json!({"ttl_ms": 4_000, "preserve_on_failure": true}));
    bed.settled("kept", "FAILED");
    // A cluster of the same age is destroyed; this one is not.
    bed.create_with("other", &json!({"ttl_ms": 4_000}));
    bed.settled("other", "DESTROYED");
    assert_eq!(bed.state("kept"), "FAILED");
    bed.check(&["kept"]);
}

#[test]
fn a_user_and_the_time_to_live_destroy_at_once() {
    let bed = Bed::start(StoreKind::Embedded);
    bed.create_with("demo", &json!({"ttl_ms": 15_000}));
    let mut worker = bed.worker("a");
    bed.settled("demo", "READY");
    worker.kill();
    until(|| bed.show("demo")["operation"]["operation"] == "JANITOR_DESTROY");
    let (_, answer) = bed.destroy("demo");
    assert_eq!(answer["verdict"], "replaced", "{answer}");
    let _other = bed.worker("b");
    bed.settled("demo", "DESTROYED");
    assert_eq!(bed.job(&answer["job"]["id"])["state"], "succeeded");
    assert_eq!(bed.runs("demo", "destroy cluster"), 1);
    bed.check(&[]);
}

#[test]
fn an_extension_wins_until_the_destroy_begins() {
    let bed = Bed::start(StoreKind::Embedded);
    let mut worker = bed.worker("a");
    bed.create_with("demo", &json!({"ttl_ms": 15_000}));
    bed.settled("demo", "READY");
    worker.kill();
    let extend =
        |ms: u64| bed.api("POST", &format!("{}/ttl", path("demo")), &json!({"ttl_ms": ms}));
    // The job of the time to live waits; it was submitted before the extension.
    until(|| bed.show("demo")["operation"]["operation"] == "JANITOR_DESTROY");
    let (status, answer) = extend(3_600_000);
    assert_eq!(status, 200, "{answer}");
    let mut worker = bed.worker("b");
    bed.settled("demo", "READY");
    assert_eq!(bed.runs("demo", "destroy cluster"), 0);
    // Once it has begun, the extension is refused.
    bed.plan("demo", &json!({"destroy cluster": [{"hold": "resource1"}, {}]}));
    assert_eq!(extend(1_000).0, 200);
    bed.reached("demo", "resource1");
    let (status, answer) = extend(3_600_000);
    assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "{answer}");
    // Also for the worker that continues.
    worker.kill();
    let _other = bed.worker("c");
    bed.settled("demo", "DESTROYED");
    assert_eq!(extend(3_600_000).0, 409);
    bed.check(&[]);
}

#[test]
fn duplicate_creates_attach_and_others_are_refused() {
    let bed = Bed::start(StoreKind::Embedded);
    let first = bed.create("demo").1;
    let second = bed.create("demo").1;
    assert_eq!(second["verdict"], "attached");
    assert_eq!(first["job"]["id"], second["job"]["id"]);
    let (status, problem) = bed.create_with("demo", &json!({"workers": 7}));
    assert_eq!((status, &problem["code"]), (409, &json!("conflict")), "{problem}");
    let id = "cluster/aws:demo.dev.example.com";
    for operation in ["CREATE", "JANITOR_DESTROY", "PURGE", "SCALE_WORKERS"] {
        let (code, text) = bed.run(&["job", "submit", id, operation]);
        assert_eq!(code, Some(5), "{operation}: {text}");
    }
    assert_eq!(bed.api("POST", &format!("{}/scale", path("demo")), &json!({"workers": 5})).0, 409);
}

#[test]
fn clocks_an_hour_apart_change_nothing() {
    let bed = Bed::start(StoreKind::Embedded);
    let mut worker = bed.worker("a");
    bed.plan("demo", &json!({"create cluster": [{"hold": "infrastructure"}, {}]}));
    bed.create("demo");
    bed.reached("demo", "infrastructure");
    worker.kill();
    let _ahead = bed.worker_with_clock("b", "+1h");
    bed.settled("demo", "READY");
    assert_eq!(bed.runs("demo", "create cluster"), 2);
    bed.check(&["demo"]);
}
