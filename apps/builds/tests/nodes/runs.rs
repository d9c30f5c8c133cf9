//! Builds without faults: what nodes run, print and write.

use crate::bed::{Bed, StoreKind};

fn three_nodes_run_each_test_once_and_print_the_same_summary(store: StoreKind) {
    let bed = Bed::start(store);
    let tests = bed.tests(40);
    let options = ["--tests", tests.as_str()];
    let mut nodes: Vec<_> = ["a", "b", "c"].map(|worker| bed.node(worker, &options)).into();
    for node in &mut nodes {
        assert_eq!(node.wait(), Some(0), "{}", node.err());
    }
    let summary = nodes[0].out();
    assert!(summary.starts_with("build x: 40 tests, 40 passed in "), "{summary}");
    assert!(nodes.iter().all(|node| node.out() == summary));
    for n in 1..=40 {
        assert_eq!(bed.runs(&format!("t{n}")).len(), 1, "t{n}");
    }
}

#[test]
fn three_nodes_on_the_embedded_store_run_each_test_once_and_print_the_same_summary() {
    three_nodes_run_each_test_once_and_print_the_same_summary(StoreKind::Embedded);
}

#[test]
fn three_nodes_on_postgres_run_each_test_once_and_print_the_same_summary() {
    three_nodes_run_each_test_once_and_print_the_same_summary(StoreKind::Postgres);
}

#[test]
fn failed_tests_are_run_again_and_reported_with_their_output() {
    let bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(20);
    bed.write("do.t3", "echo 'expected <1>, got 2'; code=7");
    bed.write("do.t5", "[ -e failed ] || { touch failed; code=1; }");
    let (junit, failures) = (bed.file("junit.xml"), bed.file("failures.txt"));
    let (junit, failures) = (junit.to_str().unwrap(), failures.to_str().unwrap());
    let mut node = bed.node(
        "a",
        &[
            "--tests",
            &tests,
            "--requeue-tolerance",
            "0.5",
            "--junit",
            junit,
            "--failures",
            failures,
        ],
    );
    assert_eq!(node.wait(), Some(1), "{}", node.err());
    let summary = node.out();
    for line in [
        "20 tests, 19 passed, 1 failed",
        "2 failed runs were repeated",
        "FAILED t3 on a, failed 2 times (EXIT_7)\n    expected <1>, got 2\n",
        "FLAKY t5 on a, failed once (EXIT_1)",
        "nodes: a 20 tests in ",
    ] {
        assert!(summary.contains(line), "{line}: {summary}");
    }
    assert_eq!(bed.read("failures.txt"), "t3\n");
    let xml = bed.read("junit.xml");
    assert!(xml.contains("tests=\"20\" failures=\"1\""), "{xml}");
    assert!(xml.contains("expected &lt;1&gt;, got 2"), "{xml}");
}

#[test]
fn a_batch_that_fails_is_split_to_find_the_test() {
    let bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(12);
    let script = format!(
        "echo \"batch $(wc -l < \"$1\")\" >> {0}/journal; ! grep -qx t7 \"$1\"",
        bed.dir.path().display()
    );
    let options = ["--tests", tests.as_str(), "--batch", "12", "--max-requeues", "0"];
    let mut node = bed.node_with("a", &options, &["sh", "-c", &script, "sh", "{file}"]);
    assert_eq!(node.wait(), Some(1), "{}", node.err());
    let summary = node.out();
    assert!(summary.contains("12 tests, 11 passed, 1 failed"), "{summary}");
    assert!(summary.contains("FAILED t7 "), "{summary}");
    let journal = bed.read("journal");
    assert!(journal.starts_with("batch 12\nbatch 1\n"), "{journal}");
    assert_eq!(journal.lines().count(), 13);
}

#[test]
fn only_the_leader_collects_the_tests() {
    let bed = Bed::start(StoreKind::Embedded);
    let collect =
        format!("echo collected >> {}/collected; seq -f t%g 10", bed.dir.path().display());
    let options = ["--collect", collect.as_str()];
    let mut nodes: Vec<_> = ["a", "b", "c"].map(|worker| bed.node(worker, &options)).into();
    for node in &mut nodes {
        assert_eq!(node.wait(), Some(0), "{}", node.err());
    }
    assert_eq!(bed.read("collected"), "collected\n");
    bed.check_journal(10);
}

#[test]
fn an_empty_list_ends_with_success_and_says_so() {
    let bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(0);
    let mut node = bed.node("a", &["--tests", &tests]);
    assert_eq!(node.wait(), Some(0), "{}", node.err());
    assert_eq!(node.out(), "build x: no tests\n");
    assert!(node.err().contains("has no tests"), "{}", node.err());
}

