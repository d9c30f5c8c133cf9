//! Stops with a grace period of their own: it applies to that stop only, and never after a loss.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::exec::{CommandEnd, EndReason, ExitKind, StopReason};

use crate::harness::{FAR, SIGKILL, SLACK, Stopped, Traces, end_of, ms, start, until, within};

const ENDLESS: Duration = Duration::from_secs(600);

/// Ignores TERM, but records it, and that of a process that it starts then.
const CLEANING: &str = r#"
    far away 'trap "" TERM'
    clean() {
        far cleaner 'trap ": > $D/cleaner-termed" TERM; id cleaner; while :; do sleep 0.01; done'
        : > $D/termed
    }
    trap clean TERM
    id command; while :; do sleep 0.01; done"#;

fn killed(reason: StopReason) -> CommandEnd {
    CommandEnd { status: SIGKILL, reason: EndReason::Stopped(reason) }
}

#[tokio::test]
async fn a_stop_with_its_own_grace_kills_after_that() {
    let traces = Traces::new();
    let mut spec = traces.script(r#"far away 'trap "" TERM'; trap "" TERM; id command; sleep 60"#);
    spec.grace = ENDLESS;
    let mut command = start(spec, FAR).await;
    let (process, away) = (traces.process("command").await, traces.process("away").await);
    command.stop_within(StopReason::Requested, ms(200));
    assert_eq!(end_of(&mut command).await, killed(StopReason::Requested));
    assert!(process.is_dead() && away.is_dead());
}

#[tokio::test]
async fn a_deadline_during_a_long_grace_terminates_and_kills_in_time() {
    let traces = Traces::new();
    let deadlines = within(1500, 2000);
    let mut command = start(traces.script(CLEANING), deadlines).await;
    let (process, away) = (traces.process("command").await, traces.process("away").await);
    command.stop_within(StopReason::TimeLimit, ENDLESS);
    let cleaner = traces.process("cleaner").await;
    // What was started to clean up gets TERM at the loss, and its time until the deadline.
    until("the cleaner got TERM", || traces.has("cleaner-termed")).await;
    assert!(deadlines.term_at.has_passed());
    // An extension comes too late.
    command.extend(FAR);
    assert_eq!(end_of(&mut command).await, killed(StopReason::TimeLimit));
    assert!(process.is_dead() && away.is_dead() && cleaner.is_dead());
    assert!(deadlines.kill_at.has_passed(), "killed too early");
    assert!(!(deadlines.kill_at + SLACK).has_passed(), "killed too late");
}

#[tokio::test]
async fn a_loss_during_a_long_grace_does_not_wait_for_it() {
    let traces = Traces::new();
    // The session lives on: only the lock is lost.
    let mut command = start(traces.script(CLEANING), FAR).await;
    let (process, away) = (traces.process("command").await, traces.process("away").await);
    command.stop_within(StopReason::Requested, ENDLESS);
    until("the command got TERM", || traces.has("termed")).await;
    command.stop(StopReason::Lost);
    assert_eq!(end_of(&mut command).await, killed(StopReason::Requested), "the first reason");
    assert!(process.is_dead() && away.is_dead());
}

#[tokio::test]
async fn a_loss_has_no_grace_of_its_own() {
    let traces = Traces::new();
    let mut command = start(traces.script(CLEANING), FAR).await;
    traces.process("command").await;
    command.stop_within(StopReason::Lost, ENDLESS);
    let ended = CommandEnd { status: SIGKILL, reason: EndReason::Lost };
    assert_eq!(end_of(&mut command).await, ended);
}

#[tokio::test]
async fn a_later_stop_brings_the_kill_forward_but_never_postpones_it() {
    let traces = Traces::new();
    let mut command = start(traces.script(CLEANING), FAR).await;
    traces.process("command").await;
    command.stop_within(StopReason::TimeLimit, ENDLESS);
    command.stop(StopReason::Requested);
    command.stop_within(StopReason::Requested, ENDLESS);
    assert_eq!(end_of(&mut command).await, killed(StopReason::TimeLimit));
}

#[tokio::test]
async fn a_delayed_watchdog_does_not_take_a_renewed_lock_for_lost_during_a_long_grace() {
    let traces = Traces::new();
    let first = within(1500, 1600);
    let script = r#"
        trap ': > $D/termed' TERM
        id command; while [ ! -e $D/go ]; do sleep 0.01; done; exit 4"#;
    let mut command = start(traces.script(script), first).await;
    let process = traces.process("command").await;
    command.stop_within(StopReason::Requested, ENDLESS);
    until("the command got TERM", || traces.has("termed")).await;
    let watchdog = process.parent();
    let stopped = Stopped::new(&watchdog).await;
    command.extend(FAR);
    until("the first deadlines have passed", || (first.kill_at + SLACK).has_passed()).await;
    drop(stopped);
    let resumed = BootInstant::now() + ms(300);
    until("the watchdog has run", || resumed.has_passed()).await;
    assert!(!process.is_dead());
    std::fs::write(traces.path("go"), "").expect("a trace");
    let ended =
        CommandEnd { status: ExitKind::Code(4), reason: EndReason::Stopped(StopReason::Requested) };
    assert_eq!(end_of(&mut command).await, ended);
}

#[tokio::test]
async fn what_the_command_leaves_behind_does_not_have_the_long_grace() {
    let traces = Traces::new();
    let script = r#"
        far away 'trap "" TERM'
        trap 'exit 4' TERM; id command; while :; do sleep 0.01; done"#;
    let mut command = start(traces.script(script), FAR).await;
    let (process, away) = (traces.process("command").await, traces.process("away").await);
    command.stop_within(StopReason::Requested, ENDLESS);
    assert_eq!(end_of(&mut command).await.status, ExitKind::Code(4));
    assert!(process.is_dead() && away.is_dead());
}
