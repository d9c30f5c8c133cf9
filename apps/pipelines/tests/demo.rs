//! `tenure demo pipelines`: the real binary plays its scenario, and leaves nothing behind.

#[path = "../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;
#[path = "../../../crates/tenure-cli/tests/common/demo.rs"]
mod demo;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{TENURE, stderr, stdout, tenure};
use demo::{Demo, processes_in, temporary_dir};

/// Returns status and id in the answer to the first command that contains `words`.
fn answer_to(out: &str, words: &str) -> (String, String) {
    let mut lines = out.lines().skip_while(|line| !line.contains(words)).skip(1);
    let line = lines.next().unwrap_or_else(|| panic!("no answer to {words}: {out}"));
    let (status, rest) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
    let id = rest.split(':').next().unwrap_or_default();
    assert_eq!(id.len(), 32, "{line}");
    (status.to_owned(), id.to_owned())
}

#[test]
fn the_scenario_happens_as_promised_and_leaves_nothing() {
    let mut demo = Demo::start("pipelines", &[]);
    demo.until_out("extract RUNNING");
    assert!(processes_in(demo.tmp.path()).len() > 1, "the commands of the steps are found");
    demo.until_out("2. bob triggers it");
    demo.until_out("5. import fails");
    let status = demo.wait();
    let out = demo.out();
    assert_eq!(status.code(), Some(0), "{out}{}", demo.err());
    demo.assert_nothing_left();
    let (ann, bob) = (answer_to(&out, "--by ann"), answer_to(&out, "--by bob"));
    assert_eq!((ann.0.as_str(), bob.0.as_str()), ("PENDING", "RUNNING"), "{out}");
    assert_eq!(ann.1, bob.1, "the duplicate gets the id of the active run");
    assert_ne!(answer_to(&out, "--by eve").1, ann.1, "another tenant has its own run");
    for part in [
        "acme/billing: publish COMPLETE after",
        "globex/billing is COMPLETE after",
        "acme/report is CANCELLED after",
        "acme/import: fetch RETRYING, try 1: BUSY: the source is busy",
        "acme/import: load FAILED after",
        "tenures: 0 violations\n",
        "next: tenure demo pipelines --keep",
    ] {
        assert!(out.contains(part), "{part} is missing: {out}");
    }
    assert!(!out.contains('\u{1b}'), "no escape codes: {out}");
}

#[test]
fn an_interrupt_ends_the_demo_and_removes_its_directory() {
    let mut demo = Demo::start("pipelines", &[]);
    demo.until_out("globex/billing: extract RUNNING");
    demo.interrupt();
    assert_eq!(demo.wait().code(), Some(130), "{}", demo.err());
    demo.assert_nothing_left();
    assert!(!demo.out().contains("publish RUNNING"), "it does not wait for the steps");
}

#[test]
fn a_kept_server_runs_the_suggested_commands_until_an_interrupt() {
    let mut demo = Demo::start("pipelines", &["--keep"]);
    demo.until_out("5. import fails");
    demo.until_out("serves until Ctrl-C");
    let out = demo.out();
    let commands: Vec<_> = out.lines().filter_map(|line| line.strip_prefix("next: ")).collect();
    let (export, rest) = commands.split_first().expect("commands");
    let data = export.split_whitespace().nth(1).and_then(|word| word.strip_prefix("TENURE_DATA="));
    let data = Path::new(data.unwrap_or_else(|| panic!("no directory: {out}")));
    assert!(rest.len() > 2, "{out}");
    let bin = Path::new(TENURE).parent().expect("directory").display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    for line in rest {
        // The meaning follows after several spaces.
        let command = line.split("  ").next().expect("command");
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("PATH", &path).stdin(Stdio::null());
        for (name, value) in tenure(data).get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let output = shell.output().expect("sh");
        assert!(output.status.success(), "{command}: {}{}", stdout(&output), stderr(&output));
    }
    demo.interrupt();
    assert_eq!(demo.wait().code(), Some(0), "the scenario was complete: {}", demo.err());
    demo.assert_nothing_left();
}

#[test]
fn demos_are_listed() {
    let dir = temporary_dir();
    let run = |args: &[&str]| tenure(dir.path()).args(args).output().expect("it runs");
    let listed = stdout(&run(&["demo"]));
    assert!(listed.lines().any(|line| line.starts_with("tenure demo pipelines ")), "{listed}");
    assert!(stdout(&run(&["demo", "-o", "json"])).contains("\"name\": \"pipelines\""));
    let unknown = run(&["demo", "nothing"]);
    assert_eq!(unknown.status.code(), Some(2));
    let listed = stderr(&unknown);
    let names = listed.split_once("expected one of: ").map(|(_, names)| names.trim());
    assert!(
        names.is_some_and(|names| names.split(", ").any(|name| name == "pipelines")),
        "{listed}"
    );
    let help = stdout(&run(&["demo", "--help"]));
    assert!(help.contains("Examples:\n  tenure demo "), "{help}");
}
