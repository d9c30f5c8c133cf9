//! What the real binary shows to people: colours, headers, and what empty lists say.

mod common;
#[expect(dead_code, reason = "not everything is needed here")]
#[path = "jobs_cli/harness.rs"]
mod harness;
#[expect(dead_code, reason = "not everything is needed here")]
#[path = "common/terminal.rs"]
mod pty;

use std::os::unix::fs::PermissionsExt;

use common::{TENURE, free_address, stderr, stdout, until};
use harness::{Site, Terminal, without_colors};
use serde_json::json;

/// The start of each colour.
const ESCAPE: char = '\u{1b}';

#[test]
fn states_have_colours_on_a_terminal_or_on_request_only() {
    let site = Site::start();
    site.submit("report/r1", "run");
    let worker = site.worker("w1");
    let _running = worker.claim();
    let list = |args: &[&str], vars: &[(&str, &str)]| {
        let mut command = site.server.tenure();
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        command.args(["job", "ls"]).args(args).envs(vars.iter().copied());
        stdout(&command.output().expect("the binary runs"))
    };
    let (no_color, force) = (("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1"));
    let running = "\u{1b}[36mrunning\u{1b}[0m";
    for (args, vars, colored) in [
        (&[][..], &[][..], false),
        (&[], &[force], true),
        (&[], &[force, no_color], false),
        (&[], &[force, ("NO_COLOR", "")], true),
        (&["--color", "always"], &[no_color], true),
        (&["--color", "never"], &[force], false),
        (&["--color", "always", "-o", "json"], &[force], false),
    ] {
        let listed = list(args, vars);
        assert_eq!(listed.contains(running), colored, "{args:?} {vars:?}: {listed:?}");
        assert_eq!(listed.contains(ESCAPE), colored, "{args:?} {vars:?}: {listed:?}");
        assert!(without_colors(&listed).contains("running"), "{listed:?}");
    }
    let mut terminal = Terminal::run(&site, &["job", "ls"]);
    assert_eq!(terminal.exit_code(), Some(0));
    until(|| terminal.screen().contains(running));
    let verified = site.ok(&["--color", "always", "verify"]);
    assert!(verified.contains("\u{1b}[32mevery lock had at most one holder"), "{verified:?}");
    let (_, message) = site.code(&["--color", "always", "job", "show", "00000000000000ff"]);
    assert!(message.starts_with("\u{1b}[31mtenure:\u{1b}[0m "), "{message:?}");
}

/// Starts a server with a pipeline, whose file is in the returned directory.
fn site_with_a_pipeline() -> (Site, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let step = "[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";
    std::fs::create_dir(dir.path().join("default")).expect("it is ours");
    std::fs::write(dir.path().join("default/billing.toml"), step).expect("it is ours");
    let site = Site::start_with(&format!(
        "[kinds.database.operations.create]\n[kinds.report.operations.run]\n\
         retry = {{ attempts = 1 }}\n[pipelines]\ndir = {:?}\n",
        dir.path()
    ));
    (site, dir)
}

#[test]
fn all_tables_have_headers_in_upper_case() {
    let (site, _pipelines) = site_with_a_pipeline();
    site.submit("report/r2", "run");
    site.worker("w1").claim().fail("BROKEN", "it broke", true);
    site.submit("report/r1", "run");
    let _running = site.worker("w1").claim();
    site.ok(&["pipeline", "run", "billing"]);
    site.ok(&["key", "create", "--name", "ci", "--role", "viewer", "--reason", "a test"]);
    for list in [
        "dead ls",
        "pipeline ls",
        "pipeline runs",
        "job ls",
        "lock ls",
        "resource ls",
        "key ls",
        "audit",
        "worker ls",
        "resource history report/r1",
    ] {
        let listed = site.ok(&list.split(' ').collect::<Vec<_>>());
        let header = listed.lines().next().unwrap_or_else(|| panic!("{list} is empty"));
        assert_eq!(header, header.to_uppercase(), "{list}");
        assert!(header.chars().filter(char::is_ascii_uppercase).count() > 10, "{list}: {header}");
    }
}

