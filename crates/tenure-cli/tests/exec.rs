//! `tenure exec` against a real server: nothing of the tree is alive when the next holder begins.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Server, signal, stderr, stdout, tenure, until};

/// A tree that is hard to kill: it ignores TERM, and has a grandchild that double-forked into a
/// session of its own and ignores TERM as well. Each notes its pid.
const STUBBORN: &str = r#"
trap '' TERM
(setsid sh -c 'trap "" TERM; echo $$ >> "$PIDS"; while :; do sleep 0.1; done' &) &
echo $$ >> "$PIDS"
while :; do sleep 0.1; done
"#;

/// Says which of the noted processes are alive.
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
    until(|| lines(&pids) == 2);
    child
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// Waits for the lock as the next holder and gives what it sees of the first tree.
fn next_holder(server: &Server) -> String {
    let output = server
        .tenure()
        .args(["exec", "cluster/c1", "--ttl", "3s", "--wait", "60s", "--", "sh", "-c", SURVIVORS])
        .env("PIDS", server.file("pids"))
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

fn code(mut child: Child) -> Option<i32> {
    child.wait().expect("it is ours").code()
}

#[test]
fn the_trace_is_passed_on_and_one_is_made_up_where_there_is_none() {
    let server = Server::start();
    let trace = |upstream: Option<&str>| {
        let mut command = server.tenure();
        command.env_remove("TRACEPARENT");
        if let Some(upstream) = upstream {
            command.env("TRACEPARENT", upstream);
        }
        let show = "echo $TRACEPARENT $TENURE_TRACEPARENT";
        let output = command.args(["exec", "cluster/c1", "--", "sh", "-c", show]).output();
        let said = stdout(&output.expect("it runs"));
        let (one, other) = said.trim().split_once(' ').expect("both are there");
        assert_eq!(one, other);
        one.to_owned()
    };
    let upstream = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(trace(Some(upstream)), upstream);
    for none in [None, Some(""), Some("nonsense")] {
        let made = trace(none);
        assert!(made.parse::<tenure::trace::TraceParent>().is_ok(), "{made}");
    }
    assert_ne!(trace(None), trace(None), "another command is another trace");
}

#[test]
fn the_exit_code_of_the_command_is_passed_on() {
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
fn the_command_finds_its_lock_in_the_environment_and_its_streams_untouched() {
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
fn a_held_lock_is_123_and_says_who_holds_it() {
    let server = Server::start();
    server.run(&["lock", "acquire", "cluster/c1", "--ttl", "1h", "--holder", "ann"]);
    let output = server.run(&["exec", "cluster/c1", "--wait", "0s", "--", "true"]);
    assert_eq!(output.status.code(), Some(123));
    assert!(stderr(&output).contains("held by ann with token 1"), "{}", stderr(&output));
    let output = server.run(&["exec", "cluster/c1", "--wait", "1s", "--", "true"]);
    assert_eq!(output.status.code(), Some(123));
    assert!(stderr(&output).contains("waiting for cluster/c1: held by ann"), "{}", stderr(&output));
}

#[test]
fn without_a_server_it_is_125_and_names_the_remedy() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::write(dir.path().join("admin.key"), "k".repeat(40)).expect("it is writable");
    fs::write(dir.path().join("server.url"), "http://127.0.0.1:1").expect("it is writable");
    let output = tenure(dir.path()).args(["exec", "a/b", "--", "true"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("start a server with `tenure serve`"), "{}", stderr(&output));
}

#[test]
fn the_time_limit_is_124_and_the_tree_is_dead() {
    let server = Server::start();
    let child = start_stubborn(&server, "20s", &["--limit", "1s"]);
    assert_eq!(code(child), Some(124));
    assert_eq!(next_holder(&server), "checked\n");
}

#[test]
fn a_supervisor_that_is_killed_takes_its_tree_with_it() {
    let server = Server::start();
    let child = start_stubborn(&server, "3s", &[]);
    signal(child.id(), "KILL");
    assert_eq!(next_holder(&server), "checked\n");
    assert_eq!(code(child), None);
}

#[test]
fn a_supervisor_that_is_stopped_loses_the_lock_only_after_its_tree_is_dead() {
    let server = Server::start();
    let child = start_stubborn(&server, "3s", &[]);
    signal(child.id(), "STOP");
    assert_eq!(next_holder(&server), "checked\n");
    signal(child.id(), "CONT");
    assert_eq!(code(child), Some(122));
}

#[test]
fn a_server_that_is_away_for_too_long_means_lost() {
    let server = Server::start();
    let child = start_stubborn(&server, "3s", &[]);
    server.signal("STOP");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(122), "{}", stderr(&ended));
    server.signal("CONT");
    assert_eq!(next_holder(&server), "checked\n");
}

#[test]
fn what_a_command_leaves_behind_is_dead_before_the_lock_is_free() {
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
    assert_eq!(next_holder(&server), "checked\n");
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
    assert_eq!(code(child), Some(42));
}

#[test]
fn who_waits_and_is_interrupted_leaves_the_queue() {
    let server = Server::start();
    server.run(&["lock", "acquire", "cluster/c1", "--ttl", "1h", "--holder", "ann"]);
    let child = server
        .tenure()
        .args(["exec", "cluster/c1", "--", "true"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let queue = || stdout(&server.run(&["lock", "show", "cluster/c1"])).contains("1. ");
    until(queue);
    signal(child.id(), "INT");
    assert_eq!(code(child), Some(130));
    assert!(!queue());
}

#[test]
fn a_broken_lock_stops_the_command() {
    let server = Server::start();
    let child = start_stubborn(&server, "3s", &[]);
    let args = ["lock", "break", "cluster/c1", "--token", "1", "--reason", "stuck"];
    assert!(server.run(&args).status.success());
    assert_eq!(code(child), Some(122));
    assert_eq!(next_holder(&server), "checked\n");
}

#[test]
fn two_that_start_at_once_run_one_after_the_other() {
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
        assert_eq!(code(child), Some(0));
    }
    assert_eq!(fs::read_to_string(&log).expect("it was written"), "begin\nend\n".repeat(4));
    let verified = server.run(&["verify"]);
    assert!(verified.status.success(), "{}", stdout(&verified));
}
