//! `tenure exec` on a terminal: the command is a job like any other, but never outlives its lock.

mod common;
#[path = "common/terminal.rs"]
mod terminal;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use common::{Server, TENURE, stderr, stdout, until};
use terminal::Terminal;

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_Z: &str = "\x1a";

/// Runs a command under a lock, as the only program on the terminal.
fn exec(server: &Server, script: &str) -> Terminal {
    Terminal::run(server, &[TENURE, "exec", "cluster/c1", "--", "sh", "-c", script])
}

/// Runs a shell script in which `tenure` is `$0`.
fn script(server: &Server, script: &str) -> Terminal {
    Terminal::run(server, &["sh", "-c", script, TENURE])
}

/// Starts a shell with job control.
fn shell(server: &Server) -> Terminal {
    let shell = Terminal::run(server, &["bash", "--norc", "--noprofile", "--noediting", "-i"]);
    shell.until("$ ");
    shell
}

#[test]
fn a_prompt_is_answered() {
    let server = Server::start();
    let mut terminal = exec(
        &server,
        r#"printf "name? "; read name; echo "hello $name"
           printf "key? " > /dev/tty; read key < /dev/tty; echo "thanks for $key""#,
    );
    terminal.until("name? ");
    terminal.type_in("ann\n");
    terminal.until("hello ann");
    terminal.until("key? ");
    terminal.type_in("sesame\n");
    terminal.until("thanks for sesame");
    assert_eq!(terminal.wait().code(), Some(0));
}

#[test]
fn an_interrupt_reaches_the_command_and_the_script_gets_the_terminal_back() {
    let server = Server::start();
    let mut terminal = script(
        &server,
        r#""$0" exec cluster/c1 -- sh -c '
               trap "echo caught; exit 3" INT; echo ready; while :; do sleep 0.05; done'
           echo "code $?"; read line; echo "script reads $line""#,
    );
    terminal.until("ready");
    terminal.type_in(CTRL_C);
    terminal.until("caught");
    terminal.until("code 3");
    terminal.type_in("more\n");
    terminal.until("script reads more");
    assert_eq!(terminal.wait().code(), Some(0));
    assert_eq!(terminal.screen().matches("caught").count(), 1, "{}", terminal.screen());
}

#[test]
fn an_interrupt_that_kills_the_command_ends_the_script_too() {
    let server = Server::start();
    let run = r#""$0" exec cluster/c1 -- sh -c 'echo ready; exec sleep 600'; echo "next $?""#;
    for shell in ["sh", "bash"] {
        let mut terminal = Terminal::run(&server, &[shell, "-c", run, TENURE]);
        terminal.until("ready");
        terminal.type_in(CTRL_C);
        assert_eq!(terminal.wait().signal(), Some(2), "{shell}: {}", terminal.screen());
        assert!(!terminal.screen().contains("next"), "{shell}: {}", terminal.screen());
    }
    let shown = stdout(&server.run(&["lock", "ls"]));
    assert!(!shown.contains("cluster/c1"), "released: {shown}");
}

