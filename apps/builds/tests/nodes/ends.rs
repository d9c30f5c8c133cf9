//! How nodes and reports end: exit codes and limits.

use crate::bed::{Bed, StoreKind};
use crate::common::until;

fn embedded() -> Bed {
    Bed::start(StoreKind::Embedded)
}

#[test]
fn c12_without_a_leader_a_node_ends_with_40() {
    let bed = embedded();
    let tests = bed.tests(2);
    let mut first = bed.node("a", &["--collect", "sleep 60"]);
    until(|| bed.status()["master_status"] == "setup");
    // Nobody can lead a resource that is paused.
    let pause = ["resource", "pause", "build/x", "--reason", "a test"];
    assert!(bed.command().args(pause).output().unwrap().status.success());
    first.kill();
    let mut node = bed.node("b", &["--tests", &tests]);
    assert_eq!(node.wait(), Some(40), "{}", node.err());
    assert!(node.err().contains("no node led build x"), "{}", node.err());
    assert_eq!(bed.run(&["report", "none", "--wait", "1s"]).0, Some(40), "nobody joined it");
}

#[test]
fn c10_when_all_leaders_are_lost_the_others_end_with_41() {
    let bed = embedded();
    for worker in ["a", "b", "c"] {
        let mut leader = bed.node(worker, &["--collect", "sleep 60"]);
        until(|| bed.status()["master_worker_id"] == worker);
        until(|| bed.status()["master_status"] == "setup");
        leader.kill();
    }
    let mut node = bed.node("d", &["--collect", "sleep 60"]);
    assert_eq!(node.wait(), Some(41), "{}", node.err());
    assert!(node.err().contains("all 3 leaders were lost"), "{}", node.err());
    assert_eq!(bed.run(&["report", "x", "--wait", "10s"]).0, Some(41));
}

#[test]
fn a_setup_that_fails_ends_all_nodes_with_42() {
    let bed = embedded();
    let mut nodes: Vec<_> =
        ["a", "b"].map(|worker| bed.node(worker, &["--collect", "echo oops >&2; exit 3"])).into();
    for node in &mut nodes {
        assert_eq!(node.wait(), Some(42), "{}", node.err());
        assert!(node.err().contains("--collect ended with exit code 3"), "{}", node.err());
    }
    let mut again = bed.node("a", &["--collect", "seq -f t%g 3"]);
    assert_eq!(again.wait(), Some(42), "{}", again.err());
    assert!(again.err().contains("--existing"), "{}", again.err());
    let mut again = bed.node("a", &["--existing", "--collect", "seq -f t%g 3"]);
    assert_eq!(again.wait(), Some(0), "{}", again.err());
}

#[test]
fn the_report_of_a_build_that_is_not_finished_is_no_success() {
    let bed = embedded();
    let mut node = bed.node("a", &["--collect", "sleep 60"]);
    until(|| bed.status()["master_status"] == "setup");
    assert_eq!(bed.run(&["report", "x"]).0, Some(43), "nothing is published");
    node.kill();
    let tests = bed.tests(2);
    bed.write("do.t1", "while [ ! -e go ]; do sleep 0.05; done");
    let mut command = bed.command();
    command.args(["build", "run", "y", "--tests", &tests, "--"]).args(bed.script());
    let mut node = bed.spawn("y", command);
    until(|| bed.runs("t1").len() == 1);
    let (code, text) = bed.run(&["report", "y"]);
    assert_eq!(code, Some(43), "{text}");
    assert!(text.contains(" not run "), "{text}");
    bed.write("go", "");
    assert_eq!(node.wait(), Some(0), "{}", node.err());
    assert_eq!(bed.run(&["report", "y"]).0, Some(0));
}

#[test]
fn c24_without_a_server_a_node_ends_with_42_and_its_command_is_dead() {
    let mut bed = embedded();
    let tests = bed.tests(1);
    bed.write("do.t1", "while true; do sleep 0.1; done");
    let mut node = bed.node("a", &["--tests", &tests, "--server-timeout", "1s"]);
    until(|| bed.runs("t1").len() == 1);
    bed.kill_server();
    assert_eq!(node.wait(), Some(42), "{}", node.err());
    let journal = bed.read("journal");
    let pid = journal.split_whitespace().nth(3).unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{journal}");
}

#[test]
fn a_maximum_duration_ends_a_node_with_43() {
    let bed = embedded();
    let tests = bed.tests(50);
    for n in 1..=50 {
        bed.write(&format!("do.t{n}"), "sleep 0.2");
    }
    let mut node = bed.node("a", &["--tests", &tests, "--max-duration", "1s"]);
    assert_eq!(node.wait(), Some(43), "{}", node.err());
    let report = bed.report();
    let passed = report["passed"].as_u64().unwrap();
    assert!((1..50).contains(&passed), "{report}");
    assert_eq!(report["losses"], 0, "what it ran counts: {report}");
    assert_eq!(bed.run(&["report", "x", "--wait", "500ms"]).0, Some(43));
}

#[test]
fn too_many_failures_end_all_nodes_with_44() {
    let bed = embedded();
    let tests = bed.tests(30);
    for n in 1..=30 {
        bed.write(&format!("do.t{n}"), "code=1");
    }
    let options = ["--tests", tests.as_str(), "--max-requeues", "0", "--max-failures", "3"];
    let mut nodes: Vec<_> = ["a", "b"].map(|worker| bed.node(worker, &options)).into();
    for node in &mut nodes {
        assert_eq!(node.wait(), Some(44), "{}", node.err());
        assert!(node.out().contains(" not run "), "the summary is printed: {}", node.out());
    }
    let failed = bed.report()["failed"].as_u64().unwrap();
    assert!((3..=4).contains(&failed), "{failed} tests failed");
    assert_eq!(bed.run(&["report", "x", "--wait", "5s"]).0, Some(44));
}

