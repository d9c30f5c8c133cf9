//! A demo of an app as a real process.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, ExitStatus};

use tempfile::TempDir;

use crate::common::{signal, tenure, until};

/// A demo whose output goes to files, with a directory for temporary files of its own.
pub struct Demo {
    child: Child,
    /// Everything that the demo and its commands create is below it.
    pub tmp: TempDir,
    files: TempDir,
}

impl Demo {
    pub fn start(app: &str, args: &[&str]) -> Self {
        let (tmp, files) = (temporary_dir(), temporary_dir());
        let file = |name| File::create(files.path().join(name)).expect("writable");
        let mut command = tenure(files.path());
        command.args(["demo", app]).args(args).env("TMPDIR", tmp.path());
        command.stdout(file("out")).stderr(file("err"));
        Self { child: command.spawn().expect("it starts"), tmp, files }
    }

    pub fn out(&self) -> String {
        fs::read_to_string(self.files.path().join("out")).expect("text")
    }

    pub fn err(&self) -> String {
        fs::read_to_string(self.files.path().join("err")).expect("text")
    }

    pub fn until_out(&self, words: &str) {
        until(|| {
            let found = self.out().contains(words);
            assert!(found || self.err().is_empty(), "{}{}", self.out(), self.err());
            found
        });
    }

    pub fn interrupt(&self) {
        signal(self.child.id(), "INT");
    }

    pub fn wait(&mut self) -> ExitStatus {
        let (child, mut status) = (&mut self.child, None);
        let ended = std::cell::RefCell::new((child, &mut status));
        until(|| {
            let (child, status) = &mut *ended.borrow_mut();
            **status = child.try_wait().expect("it is ours");
            status.is_some()
        });
        status.expect("it has ended")
    }

    /// Asserts that the directory is removed and that no process of the demo is left.
    pub fn assert_nothing_left(&self) {
        let left: Vec<_> = fs::read_dir(self.tmp.path()).expect("directory").collect();
        assert!(left.is_empty(), "{left:?}");
        // A killed process disappears when its parent has read its status.
        until(|| processes_in(self.tmp.path()).is_empty());
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn temporary_dir() -> TempDir {
    TempDir::new().expect("temporary directory")
}

/// Returns the processes that work in `dir` or have it in their environment.
pub fn processes_in(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().expect("text");
    let in_dir = |process: &Path| {
        let cwd = fs::read_link(process.join("cwd")).unwrap_or_default();
        let environ = fs::read(process.join("environ")).unwrap_or_default();
        cwd.starts_with(dir) || String::from_utf8_lossy(&environ).contains(dir)
    };
    let processes = fs::read_dir("/proc").expect("procfs").flatten().map(|entry| entry.path());
    let found = processes.filter(|process| in_dir(process));
    found.map(|process| process.display().to_string()).collect()
}

/// Returns the words that follow `before` in the output.
pub fn words_after<'a>(out: &'a str, before: &str) -> &'a str {
    let at = out.find(before).unwrap_or_else(|| panic!("{before} is missing: {out}"));
    &out[at + before.len()..]
}
