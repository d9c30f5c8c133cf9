//! `tenure demo clusters`: the real binary plays its scenario, and leaves nothing behind.

#[path = "../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;
#[path = "../../../crates/tenure-cli/tests/common/demo.rs"]
mod demo;

use std::path::Path;

use common::{stderr, stdout, tenure};
use demo::{Demo, processes_in, words_after};

#[test]
fn the_scenario_happens_as_promised_and_leaves_nothing() {
    let mut demo = Demo::start("clusters", &[]);
    demo.until_out("shop: CREATE");
    assert!(processes_in(demo.tmp.path()).len() > 3, "the workers are found");
    demo.until_out("6. another worker");
    let status = demo.wait();
    let out = demo.out();
    assert_eq!(status.code(), Some(0), "{out}{}", demo.err());
    demo.assert_nothing_left();
    for part in [
        "attached aws:shop.demo.example.com",
        "is creating aws:shop.demo.example.com with another configuration",
        "CREATE of aws:shop.demo.example.com succeeded",
        "shop is reached at https://api.shop.demo.example.com:6443",
        " are left in the cloud",
        "the cloud has nothing of shop",
        "night is DESTROYED by the operation JANITOR_DESTROY",
        "blog: removing what an earlier attempt has created",
        "blog: verified twice: the cloud lists no resource",
        "in attempt 2: READY",
        "tenures: 0 violations\n",
        "next: tenure demo clusters --keep",
    ] {
        assert!(out.contains(part), "{part} is missing: {out}");
    }
    let end = words_after(&out, "the cloud has nothing of blog-");
    assert!(end.contains("resources of blog-"), "{end}");
    assert!(!out.contains("kubeadmin\", and password"), "{out}");
    assert!(!out.contains('\u{1b}'), "no escape codes: {out}");
}

#[test]
fn an_interrupt_ends_the_demo_its_workers_and_their_installers() {
    let mut demo = Demo::start("clusters", &[]);
    demo.until_out("shop: CREATE, 10 %");
    demo.interrupt();
    assert_eq!(demo.wait().code(), Some(130), "{}", demo.err());
    demo.assert_nothing_left();
    assert!(!demo.out().contains("READY"), "it does not wait for a cluster");
}

#[test]
fn a_kept_server_runs_the_suggested_commands_until_an_interrupt() {
    let mut demo = Demo::start("clusters", &["--keep"]);
    demo.until_out("3. blog");
    demo.until_out("6. another worker");
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
