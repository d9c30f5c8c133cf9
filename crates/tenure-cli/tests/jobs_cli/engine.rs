//! Conditions, timers, status, groups and planned transfers on the command line.

use serde_json::{Value, json};

use crate::common::until;
use crate::harness::{Site, id_in};

const PRECONDITION_FAILED: i32 = 5;

#[test]
fn a_lock_is_released_to_a_named_waiter() {
    let site = Site::start();
    let lock = "database/l1";
    let acquire = |holder| ["lock", "acquire", lock, "--holder", holder, "--wait", "60s"];
    let token = site.json(&acquire("first"))["token"].to_string();
    let waiters = || site.json(&["lock", "show", lock])["queue"].as_array().map_or(0, Vec::len);
    let second = site.spawn(&acquire("second"));
    until(|| waiters() == 1);
    let third = site.spawn(&acquire("third"));
    until(|| waiters() == 2);

    let release = ["lock", "release", lock, "--token", &token, "--to"];
    let (code, message) = site.code(&[&release[..], &["nobody"]].concat());
    assert_eq!(code, 5, "{message}");
    assert!(message.contains("nobody does not wait for these locks"), "{message}");
    let (code, message) = site.code(&[&release[..], &["third"]].concat());
    assert_eq!((code, &*message), (0, "database/l1: released\n"));
    assert_eq!(third.exit_code(), Some(0));
    let shown = site.json(&["lock", "show", lock]);
    assert_eq!(shown["tenures"][0]["holder"]["name"], "third");
    assert_eq!(shown["queue"][0]["name"], "second", "it still waits");
    let token = shown["tenures"][0]["token"].to_string();
    site.ok(&["lock", "release", lock, "--token", &token]);
    assert_eq!(second.exit_code(), Some(0));
}

#[test]
fn lists_and_counts_are_those_of_a_group() {
    let site = Site::start();
    for name in ["b1:t1", "b1:t2", "b2:t1"] {
        site.submit(&format!("suite/{name}"), "run");
    }
    let job = site.worker("w1").claim();
    let claimed = site.json(&["job", "show", &job.id])["name"].as_str().unwrap().to_owned();
    let running = &claimed[..2];
    let other = if running == "b1" { "b2" } else { "b1" };
    let count = |group: &str| site.json(&["resource", "group", &format!("suite/{group}")]);
    let n = |group: &str| if group == "b1" { 2 } else { 1 };
    let (is, others) = (count(running), count(other));
    assert_eq!((&is["running"], &is["waiting"]), (&json!(1), &json!(n(running) - 1)), "{is}");
    assert_eq!((&others["running"], &others["ready"]), (&json!(0), &json!(n(other))), "{others}");
    let shown = site.ok(&["resource", "group", "suite/b1"]);
    for part in ["suite/b1", "running", "of the waiting can start now"] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
    let names = |noun: &str, group: &str| -> Vec<String> {
        let list = site.json(&[noun, "ls", "--kind", "suite", "--group", group]);
        let items = list["items"].as_array().unwrap_or_else(|| panic!("no items: {list}"));
        let name = |item: &Value| match item["name"].as_str() {
            Some(name) => name.to_owned(),
            // A lock is shown as KIND/NAME.
            None => item["lock"].as_str().expect("a lock").rsplit('/').next().unwrap().to_owned(),
        };
        let mut names: Vec<String> = items.iter().map(name).collect();
        names.sort();
        names
    };
    for noun in ["resource", "job"] {
        assert_eq!(names(noun, "b1"), ["b1:t1", "b1:t2"], "{noun}");
        assert_eq!(names(noun, "b2"), ["b2:t1"], "{noun}");
        assert_eq!(names(noun, "b"), [""; 0], "{noun}");
    }
    assert_eq!(names("lock", running), std::slice::from_ref(&claimed));
    assert_eq!(names("lock", other), [""; 0]);
    for noun in ["resource", "job", "lock"] {
        let (code, message) = site.code(&[noun, "ls", "--group", "b1"]);
        assert!(code == 2 && message.contains("--kind"), "{noun}: {message}");
    }
    let (code, message) = site.code(&["resource", "group", "report/b1"]);
    assert!(code != 0 && message.contains("grouped = true"), "{message}");
}

