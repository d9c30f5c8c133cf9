//! Marker files written by commands, and the processes behind them.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::wait_until;

/// Prelude of scripts: `$D` is the marker directory, `id NAME` writes the process id to a file
/// there.
pub(crate) const PRELUDE: &str = r#"
D=$(printf %s "$TENURE_ARGS" | tr -d '"'); export D
id() { echo $$ > $D/$1.new; mv $D/$1.new $D/$1; }
"#;

/// Directory for marker files of scripts, which find it in their arguments.
pub(crate) struct MarkerDir(TempDir);

impl MarkerDir {
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

    pub(crate) async fn wait_for(&self, name: &str) {
        wait_until(&format!("{name} is there"), || async { self.has(name) }).await;
    }

    /// Returns the process that wrote its id to this file.
    pub(crate) async fn process(&self, name: &str) -> Process {
        self.wait_for(name).await;
        let id = fs::read_to_string(self.path(name)).expect("a marker file");
        Process::of(id.trim().parse().expect("a process id"))
    }
}

/// Process, distinguished from a later one with the same id by its start time.
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

/// Returns the fields of `/proc/ID/stat` from the state on.
fn stat(id: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}