#[test]
fn c23_the_breaker_of_a_node_ignores_failures_that_are_run_again() {
    let bed = embedded();
    let tests = bed.tests(4);
    for n in 1..=4 {
        // The first run of each test fails.
        bed.write(&format!("do.t{n}"), &format!("[ -e {n} ] || {{ touch {n}; code=1; }}"));
    }
    let options = ["--requeue-tolerance", "1.0", "--max-consecutive-failures", "2"];
    let mut node = bed.node("a", &[&["--tests", tests.as_str()][..], &options].concat());
    assert_eq!(node.wait(), Some(0), "{}", node.err());
    let mut command = bed.command();
    command.args(["build", "run", "y", "--tests", &tests, "--max-requeues", "0"]);
    command.args(["--max-consecutive-failures", "2", "--", "false", "{}"]);
    let mut node = bed.spawn("y", command);
    assert_eq!(node.wait(), Some(44), "{}", node.err());
    assert!(node.err().contains("2 tests in a row"), "{}", node.err());
}

#[test]
fn c25_tests_without_a_node_end_the_report_with_45() {
    let bed = embedded();
    let tests = bed.tests(2);
    bed.write("do.t1", "sleep 60");
    bed.write("do.t2", "sleep 60");
    let mut node = bed.node("a", &["--tests", &tests]);
    until(|| !bed.read("journal").is_empty());
    let mut command = bed.command();
    command.args(["build", "report", "x", "--wait", "60s"]);
    let mut report = bed.spawn("report", command);
    node.kill();
    assert_eq!(report.wait(), Some(45), "{}", report.err());
    assert!(report.err().contains("2 tests of build x are left"), "{}", report.err());
}

#[test]
fn c19_the_time_limit_counts_for_each_test_alone() {
    let bed = embedded();
    let tests = bed.tests(4);
    for n in 1..=3 {
        bed.write(&format!("do.t{n}"), "sleep 1.2");
    }
    bed.write("do.t4", "sleep 60");
    let options = ["--tests", tests.as_str(), "--timeout", "3s", "--max-requeues", "0"];
    let mut node = bed.node("a", &options);
    assert_eq!(node.wait(), Some(1), "{}", node.err());
    let report = bed.report();
    assert_eq!(report["passed"], 3, "{report}");
    assert_eq!(report["failures"][0]["code"], "TIMED_OUT", "{report}");
}

#[test]
fn c14_a_node_that_is_terminated_hands_its_test_over_at_once() {
    let bed = embedded();
    let tests = bed.tests(1);
    bed.write("do.t1", "[ \"$TENURE_WORKER\" = b ] || sleep 60");
    let mut first = bed.node("a", &["--tests", &tests]);
    until(|| bed.runs("t1").len() == 1);
    let mut second = bed.node("b", &["--tests", &tests]);
    first.signal("TERM");
    assert_eq!(first.wait(), Some(128 + 15), "{}", first.err());
    assert_eq!(second.wait(), Some(0), "{}", second.err());
    assert_eq!(bed.runs("t1"), [("a".to_owned(), false), ("b".to_owned(), true)]);
}

#[test]
fn bad_command_lines_are_refused_with_the_remedy() {
    let bed = embedded();
    bed.write("twice.txt", "a\nb\na\n");
    let twice = bed.file("twice.txt").display().to_string();
    let tests = bed.tests(1);
    for (options, command, part) in [
        (&["--tests", twice.as_str()][..], &["true", "{}"][..], "\"a\" is listed twice"),
        (&["--tests", &tests], &["true"], "neither {} for a test"),
        (&["--tests", &tests], &["no-such-program", "{}"], "no-such-program"),
        (&["--tests", "missing.txt"], &["true", "{}"], "cannot read missing.txt"),
        (&["--tests", &tests, "--batch", "0"], &["true", "{}"], "--batch"),
    ] {
        let mut node = bed.node_with("a", options, command);
        assert_eq!(node.wait(), Some(2), "{}", node.err());
        assert!(node.err().contains(part), "{part}: {}", node.err());
    }
    let mut node = bed.node("a", &["--tests", &tests]);
    assert_eq!(node.wait(), Some(0), "{}", node.err());
    let other = bed.tests(2);
    let mut node = bed.node("b", &["--tests", &other]);
    assert_eq!(node.wait(), Some(42), "{}", node.err());
    assert!(node.err().contains("has other tests"), "{}", node.err());
}

#[test]
fn a_node_without_an_id_of_the_build_says_how_to_name_it() {
    let bed = embedded();
    let tests = bed.tests(1);
    let mut command = bed.command();
    command.args(["build", "run", "--tests", &tests, "--", "true", "{}"]);
    let mut node = bed.spawn("none", command);
    assert_eq!(node.wait(), Some(2));
    assert!(node.err().contains("name it after `run`"), "{}", node.err());
    let mut command = bed.command();
    command.args(["build", "run", "--tests", &tests, "--", "true", "{}"]);
    let buildkite =
        [("BUILDKITE", "true"), ("BUILDKITE_BUILD_ID", "b7"), ("BUILDKITE_JOB_ID", "j1")];
    command.envs(buildkite);
    let mut node = bed.spawn("ci", command);
    assert_eq!(node.wait(), Some(0), "{}", node.err());
    assert!(node.out().starts_with("build b7: 1 tests, 1 passed"), "{}", node.out());
}