#[test]
fn changes_can_have_a_condition() {
    let site = Site::start();
    let resource = "report/r1";
    let put = |spec: &'static str, condition: &[&'static str]| {
        site.code(&[&["resource", "put", resource, "--spec", spec], condition].concat())
    };
    assert_eq!(put("1", &["--if-absent"]).0, 0);
    let (code, message) = put("2", &["--if-absent"]);
    assert_eq!(code, PRECONDITION_FAILED, "{message}");
    assert!(message.contains("exists already"), "{message}");
    let (code, message) = put("2", &["--if-generation", "7"]);
    assert_eq!(code, PRECONDITION_FAILED, "{message}");
    assert!(message.contains("the generation is 1, not 7"), "{message}");
    assert_eq!(put("2", &["--if-generation", "1"]).0, 0);
    assert_eq!(put("2", &["--if-generation", "1", "--if-absent"]).0, 2, "one condition at most");

    let submit = ["job", "submit", resource, "run"];
    let (code, message) = site.code(&[&submit[..], &["--if-generation", "1"]].concat());
    assert_eq!(code, PRECONDITION_FAILED, "{message}");
    let id = id_in(&site.ok(&[&submit[..], &["--if-generation", "2"]].concat()));
    site.ok(&["job", "cancel", &id]);
    let (code, _) = site.code(&[&submit[..], &["--if-absent"]].concat());
    assert_eq!(code, PRECONDITION_FAILED);
    assert_eq!(site.json(&["job", "ls", "--kind", "report"])["items"].as_array().unwrap().len(), 1);

    let delete = ["resource", "delete", resource, "--if-generation"];
    let (code, message) = site.code(&[&delete[..], &["1"]].concat());
    assert_eq!(code, PRECONDITION_FAILED, "{message}");
    assert_eq!(site.json(&["resource", "show", resource])["generation"], 2);
    assert_eq!(site.code(&[&delete[..], &["2"]].concat()).0, 0);
    assert_ne!(site.code(&["resource", "show", resource]).0, 0, "it is gone");
}

#[test]
fn status_and_timers_are_set_and_shown() {
    let site = Site::start();
    let resource = "database/orders";
    let put = ["resource", "put", resource, "--spec", "{}"];
    site.ok(&[&put[..], &["--timer", "create=8h", "--timer", "destroy=0s"]].concat());
    let shown = site.ok(&["resource", "show", resource]);
    let lines: Vec<&str> = shown.lines().filter(|line| line.starts_with("timer: ")).collect();
    assert_eq!(lines.len(), 2, "{shown}");
    let refused = lines.iter().find(|line| line.contains("destroy")).expect("a timer");
    // It is due, and the state does not allow it.
    assert!(refused.contains("refused: the resource is PENDING"), "{shown}");
    assert!(lines.iter().any(|line| line.contains("submits create at ")), "{shown}");
    site.ok(&[&put[..], &["--timer", "destroy=never"]].concat());
    let timers = site.json(&["resource", "show", resource])["timers"].clone();
    assert_eq!(timers.as_array().map(Vec::len), Some(1), "{timers}");
    assert_eq!(timers[0]["operation"], "create");
    let (code, message) = site.code(&[&put[..], &["--timer", "create"]].concat());
    assert!(code == 2 && message.contains("OPERATION=DUR"), "{message}");

    site.ok(&["resource", "timer", resource, "create", "--in", "0s"]);
    let job = site.worker("w1").claim();
    job.status(&json!({ "infra": "i-1", "zones": { "a": 1 } }));
    job.status(&json!({ "zones": { "a": null } }));
    let shown = site.ok(&["resource", "show", resource]);
    assert!(shown.contains(r#"{"infra":"i-1","zones":{}}"#), "{shown}");
    assert!(shown.contains("status since"), "{shown}");
    assert!(!shown.contains("timer: "), "it fired: {shown}");
    assert_eq!(site.json(&["resource", "show", resource])["status"]["infra"], "i-1");
}

#[test]
fn the_hint_of_an_empty_list_names_a_resource_of_a_group() {
    let site = Site::start_with("[kinds.suite]\ngrouped = true\n[kinds.suite.operations.run]\n");
    let (_, message) = site.code(&["job", "ls"]);
    let hint = message.trim().rsplit_once("try: tenure ").expect("a hint").1;
    let command: Vec<&str> = hint.split(' ').collect();
    assert_eq!(command, ["job", "submit", "suite/demo:1", "run"]);
    site.ok(&command);
}