#[test]
fn empty_lists_say_what_would_fill_them() {
    let site = Site::start();
    for (list, message) in [
        ("lock ls", "no locks are held in tenant default; try: tenure exec demo/a -- sleep 60"),
        (
            "lock ls --kind db --holder ann",
            "no lock matches --kind db --holder ann; without filters: tenure lock ls",
        ),
        ("job ls", "no jobs in tenant default; try: tenure job submit database/demo create"),
        ("job ls --state dead", "no job matches --state dead; without filters: tenure job ls"),
        (
            "resource ls",
            "no resources in tenant default; try: tenure job submit database/demo create",
        ),
        (
            "resource ls --state READY",
            "no resource matches --state READY; without filters: tenure resource ls",
        ),
        (
            "dead ls --kind report",
            "no dead letter matches --kind report; without filters: tenure dead ls",
        ),
        (
            "key ls",
            "no keys were created in any tenant; try: tenure key create --role operator --name ann \
             --reason \"on call\" --tenant default",
        ),
        (
            "key ls --tenant acme",
            "no keys were created in tenant acme; try: tenure key create --role operator --name \
             ann --reason \"on call\" --tenant acme",
        ),
        (
            "dead ls --tenant *",
            "no dead letters in any tenant; jobs that failed permanently are not dead letters; \
             see: tenure job ls --state failed --tenant '*'",
        ),
        (
            "lock ls --tenant acme",
            "no locks are held in tenant acme; try: tenure exec demo/a --tenant acme -- sleep 60",
        ),
        (
            "audit --who nobody",
            "no audit entry matches --who nobody --tenant '*'; without filters: tenure audit \
             --tenant '*'",
        ),
        (
            "worker ls",
            "no workers claim jobs in tenant default; try: tenure worker --config tenure.toml",
        ),
        (
            "worker ls --kind report",
            "no worker matches --kind report; without filters: tenure worker ls",
        ),
        (
            "resource history report/r1",
            "report/r1 has no history in tenant default; see: tenure resource ls, tenure lock ls",
        ),
    ] {
        let args: Vec<_> = list.split(' ').collect();
        let output = site.server.run(&args);
        assert_eq!(
            (&*stdout(&output), &*stderr(&output)),
            ("", &*format!("{message}\n")),
            "{list}"
        );
        let listed = site.json(&args);
        let items = listed.get("items").or_else(|| listed.get("groups")).expect("a list");
        assert_eq!(items.as_array().map(Vec::len), Some(0), "{list}");
    }
}

#[test]
fn the_status_is_one_screen_with_what_needs_attention() {
    let site = Site::start();
    let worker = site.worker("w1");
    for name in ["r1", "r2"] {
        site.submit(&format!("report/{name}"), "run");
    }
    worker.claim().fail("BUSY", "busy", true);
    let _running = worker.claim();
    until(|| site.ok(&["lock", "ls", "--tenant", "tenure"]).contains("janitor/main"));
    let shown = site.ok(&["status"]);
    for (line, parts) in [
        ("server", &[&*site.server.url(), ", version ", ", up "][..]),
        ("store", &["embedded, safety class exclusive"]),
        ("tenant", &["*"]),
        // The lock of the job, and not that of the janitor.
        ("locks", &["locks    1 held, 0 stale, 0 waiting"]),
        ("jobs", &["1 running, 0 queued, 0 in backoff, 1 dead"]),
        ("workers", &["1 session, 1 busy"]),
        ("needs", &["needs attention:"]),
        ("  1 dead", &["1 dead letter, the oldest since ", "; see: tenure dead ls --tenant '*'"]),
    ] {
        let found = shown.lines().find(|shown| shown.starts_with(line));
        let found = found.unwrap_or_else(|| panic!("no {line}: {shown}"));
        assert!(parts.iter().all(|part| found.contains(part)), "{parts:?}: {shown}");
    }
    assert!(site.ok(&["status", "--color", "always"]).contains("\u{1b}[31m1 dead\u{1b}[0m"));
    let status = site.json(&["status"]);
    assert_eq!(status["workers"], json!({ "sessions": 1, "busy": 1 }));
    assert_eq!(status["attention"][0]["command"], "tenure dead ls --tenant '*'");
    assert!(site.ok(&["dead", "ls", "--tenant", "*"]).contains("BUSY"));
    let of_default = site.json(&["status", "--tenant", "default"]);
    assert_eq!(of_default["attention"][0]["command"], "tenure dead ls");
    let nothing = site.ok(&["status", "--tenant", "other"]);
    assert!(nothing.contains("0 running, 0 queued, 0 in backoff, 0 dead"), "{nothing}");
    let nowhere = format!("http://{}", free_address());
    assert_eq!(site.code(&["--server", &nowhere, "status"]).0, 69);
}

