//! Test harness of the supervision: trace files of processes, and a supervisor process.
//!
//! No test relies on sleeps: [`until`] waits for a condition, with a timeout.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure::clock::BootInstant;
use tenure::exec::{CommandEnd, Deadlines, EndReason, ExitKind, Spec, Supervisor};

/// Hosts the watchdog and the launcher.
pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_tenure");
/// Longer than any test takes.
pub(crate) const FAR: Deadlines = Deadlines {
    term_at: BootInstant::from_nanos(u64::MAX),
    kill_at: BootInstant::from_nanos(u64::MAX),
};
/// Maximum delay after `kill_at` until the last process is dead: one watchdog poll and slack.
pub(crate) const SLACK: Duration = ms(300);

/// Time after which a waiting test fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn within(term_ms: u64, kill_ms: u64) -> Deadlines {
    let now = BootInstant::now();
    Deadlines { term_at: now + ms(term_ms), kill_at: now + ms(kill_ms) }
}

/// Waits for a condition. Panics on a timeout.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = BootInstant::now() + TIMEOUT;
    while !holds() {
        assert!(!limit.has_passed(), "timed out waiting until {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// A directory in which the processes of a command record their ids and other traces.
pub(crate) struct Traces(TempDir);

impl Traces {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns a shell script with this directory as `$D`, and `id NAME` to record its process id.
    pub(crate) fn script(&self, script: &str) -> Spec {
        let mut spec = Spec::new(["sh", "-c", &format!("{PRELUDE}\n{script}")]);
        spec.helper = HELPER.into();
        spec.grace = ms(300);
        spec.env.push(("D".into(), self.0.path().into()));
        spec
    }

    /// Returns the process that recorded its id under this name.
    pub(crate) async fn process(&self, name: &str) -> Process {
        let path = self.path(name);
        until(&format!("{name} has started"), || path.exists()).await;
        let id = fs::read_to_string(path).expect("a trace");
        Process::of(id.trim().parse().expect("a process id"))
    }
}

/// `far` starts a process outside of the tree: its parent is dead, and it leads its own session. It
/// evaluates the second argument first, for example `trap "" TERM`.
const PRELUDE: &str = r#"
export PRELUDE='id() { echo $$ > $D/$1.new; mv $D/$1.new $D/$1; }'
eval "$PRELUDE"
far() { (setsid sh -c 'eval "$PRELUDE"; eval "$2"; id $1; exec sleep 60' sh "$1" "${2-}" &) }
"#;

/// A process, distinguished by its start time from a later one with the same id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: i32,
    start: String,
}

impl Process {
    fn of(id: i32) -> Self {
        Self { id, start: stat(id).map(|stat| stat[19].clone()).unwrap_or_default() }
    }

    /// Returns its state (`R`, `S`, `T`...), or `None` if it does not exist.
    pub(crate) fn state(&self) -> Option<String> {
        stat(self.id).filter(|stat| stat[19] == self.start).map(|mut stat| stat.swap_remove(0))
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state().is_none_or(|state| state == "Z" || state == "X")
    }

    pub(crate) fn parent(&self) -> Self {
        let stat = stat(self.id).expect("a living process");
        Self::of(stat[1].parse().expect("a process id"))
    }

    pub(crate) fn children(&self) -> Vec<Self> {
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_child = |id: &i32| stat(*id).is_some_and(|stat| stat[1] == self.id.to_string());
        ids.filter(is_child).map(Self::of).collect()
    }

    pub(crate) fn session(&self) -> i32 {
        stat(self.id).expect("a living process")[3].parse().expect("a session id")
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(pid(self.id), signal).expect("a living process");
    }
}

/// Keeps a process stopped until dropped: a failed test must not leave one behind.
pub(crate) struct Stopped<'a>(&'a Process);

impl<'a> Stopped<'a> {
    pub(crate) async fn new(process: &'a Process) -> Self {
        process.send(Signal::STOP);
        until("it is stopped", || process.state().as_deref() == Some("T")).await;
        Self(process)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // It may have been killed.
        kill_process(pid(self.0.id), Signal::CONT).ok();
    }
}

pub(crate) fn pid(id: i32) -> Pid {
    Pid::from_raw(id).expect("a process id")
}

/// Returns the fields of `/proc/ID/stat` from the state on.
fn stat(id: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

pub(crate) async fn start(spec: Spec, first: Deadlines) -> Supervisor {
    Supervisor::start(spec, first).await.expect("the command starts")
}

pub(crate) async fn run(spec: Spec) -> CommandEnd {
    end_of(&mut start(spec, FAR).await).await
}

/// Waits for the end of the command, with a timeout.
pub(crate) async fn end_of(command: &mut Supervisor) -> CommandEnd {
    let ended = tokio::time::timeout(TIMEOUT, command.wait()).await;
    ended.expect("the command ends").expect("its end is known")
}

pub(crate) fn exited_by_itself(status: ExitKind) -> CommandEnd {
    CommandEnd { status, reason: EndReason::Exited }
}

pub(crate) const SIGKILL: ExitKind = ExitKind::Signal(9);

/// Time by which a heartbeat of the host extends the deadlines, as with a time to live of 3 s.
pub(crate) const HOST_TERM_MS: u64 = 2050;
pub(crate) const HOST_KILL_MS: u64 = 2550;
/// Time after a heartbeat at which a server could grant the lock to another holder.
pub(crate) const HOST_GRANT_MS: u64 = 3000;

/// A process that supervises a command and extends its deadlines every 50 ms, like `tenure exec`.
pub(crate) struct Host {
    pub(crate) child: Child,
    pub(crate) traces: Traces,
}

impl Host {
    pub(crate) fn start(script: &str) -> Self {
        let traces = Traces::new();
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "harness::acts_as_supervisor", "--nocapture"]);
        command.env("HOST_SCRIPT", script).env("D", traces.0.path()).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().expect("this test can be started"), traces }
    }

    pub(crate) fn process(&self) -> Process {
        Process::of(i32::try_from(self.child.id()).expect("a process id"))
    }

    /// Returns how the command ended, as reported by the host.
    pub(crate) async fn ended(&self) -> String {
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

/// Not a test: the main function of [`Host`].
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
    spec.sole_child = true;
    let mut last = within(HOST_TERM_MS, HOST_KILL_MS);
    let mut command = start(spec, last).await;
    let ended = loop {
        tokio::select! {
            ended = command.wait() => break ended.expect("the command ends"),
            () = tokio::time::sleep(ms(50)) => {
                // A server would not renew a lost tenure.
                if !last.term_at.has_passed() {
                    last = within(HOST_TERM_MS, HOST_KILL_MS);
                    command.extend(last);
                }
            }
        }
    };
    fs::write(traces.join("new"), format!("{ended:?}")).expect("a file");
    fs::rename(traces.join("new"), traces.join("ended")).expect("a file");
}
