//! A program with a pseudo-terminal as its controlling terminal.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::common::{Server, until};

/// The program leads the session of the terminal.
pub(crate) struct Terminal {
    child: Child,
    master: File,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    /// Runs a program with the environment of a client of this server.
    pub(crate) fn run(server: &Server, args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let path = ptsname(&master, Vec::new()).expect("it has a name").into_string();
        let noctty = OpenptFlags::NOCTTY.bits().cast_signed();
        let mut open = OpenOptions::new();
        let slave = open.read(true).write(true).custom_flags(noctty);
        let slave = slave.open(path.expect("ASCII")).expect("the other end");
        let side = || Stdio::from(slave.try_clone().expect("a file"));
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(args).env("TERM", "dumb");
        command.env("PIDS", server.file("pids")).env("PS1", "$ ");
        for (name, value) in server.tenure().get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn();
        let (master, screen) = (File::from(master), Arc::new(Mutex::new(String::new())));
        let (reader, shown) = (master.try_clone().expect("a file"), Arc::clone(&screen));
        std::thread::spawn(move || read(reader, &shown));
        Self { child: child.expect("setsid is there"), master, screen }
    }

    /// Returns all output so far.
    pub(crate) fn screen(&self) -> String {
        self.screen.lock().expect("no panic").clone()
    }

    /// Waits until the output contains these words.
    pub(crate) fn until(&self, words: &str) {
        let shown = std::panic::AssertUnwindSafe(|| until(|| self.screen().contains(words)));
        assert!(std::panic::catch_unwind(shown).is_ok(), "{words:?} is not in {}", self.screen());
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("it is open");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it is ours")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Reads until the other end is closed, which is an error on a pseudo-terminal.
fn read(mut master: File, screen: &Mutex<String>) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = master.read(&mut bytes) {
        screen.lock().expect("no panic").push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
}
