//! `tenure pipeline`: the real binary with a real server that runs pipelines.

#[path = "../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;
#[expect(dead_code, reason = "the server itself executes the steps of a run")]
#[path = "../../../crates/tenure-cli/tests/jobs_cli/harness.rs"]
mod harness;

use std::fs;

use common::{signal, stderr, stdout, tenure, until};
use harness::{Site, Terminal, id_in};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Two steps, the first of which waits for the file `go`. Its schedule hardly ever fires.
const BILLING: &str = r#"
description = "Exports costs"
schedule = { cron = "30 2 29 2 *", zone = "UTC" }
[parameters]
date = { type = "date", default = "2030-01-31" }
rows = { type = "integer", default = 3 }
[[steps]]
name = "extract"
command = ["sh", "-c", '''
  echo day $0
  echo ::progress 40 reading
  until [ -e DIR/go ]; do sleep 0.05; done
''', "{{ parameters.date }}"]
[[steps]]
name = "load"
command = ["sh", "-c", "echo loaded; echo '::result {\"rows\":7}'"]
"#;

/// Its first step fails once with a transient error, its second permanently.
const BROKEN: &str = r#"
limit = "90s"
[[steps]]
name = "first"
retry = { attempts = 2, initial = "10ms", max = "10ms" }
command = ["sh", "-c", '''
  [ -e DIR/tried ] && exit 0
  touch DIR/tried
  echo ::error BUSY come back later
  exit 75
''']
[[steps]]
name = "second"
command = ["sh", "-c", "echo ::error NO_SPACE the disk is full; exit 1"]
[[steps]]
name = "third"
command = ["true"]
"#;

/// Stops only when the file `stop` exists.
const STUBBORN: &str = r#"
max_runs = 2
[[steps]]
name = "hold"
command = ["sh", "-c", '''
  trap "until [ -e DIR/stop ]; do sleep 0.05; done; exit 1" TERM
  touch DIR/holds
  while :; do sleep 0.05; done
''']
"#;

/// A server with pipelines of two tenants.
struct Fixture {
    site: Site,
    dir: TempDir,
}

impl Fixture {
    fn start() -> Self {
        let dir = TempDir::new().expect("temporary directory");
        let root = dir.path().display().to_string();
        let declared = [("default/billing", BILLING), ("default/broken", BROKEN)];
        let of_acme = [("acme/billing", BILLING), ("default/stubborn", STUBBORN)];
        for (name, text) in declared.into_iter().chain(of_acme) {
            write(&dir, &format!("pipelines/{name}.toml"), &text.replace("DIR", &root));
        }
        let config = format!("[pipelines]\ndir = \"{root}/pipelines\"\n");
        Self { site: Site::start_with(&config), dir }
    }

    /// Creates a file that a step waits for.
    fn touch(&self, name: &str) {
        write(&self.dir, name, "");
    }

    fn until_exists(&self, name: &str) {
        until(|| self.dir.path().join(name).exists());
    }

    fn run(&self, pipeline: &str) -> String {
        id_in(&self.site.ok(&["pipeline", "run", pipeline]))
    }

    fn shown(&self, id: &str) -> Value {
        self.site.json(&["pipeline", "show", id])
    }

    /// Waits until a step of a run has a status.
    fn until_step(&self, id: &str, index: usize, status: &str) {
        until(|| self.shown(id)["steps"][index]["status"] == status);
    }
}

fn write(dir: &TempDir, name: &str, text: &str) {
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().expect("parent directory")).expect("writable");
    fs::write(path, text).expect("writable");
}

/// Returns the words of a row of a table.
fn words(table: &str, first: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.trim_start().starts_with(first));
    let line = line.unwrap_or_else(|| panic!("no line {first}: {table}"));
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn followed_run_is_reported_in_lines_without_a_terminal() {
    let fixture = Fixture::start();
    let args = ["pipeline", "run", "billing", "--follow", "--by", "ann"];
    let following = fixture.site.spawn(&[&args[..], &["--param", "date=2030-02-01"]].concat());
    following.until_err("billing: extract RUNNING\n");
    let id = following.id();
    until(|| following.out().contains("day 2030-02-01"));
    fixture.touch("go");
    until(|| following.out().contains("COMPLETE"));
    let lines = ["extract | day 2030-02-01", "load | loaded"].join("\n");
    assert_eq!(following.out(), format!("PENDING {id}\n{lines}\nCOMPLETE {id}\n"));
    let err = following.err();
    assert!(err.starts_with("billing was triggered\n"), "{err}");
    for part in
        ["\nbilling: RUNNING\n", "extract COMPLETE after ", "load COMPLETE after ", "\nbilling COM"]
    {
        assert!(err.contains(part), "{part} is missing: {err}");
    }
    assert_eq!(err.matches("extract RUNNING").count(), 1, "reported once: {err}");
    assert!(!err.contains('\u{1b}'), "no escape codes: {err}");
    assert_eq!(following.exit_code(), Some(0));
    // The timeline is hidden from the log for people.
    assert_eq!(fixture.site.ok(&["job", "logs", &id]), format!("{lines}\n"));
    assert!(fixture.site.ok(&["job", "logs", &id, "-o", "json"]).contains("::step "));
    let shown = fixture.shown(&id);
    assert_eq!(shown["parameters"], json!({ "date": "2030-02-01", "rows": 3 }));
    assert_eq!(
        (&shown["trigger_by"], &shown["result"]["load"]["rows"]),
        (&json!("ann"), &json!(7))
    );
}