#[test]
fn top_redraws_the_status_and_restores_the_terminal() {
    let site = Site::start();
    let mut terminal = Terminal::run(&site, &["top"]);
    terminal.until("0 running, 0 queued");
    assert!(terminal.screen().contains("\u{1b}[?1049h"), "the alternate screen");
    site.submit("report/r1", "run");
    terminal.until("0 running, 1 queued");
    terminal.until("; see: tenure job ls --kind report --state queued --tenant '*'");
    terminal.type_in(b"\x03");
    assert_eq!(terminal.exit_code(), Some(0));
    until(|| terminal.screen().ends_with("\u{1b}[?25h\u{1b}[?1049l"));
    assert_eq!(site.code(&["top"]).0, 2, "not a terminal");
    let (code, message) = site.code(&["top", "-o", "json"]);
    assert!(code == 2 && message.contains("tenure status -o json"), "{message}");
}

#[test]
fn top_leaves_the_screen_while_it_is_stopped_and_when_it_quits() {
    const OPEN: &str = "\u{1b}[?1049h\u{1b}[?25l";
    const CLOSE: &str = "\u{1b}[?25h\u{1b}[?1049l";
    let site = Site::start();
    let mut terminal = Terminal::run(&site, &["top"]);
    terminal.until("0 running, 0 queued");
    terminal.type_in(b"\x1a");
    let stat = format!("/proc/{}/stat", terminal.pid());
    let is_stopped = || std::fs::read_to_string(&stat).expect("it runs").contains(") T ");
    until(is_stopped);
    until(|| terminal.screen().ends_with(CLOSE));
    common::signal(terminal.pid(), "CONT");
    until(|| terminal.screen().matches(OPEN).count() == 2);
    until(|| terminal.screen().rsplit(OPEN).next().is_some_and(|shown| shown.contains("queued")));
    terminal.type_in(b"\x1c");
    assert_eq!(terminal.exit_code(), Some(0));
    until(|| terminal.screen().ends_with(CLOSE));
}

#[test]
fn top_can_be_interrupted_while_the_server_does_not_answer() {
    let site = Site::start();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", silent.local_addr().expect("it is bound"));
    let mut terminal = Terminal::run(&site, &["--server", &address, "top"]);
    let _connection = silent.accept().expect("a connection");
    terminal.type_in(b"\x03");
    assert_eq!(terminal.exit_code(), Some(0));
    assert!(!terminal.screen().contains("\u{1b}[?1049h"), "nothing was shown");
}

