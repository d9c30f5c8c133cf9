//! Nodes that are killed, frozen or cut off: nothing is lost, nothing counts twice.

use tenure_testbed::{Fault, Proxy};

use crate::bed::{Bed, StoreKind};
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
    c06_a_leader_that_is_killed_is_replaced_and_each_test_runs_once
    c07_a_leader_that_was_frozen_wakes_up_as_a_follower
    c13_a_test_of_a_frozen_node_is_dead_before_another_node_runs_it
    six_nodes_with_random_kills_lose_nothing
}

fn c06_a_leader_that_is_killed_is_replaced_and_each_test_runs_once(store: StoreKind) {
    let bed = Bed::start(store);
    // The first leader hangs while it collects.
    let collect = format!(
        "cd {}; if mkdir first; then sleep 60; fi; seq -f t%g 20",
        bed.dir.path().display()
    );
    let options = ["--collect", collect.as_str()];
    let mut leader = bed.node("a", &options);
    until(|| bed.file("first").exists());
    let mut others: Vec<_> = ["b", "c"].map(|worker| bed.node(worker, &options)).into();
    until(|| bed.status()["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3));
    leader.kill();
    for node in &mut others {
        assert_eq!(node.wait(), Some(0), "{}", node.err());
    }
    assert_eq!(bed.status()["elections"], 2);
    for n in 1..=20 {
        assert_eq!(bed.runs(&format!("t{n}")).len(), 1, "t{n}");
    }
}

fn c07_a_leader_that_was_frozen_wakes_up_as_a_follower(store: StoreKind) {
    let bed = Bed::start(store);
    bed.write("do.t1", "while [ ! -e go ]; do sleep 0.05; done");
    let collect = format!(
        "cd {}; if mkdir first; then sleep 60; echo stale; else seq -f t%g 5; fi",
        bed.dir.path().display()
    );
    let options = ["--collect", collect.as_str()];
    let mut frozen = bed.node("a", &options);
    until(|| bed.file("first").exists());
    frozen.signal("STOP");
    let mut other = bed.node("b", &options);
    until(|| bed.status()["master_status"] == "ready");
    frozen.signal("CONT");
    until(|| frozen.err().contains("joining the build again"));
    bed.write("go", "");
    assert_eq!(other.wait(), Some(0), "{}", other.err());
    assert_eq!(frozen.wait(), Some(0), "{}", frozen.err());
    assert_eq!(frozen.out(), other.out());
    let report = bed.report();
    assert_eq!((&report["total"], &report["passed"]), (&5.into(), &5.into()), "{report}");
}

fn c13_a_test_of_a_frozen_node_is_dead_before_another_node_runs_it(store: StoreKind) {
    let bed = Bed::start(store);
    let tests = bed.tests(1);
    // A second run of the test fails if the first one is alive.
    bed.write(
        "do.t1",
        "if [ \"$TENURE_WORKER\" = a ]; then echo $$ > pid; while true; do sleep 0.1; done; fi\n\
         kill -0 \"$(cat pid)\" 2> /dev/null && code=9",
    );
    let mut frozen = bed.node("a", &["--tests", &tests]);
    until(|| !bed.read("pid").is_empty());
    frozen.signal("STOP");
    let mut other = bed.node("b", &["--tests", &tests]);
    assert_eq!(other.wait(), Some(0), "{}", other.err());
    frozen.signal("CONT");
    assert_eq!(frozen.wait(), Some(0), "{}", frozen.err());
    let report = bed.report();
    assert_eq!(report["lost_tests"][0]["worker"], "b", "{report}");
    assert_eq!(bed.runs("t1"), [("a".to_owned(), false), ("b".to_owned(), true)]);
}

/// A small generator: faults are random, and the same in each run of the test.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit).expect("it is small")
    }
}

fn six_nodes_with_random_kills_lose_nothing(store: StoreKind) {
    const TESTS: usize = 300;
    let bed = Bed::start(store);
    let tests = bed.tests(TESTS);
    for n in 1..=TESTS {
        bed.write(&format!("do.t{n}"), "sleep 0.02");
    }
    let options = ["--tests", tests.as_str(), "--max-losses", "40"];
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut nodes: Vec<_> = names.map(|worker| bed.node(worker, &options)).into();
    let mut random = Random(0x5eed);
    for kill in 0..8 {
        // The next kill comes when some more tests have been run.
        let runs = || bed.read("journal").lines().count();
        let (before, more) = (runs(), 10 + random.below(40));
        until(|| runs() >= before + more || bed.status()["master_status"] == "finished");
        let victim = random.below(6);
        if nodes[victim].is_running() {
            nodes[victim].kill();
            let worker = format!("{}{kill}", names[victim]);
            nodes[victim] = bed.node(&worker, &options);
        }
    }
    for node in &mut nodes {
        assert_eq!(node.wait(), Some(0), "{}", node.err());
    }
    let report = bed.report();
    assert_eq!(report["total"], TESTS, "{report}");
    assert_eq!(report["passed"], TESTS, "{report}");
    bed.check_journal(TESTS);
    let verify = bed.command().arg("verify").output().expect("the binary runs");
    assert!(verify.status.success(), "{verify:?}");
}

#[test]
fn a_node_that_is_cut_off_stops_its_test_before_another_node_runs_it() {
    let bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(1);
    bed.write(
        "do.t1",
        "if [ \"$TENURE_WORKER\" = a ]; then echo $$ > pid; while true; do sleep 0.1; done; fi\n\
         kill -0 \"$(cat pid)\" 2> /dev/null && code=9",
    );
    let port = bed.listen.rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::start(port).expect("a proxy");
    let mut command = bed.command();
    let url = format!("http://127.0.0.1:{}", proxy.port());
    command.args(["build", "run", "x", "--worker", "a", "--server", &url, "--tests", &tests]);
    command.arg("--").args(bed.script());
    let mut cut_off = bed.spawn("a", command);
    until(|| !bed.read("pid").is_empty());
    proxy.set_fault(Fault::Blackhole);
    let mut other = bed.node("b", &["--tests", &tests]);
    assert_eq!(other.wait(), Some(0), "{}", other.err());
    proxy.set_fault(Fault::None);
    proxy.disconnect_all();
    assert_eq!(cut_off.wait(), Some(0), "{}", cut_off.err());
    assert_eq!(bed.runs("t1"), [("a".to_owned(), false), ("b".to_owned(), true)]);
}

#[test]
fn a_build_survives_a_restart_of_the_server() {
    let mut bed = Bed::start(StoreKind::Embedded);
    let tests = bed.tests(40);
    for n in 1..=40 {
        bed.write(&format!("do.t{n}"), "sleep 0.05");
    }
    let mut nodes: Vec<_> = ["a", "b"].map(|worker| bed.node(worker, &["--tests", &tests])).into();
    until(|| bed.read("journal").lines().count() > 10);
    bed.kill_server();
    bed.launch();
    for node in &mut nodes {
        assert_eq!(node.wait(), Some(0), "{}", node.err());
    }
    let report = bed.report();
    assert_eq!(report["passed"], 40, "{report}");
}
