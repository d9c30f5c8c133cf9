//! What to run, and the start of the watchdog, seen from the supervisor S.
//!
//! The order matters. S listens before it starts W, W connects before it is told to start the
//! command, and W starts nothing once its deadline passed: so there is no moment in which the
//! command runs and nobody can end it. Nobody but W is believed on the socket.
//!
//! Next: `supervisor.rs`, which uses this, and `watchdog.rs`, which is what gets started.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::WATCH;
use super::tree::MARK;

/// Time from TERM to KILL unless the [`Spec`] says otherwise.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// Pause between two looks at something that ends in a moment.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What to run, and how.
#[derive(Debug)]
pub struct Spec {
    /// The command and its arguments.
    pub program: Vec<OsString>,
    /// Variables to add to the environment.
    pub env: Vec<(OsString, OsString)>,
    /// Variables of this process that the command must not see.
    pub env_remove: Vec<OsString>,
    /// Time from TERM to KILL.
    pub grace: Duration,
    /// The executable that becomes the watchdog; its `main` calls [`super::run_helper`].
    pub helper: PathBuf,
    /// Standard input of the command; inherited if none.
    pub stdin: Option<Stdio>,
    /// Standard output of the command; inherited if none.
    pub stdout: Option<Stdio>,
    /// Standard error of the command; inherited if none.
    pub stderr: Option<Stdio>,
    /// This process starts nothing but this one command. Then, if the watchdog gets killed, even
    /// a process that has left its session and erased its environment is recognised as the
    /// command's: it is killed because it is a child of this process.
    pub alone: bool,
}

impl Spec {
    /// A command with inherited environment and streams, hosted by the current executable.
    #[must_use]
    pub fn new(program: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            program: program.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            env_remove: Vec::new(),
            grace: GRACE_DEFAULT,
            // Not `current_exe`, which names nothing any more once the file is replaced.
            helper: "/proc/self/exe".into(),
            stdin: None,
            stdout: None,
            stderr: None,
            alone: false,
        }
    }
}

/// Why a command could not be started or watched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The [`Spec`] is empty.
    #[error("no command to run was given")]
    NoProgram,
    /// This process could not be made ready for supervising.
    #[error("could not prepare to supervise the command")]
    Prepare(#[source] io::Error),
    /// The helper executable could not be started.
    #[error("could not start the watchdog {helper}", helper = helper.display())]
    Watchdog {
        /// See [`Spec::helper`].
        helper: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The watchdog ended or did not answer; the command did not run.
    #[error("could not make contact with the watchdog")]
    NoContact(#[source] io::Error),
    /// The watchdog could not start the command's launcher.
    #[error("could not start the command")]
    Start(#[source] io::Error),
    /// The time of the lock was over before the command was started.
    #[error("could not start the command before its deadline")]
    Late,
    /// The watchdog is dead, and the processes it left could not be searched for.
    #[error("could not find the processes that the command left behind")]
    Scan(#[source] io::Error),
}

/// The process of the watchdog. Closing the control socket ends it, together with the command; this
/// only sees to it that it gets reaped.
#[derive(Debug)]
pub(super) struct Watchdog(pub(super) Child);

impl Watchdog {
    pub(super) fn start(spec: Spec, id: &str) -> Result<Self, Error> {
        let mut command = Command::new(&spec.helper);
        command.arg0("tenure").arg(WATCH).arg(id).args(spec.program);
        for name in spec.env_remove {
            command.env_remove(name);
        }
        command.envs(spec.env).env(MARK, marks(id));
        command.stdin(spec.stdin.unwrap_or_else(Stdio::inherit));
        command.stdout(spec.stdout.unwrap_or_else(Stdio::inherit));
        command.stderr(spec.stderr.unwrap_or_else(Stdio::inherit));
        let spawned = command.spawn();
        spawned.map(Self).map_err(|source| Error::Watchdog { helper: spec.helper, source })
    }

    pub(super) fn pid(&self) -> Pid {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        pid.expect("the kernel's process ids are positive")
    }

    /// Waits for the watchdog to connect, and for nobody else: any process may find the socket.
    pub(super) async fn connection(&mut self, listener: UnixListener) -> io::Result<UnixStream> {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        while self.is_alive() {
            let Ok(accepted) = timeout(LOOK_EVERY, listener.accept()).await else {
                continue;
            };
            let control = accepted?.0;
            if control.peer_cred()?.pid() == Some(self.pid().as_raw_pid()) {
                return Ok(control);
            }
        }
        Err(io::Error::other("it ended at once"))
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Kills it and waits until that is done: only then its children have a new parent.
    pub(super) async fn kill(&mut self) {
        while self.is_alive() {
            // It may have ended in between.
            self.0.kill().ok();
            sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if !self.is_alive() {
            return;
        }
        let pid = self.pid();
        let reaper = std::thread::Builder::new().name("tenure-reaper".to_owned());
        // Without a thread it stays a zombie until this process ends, which harms nobody.
        reaper.spawn(move || waitpid(Some(pid), WaitOptions::empty())).ok();
    }
}

/// The name of the socket and the mark of the command: nobody can guess it in advance.
pub(super) fn random_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(format!("tenure-{:032x}", u128::from_ne_bytes(bytes)))
}

pub(super) fn listen(id: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(id)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The marks of a command: those that this process bears itself, and its own.
fn marks(id: &str) -> OsString {
    let mut marks = std::env::var_os(MARK).unwrap_or_default();
    if !marks.is_empty() {
        marks.push(":");
    }
    marks.push(id);
    marks
}
