//! The guarantee of `tenure::exec`, tested with real processes and signals: the process tree of a
//! command is dead before another holder can acquire its lock.
//!
//! Suspending the machine is not tested here. Deadlines are instants of `CLOCK_BOOTTIME`, for which
//! a suspended machine looks like processes that were stopped for that long.
//!
//! Each test fails without the code that it covers.

#[path = "supervise/grace.rs"]
mod grace;
#[path = "supervise/guard.rs"]
mod guard;
#[path = "supervise/harness.rs"]
mod harness;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use harness::{
    FAR, HELPER, HOST_KILL_MS, HOST_TERM_MS, Host, SIGKILL, SLACK, Stopped, Traces, end_of,
    exited_by_itself, ms, pid, run, start, until, within,
};
use rustix::process::{Signal, kill_process_group};
use tenure::clock::BootInstant;
use tenure::exec::{
    CommandEnd, Deadlines, EndReason, Error, ExitKind, Spec, StopReason, Supervisor,
};

// ---- Environment and result of the command ----

#[tokio::test]
async fn the_exit_code_is_returned() {
    assert_eq!(run(Traces::new().script("exit 7")).await, exited_by_itself(ExitKind::Code(7)));
}

#[tokio::test]
async fn the_signal_that_killed_the_command_is_returned() {
    let ended = run(Traces::new().script("kill -USR2 $$")).await;
    assert_eq!(ended, exited_by_itself(ExitKind::Signal(Signal::USR2.as_raw())));
}

async fn run_program(program: &Path) -> (CommandEnd, String) {
    let mut spec = Spec::new([program]);
    spec.helper = HELPER.into();
    spec.stderr = Some(Stdio::piped());
    let mut command = start(spec, FAR).await;
    let ended = end_of(&mut command).await;
    let mut message = String::new();
    command.stderr.take().expect("a pipe").read_to_string(&mut message).expect("its output");
    (ended, message)
}

#[tokio::test]
async fn a_command_that_is_not_found_ends_with_127() {
    let (ended, message) = run_program(Path::new("no-such-command")).await;
    assert_eq!(ended, exited_by_itself(ExitKind::Code(127)));
    assert!(message.starts_with("tenure: cannot run no-such-command: "), "{message}");
}

#[tokio::test]
async fn a_command_that_cannot_be_executed_ends_with_126() {
    let traces = Traces::new();
    fs::write(traces.path("plain"), "text").expect("a file");
    let (ended, message) = run_program(&traces.path("plain")).await;
    assert_eq!(ended, exited_by_itself(ExitKind::Code(126)));
    assert!(message.contains("/plain: Permission denied"), "{message}");
}

#[tokio::test]
async fn the_streams_are_inherited() {
    let mut host = Host::start("read line; echo out: $line; echo err: $line >&2");
    host.child.stdin.take().expect("a pipe").write_all(b"hello\n").expect("it reads");
    let (mut out, mut err) = (String::new(), String::new());
    host.child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("its output");
    host.child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("its errors");
    assert!(out.contains("out: hello\n"), "{out}");
    assert!(err.contains("err: hello\n"), "{err}");
}

#[tokio::test]
async fn the_streams_can_be_pipes() {
    let mut spec = Traces::new().script("tr a-z A-Z; echo err >&2");
    spec.stdin = Some(Stdio::piped());
    spec.stdout = Some(Stdio::piped());
    spec.stderr = Some(Stdio::piped());
    let mut command = start(spec, FAR).await;
    command.stdin.take().expect("a pipe").write_all(b"hello").expect("it reads");
    assert_eq!(end_of(&mut command).await, exited_by_itself(ExitKind::Code(0)));
    let (mut out, mut err) = (String::new(), String::new());
    command.stdout.take().expect("a pipe").read_to_string(&mut out).expect("its output");
    command.stderr.take().expect("a pipe").read_to_string(&mut err).expect("its errors");
    assert_eq!((out.as_str(), err.as_str()), ("HELLO", "err\n"));
}

