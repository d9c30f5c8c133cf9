//! Traces that commands leave, and the processes behind them.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::until;

/// Scripts begin with this: `$D` is the directory of traces, `id NAME` leaves a process id there.
pub(crate) const PRELUDE: &str = r#"
D=$(printf %s "$TENURE_ARGS" | tr -d '"'); export D
id() { echo $$ > $D/$1.new; mv $D/$1.new $D/$1; }
"#;

/// A directory in which scripts leave traces; they find it in their arguments.
pub(crate) struct Traces(TempDir);

impl Traces {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub(crate) async fn until(&self, name: &str) {
        until(&format!("{name} is there"), || async { self.has(name) }).await;
    }

    /// The process that left its id under this name.
    pub(crate) async fn process(&self, name: &str) -> Process {
        self.until(name).await;
        let id = fs::read_to_string(self.path(name)).expect("a trace");
        Process::of(id.trim().parse().expect("a process id"))
    }
}

/// A process, told apart from a later one with the same id.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    id: i32,
    start: String,
}

impl Process {
    fn of(id: i32) -> Self {
        Self { id, start: stat(id).map(|words| words[19].clone()).unwrap_or_default() }
    }

    pub(crate) fn is_dead(&self) -> bool {
        let now = stat(self.id).filter(|words| words[19] == self.start);
        now.is_none_or(|words| words[0] == "Z" || words[0] == "X")
    }

    pub(crate) fn parent(&self) -> Self {
        Self::of(stat(self.id).expect("a living process")[1].parse().expect("a process id"))
    }

    pub(crate) fn kill(&self) {
        kill_process(Pid::from_raw(self.id).expect("not zero"), Signal::KILL).expect("it lives");
    }
}

/// The words of `/proc/ID/stat` from the state on.
fn stat(id: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}
