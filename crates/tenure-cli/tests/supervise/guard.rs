//! The guard: the tree dies in time even if neither supervisor nor watchdog can act.

use std::fs;

use rustix::process::Signal;
use tenure::clock::BootInstant;

use super::STUBBORN_TREE;
use crate::harness::{HOST_KILL_MS, Host, Process, SLACK, Stopped, ms, until};

#[tokio::test]
async fn if_supervisor_and_watchdog_are_stopped_the_tree_is_killed_in_time() {
    let host = Host::start(STUBBORN_TREE);
    let command = host.traces.process("command").await;
    let away = host.traces.process("away").await;
    let (supervisor, watchdog) = (host.process(), command.parent());
    let stopped = [Stopped::new(&watchdog).await, Stopped::new(&supervisor).await];
    let limit = BootInstant::now() + ms(HOST_KILL_MS) + SLACK;
    assert!(!command.is_dead() && !away.is_dead());
    until("the tree is dead", || command.is_dead() && away.is_dead()).await;
    assert!(!limit.has_passed(), "killed too late");
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
    let guard = guard_of(&host);
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
    let guard = guard_of(&host);
    until("it is in its own session", || guard.session() == guard.id).await;
    let path = |name| format!("/proc/{}/{name}", guard.id);
    until("it has its name", || {
        fs::read_to_string(path("comm")).expect("it is alive") == "lock-guard\n"
    })
    .await;
    // `pkill -f` looks at the command line.
    assert!(!fs::read_to_string(path("cmdline")).expect("it is alive").contains("tenure"));
    for signal in [Signal::INT, Signal::HUP, Signal::TERM, Signal::USR1] {
        guard.send(signal);
    }
    let (supervisor, watchdog) = (host.process(), command.parent());
    let _stopped = [Stopped::new(&watchdog).await, Stopped::new(&supervisor).await];
    until("the guard has killed the command", || command.is_dead()).await;
}

/// Returns the child of the host that is not the watchdog.
fn guard_of(host: &Host) -> Process {
    let is_guard = |child: &Process| {
        let arguments = fs::read_to_string(format!("/proc/{}/cmdline", child.id));
        arguments.is_ok_and(|arguments| arguments.contains("__guard"))
    };
    host.process().children().into_iter().find(is_guard).expect("it has a guard")
}
