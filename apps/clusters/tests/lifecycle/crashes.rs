//! Workers that die or freeze at every step: another one finishes, nothing is doubled, nothing is
//! left in the cloud.

use serde_json::json;

use crate::bed::{Bed, Entry, StoreKind};
use crate::common::until;

/// Commands and their points at which a create is held.
const CREATE_POINTS: [(&str, &str); 7] = [
    ("create manifests", "manifests"),
    ("create ignition-configs", "ignition"),
    ("create cluster", "begin"),
    ("create cluster", "resource1"),
    ("create cluster", "infrastructure"),
    ("create cluster", "bootstrap"),
    ("create cluster", "operators"),
];

/// Points at which a destroy is held.
const DESTROY_POINTS: [&str; 3] = ["begin", "resource1", "deleted"];

#[test]
fn a_worker_killed_at_any_step_of_a_create_is_replaced_on_the_embedded_store() {
    a_worker_killed_at_any_step_of_a_create_is_replaced(StoreKind::Embedded);
}

#[test]
fn a_worker_killed_at_any_step_of_a_create_is_replaced_on_postgresql() {
    a_worker_killed_at_any_step_of_a_create_is_replaced(StoreKind::Postgres);
}

fn a_worker_killed_at_any_step_of_a_create_is_replaced(store: StoreKind) {
    let bed = Bed::start(store);
    let mut worker = bed.worker("a");
    for (command, point) in CREATE_POINTS {
        bed.plan(point, &json!({ command: [{"hold": point}, {}] }));
        bed.create(point);
    }
    let tokens: Vec<u64> =
        CREATE_POINTS.iter().map(|(_, point)| bed.reached(point, point)).collect();
    worker.kill();
    let _other = bed.worker("b");
    for ((_, point), token) in CREATE_POINTS.iter().zip(tokens) {
        bed.settled(point, "READY");
        check_installs(&bed, point);
        let last = bed.journal().into_iter().rev().find(|entry| entry.text("cluster") == *point);
        assert!(last.expect("it ran").token() > token);
    }
    let names: Vec<&str> = CREATE_POINTS.iter().map(|(_, point)| *point).collect();
    bed.check(&names);
    let (code, text) = bed.run(&["verify"]);
    assert_eq!(code, Some(0), "{text}");
    // Each cluster has one installation in the cloud, that of its status.
    for name in &names {
        let infra = bed.show(name)["infra_id"].as_str().expect("it runs").to_owned();
        assert_eq!(alive(&bed, name), vec![infra; 3]);
        bed.destroy(name);
    }
    for name in &names {
        bed.settled(name, "DESTROYED");
    }
    bed.check(&[]);
}

/// Checks that no attempt has installed a cluster twice.
fn check_installs(bed: &Bed, cluster: &str) {
    let journal = bed.journal();
    let installs = journal.iter().filter(|entry| {
        entry.what() == "start"
            && entry.text("cluster") == cluster
            && entry.text("command") == "create cluster"
    });
    let mut tokens: Vec<u64> = installs.map(Entry::token).collect();
    let count = tokens.len();
    tokens.dedup();
    assert_eq!(tokens.len(), count, "{cluster}: {tokens:?}");
}

/// Returns the installation of each resource of a cluster that exists.
fn alive(bed: &Bed, cluster: &str) -> Vec<String> {
    let journal = bed.journal();
    let deleted =
        |id: &str| journal.iter().any(|entry| entry.what() == "deleted" && entry.text("id") == id);
    let created = journal.iter().filter(|entry| entry.what() == "created");
    let of_cluster = created.filter(|entry| {
        entry.text("infra").strip_prefix(cluster).is_some_and(|rest| rest.starts_with('-'))
    });
    of_cluster
        .filter(|entry| !deleted(entry.text("id")))
        .map(|entry| entry.text("infra").to_owned())
        .collect()
}