#[test]
fn workers_are_listed_with_what_they_run() {
    let site = Site::start();
    site.submit("report/r1", "run");
    let _running = site.worker("w1").claim();
    let listed = site.ok(&["worker", "ls", "--kind", "report"]);
    let row = listed.lines().nth(1).unwrap_or_else(|| panic!("{listed}"));
    for part in [" w1 ", " database, report, suite ", " ago ", " 59m", " 1 ", " report/r1"] {
        assert!(row.contains(part), "{part:?}: {listed}");
    }
    assert!(site.json(&["worker", "ls"])["items"][0]["age_ms"].is_u64());
    // Without `ls` it is a worker, which needs a configuration file.
    let output = site.server.tenure().arg("worker").current_dir("/").output();
    let message = stderr(&output.expect("the binary runs"));
    assert!(message.contains("no tenure.toml found"), "{message}");
}

#[test]
fn displays_leave_no_rows_behind_when_the_terminal_becomes_narrower() {
    let site = Site::start();
    let submit = ["job", "submit", "report/r1", "run", "--follow"];
    let mut job = Terminal::run_with_columns(&site, &submit, 60);
    job.until("report/r1 run: queued: no worker");
    let holder = site.spawn(&["exec", "cluster/c1", "--", "sleep", "600"]);
    until(|| site.ok(&["lock", "ls"]).contains("cluster/c1"));
    // Without colours, too: the sequences that move the cursor are still needed.
    let exec = ["--color", "never", "exec", "cluster/c1", "--", "true"];
    let mut waiter = Terminal::run_with_columns(&site, &exec, 60);
    waiter.until("waiting for cluster/c1");
    for terminal in [&mut job, &mut waiter] {
        let before = terminal.screen().len();
        terminal.resize(25);
        // More than 50 columns of text are on three rows now.
        until(|| terminal.screen()[before..].contains("\r\u{1b}[2A\u{1b}[J"));
        terminal.type_in(b"\x03");
        assert_eq!(terminal.exit_code(), Some(130));
        assert!(!terminal.screen().contains("\u{1b}[3A"), "{:?}", terminal.screen());
    }
    drop(holder);
}

/// The search path with the binary in front, as the completion scripts need it.
fn path() -> String {
    let dir = std::path::Path::new(TENURE).parent().expect("it is in a directory");
    format!("{}:{}", dir.display(), std::env::var("PATH").expect("a search path"))
}

/// Returns what bash completes after `words` of a command line, which it does not split further.
fn complete(site: &Site, words: &[&str]) -> Vec<String> {
    let script = "\
        source <(tenure completions bash); COMP_WORDS=(\"$0\" \"$@\"); COMP_CWORD=$#; \
        COMP_LINE=\"${COMP_WORDS[*]}\"; COMP_POINT=${#COMP_LINE}; \
        cur=\"${COMP_WORDS[COMP_CWORD]}\"; _tenure_with_names \"$0\" \"$cur\" \"${@:$#-1:1}\"; \
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = std::process::Command::new("bash");
    command.args(["--norc", "-c", script, "tenure"]).args(words);
    command.env("PATH", path()).env("TENURE_COMPLETION_TIMEOUT", "30s");
    for (name, value) in site.server.tenure().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().expect("bash runs");
    assert_eq!(stderr(&output), "", "{words:?}");
    stdout(&output).lines().map(str::to_owned).filter(|line| !line.is_empty()).collect()
}

#[test]
fn bash_completes_names_of_the_server() {
    let site = Site::start();
    let job = site.submit("report/r1", "run");
    site.submit("database/orders", "create");
    site.ok(&["lock", "acquire", "cluster/c1#config", "--holder", "ann"]);
    site.ok(&["key", "create", "--name", "ci", "--role", "viewer", "--reason", "a test"]);
    let keys = site.json(&["key", "ls"]);
    let key = keys["items"][0]["id"].as_str().expect("an id");
    let database = "database/orders";
    for (words, expected) in [
        (&["resource", "show", ""][..], &["cluster/c1", database, "report/r1"][..]),
        (&["resource", "show", "data"], &[database]),
        (&["exec", "cluster/"], &["cluster/c1#config"]),
        (&["lock", "ls", "--kind", "re"], &["report"]),
        (&["job", "show", &job[..4]], &[&*job]),
        (&["why", "report/"], &["report/r1"]),
        (&["--tenant", "other", "why", ""], &[]),
        (&["key", "revoke", ""], &[key]),
        // These are known without a server.
        (&["job", "sub"], &["submit"]),
        (&["job", "ls", "--sta"], &["--state"]),
    ] {
        let mut completed = complete(&site, words);
        completed.retain(|word| !word.starts_with('-') || words.last() == Some(&"--sta"));
        if words == ["job", "show", &job[..4]] {
            // Ids start with the time.
            assert!(completed.contains(&job), "{completed:?}");
        } else {
            assert_eq!(completed, expected, "{words:?}");
        }
    }
}

