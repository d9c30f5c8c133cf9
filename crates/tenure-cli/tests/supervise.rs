//! The promise of `tenure::exec`, tried with real processes and real signals: the tree of a command
//! is dead before its lock can be somebody else's.
//!
//! Suspending the machine is the one fault that is not tried here. The deadlines are instants of
//! `CLOCK_BOOTTIME`, and a suspended machine looks to them like one that was stopped for that long.
//!
//! Nothing here sleeps to let something happen: [`until`] waits for a condition, with a limit.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;
use tenure::clock::BootInstant;
use tenure::exec::{Deadlines, Ended, Error, ExitKind, Spec, Stop, Supervisor, Why};

/// Hosts the watchdog and the launcher.
const HELPER: &str = env!("CARGO_BIN_EXE_tenure");
/// Longer than any test takes.
const FAR: Deadlines = Deadlines {
    term_at: BootInstant::from_nanos(u64::MAX),
    kill_at: BootInstant::from_nanos(u64::MAX),
};
/// How much later than `kill_at` the last process may die: one look of the watchdog, and slack.
const SLACK: Duration = ms(300);

/// How long a test waits before it has failed.
const PATIENCE: Duration = Duration::from_secs(15);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn within(term_ms: u64, kill_ms: u64) -> Deadlines {
    let now = BootInstant::now();
    Deadlines { term_at: now + ms(term_ms), kill_at: now + ms(kill_ms) }
}

