//! `tenure bench` from the command line. Its load generators have their own tests.

mod common;

use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use common::tenure;

/// Runs a short pipeline benchmark.
fn run_pipelines_bench(args: &[&str]) -> Output {
    let data = TempDir::new().expect("a temporary directory");
    let short = ["--seconds", "50ms", "--in-flight", "2", "--at-once", "2"];
    let mut command = tenure(data.path());
    command.env_remove("TENURE_BENCH_STORE");
    let output = command.args(["bench", "pipelines"]).args(short).args(args).output();
    let output = output.expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let left: Vec<_> = std::fs::read_dir(data.path()).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
    output
}

#[test]
fn table_output_has_all_rows_and_progress_goes_to_stderr() {
    let output = run_pipelines_bench(&["--store", "memory:"]);
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    for words in ["fdatasync", "loopback", "TRIGGERS/S", "tenure memory: duplicates"] {
        assert!(stdout.contains(words), "{words}: {stdout}");
    }
    assert!(!stdout.contains("flush"), "nothing is flushed in memory: {stdout}");
    assert!(stdout.trim_end().ends_with("overlaps: 0"), "{stdout}");
    assert!(stderr.contains("in-memory lock: trigger to start, 2 concurrent"), "{stderr}");
}

#[test]
fn json_output_has_one_row_per_figure() {
    let output = run_pipelines_bench(&["--only", "duplicates", "-o", "json"]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows}");
    assert_eq!(rows[1]["what"], "tenure embedded, durable: duplicates");
    assert_eq!(rows[1]["in_flight"], 2);
    assert!(rows[1]["ratio"].as_str().unwrap().contains("× of in-memory lock"), "{rows}");
}

#[test]
fn claims_are_measured_before_during_and_after_an_idle_transaction() {
    let data = TempDir::new().expect("a temporary directory");
    let server = tenure_testbed::shared();
    let url = server.url(&server.new_database().expect("a new database"));
    let load = ["--only", "beside", "--idle-for", "1s", "--seconds", "50ms", "--in-flight", "2"];
    let mut command = tenure(data.path());
    command.args(["bench", "jobs", "--store", &url, "-o", "json"]).args(load);
    let output = command.output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let what: Vec<&str> =
        rows.as_array().unwrap().iter().filter_map(|r| r["what"].as_str()).collect();
    assert_eq!(
        (what[0], what[2]),
        ("claim without an idle transaction", "claim after the idle transaction")
    );
    assert!(what[1].starts_with("claim with a transaction idle for "), "{what:?}");
    assert!(!what[1].contains("idle for 0 s"), "{what:?}");
}

#[test]
fn batched_calls_are_measured() {
    let data = TempDir::new().expect("a temporary directory");
    let load = ["--only", "calls", "--resources", "10", "--seconds", "100ms"];
    let calls = ["--in-flight", "12", "--in-a-call", "4", "-o", "json"];
    let mut command = tenure(data.path());
    command.env_remove("TENURE_BENCH_STORE");
    let output = command.args(["bench", "jobs"]).args(load).args(calls).output();
    let output = output.expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let what = "embedded, durable, in calls of 4, 10 resource(s), uniform: submit to start";
    assert_eq!(rows[0]["what"], what, "{rows}");
    assert!(rows[0]["pairs_per_s"].as_f64().unwrap() > 0.0, "{rows}");
}

#[test]
fn help_describes_the_measurements_and_the_baseline() {
    let data = TempDir::new().expect("a temporary directory");
    let output = tenure(data.path()).args(["bench", "pipelines", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    // Independent of line wrapping.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["an in-memory lock instead of the store", "Examples:", "--at-once"] {
        assert!(help.contains(words), "{words}: {help}");
    }
}

#[test]
fn batches_are_measured_beside_single_requests() {
    let data = TempDir::new().expect("a temporary directory");
    let mut command = tenure(data.path());
    command.env_remove("TENURE_BENCH_STORE");
    let few = ["--tests", "50", "--single", "10", "--in-a-batch", "20", "--in-flight", "2"];
    let output = command.args(["bench", "batch", "-o", "json"]).args(few).output();
    let output = output.expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 5, "{rows}");
    for n in [1, 3] {
        assert!(rows[n]["ratio"].as_str().unwrap().contains("× of single requests"), "{rows}");
    }
}

#[test]
fn claims_of_one_group_are_measured_beside_those_of_many() {
    let data = TempDir::new().expect("a temporary directory");
    let mut command = tenure(data.path());
    command.env_remove("TENURE_BENCH_STORE");
    let few = ["--only", "groups", "--groups", "3", "--seconds", "50ms"];
    let output = command.args(["bench", "jobs", "-o", "json"]).args(few).output();
    let output = output.expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 4, "{rows}");
    for n in [1, 3] {
        assert!(rows[n]["ratio"].as_str().unwrap().contains("× of one group"), "{rows}");
    }
}
