//! `tenure job`, `resource`, `dead` and `why`: the real binary with a real server.

mod common;
#[path = "jobs_cli/engine.rs"]
mod engine;
#[expect(dead_code, reason = "no terminal is resized here")]
#[path = "jobs_cli/harness.rs"]
mod harness;

use common::{signal, stderr, stdout, tenure, until};
use harness::{Site, Terminal, id_in, with_input};
use serde_json::{Value, json};

#[test]
fn a_job_is_shown_from_submit_to_end() {
    let site = Site::start();
    let worker = site.worker("w1");
    let submit = ["job", "submit", "database/orders", "create", "--arg", "size:=3"];
    let submitted = site.server.run(&submit);
    assert!(stdout(&submitted).starts_with("ready "), "{}", stdout(&submitted));
    let id = id_in(&stdout(&submitted));
    let job = worker.claim();
    assert_eq!(job.id, id);
    job.progress(40, "copying rows");
    job.log("first line\n  second line\n");
    let listed = site.ok(&["job", "ls", "--kind", "database", "--state", "running"]);
    assert!(listed.contains(&id) && listed.contains("40 % copying rows"), "{listed}");
    let shown = site.ok(&["job", "show", &id]);
    for part in ["database/orders", "running", "1 of 2", r#"{"size":3}"#, "w1", "in progress"] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
    job.finish(json!({ "outcome": "ok", "result": { "rows": 7 } }));
    let shown = site.ok(&["job", "show", &id]);
    assert!(shown.contains("succeeded") && shown.contains(r#"{"rows":7}"#), "{shown}");
    assert!(!shown.contains("copying rows"), "progress of a finished attempt: {shown}");
    assert_eq!(site.ok(&["job", "logs", &id]), "first line\n  second line\n");
    let resource = site.ok(&["resource", "show", "database/orders"]);
    assert!(resource.contains("READY since"), "{resource}");
    let history = site.ok(&["resource", "history", "database/orders"]);
    let events: Vec<_> = history.lines().skip(1).map(|l| l.split_whitespace().nth(1)).collect();
    let expected = ["created", "submitted", "started", "succeeded"].map(Some);
    assert_eq!(events, expected, "{history}");
    assert!(history.contains("attempt 1 on w1") && history.contains("now READY"), "{history}");
}

#[test]
fn submit_prints_the_verdict_and_what_the_job_waits_for() {
    let site = Site::start();
    let worker = site.worker("w1");
    let first = site.submit("database/orders", "create");
    let unclaimed = site.server.run(&["job", "submit", "database/spare", "create"]);
    assert_eq!(stderr(&unclaimed), "no worker claims jobs of this kind. Start one\n");
    site.ok(&["job", "cancel", &id_in(&stdout(&unclaimed))]);
    worker.claim();
    let again = site.server.run(&["job", "submit", "database/orders", "create"]);
    assert_eq!(stdout(&again), format!("attached {first}\n"));
    assert!(stderr(&again).starts_with("running on w1"), "{}", stderr(&again));
    let queued = site.server.run(&["job", "submit", "database/orders", "destroy"]);
    assert!(stdout(&queued).starts_with("queued "), "{}", stdout(&queued));
    let behind = format!("waits behind create (job {first}), which is running on w1");
    assert!(stderr(&queued).starts_with(&behind), "{}", stderr(&queued));
    let destroy = id_in(&stdout(&queued));
    let (code, stderr_text) = site.code(&["job", "submit", "database/orders", "create"]);
    assert_eq!(code, 5);
    assert!(stderr_text.contains(&format!("destroy is queued as job {destroy}")), "{stderr_text}");
    site.ok(&["job", "submit", "report/r1", "refresh"]);
    let replaced = site.ok(&["job", "submit", "report/r1", "refresh"]);
    assert!(replaced.starts_with("replaced "), "{replaced}");
}

#[test]
fn why_explains_jobs_and_resources() {
    let site = Site::start();
    let worker = site.worker("w1");
    let first = site.submit("database/orders", "create");
    worker.claim();
    let second = site.submit("database/orders", "destroy");
    let why = site.ok(&["job", "why", &second]);
    let sentence = format!("job {second}: waits behind create (job {first}), which is running");
    assert!(why.starts_with(&sentence), "{why}");
    assert!(why.contains(&format!("behind  job {first}, create, running on w1")), "{why}");
    assert!(site.ok(&["why", &second]).starts_with(&sentence));
    let why = site.ok(&["why", "database/orders"]);
    assert!(why.starts_with("database/orders: running on w1"), "{why}");
    assert_eq!(site.json(&["resource", "why", "database/orders"])["why"], "running");
    assert_eq!(site.json(&["why", &second])["behind"]["job"], first);
    let later = ["job", "submit", "report/r1", "run", "--in", "2h"];
    let later = id_in(&site.ok(&later));
    assert!(site.ok(&["why", &later]).contains("scheduled to start in 1 h 59 min"));
    assert!(site.ok(&["job", "ls", "--kind", "report"]).contains("due in 1h59m"));
}

#[test]
fn why_names_the_dead_letter_of_an_idle_resource() {
    let site = Site::start();
    let worker = site.worker("w1");
    let dead = site.submit("report/r1", "run");
    worker.claim().fail("DISK_FULL", "disk is full", true);
    let why = site.ok(&["why", "report/r1"]);
    for part in [
        &*format!("report/r1: run (job {dead}) has been a dead letter for "),
        "with DISK_FULL: disk is full",
        &*format!("`tenure job retry {dead} --reason TEXT`"),
        &*format!("`tenure dead discard {dead} --reason TEXT`"),
        "`tenure dead ls`",
    ] {
        assert!(why.contains(part), "{part} is missing: {why}");
    }
    let answer = site.json(&["resource", "why", "report/r1"]);
    assert_eq!((&answer["why"], &answer["job"]), (&json!("dead"), &json!(dead)));
    assert_eq!(answer["error"]["code"], "DISK_FULL");
    assert!(answer["for_ms"].is_u64(), "{answer}");
    let retried = id_in(&site.ok(&["job", "retry", &dead, "--reason", "disk was bought"]));
    let answer = site.json(&["why", "report/r1"]);
    assert_eq!((&answer["why"], &answer["job"]), (&json!("ready"), &json!(retried)));
    worker.claim().succeed();
    assert_eq!(site.json(&["why", "report/r1"])["why"], "idle");
}

#[test]
fn cancel_stops_jobs_and_can_wait_for_the_end() {
    let site = Site::start();
    let worker = site.worker("w1");
    let first = site.submit("report/r1", "run");
    let second = site.submit("report/r1", "run");
    let job = worker.claim();
    let cancel = ["job", "cancel", &second, "--reason", "not needed"];
    assert_eq!(site.ok(&cancel), format!("cancelled {second}\n"));
    let waiting = site.spawn(&["job", "cancel", &first, "--reason", "wrong", "--wait"]);
    until(|| job.progress(10, "on its way"));
    assert_eq!(site.state(&first), "cancelling");
    assert_eq!(waiting.out(), "", "it did not wait");
    job.finish(json!({ "outcome": "cancelled" }));
    until(|| !waiting.out().is_empty());
    assert_eq!(waiting.out(), format!("cancelled {first}\n"));
    assert_eq!(waiting.exit_code(), Some(0));
    assert!(site.ok(&["job", "show", &first]).contains("wrong"));
    let done = site.submit("report/r1", "run");
    worker.claim().succeed();
    let (code, stderr_text) = site.code(&["job", "cancel", &done]);
    assert_eq!(code, 5);
    assert!(stderr_text.contains("the job is succeeded"), "{stderr_text}");
}

#[test]
fn retry_creates_a_new_job_or_ends_the_backoff() {
    let site = Site::start();
    let worker = site.worker("w1");
    let id = site.submit("database/orders", "create");
    assert_eq!(site.code(&["job", "retry", &id, "--reason", "x"]).0, 5, "it is still waiting");
    worker.claim().fail("BUSY", "the disk is busy", true);
    let why = site.ok(&["why", &id]);
    assert!(why.contains("in backoff for") && why.contains("BUSY: the disk is busy"), "{why}");
    let retried = site.ok(&["job", "retry", &id, "--reason", "it is free now"]);
    assert_eq!(retried, format!("queued {id}\n"));
    worker.claim().fail("QUOTA", "no more space", false);
    assert_eq!(site.state(&id), "failed");
    let shown = site.ok(&["job", "show", &id]);
    assert!(shown.contains("QUOTA: no more space") && shown.contains("2 of 2"), "{shown}");
    let next = id_in(&site.ok(&["job", "retry", &id, "--reason", "more space was bought"]));
    assert_ne!(next, id);
    assert_eq!(site.json(&["job", "show", &next])["retry_of"], id);
    assert_eq!(site.code(&["job", "retry", &id]).0, 2, "a reason is needed");
}

#[test]
fn dead_letters_are_grouped_redriven_and_discarded() {
    let site = Site::start();
    let worker = site.worker("w1");
    let (empty, stderr_text) = (site.ok(&["dead", "ls"]), site.code(&["dead", "ls"]).1);
    assert_eq!(empty, "");
    assert!(stderr_text.starts_with("no dead letters in tenant default;"), "{stderr_text}");
    assert!(stderr_text.contains("see: tenure job ls --state failed"), "{stderr_text}");
    assert!(site.ok(&["dead", "ls", "--help"]).contains("--state failed"));
    let dead = |name: &str, code: &str| {
        let id = site.submit(&format!("report/{name}"), "run");
        worker.claim().fail(code, "disk is\nfull", true);
        id
    };
    let full = [dead("r1", "DISK_FULL"), dead("r2", "DISK_FULL")];
    let other = dead("r3", "BUSY");
    let groups = site.ok(&["dead", "ls"]);
    let rows: Vec<_> = groups.lines().map(str::split_whitespace).map(Vec::from_iter).collect();
    assert_eq!(rows[1][..4], ["2", "report", "run", "DISK_FULL"], "{groups}");
    assert_eq!(rows[2][..4], ["1", "report", "run", "BUSY"], "{groups}");
    assert!(groups.contains("disk is full"), "{groups}");
    assert!(site.ok(&["dead", "ls", "--all"]).contains(&other));
    assert_eq!(site.json(&["dead", "ls"])["groups"][0]["count"], 2);
    assert_eq!(site.json(&["dead", "ls", "--all"])["items"][0]["id"], other);
    let (code, stderr_text) = site.code(&["dead", "redrive", "--reason", "x"]);
    assert_eq!(code, 2);
    assert!(stderr_text.contains("--all"), "{stderr_text}");
    assert_eq!(site.code(&["dead", "redrive", "--all"]).0, 2, "a reason is needed");
    let (code, stderr_text) = site.code(&["dead", "redrive", "--code", "DISK_FULL", "--dry-run"]);
    assert_eq!((code, stderr_text.as_str()), (0, "2 would be redriven; nothing was done\n"));
    let redriven =
        site.ok(&["dead", "redrive", "--code", "DISK_FULL", "--reason", "disks were bought"]);
    assert_eq!(redriven.lines().count(), 2, "{redriven}");
    for id in &full {
        let line = redriven.lines().find(|line| line.starts_with(id)).expect("it was redriven");
        assert_eq!(site.json(&["job", "show", id])["followed_by"], id_in(line));
    }
    let (code, stderr_text) = site.code(&["dead", "discard", &other, "--reason", "old"]);
    assert_eq!((code, stderr_text.as_str()), (0, "1 discarded, 0 refused\n"));
    assert_eq!(site.state(&other), "discarded");
    let unknown = "0".repeat(32);
    assert_eq!(site.code(&["dead", "redrive", &unknown, "--reason", "x"]).0, 4);
    let (code, stderr_text) = site.code(&["dead", "redrive", &other, "--reason", "x"]);
    assert_eq!(code, 5);
    assert!(stderr_text.contains(&format!("{other}: the job is discarded")), "{stderr_text}");
}

#[test]
fn a_resource_can_be_put_paused_resumed_and_deleted() {
    let site = Site::start();
    let put = site.json(&["resource", "put", "database/orders", "--spec", r#"{"size": 3}"#]);
    assert_eq!((&put["generation"], &put["state"]), (&json!(1), &json!("PENDING")));
    site.ok(&["resource", "pause", "database/orders", "--reason", "disks are replaced"]);
    let id = site.submit("database/orders", "create");
    let why = site.ok(&["job", "why", &id]);
    assert!(why.contains("paused by admin: disks are replaced"), "{why}");
    let listed = site.ok(&["resource", "ls", "--kind", "database", "--state", "PENDING"]);
    assert!(listed.contains("database/orders") && listed.contains("disks are"), "{listed}");
    let shown = site.ok(&["resource", "show", "database/orders"]);
    assert!(shown.contains(&id) && shown.contains(r#"{"size":3}"#), "{shown}");
    let (code, stderr_text) = site.code(&["resource", "delete", "database/orders"]);
    assert_eq!(code, 5);
    assert!(stderr_text.contains(&format!("job {id} has not finished")), "{stderr_text}");
    site.ok(&["resource", "resume", "database/orders"]);
    assert_eq!(site.json(&["resource", "why", "database/orders"])["why"], "no_worker");
    site.ok(&["job", "cancel", &id]);
    site.ok(&["resource", "delete", "database/orders"]);
    assert_eq!(site.code(&["resource", "show", "database/orders"]).0, 4);
    let history = site.ok(&["resource", "history", "database/orders"]);
    assert!(history.contains("paused") && history.contains("deleted"), "{history}");
}

#[test]
fn every_error_has_its_exit_code() {
    let site = Site::start();
    let unknown = "0".repeat(32);
    for (expected, part, args) in [
        (4, "no such job", &["job", "show", &unknown][..]),
        (4, "no such job", &["job", "logs", &unknown]),
        (4, "no such job", &["job", "logs", "-f", &unknown]),
        (4, "no such job", &["job", "why", &unknown]),
        (4, "no such job", &["job", "cancel", &unknown]),
        (4, "no such job", &["job", "retry", &unknown, "--reason", "x"]),
        (4, "no such resource", &["resource", "show", "database/none"]),
        (4, "no such resource", &["why", "database/none"]),
        (4, "the kind tape is not declared", &["job", "submit", "tape/t1", "wind"]),
        (4, "it has create, destroy", &["job", "submit", "database/d", "wind"]),
        (5, "destroy may start from READY", &["job", "submit", "database/d", "destroy"]),
        (2, "is not of the form KIND/NAME", &["job", "submit", "database/d#main", "create"]),
        (2, "32 hexadecimal digits", &["job", "show", "12"]),
        (
            2,
            "--args is not JSON: expected value at line 1 column 10",
            &["job", "submit", "database/d", "create", "--args", r#"{"size": }"#],
        ),
        (2, "NAME=TEXT", &["job", "submit", "database/d", "create", "--arg", "size"]),
        (2, "--spec is not JSON", &["resource", "put", "database/d", "--spec", "{"]),
        (
            2,
            "between -1000 and 1000",
            &["job", "submit", "database/d", "create", "--priority", "-2000"],
        ),
        (2, "not an instant", &["job", "submit", "database/d", "create", "--at", "tomorrow"]),
        (2, "is not a job state", &["job", "ls", "--state", "asleep"]),
        (5, "key", &["--key", "wrong", "job", "ls"]),
        (69, "cannot connect", &["--server", "http://127.0.0.1:1", "job", "ls"]),
    ] {
        let (code, stderr_text) = site.code(args);
        assert_eq!(code, expected, "{args:?}: {stderr_text}");
        assert!(stderr_text.contains(part), "{args:?}: {stderr_text}");
    }
    let unreachable = ["--server", "http://127.0.0.1:1", "job", "submit", "database/d", "create"];
    let (code, stderr_text) = site.code(&unreachable);
    assert_eq!(code, 69);
    assert!(stderr_text.contains("retry with --idempotency-key"), "{stderr_text}");
    // Repeated, the delay would give another time, that is another request.
    let (_, stderr_text) = site.code(&[&unreachable[..], &["--in", "30m"]].concat());
    let (_, remedy) = stderr_text.split_once("retry with ").expect("a remedy");
    let (options, _) = remedy.split_once(" instead of --in\n").expect("options");
    assert!(options.contains(" --at 2"), "{options}");
    let repeated: Vec<&str> = unreachable[2..].iter().copied().chain(options.split(' ')).collect();
    assert_eq!(site.ok(&repeated), site.ok(&repeated));
}

#[test]
fn a_repeated_submit_returns_the_same_job() {
    let site = Site::start();
    let submit = ["job", "submit", "report/r1", "run", "--idempotency-key", "monday"];
    assert_eq!(site.ok(&submit), site.ok(&submit));
    assert_eq!(site.json(&["job", "ls"])["items"].as_array().expect("a list").len(), 1);
}

#[test]
fn arguments_are_read_from_files_and_stdin() {
    let site = Site::start();
    let file = site.server.file("args.json");
    std::fs::write(&file, r#"{"from": "a file"}"#).expect("it is writable");
    let file = format!("@{}", file.display());
    let submit = ["job", "submit", "report/r1", "run", "--args", &file, "--arg", "n:=1"];
    let submitted = site.json(&submit);
    assert_eq!(submitted["job"]["args"], json!({ "from": "a file", "n": 1 }));
    let mut command = site.server.tenure();
    command.args(["job", "submit", "report/r1", "run", "--args", "-", "-o", "json"]);
    let output = with_input(&mut command, r#"["from stdin"]"#);
    let submitted: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(submitted["job"]["args"], json!(["from stdin"]));
    assert_eq!(submitted["verdict"], "queued");
}

#[test]
fn lists_are_read_page_by_page_and_filtered() {
    let site = Site::start();
    for n in 0..5 {
        site.submit(&format!("report/a+{n}"), "run");
    }
    let count = |args: &[&str]| site.json(args)["items"].as_array().expect("a list").len();
    assert_eq!(count(&["job", "ls", "--limit", "3"]), 3);
    assert_eq!(count(&["job", "ls", "--name", "a+3"]), 1, "a plus is not a blank");
    assert_eq!(count(&["job", "ls", "--operation", "refresh"]), 0);
    assert!(site.code(&["job", "ls", "--limit", "3"]).1.contains("more results exist"));
    assert_eq!(count(&["resource", "ls", "--kind", "report"]), 5);
    let history = site.json(&["resource", "history", "report/a+1", "--limit", "1"]);
    assert_eq!(history["items"].as_array().expect("a list").len(), 1);
}

#[test]
fn logs_are_followed_to_the_end_and_filtered_by_attempt() {
    let site = Site::start();
    let worker = site.worker("w1");
    let id = site.submit("database/orders", "create");
    let job = worker.claim();
    let following = site.spawn(&["job", "logs", "-f", &id]);
    job.log("one\n");
    until(|| following.out() == "one\n");
    job.log("two\n");
    job.fail("BUSY", "busy", true);
    assert_eq!(site.ok(&["job", "logs", "-f", &id, "--attempt", "1"]), "one\ntwo\n");
    site.ok(&["job", "retry", &id, "--reason", "now"]);
    let job = worker.claim();
    job.log("three");
    job.succeed();
    until(|| following.out() == "one\ntwo\nthree\n");
    assert_eq!(following.exit_code(), Some(0));
    assert_eq!(site.ok(&["job", "logs", &id, "--attempt", "2"]), "three\n");
    let chunks = site.ok(&["job", "logs", &id, "-o", "json"]);
    let chunks = chunks.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let attempts: Vec<_> = chunks.map(|chunk| chunk["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 1, 2]);
}

#[test]
fn a_followed_job_is_printed_in_lines_without_a_terminal() {
    let site = Site::start();
    let following = site.spawn(&["job", "submit", "database/orders", "create", "--follow"]);
    following.until_err("database/orders create: queued: no worker claims");
    let worker = site.worker("w1");
    let job = worker.claim();
    following.until_err("running, attempt 1/2");
    job.progress(40, "copying rows");
    following.until_err("database/orders create: running, attempt 1/2, 40 %: copying rows");
    job.log("row 7\u{1b}[2J is odd\n");
    following.until_err("row 7 is odd\n");
    job.succeed();
    until(|| following.out().contains("succeeded"));
    let (out, err) = (following.out(), following.err());
    assert_eq!(out, format!("ready {0}\nsucceeded {0}\n", job.id));
    assert!(err.contains("create of database/orders succeeded after"), "{err}");
    assert!(!err.contains('\u{1b}') && !err.contains("[="), "no bar and no escape codes: {err}");
    assert_eq!(err.matches("40 %").count(), 1, "printed once: {err}");
    assert_eq!(following.exit_code(), Some(0));
}

#[test]
fn follow_exits_according_to_the_end_of_the_job() {
    let site = Site::start();
    let worker = site.worker("w1");
    let submit = ["job", "submit", "report/r1", "run", "--follow"];
    let failing = site.spawn(&submit);
    worker.claim().fail("QUOTA", "no more space", false);
    failing.until_err("failed after");
    assert!(failing.err().contains("QUOTA: no more space"), "{}", failing.err());
    assert_eq!(failing.exit_code(), Some(1));
    let dying = site.spawn(&submit);
    worker.claim().fail("BUSY", "busy", true);
    dying.until_err("tenure dead redrive");
    assert_eq!(dying.exit_code(), Some(1));
    let cancelled = site.spawn(&submit);
    let id = cancelled.id();
    site.ok(&["job", "cancel", &id, "--reason", "not needed"]);
    cancelled.until_err("cancelled by admin: not needed");
    assert_eq!(cancelled.exit_code(), Some(5));
    let superseded = site.spawn(&["job", "submit", "report/r2", "refresh", "-f", "-o", "json"]);
    until(|| site.json(&["job", "ls", "--name", "r2"])["items"][0].is_object());
    let next = site.submit("report/r2", "refresh");
    superseded.until_err(&format!("followed by job {next}"));
    until(|| superseded.out().ends_with("}\n"));
    let printed: Value = serde_json::from_str(&superseded.out()).expect("one document");
    assert_eq!(printed["job"]["state"], "superseded");
    assert_eq!(superseded.exit_code(), Some(5));
}

#[test]
fn follow_survives_a_server_restart() {
    let mut site = Site::start();
    let following = site.spawn(&["job", "submit", "report/r1", "run", "--follow"]);
    let id = following.id();
    site.server.kill();
    following.until_err("retrying");
    site.server.launch();
    let job = site.worker("w1").claim();
    assert_eq!(job.id, id);
    job.succeed();
    assert_eq!(following.exit_code(), Some(0));
}

#[test]
fn an_interrupt_stops_following_but_not_the_job() {
    let site = Site::start();
    let worker = site.worker("w1");
    let following = site.spawn(&["job", "submit", "report/r1", "run", "--follow"]);
    let job = worker.claim();
    assert_eq!(following.id(), job.id);
    signal(following.pid(), "INT");
    following.until_err(&format!("stop it with `tenure job cancel {}`", job.id));
    assert_eq!(following.exit_code(), Some(130));
    assert_eq!(site.state(&job.id), "running");
    assert!(!job.progress(50, "undisturbed"), "it must not be asked to stop");
    let again = site.spawn(&["job", "show", "-f", &job.id]);
    again.until_err("50 %: undisturbed");
    job.succeed();
    assert_eq!(again.exit_code(), Some(0));
}

#[test]
fn a_followed_job_has_a_bar_on_a_terminal_and_survives_control_c() {
    let site = Site::start();
    let submit = ["job", "submit", "database/orders", "create", "--follow"];
    let mut terminal = Terminal::run(&site, &submit);
    terminal.until("queued: no worker claims jobs of this kind");
    let job = site.worker("w1").claim();
    job.progress(50, "copying rows");
    terminal.until("[========>       ]  50 %");
    terminal.until("database/orders create: running 1/2: copying rows");
    assert!(!terminal.screen().contains("0/100"), "a bar without our style");
    job.log("row 7 is odd\n");
    terminal.until("row 7 is odd");
    terminal.type_in(b"\x03");
    terminal.until(&format!("job {} keeps running", job.id));
    assert_eq!(terminal.exit_code(), Some(130));
    assert_eq!(site.state(&job.id), "running");
    let mut terminal = Terminal::run(&site, &submit);
    terminal.until("attached ");
    terminal.until("50 %");
    job.succeed();
    terminal.until("create of database/orders succeeded");
    terminal.until(&format!("succeeded {}", job.id));
    assert_eq!(terminal.exit_code(), Some(0));
}

#[test]
fn a_wait_for_a_lock_is_one_line_of_a_narrow_terminal() {
    let site = Site::start();
    let reason = "a purpose that is much longer than the terminal is wide, as people write them";
    let mut holder = site.spawn(&["exec", "cluster/c1", "--reason", reason, "--", "sleep", "600"]);
    until(|| site.ok(&["lock", "ls"]).contains("cluster/c1"));
    let waiter = ["exec", "cluster/c1", "--", "true"];
    let mut terminal = Terminal::run_with_columns(&site, &waiter, 60);
    // Redrawn once a second.
    until(|| terminal.screen().matches("waiting for cluster/c1").count() >= 3);
    let screen = terminal.screen();
    assert!(!screen.contains('\n'), "no new line: {screen:?}");
    for line in screen.split("\r\u{1b}[J").filter(|line| !line.is_empty()) {
        assert!(line.chars().count() < 60, "{line:?}");
    }
    terminal.type_in(b"\x03");
    assert_eq!(terminal.exit_code(), Some(130));
    assert!(terminal.screen().ends_with("\r\u{1b}[J"), "the line is removed");
    holder.stop();
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let site = Site::start();
    site.submit("report/r1", "run");
    for args in ["job ls", "job ls -o json", "resource ls", "completions bash"] {
        let args: Vec<_> = args.split(' ').collect();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = tenure(site.server.data());
        let output = command.args(&args).stdout(writer).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "{args:?}");
    }
}