/// Waits for a condition; the limit only ends a test that has failed.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = BootInstant::now() + PATIENCE;
    while !holds() {
        assert!(!limit.has_passed(), "waited in vain until {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// A directory in which the processes of a command leave their ids and other traces.
struct Traces(TempDir);

impl Traces {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// A shell script that finds this directory in `$D`, and `id NAME` to leave its process id.
    fn script(&self, script: &str) -> Spec {
        let mut spec = Spec::new(["sh", "-c", &format!("{PRELUDE}\n{script}")]);
        spec.helper = HELPER.into();
        spec.grace = ms(300);
        spec.env.push(("D".into(), self.0.path().into()));
        spec
    }

    /// The process that left its id under this name.
    async fn process(&self, name: &str) -> Process {
        let path = self.path(name);
        until(&format!("{name} has started"), || path.exists()).await;
        let id = fs::read_to_string(path).expect("a trace");
        Process::of(id.trim().parse().expect("a process id"))
    }
}

/// `far` starts a process that has left: its parent is dead, and it leads a session of its own. With
/// a first argument that it runs before, `trap "" TERM` for example.
const PRELUDE: &str = r#"
export PRELUDE='id() { echo $$ > $D/$1.new; mv $D/$1.new $D/$1; }'
eval "$PRELUDE"
far() { (setsid sh -c 'eval "$PRELUDE"; eval "$2"; id $1; exec sleep 60' sh "$1" "${2-}" &) }
"#;

/// A process, told apart from a later one with the same id.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    id: i32,
    start: String,
}

impl Process {
    fn of(id: i32) -> Self {
        Self { id, start: stat(id).map(|stat| stat[19].clone()).unwrap_or_default() }
    }

    /// In this state: `R`, `S`, `T`... or none if it does not exist.
    fn state(&self) -> Option<String> {
        stat(self.id).filter(|stat| stat[19] == self.start).map(|mut stat| stat.swap_remove(0))
    }

    fn is_dead(&self) -> bool {
        self.state().is_none_or(|state| state == "Z" || state == "X")
    }

    fn parent(&self) -> Self {
        let stat = stat(self.id).expect("a living process");
        Self::of(stat[1].parse().expect("a process id"))
    }

    fn send(&self, signal: Signal) {
        kill_process(pid(self.id), signal).expect("a living process");
    }
}

fn pid(id: i32) -> Pid {
    Pid::from_raw(id).expect("a process id")
}

/// The words of `/proc/ID/stat` from the state on.
fn stat(id: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

async fn start(spec: Spec, first: Deadlines) -> Supervisor {
    Supervisor::start(spec, first).await.expect("the command starts")
}

async fn run(spec: Spec) -> Ended {
    end_of(&mut start(spec, FAR).await).await
}

/// Waits with a limit, like [`until`].
async fn end_of(command: &mut Supervisor) -> Ended {
    let ended = tokio::time::timeout(PATIENCE, command.wait()).await;
    ended.expect("the command ends").expect("its end is known")
}

fn by_itself(status: ExitKind) -> Ended {
    Ended { status, why: Why::ByItself }
}

const SIGKILL: ExitKind = ExitKind::Signal(9);

// ---- What the command sees and returns ----

#[tokio::test]
async fn the_exit_code_is_passed_on() {
    assert_eq!(run(Traces::new().script("exit 7")).await, by_itself(ExitKind::Code(7)));
}

#[tokio::test]
async fn the_signal_that_ended_the_command_is_passed_on() {
    let ended = run(Traces::new().script("kill -USR2 $$")).await;
    assert_eq!(ended, by_itself(ExitKind::Signal(Signal::USR2.as_raw())));
}

async fn run_program(program: &Path) -> (Ended, String) {
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
    assert_eq!(ended, by_itself(ExitKind::Code(127)));
    assert!(message.starts_with("tenure: cannot run no-such-command: "), "{message}");
}

#[tokio::test]
async fn a_command_that_cannot_be_executed_ends_with_126() {
    let traces = Traces::new();
    fs::write(traces.path("plain"), "text").expect("a file");
    let (ended, message) = run_program(&traces.path("plain")).await;
    assert_eq!(ended, by_itself(ExitKind::Code(126)));
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
    assert_eq!(end_of(&mut command).await, by_itself(ExitKind::Code(0)));
    let (mut out, mut err) = (String::new(), String::new());
    command.stdout.take().expect("a pipe").read_to_string(&mut out).expect("its output");
    command.stderr.take().expect("a pipe").read_to_string(&mut err).expect("its errors");
    assert_eq!((out.as_str(), err.as_str()), ("HELLO", "err\n"));
}

#[tokio::test]
async fn the_environment_is_passed_on() {
    let mut spec = Traces::new().script(r#"[ "$TOKEN" = 42 ] && [ -n "$PATH" ]"#);
    spec.env.push(("TOKEN".into(), "42".into()));
    assert_eq!(run(spec).await, by_itself(ExitKind::Code(0)));
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
    assert_eq!(ended, by_itself(ExitKind::Code(5)));
}

#[tokio::test]
async fn a_signal_that_the_process_ignores_is_not_one_to_forward() {
    let script = "trap '' HUP; exec $EXE --exact tells_forwarded_signals --nocapture";
    let mut spec = Traces::new().script(script);
    spec.env.push(("EXE".into(), std::env::current_exe().expect("this test").into()));
    spec.env.push(("TELL".into(), "1".into()));
    assert_eq!(run(spec).await, by_itself(ExitKind::Code(0)));
}

#[test]
fn tells_forwarded_signals() {
    if std::env::var_os("TELL").is_some() {
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
async fn at_the_deadline_the_command_may_clean_up() {
    let traces = Traces::new();
    let script = r#"
        trap 'sleep 0.1; : > $D/cleaned; exit 3' TERM
        id command; while :; do sleep 0.01; done"#;
    let deadlines = within(500, 60_000);
    let mut command = start(traces.script(script), deadlines).await;
    traces.process("command").await;
    let ended = end_of(&mut command).await;
    assert_eq!(ended, Ended { status: ExitKind::Code(3), why: Why::Lost });
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
    assert_eq!(ended, Ended { status: SIGKILL, why: Why::Lost });
    assert!(process.is_dead());
    assert!(deadlines.kill_at.has_passed(), "killed too early");
    assert!(!(deadlines.kill_at + SLACK).has_passed(), "killed too late");
}

#[tokio::test]
async fn at_the_deadline_processes_that_left_the_tree_die_too() {
    let traces = Traces::new();
    let deadlines = within(500, 800);
    let spec = traces.script(r#"far mild; far stubborn 'trap "" TERM'; id command; sleep 60"#);
    let mut command = start(spec, deadlines).await;
    let mild = traces.process("mild").await;
    let stubborn = traces.process("stubborn").await;
    assert!(!mild.is_dead() && !stubborn.is_dead());
    let ended = end_of(&mut command).await;
    assert_eq!(ended.why, Why::Lost);
    assert!(mild.is_dead() && stubborn.is_dead());
    assert!(!(deadlines.kill_at + SLACK).has_passed(), "killed too late");
}

#[tokio::test]
async fn extending_gives_time() {
    let traces = Traces::new();
    let first = within(300, 400);
    let mut command = start(traces.script("id command; exec sleep 60"), first).await;
    let process = traces.process("command").await;
    let second = within(1000, 1100);
    command.extend(second);
    command.extend(first);
    until("the first deadlines have passed", || (first.kill_at + SLACK).has_passed()).await;
    assert!(!process.is_dead());
    assert_eq!(end_of(&mut command).await.why, Why::Lost);
    assert!(second.term_at.has_passed());
}

#[tokio::test]
async fn what_is_lost_stays_lost() {
    let traces = Traces::new();
    let script = r#"
        trap ': > $D/termed' TERM
        id command; while :; do sleep 0.01; done"#;
    let deadlines = within(300, 800);
    let mut command = start(traces.script(script), deadlines).await;
    until("the command got TERM", || traces.has("termed")).await;
    command.extend(FAR);
    let ended = end_of(&mut command).await;
    assert_eq!(ended, Ended { status: SIGKILL, why: Why::Lost });
    assert!(!(deadlines.kill_at + SLACK).has_passed(), "killed too late");
}

// ---- Ends that somebody else chose ----

#[tokio::test]
async fn a_stop_kills_after_the_grace() {
    let traces = Traces::new();
    let spec = traces.script(r#"far away; trap "" TERM; id command; exec sleep 60"#);
    let mut command = start(spec, FAR).await;
    let (process, away) = (traces.process("command").await, traces.process("away").await);
    command.handle().stop(Stop::TimeLimit);
    let ended = end_of(&mut command).await;
    assert_eq!(ended, Ended { status: SIGKILL, why: Why::Stopped(Stop::TimeLimit) });
    assert!(process.is_dead() && away.is_dead());
}

#[tokio::test]
async fn a_stop_has_no_more_time_than_the_lock() {
    let traces = Traces::new();
    let mut spec = traces.script(r#"trap "" TERM; id command; exec sleep 60"#);
    spec.grace = Duration::from_secs(60);
    let deadlines = within(600, 900);
    let mut command = start(spec, deadlines).await;
    traces.process("command").await;
    command.stop(Stop::Lost);
    let ended = end_of(&mut command).await;
    assert_eq!(ended, Ended { status: SIGKILL, why: Why::Lost });
    assert!(!(deadlines.kill_at + SLACK).has_passed(), "killed too late");
}

#[tokio::test]
async fn a_stopped_process_can_still_clean_up() {
    let traces = Traces::new();
    let mut spec = traces.script("trap 'exit 4' TERM; id command; while :; do sleep 0.01; done");
    spec.grace = Duration::from_secs(60);
    let mut command = start(spec, FAR).await;
    let process = traces.process("command").await;
    process.send(Signal::STOP);
    until("it is stopped", || process.state().as_deref() == Some("T")).await;
    command.stop(Stop::Asked);
    let ended = end_of(&mut command).await;
    assert_eq!(ended, Ended { status: ExitKind::Code(4), why: Why::Stopped(Stop::Asked) });
}

#[tokio::test]
async fn what_the_command_leaves_behind_is_dead_when_the_wait_ends() {
    let traces = Traces::new();
    let script = r#"
        far mild; far stubborn 'trap "" TERM'
        sh -c 'trap "" TERM; eval "$PRELUDE"; id near; exec sleep 60' &
        until [ -e $D/mild ] && [ -e $D/stubborn ] && [ -e $D/near ]; do sleep 0.01; done
        exit 6"#;
    let ended = run(traces.script(script)).await;
    assert_eq!(ended, by_itself(ExitKind::Code(6)));
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
    handle.stop(Stop::Asked);
}

// ---- The watchdog in trouble ----

#[tokio::test]
async fn the_watchdog_does_not_die_of_stray_signals() {
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
    assert_eq!(ended, Ended { status: terminated, why: Why::Stopped(Stop::Asked) });
}

#[tokio::test]
async fn when_the_watchdog_is_killed_the_supervisor_kills_the_tree_and_nothing_else() {
    let (one, two) = (Traces::new(), Traces::new());
    let script = r#"far away 'trap "" TERM'; sleep 60 & id command; wait"#;
    let mut killed = start(one.script(script), FAR).await;
    let other = start(two.script(script), FAR).await;
    let (process, away) = (one.process("command").await, one.process("away").await);
    let others = [two.process("command").await, two.process("away").await];
    process.parent().send(Signal::KILL);
    let ended = end_of(&mut killed).await;
    assert_eq!(ended, Ended { status: SIGKILL, why: Why::WatchdogDied });
    assert!(process.is_dead() && away.is_dead());
    assert!(others.iter().all(|process| !process.is_dead()));
    drop(other);
}

#[tokio::test]
async fn a_lone_supervisor_also_finds_who_erased_its_environment() {
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
    assert_eq!(ended, format!("{:?}", Ended { status: SIGKILL, why: Why::WatchdogDied }));
}

#[tokio::test]
async fn when_the_watchdog_is_stopped_the_supervisor_kills_the_tree() {
    let traces = Traces::new();
    let deadlines = within(500, 600);
    let mut command = start(traces.script("far away; id command; sleep 60"), deadlines).await;
    let (process, away) = (traces.process("command").await, traces.process("away").await);
    process.parent().send(Signal::STOP);
    let ended = end_of(&mut command).await;
    assert_eq!(ended, Ended { status: SIGKILL, why: Why::Lost });
    assert!(process.is_dead() && away.is_dead());
    assert!(!(deadlines.kill_at + ms(200) + SLACK).has_passed(), "killed too late");
}

// ---- The supervisor in trouble: it is a process of its own here ----

/// Time that a heartbeat of the host gives.
const HOST_TERM_MS: u64 = 500;
const HOST_KILL_MS: u64 = 800;

/// A process that supervises a command and extends its time every 50 ms, like `tenure exec`.
struct Host {
    child: Child,
    traces: Traces,
}

impl Host {
    fn start(script: &str) -> Self {
        let traces = Traces::new();
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "acts_as_supervisor", "--nocapture"]);
        command.env("HOST_SCRIPT", script).env("D", traces.0.path()).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().expect("this test can be started"), traces }
    }

    fn process(&self) -> Process {
        Process::of(i32::try_from(self.child.id()).expect("a process id"))
    }

    /// How the command ended, told by the host after its wait.
    async fn ended(&self) -> String {
        until("the wait ends", || self.traces.has("ended")).await;
        fs::read_to_string(self.traces.path("ended")).expect("a trace")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Already dead in some tests.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Not a test but the body of [`Host`].
#[test]
fn acts_as_supervisor() {
    if let Ok(script) = std::env::var("HOST_SCRIPT") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(supervise(&script));
    }
}

async fn supervise(script: &str) {
    let traces = PathBuf::from(std::env::var_os("D").expect("a directory"));
    let mut spec = Spec::new(["sh", "-c", &format!("{PRELUDE}\n{script}")]);
    spec.helper = HELPER.into();
    spec.alone = true;
    let mut command = start(spec, within(HOST_TERM_MS, HOST_KILL_MS)).await;
    let ended = loop {
        tokio::select! {
            ended = command.wait() => break ended.expect("the command ends"),
            () = tokio::time::sleep(ms(50)) => command.extend(within(HOST_TERM_MS, HOST_KILL_MS)),
        }
    };
    fs::write(traces.join("new"), format!("{ended:?}")).expect("a file");
    fs::rename(traces.join("new"), traces.join("ended")).expect("a file");
}

const STUBBORN_TREE: &str = r#"
    far away 'trap "" TERM'; trap "" TERM; sleep 60 & id command; wait"#;

#[tokio::test]
async fn when_the_supervisor_is_stopped_the_tree_dies_in_time() {
    let started = BootInstant::now();
    let host = Host::start(STUBBORN_TREE);
    let command = host.traces.process("command").await;
    let away = host.traces.process("away").await;
    let extended = started + ms(2 * HOST_KILL_MS);
    until("heartbeats have extended the time", || extended.has_passed()).await;
    assert!(!command.is_dead() && !away.is_dead(), "heartbeats keep it alive");

    // The whole group, as a terminal does it.
    kill_process_group(pid(host.process().id), Signal::STOP).expect("a living group");
    let limit = BootInstant::now() + ms(HOST_KILL_MS) + SLACK;
    until("the tree is dead", || command.is_dead() && away.is_dead()).await;
    assert!(!limit.has_passed(), "killed too late");
    assert_eq!(host.process().state().as_deref(), Some("T"), "the supervisor slept all the time");

    host.process().send(Signal::CONT);
    let ended = format!("{:?}", Ended { status: SIGKILL, why: Why::Lost });
    assert_eq!(host.ended().await, ended);
}

#[tokio::test]
async fn when_the_supervisor_is_killed_the_tree_dies_at_once() {
    let host = Host::start(STUBBORN_TREE);
    let command = host.traces.process("command").await;
    let away = host.traces.process("away").await;
    let watchdog = command.parent();
    kill_process_group(pid(host.process().id), Signal::KILL).expect("a living group");
    let killed = BootInstant::now();
    until("the tree is dead", || command.is_dead() && away.is_dead()).await;
    let deadline = killed + ms(HOST_TERM_MS) - ms(50);
    assert!(!deadline.has_passed(), "not because of the supervisor but of the deadline");
    until("the watchdog has ended", || watchdog.is_dead()).await;
}

#[tokio::test]
async fn when_supervisor_and_watchdog_are_killed_the_command_dies() {
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