#[test]
fn a_worker_killed_at_any_step_of_a_destroy_is_replaced() {
    let bed = Bed::start(StoreKind::Embedded);
    let mut worker = bed.worker("a");
    for point in DESTROY_POINTS {
        bed.plan(point, &json!({"destroy cluster": [{"hold": point}, {}]}));
        bed.create(point);
    }
    for point in DESTROY_POINTS {
        bed.settled(point, "READY");
        bed.destroy(point);
    }
    for point in DESTROY_POINTS {
        bed.reached(point, point);
    }
    worker.kill();
    let _other = bed.worker("b");
    for point in DESTROY_POINTS {
        bed.settled(point, "DESTROYED");
    }
    bed.check(&[]);
}

#[test]
fn a_frozen_worker_and_its_installer_do_nothing_after_the_take_over() {
    let bed = Bed::start(StoreKind::Embedded);
    let frozen = bed.worker("a");
    bed.plan("demo", &json!({"create cluster": [{"hold": "resource1"}, {}]}));
    bed.create("demo");
    let token = bed.reached("demo", "resource1");
    frozen.signal("STOP");
    let _other = bed.worker("b");
    bed.settled("demo", "READY");
    // It finds its tenure lost.
    bed.go("demo", "resource1");
    frozen.signal("CONT");
    until(|| bed.read("a.log").contains("session lost"));
    let late = bed.journal().into_iter().filter(|entry| entry.token() == token).count();
    bed.destroy("demo");
    bed.settled("demo", "DESTROYED");
    let after = bed.journal().into_iter().filter(|entry| entry.token() == token).count();
    assert_eq!(late, after, "the frozen worker created something");
    bed.check(&[]);
}

#[test]
fn children_that_ignore_signals_or_leave_their_group_die_with_their_worker() {
    let bed = Bed::start(StoreKind::Embedded);
    let mut worker = bed.worker("a");
    let obstinate = json!({"orphan": true, "ignore_term": true, "hold": "infrastructure"});
    bed.plan("demo", &json!({"create cluster": [obstinate, {}]}));
    bed.create("demo");
    let token = bed.reached("demo", "infrastructure");
    let orphans = |bed: &Bed| {
        let journal = bed.journal();
        journal.iter().filter(|entry| entry.text("name").starts_with("orphan-")).count()
    };
    until(|| orphans(&bed) >= 2);
    worker.kill();
    let _other = bed.worker("b");
    bed.settled("demo", "READY");
    // The check compares the order of all that was done with the order of the tokens.
    bed.check(&["demo"]);
    let before = orphans(&bed);
    bed.destroy("demo");
    bed.settled("demo", "DESTROYED");
    assert_eq!(orphans(&bed), before, "the orphan of token {token} lives");
    bed.check(&[]);
}

#[test]
fn a_restarted_server_changes_nothing_for_a_running_install() {
    let mut bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    bed.plan("demo", &json!({"create cluster": [{"hold": "bootstrap"}]}));
    let (_, answer) = bed.create("demo");
    bed.reached("demo", "bootstrap");
    bed.kill_server();
    bed.launch();
    bed.go("demo", "bootstrap");
    bed.settled("demo", "READY");
    assert_eq!(bed.job(&answer["job"]["id"])["attempt"], 1);
    bed.check(&["demo"]);
}

#[test]
fn the_directories_of_dead_workers_are_removed_by_the_next_one() {
    let bed = Bed::start(StoreKind::Embedded);
    let mut worker = bed.worker("a");
    bed.plan("demo", &json!({"create cluster": [{"hold": "begin"}, {}]}));
    bed.create("demo");
    bed.reached("demo", "begin");
    let work = bed.file("clusters/work");
    let left = || std::fs::read_dir(&work).map_or(0, Iterator::count);
    assert_eq!(left(), 2, "a directory and its lock");
    worker.kill();
    let _other = bed.worker("b");
    bed.settled("demo", "READY");
    until(|| left() == 0);
}
