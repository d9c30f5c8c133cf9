//! `tenure config check`, and servers and workers with an invalid file.

mod common;

use std::fs;
use std::path::Path;
use std::process::Output;

use common::{stderr, stdout, tenure};
use serde_json::{Value, json};

const VALID: &str = "\
[kinds.database]
states = [\"PENDING\", \"CREATING\", \"READY\", \"FAILED\"]
[kinds.database.operations.create]
from = \"PENDING\"
during = \"CREATING\"
ok = \"READY\"
failed = \"FAILED\"
[kinds.database.operations.check]
[kinds.report.operations.run]
";

/// Three problems on three lines.
const INVALID: &str = "\
[kinds.database.operations.create]
form = \"PENDING\"
limit = \"soon\"
[worker]
slots = 0
";

fn check(dir: &Path, args: &[&str]) -> Output {
    let mut command = tenure(dir);
    command.current_dir(dir).args(["config", "check"]).args(args);
    command.output().expect("it runs")
}

fn dir_with_config(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::write(dir.path().join("tenure.toml"), text).expect("it is writable");
    dir
}

#[test]
fn the_example_of_every_app_is_valid() {
    let apps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apps");
    for app in tenure_cli::apps::installed().iter() {
        let example = apps.join(app.name()).join("example.toml");
        let output = check(&apps, &[&example.display().to_string(), "-o", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(answer[app.name()].as_u64() > Some(0), "it declares nothing: {answer}");
    }
}

#[test]
fn a_valid_file_is_summarized() {
    let dir = dir_with_config(VALID);
    let output = check(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "ok: 2 kinds, 3 operations\n");
    fs::rename(dir.path().join("tenure.toml"), dir.path().join("other.toml")).expect("it moves");
    let output = check(dir.path(), &["other.toml", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let expected = json!({
        "ok": true, "file": "other.toml", "kinds": 2, "operations": 3, "builds": 0, "clusters": 0,
        "pipelines": 0, "problems": [],
    });
    assert_eq!(answer, expected);
}

#[test]
fn the_file_can_be_named_by_an_environment_variable() {
    let dir = dir_with_config(INVALID);
    fs::write(dir.path().join("valid.toml"), VALID).expect("it is writable");
    let mut command = tenure(dir.path());
    command.current_dir(dir.path()).env("TENURE_CONFIG", "valid.toml").args(["config", "check"]);
    assert_eq!(command.output().expect("it runs").status.code(), Some(0));
}

#[test]
fn all_problems_are_reported_with_their_lines() {
    let dir = dir_with_config(INVALID);
    let output = check(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let place = "kinds.database.operations.create";
    let expected = [
        format!("tenure.toml:2: {place}.form: unknown key `form`; did you mean `from`?"),
        format!(
            "tenure.toml:3: {place}.limit: \"soon\" is not a duration; write for example 500ms, \
             30s, 5m, 1h30m or 7d"
        ),
        "tenure.toml:5: worker.slots: it must be between 1 and 4096".to_owned(),
    ];
    assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), expected);
    let output = check(dir.path(), &["-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["ok"], false);
    assert_eq!(answer["problems"].as_array().map(Vec::len), Some(3));
    let last = json!({
        "file": "tenure.toml", "line": 5, "place": "worker.slots",
        "message": "it must be between 1 and 4096",
    });
    assert_eq!(answer["problems"][2], last);
}

#[test]
fn an_unreadable_file_is_a_usage_error() {
    let dir = dir_with_config(VALID);
    let output = check(dir.path(), &["nowhere.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot read nowhere.toml"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

#[test]
fn servers_and_workers_do_not_start_with_an_invalid_file() {
    let dir = dir_with_config(INVALID);
    for args in [vec!["serve"], vec!["serve", "--config", "tenure.toml"], vec!["worker"]] {
        let mut command = tenure(dir.path());
        command
            .current_dir(dir.path())
            .args(&args)
            .args((args[0] == "serve").then_some("--listen"));
        command.args((args[0] == "serve").then_some("127.0.0.1:0"));
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let stderr = stderr(&output);
        for problem in ["tenure.toml:2: ", "tenure.toml:3: ", "tenure.toml:5: "] {
            assert!(stderr.contains(problem), "{args:?}: {stderr}");
        }
    }
}

#[test]
fn problems_of_an_app_file_fail_the_check() {
    let dir = dir_with_config(&format!("{VALID}[pipelines]\ndir = \"pipelines\"\n"));
    fs::create_dir_all(dir.path().join("pipelines/acme")).expect("it is writable");
    fs::write(dir.path().join("pipelines/acme/a.toml"), "limt = 1\n").expect("it is writable");
    let output = check(dir.path(), &[]);
    let printed = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert_eq!(printed.lines().count(), 2, "{printed}");
    assert!(printed.contains("acme/a.toml:1: limt: unknown key"), "{printed}");
    // With a problem of the main file, all are listed.
    let text = fs::read_to_string(dir.path().join("tenure.toml")).expect("it is there");
    fs::write(dir.path().join("tenure.toml"), format!("{text}slots = true\n")).expect("writable");
    let output = check(dir.path(), &["-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["problems"].as_array().map(Vec::len), Some(3), "{answer}");
}

#[test]
fn a_worker_without_commands_does_not_start() {
    let dir = dir_with_config(VALID);
    let mut command = tenure(dir.path());
    let output = command.current_dir(dir.path()).arg("worker").output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("has a `run`"), "{}", stderr(&output));
    fs::remove_file(dir.path().join("tenure.toml")).expect("it is there");
    let mut command = tenure(dir.path());
    let output = command.current_dir(dir.path()).arg("worker").output().expect("it runs");
    assert!(stderr(&output).contains("name one with --config"), "{}", stderr(&output));
}