#[test]
fn failed_run_is_reported_with_its_steps_and_the_remedy() {
    let fixture = Fixture::start();
    let output = fixture.site.server.run(&["pipeline", "run", "broken", "--follow"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let (out, err) = (stdout(&output), stderr(&output));
    let id = id_in(&out);
    assert!(out.ends_with(&format!("\nFAILED {id}\n")), "{out}");
    let remedy = format!(
        "with NO_SPACE: step second: the disk is full; inspect it with `tenure pipeline show \
         {id}`, try again with `tenure pipeline run broken`\n"
    );
    assert!(err.ends_with(&remedy), "{err}");
    assert!(err.contains("broken: first COMPLETE, try 2 after"), "{err}");
    assert!(err.contains("broken: second FAILED after"), "{err}");
    let shown = fixture.site.ok(&["pipeline", "show", &id]);
    assert_eq!(words(&shown, "first")[..3], ["first", "COMPLETE", "2"], "{shown}");
    assert!(words(&shown, "second").ends_with(&["full".to_owned()]), "{shown}");
    assert_eq!(words(&shown, "third"), ["third", "PENDING", "0"], "{shown}");
    assert_eq!(words(&shown, "status"), ["status", "FAILED"]);
    assert_eq!(words(&shown, "error")[..2], ["error", "NO_SPACE:"]);
    let (code, _) = fixture.site.code(&["pipeline", "show", "-f", &id]);
    assert_eq!(code, 1, "same exit code as `run --follow`");
    let json = fixture.site.server.run(&["pipeline", "run", "broken", "--follow", "-o", "json"]);
    let printed: Value = serde_json::from_slice(&json.stdout).expect("one document");
    assert_eq!((&printed["status"], &printed["steps"][1]["tries"]), (&json!("FAILED"), &json!(1)));
    let listed = fixture.site.ok(&["pipeline", "runs", "--status", "failed", "--limit", "1"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(listed.contains("NO_SPACE: step second: the disk is full"), "{listed}");
}

#[test]
fn trigger_during_a_run_attaches_and_is_listed() {
    let fixture = Fixture::start();
    let id = fixture.run("billing");
    fixture.until_step(&id, 0, "RUNNING");
    assert_eq!(fixture.shown(&id[20..])["pipeline_logging_id"], id, "a part of the id suffices");
    let again = ["pipeline", "run", "billing", "--by", "bob", "--param", "rows=5"];
    let again = fixture.site.server.run(&again);
    assert_eq!(stdout(&again), format!("RUNNING {id}\n"));
    assert!(stderr(&again).contains("which has other parameters"), "{}", stderr(&again));
    let triggered = fixture.site.json(&["pipeline", "run", "billing"]);
    assert_eq!(
        (&triggered["pipeline_logging_id"], &triggered["status"]),
        (&json!(id), &json!("RUNNING"))
    );
    until(|| fixture.site.ok(&["pipeline", "runs"]).contains("20 % extract: reading"));
    let runs = fixture.site.ok(&["pipeline", "runs", "--pipeline", "billing"]);
    let run = words(&runs, &id);
    assert_eq!((&*run[1], &*run[2], &*run[5], &*run[6]), ("billing", "RUNNING", "admin", "2"));
    let shown = fixture.site.ok(&["pipeline", "show", &id]);
    assert!(shown.contains("2 other triggers attached"), "{shown}");
    let names = shown.lines().skip_while(|line| !line.contains("ALSO TRIGGERED BY")).skip(1);
    let names: Vec<_> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["bob", "admin"], "{shown}");
    let listed = fixture.site.ok(&["pipeline", "ls"]);
    assert!(!listed.contains("TENANT"), "{listed}");
    let billing = words(&listed, "billing");
    assert_eq!(billing[..4], ["billing", "extract,", "load", "1h00m"], "{listed}");
    assert_eq!(billing.last(), Some(&id), "{listed}");
    assert!(listed.contains("30 2 29 2 *") && listed.contains("-02-29T02:30:00Z"), "{listed}");
    fixture.touch("go");
    assert_eq!(fixture.site.code(&["pipeline", "show", "-f", &id]).0, 0);
    let (out, message) = fixture.site.code(&["pipeline", "runs", "--status", "TIMEOUT"]);
    let none = "no run matches --status TIMEOUT; without filters: tenure pipeline runs\n";
    assert_eq!((out, message.as_str()), (0, none));
}

#[test]
fn cancel_with_wait_waits_for_the_end_of_the_run() {
    let fixture = Fixture::start();
    let following = fixture.site.spawn(&["pipeline", "run", "stubborn", "--follow"]);
    let id = following.id();
    fixture.until_exists("holds");
    let beside = fixture.run("stubborn");
    assert_ne!(beside, id, "two runs may be active");
    assert!(fixture.site.ok(&["pipeline", "ls"]).contains("2 runs"));
    fixture.until_step(&beside, 0, "RUNNING");
    let cancelling = fixture.site.ok(&["pipeline", "cancel", &beside]);
    assert_eq!(cancelling, format!("CANCELLING {beside}\n"));
    let cancel = ["pipeline", "cancel", &id, "--reason", "wrong & late", "--wait"];
    let waiting = fixture.site.spawn(&cancel);
    following.until_err("stubborn: CANCELLING: asked to stop by admin\n");
    assert_eq!(waiting.out(), "", "it did not wait");
    fixture.touch("stop");
    until(|| waiting.out() == format!("CANCELLED {id}\n"));
    assert_eq!(waiting.exit_code(), Some(0));
    following.until_err("by admin: wrong & late\n");
    assert!(following.err().contains("stubborn: hold STOPPED after"), "{}", following.err());
    assert_eq!(following.exit_code(), Some(5));
    let shown = fixture.site.ok(&["pipeline", "show", &id]);
    assert!(shown.contains("wrong & late"), "{shown}");
    assert_eq!(words(&shown, "hold")[..2], ["hold", "STOPPED"], "{shown}");
    let cancelled = fixture.site.json(&["pipeline", "cancel", &beside, "--wait"]);
    assert_eq!(
        (&cancelled["pipeline_logging_id"], &cancelled["status"]),
        (&json!(beside), &json!("CANCELLED"))
    );
    fixture.touch("go");
    let done = id_in(&fixture.site.ok(&["pipeline", "run", "billing", "--follow"]));
    let (code, message) = fixture.site.code(&["pipeline", "cancel", &done]);
    assert_eq!(code, 5, "{message}");
    assert!(message.contains("the job is succeeded"), "{message}");
}

#[test]
fn interrupt_stops_following_but_not_the_run() {
    let fixture = Fixture::start();
    let following = fixture.site.spawn(&["pipeline", "run", "billing", "--follow"]);
    following.until_err("billing: extract RUNNING");
    let id = following.id();
    signal(following.pid(), "INT");
    following.until_err(&format!("stop it with `tenure pipeline cancel {id}`"));
    assert!(following.err().contains(&format!("`tenure pipeline show -f {id}`")));
    assert_eq!(following.exit_code(), Some(130));
    let shown = fixture.shown(&id);
    assert_eq!((&shown["status"], &shown["cancel"]), (&json!("RUNNING"), &Value::Null));
    fixture.touch("go");
    assert_eq!(fixture.site.code(&["pipeline", "show", "-f", &id]).0, 0);
}

#[test]
fn followed_run_has_a_line_per_step_on_a_terminal() {
    let fixture = Fixture::start();
    let mut terminal = Terminal::run(&fixture.site, &["pipeline", "run", "billing", "--follow"]);
    terminal.until("billing RUNNING, 20 % for ");
    terminal.until(": extract: reading");
    terminal.until("extract  RUNNING, 40 % for ");
    terminal.until("load     PENDING");
    terminal.until("extract | day 2030-01-31");
    fixture.touch("go");
    terminal.until("extract  COMPLETE after ");
    terminal.until("load     COMPLETE after ");
    terminal.until("billing COMPLETE after ");
    terminal.until("\nCOMPLETE ");
    assert_eq!(terminal.exit_code(), Some(0));
    assert!(!terminal.screen().contains("::step"), "{}", terminal.screen());
}

#[test]
fn pipelines_and_runs_of_all_tenants_are_distinguished() {
    let fixture = Fixture::start();
    let listed = fixture.site.ok(&["pipeline", "ls", "--tenant", "*"]);
    assert_eq!(words(&listed, "TENANT")[..2], ["TENANT", "PIPELINE"]);
    assert_eq!(words(&listed, "acme")[..2], ["acme", "billing"], "{listed}");
    assert_eq!(listed.lines().count(), 5, "{listed}");
    let items = fixture.site.json(&["pipeline", "ls", "--tenant", "acme"]);
    assert_eq!(items["items"][0]["parameters"][0]["type"], "date");
    let id = id_in(&fixture.site.ok(&["pipeline", "run", "billing", "--tenant", "acme"]));
    let runs = fixture.site.ok(&["pipeline", "runs", "--tenant", "*"]);
    assert_eq!(words(&runs, "acme")[..3], ["acme", &id, "billing"], "{runs}");
    assert_eq!(fixture.site.json(&["pipeline", "runs"])["items"], json!([]), "not of this tenant");
    let shown = fixture.site.ok(&["pipeline", "show", &id, "--tenant", "*"]);
    assert_eq!(words(&shown, "pipeline"), ["pipeline", "acme/billing"]);
    let (code, message) = fixture.site.code(&["pipeline", "run", "billing", "--tenant", "*"]);
    assert_eq!(code, 2);
    assert!(message.contains("select it with --tenant"), "{message}");
    let (code, message) = fixture.site.code(&["pipeline", "ls", "--tenant", "other"]);
    assert_eq!(code, 0);
    assert!(
        message.contains("no pipelines are declared for other; add files to `dir` in [pipelines]"),
        "{message}"
    );
}

#[test]
fn each_kind_of_failure_has_its_exit_code() {
    let fixture = Fixture::start();
    let unknown = "0".repeat(32);
    let run = ["pipeline", "run", "billing"];
    let with = |more: &[&'static str]| [&run[..], more].concat();
    for (expected, part, args) in [
        (4, "`tenure pipeline ls` lists the declared pipelines", vec!["pipeline", "run", "none"]),
        (4, "the tenant has no such pipeline", vec!["pipeline", "run", "none", "--follow"]),
        (
            2,
            "--param rows: it must be of type integer, not \"many\"",
            with(&["--param", "rows=many"]),
        ),
        (
            2,
            "--param rows: it must be of type integer, not \"5\"",
            with(&["--param", "rows:=\"5\""]),
        ),
        (2, "did you mean", with(&["--param", "row:=3"])),
        (2, "--param rows is given twice", with(&["--param", "rows:=3", "--param", "rows:=4"])),
        (2, "NAME=TEXT or NAME:=JSON", with(&["--param", "rows"])),
        (2, "use --by", with(&["--param", "trigger_by=ann"])),
        (2, "not a name of a pipeline", vec!["pipeline", "run", "../runs"]),
        (2, "is not a run status", vec!["pipeline", "runs", "--status", "dead"]),
        (4, "`tenure pipeline runs` lists them", vec!["pipeline", "show", &unknown]),
        (4, "`tenure pipeline runs` lists them", vec!["pipeline", "show", "-f", &unknown]),
        (4, "`tenure pipeline runs` lists them", vec!["pipeline", "cancel", &unknown, "--wait"]),
        (2, "32 hexadecimal digits", vec!["pipeline", "cancel", "12"]),
        (5, "key", vec!["--key", "wrong", "pipeline", "ls"]),
        (69, "cannot connect", vec!["--server", "http://127.0.0.1:1", "pipeline", "ls"]),
        (
            69,
            "retry with --idempotency-key",
            [&["--server", "http://127.0.0.1:1"], &run[..]].concat(),
        ),
    ] {
        let (code, message) = fixture.site.code(&args);
        assert_eq!(code, expected, "{args:?}: {message}");
        assert!(message.contains(part), "{args:?}: {message}");
    }
}

#[test]
fn repeated_trigger_returns_the_same_run() {
    let fixture = Fixture::start();
    fixture.touch("go");
    let run = ["pipeline", "run", "billing", "--idempotency-key", "monday"];
    let first = fixture.site.ok(&run);
    assert_eq!(fixture.site.code(&["pipeline", "show", "-f", &id_in(&first)]).0, 0);
    assert_eq!(fixture.site.ok(&run), first, "also after its end");
    assert_ne!(fixture.site.ok(&run[..3]), first);
}

#[test]
fn help_of_every_verb_has_examples() {
    let dir = TempDir::new().expect("temporary directory");
    for verb in ["ls", "run", "runs", "show", "cancel", "check"] {
        let output = tenure(dir.path()).args(["pipeline", verb, "--help"]).output();
        let help = stdout(&output.expect("runs"));
        assert!(help.contains(&format!("Examples:\n  tenure pipeline {verb}")), "{help}");
    }
}

/// Runs a check without a server.
fn check(dir: &TempDir, args: &[&str]) -> (i32, String, String) {
    let mut command = tenure(dir.path());
    command.current_dir(dir.path()).args(["pipeline", "check"]).args(args);
    let output = command.output().expect("runs");
    (output.status.code().expect("not killed"), stdout(&output), stderr(&output))
}

const WITH_SECRET: &str =
    "[[steps]]\nname = \"a\"\ncommand = [\"true\"]\nsecrets = { KEY = \"k\" }\n";

#[test]
fn valid_files_pass_the_check() {
    let dir = TempDir::new().expect("temporary directory");
    write(&dir, "pipelines/acme/billing.toml", BILLING);
    write(&dir, "pipelines/acme/secret.toml", WITH_SECRET);
    let good = (0, "ok: 2 pipelines\n".to_owned(), String::new());
    assert_eq!(check(&dir, &["pipelines"]), good, "secrets are allowed");
    write(&dir, "tenure.toml", "[pipelines]\ndir = \"pipelines\"\nsecrets = \"s\"\n");
    assert_eq!(check(&dir, &[]), good);
    let (code, printed, _) = check(&dir, &["pipelines", "-o", "json"]);
    let printed: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!((code, &printed["ok"], &printed["pipelines"]), (0, &json!(true), &json!(2)));
    let (code, printed, message) = check(&dir, &["pipelines/acme"]);
    assert_eq!((code, printed.as_str()), (0, "ok: 0 pipelines\n"));
    assert_eq!(message, "no file TENANT/PIPELINE.toml in pipelines/acme\n");
}

#[test]
fn all_problems_of_all_files_are_reported_at_once() {
    let dir = TempDir::new().expect("temporary directory");
    write(&dir, "pipelines/acme/billing.toml", BILLING);
    write(&dir, "pipelines/acme/empty.toml", "limt = \"1h\"\n");
    write(&dir, "pipelines/other/secret.toml", WITH_SECRET);
    write(&dir, "pipelines/other/late.toml", &format!("limit = \"2d\"\n{WITH_SECRET}"));
    let (code, printed, message) = check(&dir, &["pipelines"]);
    assert_eq!((code, message.as_str()), (1, ""), "{printed}");
    let expected = [
        "pipelines/acme/empty.toml:1: limt: unknown key `limt`; did you mean `limit`?",
        "pipelines/acme/empty.toml:1: a pipeline needs at least one of [[steps]]",
        "pipelines/other/late.toml:1: limit: the time limit must be between 1m and 24h",
    ];
    let mut lines: Vec<_> = printed.lines().collect();
    lines.sort_unstable();
    let mut sorted = expected;
    sorted.sort_unstable();
    assert_eq!(lines, sorted);
    let (code, printed, _) = check(&dir, &["pipelines", "-o", "json"]);
    let printed: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!((code, &printed["ok"]), (1, &json!(false)));
    let last = json!({
        "file": "pipelines/other/late.toml", "line": 1, "place": "limit",
        "message": "the time limit must be between 1m and 24h",
    });
    assert_eq!(printed["problems"][2], last);
    // With the configuration of a server, secrets need a directory.
    write(&dir, "tenure.toml", "[pipelines]\ndir = \"pipelines\"\n");
    let (code, printed, _) = check(&dir, &[]);
    assert_eq!(code, 1);
    assert!(printed.contains("other/secret.toml:4: steps"), "{printed}");
    assert!(printed.contains("no directory of secrets is configured"), "{printed}");
}

#[test]
fn unreadable_files_are_usage_errors_and_missing_pipelines_are_problems() {
    let dir = TempDir::new().expect("temporary directory");
    let (code, printed, message) = check(&dir, &["nowhere"]);
    assert_eq!((code, printed.as_str()), (2, ""));
    assert!(message.contains("cannot read nowhere: No such file"), "{message}");
    let (code, _, message) = check(&dir, &[]);
    assert_eq!(code, 2);
    assert!(message.contains("cannot read tenure.toml"), "{message}");
    write(&dir, "other.toml", "[kinds.report.operations.run]\n");
    let (code, printed, _) = check(&dir, &["--config", "other.toml"]);
    assert_eq!(code, 1);
    assert!(printed.starts_with("other.toml:1: pipelines: it is missing"), "{printed}");
}