#[tokio::test]
async fn the_environment_is_inherited() {
    let mut spec = Traces::new().script(r#"[ "$TOKEN" = 42 ] && [ -n "$PATH" ]"#);
    spec.env.push(("TOKEN".into(), "42".into()));
    assert_eq!(run(spec).await, exited_by_itself(ExitKind::Code(0)));
}

#[tokio::test]
async fn signals_reach_the_commands_group() {
    let traces = Traces::new();
    let script = r#"
        sh -c 'trap "exit 0" USR1; eval "$PRELUDE"; id child; while :; do sleep 0.01; done' &
        trap "wait; exit 5" USR1
        id command; while :; do sleep 0.01; done"#;
    let mut command = start(traces.script(script), FAR).await;
    traces.process("child").await;
    traces.process("command").await;
    command.signal(Signal::USR1.as_raw());
    let ended = end_of(&mut command).await;
    assert_eq!(ended, exited_by_itself(ExitKind::Code(5)));
}

#[tokio::test]
async fn ignored_signals_are_not_forwarded() {
    let script = "trap '' HUP; exec $EXE --exact checks_forwarded_signals --nocapture";
    let mut spec = Traces::new().script(script);
    spec.env.push(("EXE".into(), std::env::current_exe().expect("this test").into()));
    spec.env.push(("CHECK_SIGNALS".into(), "1".into()));
    assert_eq!(run(spec).await, exited_by_itself(ExitKind::Code(0)));
}

#[test]
fn checks_forwarded_signals() {
    if std::env::var_os("CHECK_SIGNALS").is_some() {
        let forwarded = tenure::exec::forwarded_signals().expect("/proc");
        let expected = [Signal::INT, Signal::TERM, Signal::QUIT, Signal::USR1, Signal::USR2];
        assert_eq!(forwarded, expected.map(Signal::as_raw));
    }
}

// ---- Deadlines ----

#[tokio::test]
async fn a_command_is_not_started_after_its_deadline() {
    let traces = Traces::new();
    let late = Deadlines { term_at: BootInstant::now(), kill_at: FAR.kill_at };
    let refused = Supervisor::start(traces.script("id command"), late).await;
    assert!(matches!(refused, Err(Error::Late)), "{refused:?}");
    assert!(!traces.has("command"));
}

#[tokio::test]
async fn the_command_can_clean_up_at_the_deadline() {
    let traces = Traces::new();
    let script = r#"
        trap 'sleep 0.1; : > $D/cleaned; exit 3' TERM
        id command; while :; do sleep 0.01; done"#;
    let deadlines = within(500, 60_000);
    let mut command = start(traces.script(script), deadlines).await;
    traces.process("command").await;
    let ended = end_of(&mut command).await;
    assert_eq!(ended, CommandEnd { status: ExitKind::Code(3), reason: EndReason::Lost });
    assert!(traces.has("cleaned"));
    assert!(deadlines.term_at.has_passed());
}

#[tokio::test]
async fn a_command_that_ignores_term_is_killed() {
    let traces = Traces::new();
    let deadlines = within(300, 600);
    let spec = traces.script(r#"trap "" TERM; id command; exec sleep 60"#);
    let mut command = start(spec, deadlines).await;
    let process = traces.process("command").await;
    let ended = end_of(&mut command).await;
    assert_eq!(ended, CommandEnd { status: SIGKILL, reason: EndReason::Lost });
    assert!(process.is_dead());
    assert!(deadlines.kill_at.has_passed(), "killed too early");
    assert!(!(deadlines.kill_at + SLACK).has_passed(), "killed too late");
}

#[tokio::test]
async fn processes_that_left_the_tree_are_killed_at_the_deadline() {
    let traces = Traces::new();
    let deadlines = within(500, 800);
    let spec = traces.script(r#"far mild; far stubborn 'trap "" TERM'; id command; sleep 60"#);
    let mut command = start(spec, deadlines).await;
    let mild = traces.process("mild").await;
    let stubborn = traces.process("stubborn").await;
    assert!(!mild.is_dead() && !stubborn.is_dead());
    let ended = end_of(&mut command).await;
    assert_eq!(ended.reason, EndReason::Lost);
    assert!(mild.is_dead() && stubborn.is_dead());
    assert!(!(deadlines.kill_at + SLACK).has_passed(), "killed too late");
}

#[tokio::test]
async fn extending_moves_the_deadline() {
    let traces = Traces::new();
    let first = within(300, 400);
    let mut command = start(traces.script("id command; exec sleep 60"), first).await;
    let process = traces.process("command").await;
    let second = within(1000, 1100);
    command.extend(second);
    command.extend(first);
    until("the first deadlines have passed", || (first.kill_at + SLACK).has_passed()).await;
    assert!(!process.is_dead());
    assert_eq!(end_of(&mut command).await.reason, EndReason::Lost);
    assert!(second.term_at.has_passed());
}

#[tokio::test]
async fn extending_after_the_deadline_has_no_effect() {
    let traces = Traces::new();
    let script = r#"
        trap ': > $D/termed' TERM
        id command; while :; do sleep 0.01; done"#;
    let deadlines = within(300, 800);
    let mut spec = traces.script(script);
    spec.grace = Duration::from_secs(60);
    let mut command = start(spec, deadlines).await;
    until("the command got TERM", || traces.has("termed")).await;
    command.extend(FAR);
    let ended = end_of(&mut command).await;
    assert_eq!(ended, CommandEnd { status: SIGKILL, reason: EndReason::Lost });
    assert!(deadlines.kill_at.has_passed(), "killed too early");
    assert!(!(deadlines.kill_at + SLACK).has_passed(), "killed too late");
}

// ---- Stops and other ends ----

#[tokio::test]
async fn a_stop_kills_after_the_grace_period() {
    let traces = Traces::new();
    let spec = traces.script(r#"far away; trap "" TERM; id command; exec sleep 60"#);
    let mut command = start(spec, FAR).await;
    let (process, away) = (traces.process("command").await, traces.process("away").await);
    command.handle().stop(StopReason::TimeLimit);
    let ended = end_of(&mut command).await;
    assert_eq!(
        ended,
        CommandEnd { status: SIGKILL, reason: EndReason::Stopped(StopReason::TimeLimit) }
    );
    assert!(process.is_dead() && away.is_dead());
}

#[tokio::test]
async fn the_grace_period_ends_at_the_deadline() {
    let traces = Traces::new();
    let mut spec = traces.script(r#"trap "" TERM; id command; exec sleep 60"#);
    spec.grace = Duration::from_secs(60);
    let deadlines = within(600, 900);
    let mut command = start(spec, deadlines).await;
    traces.process("command").await;
    command.stop(StopReason::TimeLimit);
    let ended = end_of(&mut command).await;
    assert_eq!(
        ended,
        CommandEnd { status: SIGKILL, reason: EndReason::Stopped(StopReason::TimeLimit) }
    );
    assert!(!(deadlines.kill_at + SLACK).has_passed(), "killed too late");
}

#[tokio::test]
async fn a_stopped_process_can_still_clean_up() {
    let traces = Traces::new();
    let mut spec = traces.script("trap 'exit 4' TERM; id command; while :; do sleep 0.01; done");
    spec.grace = Duration::from_secs(60);
    let mut command = start(spec, FAR).await;
    let process = traces.process("command").await;
    let _stopped = Stopped::new(&process).await;
    command.stop(StopReason::Requested);
    let ended = end_of(&mut command).await;
    assert_eq!(
        ended,
        CommandEnd { status: ExitKind::Code(4), reason: EndReason::Stopped(StopReason::Requested) }
    );
}

#[tokio::test]
async fn each_process_gets_sigterm_only_once() {
    let traces = Traces::new();
    let script = r#"
        sh -c 'trap "echo term >> $D/terms" TERM; eval "$PRELUDE"; id left
            while :; do sleep 0.01; done' &
        trap 'until [ -s $D/terms ]; do sleep 0.01; done; exit 0' TERM
        id command; while :; do sleep 0.01; done"#;
    let mut command = start(traces.script(script), FAR).await;
    traces.process("left").await;
    traces.process("command").await;
    command.stop(StopReason::Requested);
    assert_eq!(end_of(&mut command).await.status, ExitKind::Code(0));
    assert_eq!(fs::read_to_string(traces.path("terms")).expect("a trace"), "term\n");
}

#[tokio::test]
async fn left_behind_processes_are_dead_when_the_wait_ends() {
    let traces = Traces::new();
    let script = r#"
        far mild; far stubborn 'trap "" TERM'
        sh -c 'trap "" TERM; eval "$PRELUDE"; id near; exec sleep 60' &
        until [ -e $D/mild ] && [ -e $D/stubborn ] && [ -e $D/near ]; do sleep 0.01; done
        exit 6"#;
    let ended = run(traces.script(script)).await;
    assert_eq!(ended, exited_by_itself(ExitKind::Code(6)));
    for name in ["mild", "stubborn", "near"] {
        let left = traces.process(name).await;
        assert!(left.is_dead(), "{name} is alive");
    }
}

#[tokio::test]
async fn no_process_stays_a_zombie_while_the_command_runs() {
    let traces = Traces::new();
    let command = start(traces.script("far away; exec sleep 60"), FAR).await;
    let away = traces.process("away").await;
    away.send(Signal::KILL);
    until("it is reaped", || away.state().is_none()).await;
    drop(command);
}

#[tokio::test]
async fn dropping_the_supervisor_kills_the_tree() {
    let traces = Traces::new();
    let spec = traces.script(r#"far away 'trap "" TERM'; trap "" TERM; id command; exec sleep 60"#);
    let command = start(spec, FAR).await;
    let handle = command.handle();
    let (process, away) = (traces.process("command").await, traces.process("away").await);
    let watchdog = process.parent();
    drop(command);
    until("the tree is dead", || process.is_dead() && away.is_dead()).await;
    until("the watchdog is reaped", || watchdog.state().is_none()).await;
    handle.stop(StopReason::Requested);
}

// ---- Faults of the watchdog ----

#[tokio::test]
async fn the_watchdog_survives_stray_signals() {
    let traces = Traces::new();
    let mut command = start(traces.script("id command; exec sleep 60"), FAR).await;
    let process = traces.process("command").await;
    let watchdog = process.parent();
    for signal in [Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
        watchdog.send(signal);
    }
    watchdog.send(Signal::PIPE);
    watchdog.send(Signal::TERM);
    let ended = end_of(&mut command).await;
    let terminated = ExitKind::Signal(Signal::TERM.as_raw());
    assert_eq!(
        ended,
        CommandEnd { status: terminated, reason: EndReason::Stopped(StopReason::Requested) }
    );
}

#[tokio::test]
async fn if_the_watchdog_is_killed_the_supervisor_kills_only_its_tree() {
    let (one, two) = (Traces::new(), Traces::new());
    let script = r#"far away 'trap "" TERM'; sleep 60 & id command; wait"#;
    let mut killed = start(one.script(script), FAR).await;
    let other = start(two.script(script), FAR).await;
    let (process, away) = (one.process("command").await, one.process("away").await);
    let others = [two.process("command").await, two.process("away").await];
    process.parent().send(Signal::KILL);
    let ended = end_of(&mut killed).await;
    assert_eq!(ended, CommandEnd { status: SIGKILL, reason: EndReason::WatchdogDied });
    assert!(process.is_dead() && away.is_dead());
    assert!(others.iter().all(|process| !process.is_dead()));
    drop(other);
}

#[tokio::test]
async fn a_sole_supervisor_finds_processes_with_a_cleared_environment() {
    let script = r#"
        (env -i D="$D" setsid sh -c 'echo $$ > $D/new; mv $D/new $D/away; exec sleep 60' &)
        id command; sleep 60"#;
    let host = Host::start(script);
    let command = host.traces.process("command").await;
    let away = host.traces.process("away").await;
    until("it has left the command", || away.parent() == command.parent()).await;
    command.parent().send(Signal::KILL);
    let ended = host.ended().await;
    assert!(command.is_dead() && away.is_dead());
    assert_eq!(
        ended,
        format!("{:?}", CommandEnd { status: SIGKILL, reason: EndReason::WatchdogDied })
    );
}

#[tokio::test]
async fn if_the_watchdog_is_stopped_the_supervisor_kills_the_tree() {
    let traces = Traces::new();
    let deadlines = within(500, 600);
    let mut command = start(traces.script("far away; id command; sleep 60"), deadlines).await;
    let (process, away) = (traces.process("command").await, traces.process("away").await);
    let watchdog = process.parent();
    let _stopped = Stopped::new(&watchdog).await;
    let ended = end_of(&mut command).await;
    assert_eq!(ended, CommandEnd { status: SIGKILL, reason: EndReason::Lost });
    assert!(process.is_dead() && away.is_dead());
    assert!(!(deadlines.kill_at + ms(200) + SLACK).has_passed(), "killed too late");
}

#[tokio::test]
async fn a_delayed_watchdog_applies_the_heartbeats_it_missed() {
    let traces = Traces::new();
    let first = within(500, 600);
    let mut command = start(traces.script("id command; exec sleep 60"), first).await;
    let process = traces.process("command").await;
    let watchdog = process.parent();
    let stopped = Stopped::new(&watchdog).await;
    command.signal(Signal::URG.as_raw());
    command.extend(FAR);
    until("the first deadlines have passed", || (first.kill_at + SLACK).has_passed()).await;
    drop(stopped);
    command.signal(Signal::USR1.as_raw());
    let terminated = ExitKind::Signal(Signal::USR1.as_raw());
    assert_eq!(end_of(&mut command).await, exited_by_itself(terminated));
}

// ---- Faults of the supervisor, which is a separate process here ----

const STUBBORN_TREE: &str = r#"
    far away 'trap "" TERM'; trap "" TERM; sleep 60 & id command; wait"#;

#[tokio::test]
async fn if_the_supervisor_is_stopped_the_tree_is_killed_in_time() {
    let started = BootInstant::now();
    let host = Host::start(STUBBORN_TREE);
    let command = host.traces.process("command").await;
    let away = host.traces.process("away").await;
    let extended = started + ms(2 * HOST_KILL_MS);
    until("heartbeats have extended the time", || extended.has_passed()).await;
    assert!(!command.is_dead() && !away.is_dead(), "heartbeats keep it alive");

    // The whole process group, as a terminal does.
    kill_process_group(pid(host.process().id), Signal::STOP).expect("a living group");
    let limit = BootInstant::now() + ms(HOST_KILL_MS) + SLACK;
    until("the tree is dead", || command.is_dead() && away.is_dead()).await;
    assert!(!limit.has_passed(), "killed too late");
    assert_eq!(
        host.process().state().as_deref(),
        Some("T"),
        "the supervisor was stopped all the time"
    );

    host.process().send(Signal::CONT);
    let ended = format!("{:?}", CommandEnd { status: SIGKILL, reason: EndReason::Lost });
    assert_eq!(host.ended().await, ended);
}

#[tokio::test]
async fn a_stopped_supervisor_learns_how_the_command_ended() {
    let host = Host::start("trap 'exit 3' TERM; id command; while :; do sleep 0.01; done");
    let command = host.traces.process("command").await;
    let process = host.process();
    let stopped = Stopped::new(&process).await;
    let late = BootInstant::now() + ms(HOST_KILL_MS) + SLACK;
    until("the command is dead and all is late", || command.is_dead() && late.has_passed()).await;
    drop(stopped);
    let ended = format!("{:?}", CommandEnd { status: ExitKind::Code(3), reason: EndReason::Lost });
    assert_eq!(host.ended().await, ended);
}

#[tokio::test]
async fn if_the_supervisor_is_killed_the_tree_is_killed_immediately() {
    let host = Host::start(STUBBORN_TREE);
    let command = host.traces.process("command").await;
    let away = host.traces.process("away").await;
    let watchdog = command.parent();
    kill_process_group(pid(host.process().id), Signal::KILL).expect("a living group");
    let killed = BootInstant::now();
    until("the tree is dead", || command.is_dead() && away.is_dead()).await;
    let deadline = killed + ms(HOST_TERM_MS) - ms(50);
    assert!(!deadline.has_passed(), "killed by the deadline, not by the death of the supervisor");
    until("the watchdog has ended", || watchdog.is_dead()).await;
}

#[tokio::test]
async fn if_supervisor_and_watchdog_are_killed_the_command_dies() {
    let host = Host::start(r#"trap "" TERM; id command; exec sleep 60"#);
    let command = host.traces.process("command").await;
    // Stopped first, so that neither can react to the death of the other.
    host.process().send(Signal::STOP);
    let watchdog = command.parent();
    watchdog.send(Signal::STOP);
    host.process().send(Signal::KILL);
    watchdog.send(Signal::KILL);
    until("the command is dead", || command.is_dead()).await;
}
