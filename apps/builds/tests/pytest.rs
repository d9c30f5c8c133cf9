//! The pytest plugin in `clients/pytest-tenure`: real pytest processes as nodes of a build.
//!
//! `cargo xtask prepare` installs pytest.

#[path = "../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;

#[path = "pytest/bed.rs"]
mod bed;
#[path = "pytest/pure.rs"]
mod pure;

use std::fs;

use bed::Bed;
use common::{free_address, http};

/// Tests that pass.
const SIXTY: &str = "
import pytest

@pytest.mark.parametrize('n', range(60))
def test_n(n):
    pass
";

/// Returns what all nodes print: the section of the build.
fn summary(out: &str) -> String {
    let section = out.lines().skip_while(|line| !line.contains("== tenure build acme/4711 =="));
    section.skip(1).take_while(|line| !line.starts_with("==")).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn assert_has(out: &str, parts: &[&str]) {
    for part in parts {
        assert!(out.contains(part), "{part:?} is missing:\n{out}");
    }
}

#[test]
fn three_nodes_run_each_test_once_and_print_the_same_summary() {
    let bed = Bed::new(SIXTY);
    let nodes = ["a", "b", "c"].map(|name| bed.start_with(name, &[], &[("BED_NODES", "3")]));
    let summaries = nodes.each_ref().map(|node| summary(&node.ends_with(0)));
    bed.assert_each_ran_once("");
    assert_has(&summaries[0], &["60 tests on 3 nodes in ", ": 60 passed, 0 failed\n", "\nc: "]);
    assert_eq!(summaries[0], summaries[1]);
    assert_eq!(summaries[0], summaries[2]);
}

#[test]
fn leader_that_dies_while_it_publishes_is_replaced() {
    let bed = Bed::new(SIXTY);
    let leader = bed.start_stopped("a", &[], "publish");
    let nodes = ["b", "c"].map(|name| bed.start(name, &[]));
    leader.kill();
    let outs = nodes.each_ref().map(|node| node.ends_with(0));
    bed.assert_each_ran_once("");
    assert_eq!(outs.iter().filter(|out| out.contains("this node leads")).count(), 1);
    assert_has(&summary(&outs[0]), &["60 tests on ", ": 60 passed, 0 failed\n"]);
    assert_eq!(summary(&outs[0]), summary(&outs[1]));
}

#[test]
fn build_whose_leaders_all_die_ends_with_41() {
    let bed = Bed::with("elections = 1\n", SIXTY);
    let leader = bed.start_stopped("a", &[], "publish");
    let node = bed.start("b", &[]);
    leader.kill();
    let out = node.ends_with(41);
    assert_has(&summary(&out), &["ERROR: the setup of the build failed: WORKER_TIMEOUT: "]);
}

#[test]
fn node_that_finds_no_leader_ends_with_40() {
    let bed = Bed::with("wait = \"1s\"\n", SIXTY);
    let request = |line: &str, body: &str| {
        let key = format!("authorization: Bearer {}", bed.server.key());
        let lines = [line, &key, "content-type: application/json"];
        let answer = http(bed.server.listen(), &lines, body).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    request("POST /v1/builds/acme%2F4711/join HTTP/1.1", r#"{"worker":"x"}"#);
    // A paused build gives the leadership to nobody.
    request("POST /v1/resources/build/acme=4711/pause HTTP/1.1", r#"{"reason":"test"}"#);
    let out = bed.start("a", &[]).ends_with(40);
    assert_has(&summary(&out), &["ERROR: no node has led the build for 1 s (exit code 40)"]);
}

#[test]
fn nodes_survive_a_crash_of_the_server() {
    let mut bed = Bed::new(SIXTY);
    let node = bed.start_stopped("a", &[], "test");
    bed.server.kill();
    bed.server.launch();
    bed.release();
    let out = node.ends_with(0);
    bed.assert_each_ran_once("");
    assert_has(&summary(&out), &["60 tests on 1 node", ": 60 passed, 0 failed\na: 60 tests"]);
}

#[test]
fn tests_of_a_node_that_dies_are_run_by_others() {
    let bed = Bed::new(SIXTY);
    let lost = bed.start_stopped("a", &[], "test");
    let nodes = ["b", "c"].map(|name| bed.start(name, &[]));
    lost.kill();
    let outs = nodes.each_ref().map(|node| summary(&node.ends_with(0)));
    bed.assert_each_ran_once("a");
    // One was running, the next one was reserved.
    assert_has(&outs[0], &[": 60 passed, 0 failed, 2 lost runs\n", "LOST test_it.py::test_n["]);
    assert_eq!(outs[0], outs[1]);
}

#[test]
fn node_that_was_frozen_joins_again_and_its_result_does_not_count() {
    let bed = Bed::new(SIXTY);
    let frozen = bed.start_stopped("a", &["--tenure-batch", "5"], "test");
    frozen.signal("STOP");
    let expected = summary(&bed.start("b", &[]).ends_with(0));
    assert_has(&expected, &["60 tests on 1 node", ": 60 passed, 0 failed, 5 lost runs\n"]);
    bed.release();
    frozen.signal("CONT");
    let out = frozen.ends_with(0);
    assert_has(&out, &["this node has lost its session and joins again"]);
    assert_eq!(bed.runs().iter().filter(|run| run.starts_with("a ")).count(), 1);
    assert_eq!(summary(&out), expected);
}

#[test]
fn interrupted_node_returns_its_tests_at_once() {
    let bed = Bed::new(SIXTY);
    let first = bed.start_stopped("a", &[], "test");
    first.signal("TERM");
    first.ends_with(2);
    let out = bed.start("b", &[]).ends_with(0);
    assert_has(&summary(&out), &["60 tests on 1 node", ": 60 passed, 0 failed\nb: 60 tests"]);
}

#[test]
fn test_that_fails_and_then_passes_is_flaky_and_the_node_succeeds() {
    let bed = Bed::new(
        "
import os, pathlib

def test_flaky():
    failed = pathlib.Path(os.environ['BED'], 'failed')
    if not failed.exists():
        failed.touch()
        assert False, 'only once'
",
    );
    let out = bed.start("a", &[]).ends_with(0);
    assert_has(&out, &["test_it.py::test_flaky REQUEUED", "only once", "1 passed, 1 requeued in"]);
    let expected = "FLAKY test_it.py::test_flaky (1 failed run, passed in the end)";
    assert_has(&summary(&out), &["1 test on 1 node in ", "1 requeue\n", expected]);
}

#[test]
fn failures_of_all_phases_fail_every_node_and_others_do_not() {
    let bed = Bed::new(
        "
import pytest

@pytest.fixture
def broken_setup():
    raise ValueError('no setup')

@pytest.fixture
def broken_teardown():
    yield
    raise ValueError('no teardown')

def test_call():
    assert 1 == 2, 'no luck'

def test_setup(broken_setup):
    pass

def test_teardown(broken_teardown):
    pass

@pytest.mark.skip
def test_skipped():
    pass

@pytest.mark.xfail
def test_expected():
    assert False

def test_known():
    assert False
",
    );
    fs::write(bed.file("known"), "# Flaky since May.\ntest_it.py::test_known\n").expect("writable");
    let args = ["--tenure-max-requeues=0", "--tenure-known-flaky=../known"];
    let nodes = ["a", "b"].map(|name| bed.start_with(name, &args, &[("BED_NODES", "2")]));
    let outs = nodes.each_ref().map(|node| summary(&node.ends_with(1)));
    let parts = [
        "6 tests on ",
        "2 passed, 3 failed, 1 known to be flaky\n",
        "FAILED test_it.py::test_call (FAILED on ",
        "    test_it.py:14: AssertionError: no luck",
        "FAILED test_it.py::test_setup (SETUP_FAILED on ",
        "ValueError: no setup",
        "FAILED test_it.py::test_teardown (TEARDOWN_FAILED on ",
        "ValueError: no teardown",
        "FLAKY test_it.py::test_known (1 failed run, known to be flaky)",
    ];
    assert_has(&outs[0], &parts);
    assert_eq!(outs[0], outs[1]);
}

#[test]
fn node_with_a_test_that_hangs_ends_and_another_one_finishes() {
    let bed = Bed::new(SIXTY);
    let args = ["--tenure-timeout", "2"];
    let hung = bed.start_stopped("a", &args, "test");
    let other = bed.start("b", &args);
    let out = hung.ends_with(43);
    let parts = ["(most recent call first)", "in wait_for", "within 2 s (verdict: requeued)"];
    assert_has(&out, &parts);
    let out = summary(&other.ends_with(0));
    bed.assert_each_ran_once("a");
    let expected = [": 60 passed, 0 failed, 1 requeue\n", "FLAKY test_it.py::test_n["];
    assert_has(&out, &expected);
    assert!(!out.contains("LOST"), "{out}");
}

#[test]
fn processes_that_tests_fork_take_no_part() {
    let bed = Bed::new(
        "
import multiprocessing, os, time

def test_fork():
    child = os.fork()
    if child == 0:
        raise SystemExit(0)
    os.waitpid(child, 0)

def test_terminate():
    child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join()
    assert child.exitcode == -15

def test_key():
    assert 'TENURE_KEY' not in os.environ
",
    );
    let out = bed.start("a", &["--tenure-max-requeues=0"]).ends_with(0);
    assert_has(&summary(&out), &["3 tests on 1 node in ", ": 3 passed, 0 failed\n"]);
    assert_eq!(bed.runs().len(), 3);
}

#[test]
fn build_stops_after_too_many_failures() {
    let bed = Bed::new(
        "
import pytest

@pytest.mark.parametrize('n', range(20))
def test_n(n):
    assert False
",
    );
    let out = bed.start("a", &["--tenure-max-requeues", "0", "--maxfail", "3"]).ends_with(44);
    let expected = [
        "20 tests on 1 node in ",
        ": 0 passed, 3 failed, 17 not run\n",
        "ERROR: 3 tests have failed; the limit is 3 (exit code 44)",
    ];
    assert_has(&summary(&out), &expected);
    assert_eq!(bed.runs().len(), 3);
}

#[test]
fn shared_fixtures_are_kept_between_tests_and_torn_down_once() {
    let tests = "
import os, pathlib, pytest

def record(text):
    with open(pathlib.Path(os.environ['BED'], 'fixtures'), 'a') as file:
        file.write(text + '\\n')

@pytest.fixture(scope='session')
def shared():
    record('up')
    yield
    record('down')

class TestOne:
    @pytest.fixture(scope='class', autouse=True)
    def own(self, shared):
        record('one up')
        yield
        record('one down')

    @pytest.mark.parametrize('n', range(5))
    def test_n(self, n):
        pass

class TestTwo:
    @pytest.mark.parametrize('n', range(5))
    def test_n(self, n, shared):
        pass
";
    for batch in ["1", "4", "100"] {
        let bed = Bed::new(tests);
        let out = bed.start("a", &["--tenure-batch", batch]).ends_with(0);
        assert_has(&out, &["10 tests on 1 node"]);
        let lines = fs::read_to_string(bed.file("fixtures")).expect("text");
        assert!(lines.starts_with("up\n") && lines.ends_with("down\n"), "{lines}");
        let count = |text| lines.lines().filter(|line| *line == text).count();
        assert_eq!((count("up"), count("down")), (1, 1), "{lines}");
        assert_eq!(count("one up"), count("one down"), "{lines}");
    }
}

#[test]
fn empty_list_succeeds_and_another_list_is_refused() {
    let bed = Bed::new(SIXTY);
    let out = bed.start("a", &["-k", "nothing"]).ends_with(0);
    assert_has(&summary(&out), &["no tests: the list is empty"]);
    let out = bed.start("b", &[]).ends_with(42);
    assert_has(&out, &["build acme/4711 has other tests: 0 tests with", "this node has 60 with"]);
    assert_eq!(bed.runs(), [""; 0]);
}

#[test]
fn what_cannot_work_is_refused_before_any_test_runs() {
    let bed = Bed::new(SIXTY);
    let out = bed.start("a", &["-n", "2"]).ends_with(4);
    assert_has(&out, &["ERROR: --tenure: the options -n, --dist and --tx of pytest-xdist"]);
    let twice = ["--keep-duplicates", "test_it.py", "test_it.py"];
    let out = bed.start("a", &twice).ends_with(4);
    assert_has(&out, &["test_it.py::test_n[0] is in the list twice"]);
    let out = bed.start_with("a", &[], &[("TENURE_BUILD", "a b")]).ends_with(42);
    assert_has(&out, &["the id of the build has the character ' '"]);
    let url = format!("http://{}", free_address());
    let env = [("TENURE_SERVER", url.as_str()), ("BED_STOP", "unreachable")];
    let out = bed.start_with("a", &[], &env).ends_with(42);
    assert_has(&out, &["has not answered for 1 s", "exit code 42"]);
    assert_eq!(bed.runs(), [""; 0]);
}
