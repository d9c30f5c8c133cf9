//! The guard: the tree dies in time even if neither supervisor nor watchdog can act.

use std::fs;

use rustix::process::Signal;
use tenure::clock::BootInstant;

use super::STUBBORN_TREE;
use crate::harness::{
    HOST_GRANT_MS, HOST_KILL_MS, HOST_TERM_MS, Host, Process, Stopped, Traces, ms, start, until,
    within,
};

#[tokio::test]
async fn if_supervisor_and_watchdog_are_stopped_the_tree_is_killed_in_time() {
    let host = Host::start(STUBBORN_TREE);
    let command = host.traces.process("command").await;
    let away = host.traces.process("away").await;
    let (supervisor, watchdog) = (host.process(), command.parent());
    let stopped = [Stopped::new(&watchdog).await, Stopped::new(&supervisor).await];
    let next_grant = BootInstant::now() + ms(HOST_GRANT_MS);
    assert!(!command.is_dead() && !away.is_dead());
    until("the tree is dead", || command.is_dead() && away.is_dead()).await;
    assert!(!next_grant.has_passed(), "killed too late");
    for process in [&supervisor, &watchdog] {
        assert_eq!(process.state().as_deref(), Some("T"), "it was stopped all the time");
    }
    drop(stopped);
    assert!(host.ended().await.contains("Lost"));
    until("the watchdog is reaped", || watchdog.state().is_none()).await;
}

#[tokio::test]
async fn if_the_supervisor_is_killed_and_the_watchdog_stopped_nothing_is_left() {
    let host = Host::start(STUBBORN_TREE);
    let command = host.traces.process("command").await;
    let away = host.traces.process("away").await;
    let watchdog = command.parent();
    let guard = guard_of(&command);
    let _stopped = Stopped::new(&watchdog).await;
    host.process().send(Signal::KILL);
    let left = [command, away, watchdog.clone(), guard];
    until("everything is dead", || left.iter().all(Process::is_dead)).await;
}

#[tokio::test]
async fn if_supervisor_and_watchdog_are_killed_the_descendants_die() {
    let host = Host::start(STUBBORN_TREE);
    let command = host.traces.process("command").await;
    let away = host.traces.process("away").await;
    let (supervisor, watchdog) = (host.process(), command.parent());
    // Stopped first, so that neither can react to the death of the other.
    supervisor.send(Signal::STOP);
    watchdog.send(Signal::STOP);
    supervisor.send(Signal::KILL);
    watchdog.send(Signal::KILL);
    until("the tree is dead", || command.is_dead() && away.is_dead()).await;
}

#[tokio::test]
async fn signals_to_the_other_processes_miss_the_guard() {
    let host = Host::start("id command; exec sleep 60");
    let command = host.traces.process("command").await;
    let guard = guard_of(&command);
    until_ready(&guard).await;
    assert_eq!(guard.session(), guard.id, "it is in its own session");
    let path = |name| format!("/proc/{}/{name}", guard.id);
    let environment = fs::read_to_string(path("environ")).expect("it is alive");
    assert!(!environment.contains("HOST_SCRIPT="), "no credentials: {environment}");
    // `pkill -f` looks at the command line.
    assert!(!fs::read_to_string(path("cmdline")).expect("it is alive").contains("tenure"));
    for signal in [Signal::INT, Signal::HUP, Signal::TERM, Signal::USR1] {
        guard.send(signal);
    }
    let (supervisor, watchdog) = (host.process(), command.parent());
    let _stopped = [Stopped::new(&watchdog).await, Stopped::new(&supervisor).await];
    until("the guard has killed the command", || command.is_dead()).await;
}

#[tokio::test]
async fn a_guard_that_was_stopped_past_its_deadline_spares_a_healthy_command() {
    let host = Host::start("id command; exec sleep 60");
    let command = host.traces.process("command").await;
    let guard = guard_of(&command);
    until_ready(&guard).await;
    let stopped = Stopped::new(&guard).await;
    let passed = BootInstant::now() + ms(HOST_GRANT_MS);
    until("the deadline that it knows has passed", || passed.has_passed()).await;
    drop(stopped);
    let passed = BootInstant::now() + ms(HOST_GRANT_MS);
    until("it would have killed", || command.is_dead() || passed.has_passed()).await;
    assert!(!command.is_dead());
}

#[tokio::test]
async fn a_guard_that_could_not_receive_all_deadlines_waits_for_the_next() {
    let traces = Traces::new();
    let deadlines = || within(HOST_TERM_MS, HOST_KILL_MS);
    let supervisor = start(traces.script("id command; exec sleep 60"), deadlines()).await;
    let command = traces.process("command").await;
    let guard = guard_of(&command);
    until_ready(&guard).await;
    let stopped = Stopped::new(&guard).await;
    // Far more messages than the socket holds; the deadlines of those in it pass.
    let passed = BootInstant::now() + ms(2 * HOST_GRANT_MS);
    until("the deadlines that it can read have passed", || {
        (0..10).for_each(|_| supervisor.extend(deadlines()));
        passed.has_passed()
    })
    .await;
    drop(stopped);
    let passed = BootInstant::now() + ms(2 * HOST_GRANT_MS);
    until("it would have killed", || {
        supervisor.extend(deadlines());
        command.is_dead() || passed.has_passed()
    })
    .await;
    assert!(!command.is_dead());
}

/// Waits until the guard handles signals and reads deadlines.
async fn until_ready(guard: &Process) {
    until("it has its name", || {
        let name = fs::read_to_string(format!("/proc/{}/comm", guard.id));
        name.expect("it is alive") == "lock-guard\n"
    })
    .await;
}

/// Returns the guard of a command: it names the watchdog on its command line.
fn guard_of(command: &Process) -> Process {
    let watchdog = command.parent();
    let is_guard = |child: &Process| {
        let arguments = fs::read_to_string(format!("/proc/{}/cmdline", child.id));
        let last = format!("\0{}\0", watchdog.id);
        arguments.is_ok_and(|args| args.contains("__guard") && args.ends_with(&last))
    };
    watchdog.parent().children().into_iter().find(is_guard).expect("it has a guard")
}