#[test]
fn the_seed_and_the_tests_decide_the_order() {
    let order = |worker: &str, seed: &str, reverse: bool| {
        let bed = Bed::start(StoreKind::Embedded);
        bed.tests(20);
        if reverse {
            let list = bed.read("tests.txt");
            let lines: Vec<&str> = list.lines().rev().collect();
            bed.write("tests.txt", &lines.join("\n"));
        }
        let tests = bed.file("tests.txt").display().to_string();
        let mut node = bed.node(worker, &["--tests", &tests, "--seed", seed]);
        assert_eq!(node.wait(), Some(0), "{}", node.err());
        let begins = bed.read("journal");
        let tests = begins.lines().filter(|line| line.starts_with("begin"));
        tests.map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = order("a", "1", false);
    assert_eq!(order("b", "1", true), first, "another node, another list order");
    assert_ne!(order("a", "2", false), first);
}

#[test]
fn a_node_that_is_run_again_runs_its_own_failures_again() {
    let bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(6);
    bed.write("do.t2", "[ -e fixed ] || code=1");
    let options = ["--tests", tests.as_str(), "--max-requeues", "0"];
    assert_eq!(bed.node("a", &options).wait(), Some(1));
    assert_eq!(bed.node("b", &options).wait(), Some(1), "another node has nothing to run again");
    assert_eq!(bed.runs("t2").len(), 1);
    bed.write("fixed", "");
    let mut again = bed.node("a", &options);
    assert_eq!(again.wait(), Some(0), "{}", again.err());
    assert!(again.err().contains("running 1 failed tests of this node again"), "{}", again.err());
    assert_eq!(bed.runs("t2").len(), 2);
    assert_eq!(bed.runs("t1").len(), 1);
}

#[test]
fn a_node_that_is_retried_under_another_name_runs_all_failures_again() {
    let bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(6);
    bed.write("do.t2", "[ -e fixed ] || code=1");
    let options = ["--tests", tests.as_str(), "--max-requeues", "0", "--max-failures", "1"];
    assert_eq!(bed.node("a", &options).wait(), Some(44));
    bed.write("fixed", "");
    let mut again = bed.node("b", &["--tests", &tests, "--existing"]);
    assert_eq!(again.wait(), Some(0), "{}", again.err());
    assert!(again.err().contains("1 failed tests of all nodes"), "{}", again.err());
}

#[test]
fn slow_tests_of_an_earlier_build_come_first() {
    let bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(8);
    bed.write("do.t4", "sleep 0.3");
    assert_eq!(bed.node("a", &["--tests", &tests]).wait(), Some(0));
    bed.write("journal", "");
    let mut command = bed.command();
    let script = bed.script();
    command.args(["build", "run", "y", "--tests", &tests, "--timings-from", "x", "--"]);
    command.args(&script);
    let mut node = bed.spawn("y", command);
    assert_eq!(node.wait(), Some(0), "{}", node.err());
    assert!(bed.read("journal").starts_with("begin t4 "), "{}", bed.read("journal"));
}

#[test]
fn grinding_counts_the_failures_of_each_test() {
    let bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(3);
    // Every third run of t2 fails.
    bed.write("do.t2", "echo x >> count; [ $(($(wc -l < count) % 3)) -ne 0 ] || code=1");
    let mut command = bed.command();
    command.args(["build", "grind", "x", "--tests", &tests, "--count", "6", "--"]);
    command.args(bed.script());
    let mut node = bed.spawn("grind", command);
    assert_eq!(node.wait(), Some(1), "{}", node.err());
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let table: Vec<String> = node.out().lines().map(words).collect();
    assert_eq!(table, ["TEST FAILURES RUNS", "t2 2 6"], "{}", node.out());
    assert_eq!(bed.runs("t1").len(), 6);
}

#[test]
fn a_bisection_finds_the_test_that_makes_another_one_fail() {
    let bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(16);
    assert_eq!(bed.node("a", &["--tests", &tests]).wait(), Some(0));
    let journal = bed.read("journal");
    let order: Vec<&str> = journal
        .lines()
        .filter(|line| line.starts_with("end"))
        .map(|line| line.split(' ').nth(1).unwrap())
        .collect();
    let (culprit, last) = (order[5], order[15]);
    let script = format!("! {{ grep -qx {culprit} \"$1\" && grep -qx {last} \"$1\"; }}");
    let bisect = |test: &str, script: &str| {
        bed.run(&["bisect", "x", test, "--", "sh", "-c", script, "sh", "{file}"])
    };
    assert_eq!(bisect(last, &script), (Some(0), format!("{culprit}\n")));
    assert_eq!(bisect(last, "true"), (Some(1), String::new()), "it cannot be reproduced");
    assert_eq!(bisect(last, "false"), (Some(1), String::new()), "it fails alone");
}
