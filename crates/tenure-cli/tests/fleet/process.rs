//! A process of the binary that can be restarted with the same arguments.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::common::{signal, tenure};

/// The binary with its arguments; killed on drop, even if it is stopped.
pub(crate) struct Process {
    pub(crate) args: Vec<String>,
    data: PathBuf,
    key: Option<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    pub(crate) fn new(data: &Path, log: PathBuf, args: &[&str], key: Option<&str>) -> Self {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Self { args, data: data.to_owned(), key: key.map(str::to_owned), log, child: None }
    }

    pub(crate) fn launch(&mut self) {
        let log = OpenOptions::new().append(true).create(true).open(&self.log);
        let mut command = tenure(&self.data);
        if let Some(key) = &self.key {
            command.env("TENURE_KEY", key);
        }
        command.args(&self.args).stdout(Stdio::null()).stderr(log.expect("it is writable"));
        self.child = Some(command.spawn().expect("the binary starts"));
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Returns the exit code if the process has exited; the inner `None` means by a signal.
    pub(crate) fn poll_exit(&mut self) -> Option<Option<i32>> {
        let status = self.child.as_mut().expect("it runs").try_wait().expect("it is ours")?;
        Some(status.code())
    }

    /// Returns its stderr output.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