#[test]
fn bash_completes_what_apps_list() {
    let (site, _pipelines) = site_with_a_pipeline();
    let run = site.json(&["pipeline", "run", "billing"])["pipeline_logging_id"].clone();
    let run = run.as_str().expect("an id");
    for (words, expected) in [
        (&["pipeline", "run", "bil"][..], "billing"),
        (&["pipeline", "runs", "--pipeline", ""], "billing"),
        (&["pipeline", "show", &run[..8]], run),
        (&["pipeline", "cancel", &run[..8]], run),
    ] {
        assert_eq!(complete(&site, words), [expected], "{words:?}");
    }
}

#[test]
fn an_interactive_bash_completes_words_that_it_splits() {
    let site = Site::start();
    for lock in ["db/zebra", "app/a:b", "mail/ann@example.org"] {
        site.ok(&["lock", "acquire", lock, "--holder", "ann"]);
    }
    // The first word of the line is not executed.
    let (fake, marker) = (site.server.file("tenure"), site.server.file("executed"));
    let content = format!("#!/bin/sh\ntouch {}\n", marker.display());
    std::fs::write(&fake, content).expect("it is writable");
    std::fs::set_permissions(&fake, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let mut shell = pty::Terminal::run(&site.server, &["bash", "--norc", "--noprofile", "-i"]);
    let dir = site.server.data().display();
    shell.type_in(&format!(
        "cd {dir}; export PATH='{}' TENURE_COMPLETION_TIMEOUT=30s; \
         source <(tenure completions bash); echo rea''dy\n",
        path()
    ));
    shell.until("ready\r\n");
    let url = site.server.url();
    for (typed, completed) in [
        (format!("tenure --server {url} lock show db/z"), "lock show db/zebra "),
        (format!("tenure --server={url} lock show db/ze"), "lock show db/zebra "),
        ("tenure lock show app/a:".to_owned(), "lock show app/a:b "),
        ("tenure why mail/ann@e".to_owned(), "why mail/ann@example.org "),
        ("tenure resource ls --kind=rep".to_owned(), "ls --kind=report "),
        ("./tenure lock show --tenant default db/".to_owned(), "default db/zebra "),
    ] {
        let before = shell.screen().len();
        shell.type_in(&format!("{typed}\t"));
        until(|| shell.screen()[before..].contains(completed));
        // Clears the line.
        shell.type_in("\x15");
    }
    assert!(!marker.exists(), "./tenure was executed");
}

#[test]
fn completion_is_silent_without_a_server() {
    let site = Site::start();
    let nowhere = format!("http://{}", free_address());
    let words = ["__complete", "--server", &nowhere, "--key", "secret", "lock", "show", ""];
    let output = site.server.run(&words);
    assert!(output.status.success());
    assert_eq!((&*stdout(&output), &*stderr(&output)), ("", ""));
    // A server that accepts connections but does not answer is given up.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", silent.local_addr().expect("it is bound"));
    let output = site.server.run(&["__complete", "--server", &address, "why", ""]);
    assert!(output.status.success());
    assert_eq!((&*stdout(&output), &*stderr(&output)), ("", ""));
}