#[test]
fn an_interrupt_sent_to_exec_only_does_not_reach_the_script() {
    let server = Server::start();
    // The parent of the watchdog.
    let interrupt = r#"kill -INT $(cut -d" " -f4 /proc/$PPID/stat); exec sleep 600"#;
    let run = format!(r#""$0" exec cluster/c1 -- sh -c '{interrupt}'; echo "next $?""#);
    let mut terminal = script(&server, &run);
    terminal.until("next 130");
    assert!(terminal.wait().success());
}

#[test]
fn a_killed_command_leaves_the_modes_of_the_terminal_as_they_were() {
    let server = Server::start();
    let mut terminal = script(
        &server,
        r#""$0" exec cluster/c1 -- sh -c 'stty -echo -icanon; kill -9 $$'; echo "code $?"
           stty -a | grep -w -e -echo -e -icanon || echo restored
           "$0" exec cluster/c1 -- stty -echo
           stty -a | grep -qw -e -echo && echo kept"#,
    );
    terminal.until("code 137");
    terminal.until("restored");
    terminal.until("kept");
    assert!(terminal.wait().success());
}

#[test]
fn a_suspended_command_is_resumed_under_the_same_lock() {
    let server = Server::start();
    let mut shell = shell(&server);
    let answer = r#"while read line; do echo "got $line" $TENURE_TOKEN; done"#;
    let command = format!("'{TENURE}' exec cluster/c1 -- sh -c 'echo rea''dy; {answer}'\n");
    shell.type_in(&command);
    shell.until("\nready");
    for (n, round) in [(1, "first"), (2, "second")] {
        shell.type_in(CTRL_Z);
        // The shell prints `Stopped` and its prompt when it has the terminal.
        until(|| shell.screen().matches("Stopped").count() == n);
        until(|| shell.screen().ends_with("$ "));
        shell.until("tenure: suspended: resume with fg within ");
        shell.until("or cluster/c1 (token 1) is lost and the command is killed");
        shell.type_in(&format!("echo shell'-'{round}\n"));
        shell.until(&format!("shell-{round}"));
        shell.type_in("fg\n");
        shell.type_in(&format!("{round}\n"));
        shell.until(&format!("got {round} 1"));
    }
    shell.type_in(CTRL_D);
    shell.type_in("echo co''de $?\n");
    shell.until("code 0");
    let screen = shell.screen();
    assert_eq!(screen.matches("tenure: suspended").count(), 2, "{screen}");
}

#[test]
fn a_command_in_the_background_that_reads_waits_for_the_foreground() {
    let server = Server::start();
    let mut shell = shell(&server);
    let answer = r#"while read line; do echo "got $line" $TENURE_TOKEN; done"#;
    shell.type_in(&format!("'{TENURE}' exec cluster/c1 -- sh -c 'echo rea''dy; {answer}'\n"));
    shell.until("\nready");
    shell.type_in(CTRL_Z);
    shell.until("Stopped");
    // It continues, reads, and is stopped again.
    shell.type_in("bg\n");
    until(|| shell.screen().matches("tenure: suspended").count() == 2);
    shell.type_in("fg\nhello\n");
    shell.until("got hello 1");
}

#[test]
fn a_command_that_stays_suspended_is_dead_before_the_next_holder_starts() {
    let server = Server::start();
    let mut shell = shell(&server);
    // The second process is in another session, which Ctrl-Z does not stop.
    let tree = r#"trap "" TERM; setsid sh -c "trap \"\" TERM; echo \$\$ >> $PIDS; sleep 600" &
                  echo $$ >> $PIDS; exec sleep 600"#;
    let tree = tree.replace('\n', " ");
    shell.type_in(&format!("'{TENURE}' exec cluster/c1 --ttl 3s -- sh -c '{tree}'\n"));
    let pids = server.file("pids");
    until(|| fs::read_to_string(&pids).is_ok_and(|pids| pids.lines().count() == 2));
    shell.type_in(CTRL_Z);
    shell.until("tenure: suspended");
    let alive = r#"for pid in $(cat "$PIDS"); do
                     grep -qs '^State:.[^ZX]' /proc/$pid/status && echo "$pid lives"
                   done; echo checked"#;
    let mut next = server.tenure();
    next.args(["exec", "cluster/c1", "--wait", "60s", "--", "sh", "-c", alive]);
    let output = next.env("PIDS", &pids).output().expect("the binary runs");
    assert_eq!(stdout(&output), "checked\n", "{}", stderr(&output));
    shell.type_in("fg\n");
    shell.type_in("echo co''de $?\n");
    shell.until("code 122");
    shell.until("tenure: the lock ");
}

#[test]
fn without_a_terminal_on_stdin_the_command_has_none() {
    let server = Server::start();
    let run = r#"echo x | "$0" exec cluster/c1 -- sh -c '(: < /dev/tty) || echo none'"#;
    let mut terminal = script(&server, run);
    terminal.until("none");
    assert!(terminal.wait().success());
}

#[test]
fn in_a_pipeline_the_terminal_stays_with_the_job() {
    let server = Server::start();
    let mut shell = shell(&server);
    let command = r#"echo first; until test -e "$PIDS"; do sleep 0.05; done; echo last"#;
    // Like a pager: it reads the output, and keys from the terminal.
    let pager = r#"{ read line; echo "page $line"; read key < /dev/tty; echo "key $key"
        touch "$PIDS"; cat; }"#;
    let pager = pager.replace("\n        ", "; ");
    shell.type_in(&format!("'{TENURE}' exec cluster/c1 -- sh -c '{command}' | {pager}\n"));
    shell.until("page first");
    shell.type_in("q\n");
    shell.until("key q");
    shell.until("\nlast");
    assert!(!shell.screen().contains("Stopped"), "{}", shell.screen());
}

