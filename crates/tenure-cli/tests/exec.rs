//! `tenure exec` with a real server: the process tree is dead before the next holder starts.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Server, signal, stderr, stdout, tenure, until};

/// A process tree that is hard to kill: it ignores SIGTERM, and has a grandchild that double-forked
/// into its own session and also ignores SIGTERM. Each records its pid.
const STUBBORN: &str = r#"
trap '' TERM
(setsid sh -c 'trap "" TERM; echo $$ >> "$PIDS"; while :; do sleep 0.1; done' &) &
echo $$ >> "$PIDS"
while :; do sleep 0.1; done
"#;

/// Prints which of the recorded processes are alive.
const SURVIVORS: &str = r#"
for pid in $(cat "$PIDS"); do
  grep -qs '^State:.[^ZX]' /proc/$pid/status && echo "$pid lives"
done
echo checked
"#;

fn start_stubborn(server: &Server, ttl: &str, extra: &[&str]) -> Child {
    let pids = server.file("pids");
    let child = server
        .tenure()
        .args(["exec", "cluster/c1", "--ttl", ttl])
        .args(extra)
        .args(["--", "sh", "-c", STUBBORN])
        .env("PIDS", &pids)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    until(|| line_count(&pids) == 2);
    child
}

fn line_count(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// Acquires the lock as the next holder and returns the survivors of the first process tree.
fn survivors_seen_by_next_holder(server: &Server) -> String {
    let output = server
        .tenure()
        .args(["exec", "cluster/c1", "--ttl", "3s", "--wait", "60s", "--", "sh", "-c", SURVIVORS])
        .env("PIDS", server.file("pids"))
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

fn exit_code(mut child: Child) -> Option<i32> {
    child.wait().expect("it is ours").code()
}

#[test]
fn the_trace_is_propagated_or_created_if_absent() {
    let server = Server::start();
    let trace = |upstream: Option<&str>| {
        let mut command = server.tenure();
        command.env_remove("TRACEPARENT");
        if let Some(upstream) = upstream {
            command.env("TRACEPARENT", upstream);
        }
        let show = "echo $TRACEPARENT $TENURE_TRACEPARENT";
        let output = command.args(["exec", "cluster/c1", "--", "sh", "-c", show]).output();
        let printed = stdout(&output.expect("it runs"));
        let (one, other) = printed.trim().split_once(' ').expect("both are there");
        assert_eq!(one, other);
        one.to_owned()
    };
    let upstream = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(trace(Some(upstream)), upstream);
    for none in [None, Some(""), Some("nonsense")] {
        let created = trace(none);
        assert!(created.parse::<tenure::trace::TraceParent>().is_ok(), "{created}");
    }
    assert_ne!(trace(None), trace(None), "each command has its own trace");
}

#[test]
fn the_exit_code_of_the_command_is_returned() {
    let server = Server::start();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
    {
        let output = server.run(&["exec", "cluster/c1", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(code), "{script}: {}", stderr(&output));
    }
    let output = server.run(&["exec", "cluster/c1", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
    let output = server.run(&["exec", "cluster/c1", "--", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn the_command_gets_its_lock_in_the_environment_and_inherits_streams() {
    let server = Server::start();
    let script = r#"read line; echo "$line $TENURE_LOCK $TENURE_TOKEN ${#TENURE_SESSION}"
                    test -n "$TENURE_DEADLINE" && echo oops >&2"#;
    let mut child = server
        .tenure()
        .args(["exec", "scheduler/s1#config", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    use std::io::Write;
    child.stdin.take().expect("it is piped").write_all(b"hello\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(stdout(&output), "hello scheduler/s1#config 1 32\n");
    assert_eq!(stderr(&output), "oops\n");
}

#[test]
fn the_command_does_not_get_the_credentials_of_tenure() {
    let server = Server::start();
    let key_file = server.file("admin.key");
    let mut command = server.tenure();
    command.args(["exec", "cluster/c1", "--", "env"]).env("TENURE_KEY", server.key());
    command.env("TENURE_STORE", "postgres://u:pw@db/x").env("TENURE_ADMIN_KEY_FILE", key_file);
    let output = command.env("PGPASSWORD", "of-the-user").output().expect("the binary runs");
    let environment = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for name in ["TENURE_KEY=", "TENURE_STORE=", "TENURE_ADMIN_KEY_FILE="] {
        assert!(!environment.contains(name), "{environment}");
    }
    // The rest is the user's own.
    for kept in ["PGPASSWORD=of-the-user\n", "TENURE_DATA=", "TENURE_TOKEN=1\n"] {
        assert!(environment.contains(kept), "{kept}: {environment}");
    }
}

#[test]
fn a_held_lock_exits_with_123_and_names_the_holder() {
    let server = Server::start();
    let acquire = ["lock", "acquire", "cluster/c1", "--ttl", "1h"];
    server.run(&[&acquire[..], &["--holder", "ann", "--reason", "disk swap"]].concat());
    let output = server.run(&["exec", "cluster/c1", "--wait", "0s", "--", "true"]);
    assert_eq!(output.status.code(), Some(123));
    let refused = |text: &str| {
        assert!(text.starts_with("tenure: cluster/c1: held by ann (disk swap) for "), "{text}");
        assert!(text.contains("s with token 1; 0 waiting. Wait for it, or try later"), "{text}");
    };
    refused(&stderr(&output));
    let output = server.run(&acquire);
    assert_eq!(output.status.code(), Some(3));
    refused(&stderr(&output));
    let output = server.run(&["exec", "cluster/c1", "--wait", "1s", "--", "true"]);
    assert_eq!(output.status.code(), Some(123));
    assert!(stderr(&output).contains("waiting for cluster/c1: held by ann"), "{}", stderr(&output));
}

#[test]
fn a_heartbeat_interval_without_time_for_a_lost_heartbeat_is_refused() {
    let server = Server::start();
    let run = |interval: &str| {
        let args = ["exec", "cluster/c1", "--ttl", "4s", "--heartbeat", interval, "--", "true"];
        server.run(&args)
    };
    assert_eq!(run("2s").status.code(), Some(0));
    let output = run("2001ms");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("between 100ms and 2s"), "{}", stderr(&output));
}

#[test]
fn an_unreachable_server_exits_with_125_and_names_the_remedy() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::write(dir.path().join("admin.key"), "k".repeat(40)).expect("it is writable");
    fs::write(dir.path().join("server.url"), "http://127.0.0.1:1").expect("it is writable");
    let output = tenure(dir.path()).args(["exec", "a/b", "--", "true"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("start a server with `tenure serve --listen"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn an_exceeded_time_limit_exits_with_124_and_kills_the_tree() {
    let server = Server::start();
    let child = start_stubborn(&server, "20s", &["--limit", "1s"]);
    assert_eq!(exit_code(child), Some(124));
    assert_eq!(survivors_seen_by_next_holder(&server), "checked\n");
}

#[test]
fn killing_the_supervisor_kills_its_tree() {
    let server = Server::start();
    let child = start_stubborn(&server, "3s", &[]);
    signal(child.id(), "KILL");
    assert_eq!(survivors_seen_by_next_holder(&server), "checked\n");
    assert_eq!(exit_code(child), None);
}

#[test]
fn a_stopped_supervisor_loses_the_lock_only_after_its_tree_is_dead() {
    let server = Server::start();
    let child = start_stubborn(&server, "3s", &[]);
    signal(child.id(), "STOP");
    assert_eq!(survivors_seen_by_next_holder(&server), "checked\n");
    signal(child.id(), "CONT");
    assert_eq!(exit_code(child), Some(122));
}

#[test]
fn a_stopped_supervisor_and_watchdog_lose_the_lock_only_after_the_tree_is_dead() {
    let server = Server::start();
    let child = start_stubborn(&server, "3s", &[]);
    let watchdog = watchdog_of(child.id());
    signal(watchdog, "STOP");
    signal(child.id(), "STOP");
    assert_eq!(survivors_seen_by_next_holder(&server), "checked\n");
    signal(watchdog, "CONT");
    signal(child.id(), "CONT");
    assert_eq!(exit_code(child), Some(122));
}

/// Returns the child with the name of a watchdog.
fn watchdog_of(supervisor: u32) -> u32 {
    let parent = format!("PPid:\t{supervisor}\n");
    let is_watchdog = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.starts_with("Name:\ttenure-watch\n") && status.contains(&parent)
    };
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_watchdog).expect("it has a watchdog")
}

#[test]
fn an_outage_longer_than_the_ttl_loses_the_lock() {
    let server = Server::start();
    let child = start_stubborn(&server, "3s", &[]);
    server.signal("STOP");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(122), "{}", stderr(&ended));
    server.signal("CONT");
    assert_eq!(survivors_seen_by_next_holder(&server), "checked\n");
}

#[test]
fn left_behind_processes_are_dead_before_the_lock_is_released() {
    let server = Server::start();
    let pids = server.file("pids");
    let leave = format!("({STUBBORN}) & while [ $(wc -l < \"$PIDS\") -lt 2 ]; do sleep 0.05; done");
    fs::write(&pids, "").expect("it is writable");
    let status = server
        .tenure()
        .args(["exec", "cluster/c1", "--", "sh", "-c", &leave])
        .env("PIDS", &pids)
        .status()
        .expect("the binary runs");
    assert_eq!(status.code(), Some(0));
    assert_eq!(survivors_seen_by_next_holder(&server), "checked\n");
}

#[test]
fn an_interrupt_reaches_the_command() {
    let server = Server::start();
    let ready = server.file("ready");
    let script = r#"trap 'exit 42' INT; touch "$READY"; while :; do sleep 0.05; done"#;
    let child = server
        .tenure()
        .args(["exec", "cluster/c1", "--", "sh", "-c", script])
        .env("READY", &ready)
        .spawn()
        .expect("the binary runs");
    until(|| ready.exists());
    signal(child.id(), "INT");
    assert_eq!(exit_code(child), Some(42));
}

#[test]
fn a_given_wait_includes_the_start_of_the_server() {
    let mut server = Server::start();
    server.kill();
    let output = server.run(&["exec", "cluster/c1", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "without --wait it fails at once");
    let mut waiter = server.tenure();
    waiter.args(["exec", "cluster/c1", "--wait", "60s", "--holder", "night", "--"]);
    waiter.args(["sh", "-c", "echo ran"]).stdout(Stdio::piped());
    let errors = server.file("errors");
    waiter.stderr(fs::File::create(&errors).expect("it is writable"));
    let waiter = waiter.spawn().expect("the binary runs");
    let shown = || fs::read_to_string(&errors).expect("it was created");
    until(|| shown().contains("waiting for cluster/c1: "));
    server.launch();
    let output = waiter.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(0), "ran\n"), "{}", shown());
    assert_eq!(shown().lines().count(), 1, "one line for one change: {}", shown());
    let history = server.run(&["resource", "history", "cluster/c1"]);
    assert!(stdout(&history).contains("night"), "{}", stdout(&history));
}

#[test]
fn a_wait_finds_a_server_that_was_stopped_and_started_again() {
    let mut server = Server::start();
    server.signal("TERM");
    assert!(server.wait().success());
    assert!(!server.file("server.url").exists(), "a stopped server has no address");
    let output = server.run(&["exec", "cluster/c1", "--", "true"]);
    assert!(stderr(&output).contains("With --wait DUR this command waits"), "{}", stderr(&output));
    let output = server.run(&["exec", "cluster/c1", "--wait", "1ms", "--", "true"]);
    assert!(stderr(&output).contains("not answer within --wait 1ms"), "{}", stderr(&output));
    let errors = server.file("errors");
    let mut waiter = server.tenure();
    waiter.args(["exec", "cluster/c1", "--wait", "60s", "--", "true"]);
    waiter.stderr(fs::File::create(&errors).expect("it is writable"));
    let mut waiter = waiter.spawn().expect("the binary runs");
    let shown = || fs::read_to_string(&errors).expect("it was created");
    until(|| shown().contains("waiting for cluster/c1: "));
    server.launch();
    assert!(waiter.wait().expect("it is ours").success(), "{}", shown());
}

#[test]
fn a_wait_in_the_queue_survives_the_death_of_the_server() {
    let mut server = Server::start();
    let mut holder = server.tenure();
    holder.args(["exec", "cluster/c1", "--ttl", "3s", "--", "sleep", "600"]);
    let mut holder = holder.spawn().expect("the binary runs");
    until(|| stdout(&server.run(&["lock", "ls"])).contains("cluster/c1"));
    let mut waiter = server.tenure();
    waiter.args(["exec", "cluster/c1", "--ttl", "3s", "--", "sh", "-c", "echo ran"]);
    let errors = server.file("errors");
    waiter.stdout(Stdio::piped()).stderr(fs::File::create(&errors).expect("it is writable"));
    let waiter = waiter.spawn().expect("the binary runs");
    let shown = || fs::read_to_string(&errors).expect("it was created");
    until(|| shown().contains("position 1 of 1"));
    server.kill();
    // Both sessions are lost: the holder's command is killed, the waiter opens another session.
    assert_eq!(holder.wait().expect("it is ours").code(), Some(122));
    server.launch();
    let output = waiter.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(0), "ran\n"), "{}", shown());
}

#[test]
fn an_interrupted_waiter_leaves_the_queue() {
    let server = Server::start();
    server.run(&["lock", "acquire", "cluster/c1", "--ttl", "1h", "--holder", "ann"]);
    let child = server
        .tenure()
        .args(["exec", "cluster/c1", "--", "true"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let is_queued = || stdout(&server.run(&["lock", "show", "cluster/c1"])).contains("1. ");
    until(is_queued);
    signal(child.id(), "INT");
    assert_eq!(exit_code(child), Some(130));
    assert!(!is_queued());
}

#[test]
fn a_broken_lock_stops_the_command() {
    let server = Server::start();
    let child = start_stubborn(&server, "3s", &[]);
    let args = ["lock", "break", "cluster/c1", "--token", "1", "--reason", "stuck"];
    assert!(server.run(&args).status.success());
    assert_eq!(exit_code(child), Some(122));
    assert_eq!(survivors_seen_by_next_holder(&server), "checked\n");
}

#[test]
fn concurrent_commands_run_one_after_the_other() {
    let server = Server::start();
    let log = server.file("log");
    let script = r#"echo begin >> "$LOG"; sleep 0.2; echo end >> "$LOG""#;
    let start = |_| -> Child {
        let mut command: Command = server.tenure();
        command.args(["exec", "cluster/c1", "--", "sh", "-c", script]).env("LOG", &log);
        command.stderr(Stdio::null()).spawn().expect("the binary runs")
    };
    let children: Vec<Child> = (0..4).map(start).collect();
    for child in children {
        assert_eq!(exit_code(child), Some(0));
    }
    assert_eq!(fs::read_to_string(&log).expect("it was written"), "begin\nend\n".repeat(4));
    let verified = server.run(&["verify"]);
    assert!(verified.status.success(), "{}", stdout(&verified));
}

#[test]
fn a_lock_held_for_longer_than_its_maximum_age_is_marked() {
    let server = Server::start();
    let mut exec = server
        .tenure()
        .args(["exec", "cluster/c1", "--max-age", "1ms", "--", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    until(|| stdout(&server.run(&["lock", "ls"])).contains("(over 1ms)"));
    let shown = stdout(&server.run(&["lock", "show", "cluster/c1", "-o", "json"]));
    assert!(shown.contains("\"max_age_ms\": 1"), "{shown}");
    drop(exec.stdin.take());
    assert_eq!(exit_code(exec), Some(0));

    let acquire = ["lock", "acquire", "cluster/c1", "--max-age", "2h", "-o", "json"];
    let held = stdout(&server.run(&acquire));
    assert!(held.contains("\"max_age_ms\": 7200000"), "{held}");
    let refused = server.run(&["lock", "acquire", "cluster/c2", "--max-age", "0s"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
