//! `tenure demo builds`: the real binary plays its scenario, and leaves nothing behind.

#[path = "../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;
#[path = "../../../crates/tenure-cli/tests/common/demo.rs"]
mod demo;

use std::path::Path;

use common::{stderr, stdout, tenure};
use demo::{Demo, processes_in, words_after};

/// Returns the name of the node in the first command line that kills one, after `words`.
fn killed_after<'a>(out: &'a str, words: &str) -> &'a str {
    let line = words_after(words_after(out, words), "$ kill -9 ").lines().next().expect("a line");
    line.rsplit(' ').next().expect("a word")
}

#[test]
fn the_scenario_happens_as_promised_and_leaves_nothing() {
    let mut demo = Demo::start("builds", &[]);
    demo.until_out("leads in term 1");
    assert!(processes_in(demo.tmp.path()).len() > 4, "the nodes are found");
    demo.until_out("leads in term 2");
    demo.until_out("5. the nodes that are left");
    let status = demo.wait();
    let out = demo.out();
    assert_eq!(status.code(), Some(0), "{out}{}", demo.err());
    demo.assert_nothing_left();
    let (leader, node) = (killed_after(&out, "2. the leader"), killed_after(&out, "4. node-"));
    assert_ne!(leader, node, "{out}");
    assert!(out.contains(&format!("{leader} leads in term 1")), "{out}");
    assert!(!out.contains(&format!("{leader} leads in term 2")), "{out}");
    for part in [
        "has published 200 tests in one step",
        "search/test_07 has failed on node-",
        " is killed in the middle of checkout/test_03",
        "was 3s old: checkout/test_03 is queued again",
        " of 200 tests have their result, 2 nodes",
        "build demo: 200 tests, 200 passed in ",
        "FLAKY search/test_07 on node-",
        "LOST checkout/test_03 on node-",
        "200 tests, 202 runs: every test counts once",
        "tenures: 0 violations\n",
        "next: tenure demo builds --keep",
    ] {
        assert!(out.contains(part), "{part} is missing: {out}");
    }
    let nodes = words_after(&out, "\nnodes: ").lines().next().expect("a line");
    assert!(!nodes.contains(leader) && nodes.contains(node), "{nodes}");
    assert!(!out.contains('\u{1b}'), "no escape codes: {out}");
}

#[test]
fn an_interrupt_ends_the_demo_its_nodes_and_their_tests() {
    let mut demo = Demo::start("builds", &[]);
    demo.until_out("leads in term 1");
    demo.interrupt();
    assert_eq!(demo.wait().code(), Some(130), "{}", demo.err());
    demo.assert_nothing_left();
    assert!(!demo.out().contains("leads in term 2"), "it does not wait for a leader");
}

#[test]
fn a_kept_server_runs_the_suggested_commands_until_an_interrupt() {
    let mut demo = Demo::start("builds", &["--keep"]);
    demo.until_out("leads in term 2");
    demo.until_out("4. node-");
    demo.until_out("serves until Ctrl-C");
    let out = demo.out();
    let commands: Vec<_> = out.lines().filter_map(|line| line.strip_prefix("next: ")).collect();
    let (export, rest) = commands.split_first().expect("commands");
    let data = export.split_whitespace().nth(1).and_then(|word| word.strip_prefix("TENURE_DATA="));
    let data = Path::new(data.unwrap_or_else(|| panic!("no directory: {out}")));
    assert!(rest.len() > 2, "{out}");
    for line in rest {
        // The meaning follows after several spaces.
        let command = line.split("  ").next().expect("command");
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let output = tenure(data).args(words).output().expect("it runs");
        assert!(output.status.success(), "{command}: {}{}", stdout(&output), stderr(&output));
    }
    demo.interrupt();
    assert_eq!(demo.wait().code(), Some(0), "the scenario was complete: {}", demo.err());
    demo.assert_nothing_left();
}