#[test]
fn a_command_that_forks_without_end_is_stopped_at_its_limit() {
    let server = Server::start();
    let terminal = script(
        &server,
        r#""$0" exec cluster/c1 --limit 1s -- bash -c 'while ((SECONDS < 60)); do (: &); done'
           echo "code $?""#,
    );
    terminal.until("code 124");
}

#[test]
fn a_command_brought_back_from_the_background_can_be_suspended_again() {
    let server = Server::start();
    let mut shell = shell(&server);
    let command = r#"echo $$ > "$PIDS"; exec sleep 600"#;
    shell.type_in(&format!("'{TENURE}' exec cluster/c1 -- sh -c '{command}'\n"));
    let stat = || -> Vec<String> {
        let pid = fs::read_to_string(server.file("pids")).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.split_whitespace().map(str::to_owned).collect()
    };
    // Its group is that of the foreground.
    let has_terminal =
        || matches!(&stat()[..], [_, _, _, _, group, _, _, front, ..] if group == front);
    until(has_terminal);
    shell.type_in(CTRL_Z);
    shell.until("Stopped");
    shell.type_in("bg\n");
    until(|| stat().get(2).is_some_and(|state| state != "T"));
    assert!(!has_terminal());
    shell.type_in("fg\n");
    until(has_terminal);
    shell.type_in(CTRL_Z);
    until(|| shell.screen().matches("tenure: suspended").count() == 2);
}

#[test]
fn without_a_shell_the_command_is_not_suspended() {
    let server = Server::start();
    let mut terminal = exec(&server, r#"echo ready; read line; echo "got $line""#);
    terminal.until("ready");
    terminal.type_in(CTRL_Z);
    terminal.until("tenure: not suspended: ");
    terminal.type_in("more\n");
    terminal.until("got more");
    assert!(terminal.wait().success());
    assert!(!terminal.screen().contains("fg"), "{}", terminal.screen());
}

#[test]
fn a_command_inherits_that_suspension_is_ignored() {
    let server = Server::start();
    let mut terminal = script(
        &server,
        r#"trap "" TSTP; "$0" exec cluster/c1 -- bash -c '
               mask=0x$(awk "/^SigIgn/ { print \$2 }" /proc/$$/status)
               echo "ignored $((mask >> 19 & 1))"'"#,
    );
    terminal.until("ignored 1");
    assert!(terminal.wait().success());
}

#[test]
fn a_message_does_not_stop_exec_on_a_terminal_with_tostop() {
    let server = Server::start();
    let mut shell = shell(&server);
    let run = format!("'{TENURE}' exec cluster/c1 --limit 1s -- sleep 600");
    shell.type_in(&format!("stty tostop; {run}; echo co''de $?\n"));
    shell.until("code 124");
    shell.until("tenure: time limit exceeded");
}
