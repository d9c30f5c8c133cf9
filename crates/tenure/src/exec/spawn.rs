//! Command specification, and how the supervisor S starts the watchdog.
//!
//! The order matters. S listens before it starts W, W connects before it is asked to start the
//! command, and W starts nothing after its deadline: so the command never runs without a process
//! that can kill it. S accepts no peer but W on the socket. The guard gets its end of a socket pair
//! as stdin, so it needs no handshake and S does not wait for it.
//!
//! See `supervisor.rs`, which uses this, and `watchdog.rs` and `guard.rs`, which are the processes
//! it starts.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream as StdUnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf, absolute};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::terminal::Terminal;
use super::tree::EXEC_IDS_VARIABLE;
use super::{GUARD_ARG, SESSION_ARG, TERMINAL_ARG, WATCHDOG_ARG};

/// Default time from TERM to KILL.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// Interval of polling for events that are imminent.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Specification of a supervised command.
#[derive(Debug)]
pub struct Spec {
    /// The command and its arguments.
    pub program: Vec<OsString>,
    /// Environment variables to add.
    pub env: Vec<(OsString, OsString)>,
    /// Environment variables of this process to remove.
    pub env_remove: Vec<OsString>,
    /// Whether nothing of the environment of this process is inherited.
    pub env_clear: bool,
    /// Working directory of the command; that of this process if `None`. A relative path of the
    /// program is relative to it.
    pub dir: Option<PathBuf>,
    /// Time from TERM to KILL.
    pub grace: Duration,
    /// The executable that becomes the watchdog; its `main` calls [`super::run_helper`].
    pub helper: PathBuf,
    /// The terminal to hand to the command: its group becomes the foreground group, and Ctrl-Z
    /// suspends it together with this process. Requires that stdin is inherited. Without it the
    /// command has no controlling terminal.
    pub terminal: Option<Terminal>,
    /// Standard input of the command; inherited if `None`.
    pub stdin: Option<Stdio>,
    /// Standard output of the command; inherited if `None`.
    pub stdout: Option<Stdio>,
    /// Standard error of the command; inherited if `None`.
    pub stderr: Option<Stdio>,
    /// Whether this process starts no other child. If the watchdog is killed, every child of this
    /// process is then killed as part of the command, even one that has left its session and
    /// cleared its environment.
    pub sole_child: bool,
}

impl Spec {
    /// Creates a specification with inherited environment and streams and the current executable as
    /// helper.
    #[must_use]
    pub fn new(program: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            program: program.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            env_remove: Vec::new(),
            env_clear: false,
            dir: None,
            grace: GRACE_DEFAULT,
            // Not `current_exe`, whose path is stale once the file is replaced.
            helper: "/proc/self/exe".into(),
            terminal: None,
            stdin: None,
            stdout: None,
            stderr: None,
            sole_child: false,
        }
    }
}

/// Error of starting or supervising a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// [`Spec::program`] is empty.
    #[error("no command to run was given")]
    NoProgram,
    /// This process could not prepare to supervise.
    #[error("could not prepare to supervise the command")]
    Prepare(#[source] io::Error),
    /// The helper executable could not be started.
    #[error("could not start the watchdog {helper}", helper = helper.display())]
    Watchdog {
        /// See [`Spec::helper`].
        helper: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// [`Spec::dir`] does not exist or cannot be entered.
    #[error("cannot run in the directory {}; create it or name another one", dir.display())]
    Directory {
        /// See [`Spec::dir`].
        dir: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The watchdog exited or did not respond; the command did not run.
    #[error("could not connect to the watchdog")]
    Handshake(#[source] io::Error),
    /// The watchdog could not start the command's launcher.
    #[error("could not start the command")]
    Start(#[source] io::Error),
    /// The deadline passed before the command was started.
    #[error("could not start the command before its deadline")]
    Late,
    /// The watchdog is dead and the processes it left behind could not be listed.
    #[error("could not find the processes that the command left behind")]
    Scan(#[source] io::Error),
}

/// Process of the watchdog or the guard. Closing its control socket ends it together with the
/// command; this type only ensures that it is reaped.
#[derive(Debug)]
pub(super) struct HelperProcess(pub(super) Child);

impl HelperProcess {
    /// Starts the guard. Returns it with the control socket.
    pub(super) fn start_guard(
        helper: PathBuf,
        id: &str,
        watchdog: Pid,
    ) -> Result<(Self, StdUnixStream), Error> {
        let (control, theirs) = StdUnixStream::pair().map_err(Error::Prepare)?;
        let mut command = Command::new(&helper);
        command.arg0("lock-guard").arg(GUARD_ARG).arg(id).arg(watchdog.to_string());
        // It needs no credentials. With the ids of an outer command, the guard of that finds it.
        command
            .env_clear()
            .envs(std::env::var_os(EXEC_IDS_VARIABLE).map(|ids| (EXEC_IDS_VARIABLE, ids)));
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let spawned = command.spawn().map_err(|source| Error::Watchdog { helper, source })?;
        Ok((Self(spawned), control))
    }

    pub(super) fn start_watchdog(spec: Spec, id: &str) -> Result<Self, Error> {
        let mut helper = spec.helper;
        if spec.dir.is_some() && helper.components().count() > 1 {
            // It would be looked up in the directory of the command.
            helper = absolute(&helper).map_err(Error::Prepare)?;
        }
        let mut command = Command::new(&helper);
        let mode = if spec.terminal.is_some() { TERMINAL_ARG } else { SESSION_ARG };
        command.arg0("tenure").arg(WATCHDOG_ARG).arg(mode).arg(id).args(spec.program);
        if spec.env_clear {
            command.env_clear();
        }
        for name in spec.env_remove {
            command.env_remove(name);
        }
        command.envs(spec.env).env(EXEC_IDS_VARIABLE, exec_ids(id));
        command.stdin(spec.stdin.unwrap_or_else(Stdio::inherit));
        command.stdout(spec.stdout.unwrap_or_else(Stdio::inherit));
        command.stderr(spec.stderr.unwrap_or_else(Stdio::inherit));
        spec.dir.as_ref().map(|dir| command.current_dir(dir));
        command.spawn().map(Self).map_err(|source| match spec.dir {
            Some(dir) if !is_enterable(&dir) => Error::Directory { dir, source },
            _ => Error::Watchdog { helper, source },
        })
    }

    pub(super) fn pid(&self) -> Pid {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        pid.expect("the kernel's process ids are positive")
    }

    /// Accepts the connection of the watchdog and rejects all others: any process may find the
    /// socket.
    pub(super) async fn accept(&mut self, listener: UnixListener) -> io::Result<UnixStream> {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        while self.is_alive() {
            let Ok(accepted) = timeout(POLL_INTERVAL, listener.accept()).await else {
                continue;
            };
            let control = accepted?.0;
            if control.peer_cred()?.pid() == Some(self.pid().as_raw_pid()) {
                return Ok(control);
            }
        }
        Err(io::Error::other("the watchdog exited at once"))
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Kills the process without waiting for its death.
    pub(super) fn start_kill(&mut self) {
        // It may have exited.
        self.0.kill().ok();
    }

    /// Kills the process and waits until it is reaped: only then are its children reparented.
    pub(super) async fn kill(&mut self) {
        while self.is_alive() {
            self.start_kill();
            sleep(POLL_INTERVAL).await;
        }
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        if !self.is_alive() {
            return;
        }
        let pid = self.pid();
        let reaper = std::thread::Builder::new().name("tenure-reaper".to_owned());
        // Without a thread it remains a zombie until this process exits, which is harmless.
        reaper.spawn(move || waitpid(Some(pid), WaitOptions::empty())).ok();
    }
}

/// Returns whether a process can have this working directory.
fn is_enterable(dir: &Path) -> bool {
    access(dir.join("."), Access::EXEC_OK).is_ok()
}

/// Returns an unguessable name for the socket, which also identifies the processes of the command.
/// It does not contain `tenure`: the guard has it on its command line.
pub(super) fn random_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(format!("exec-{:032x}", u128::from_ne_bytes(bytes)))
}

pub(super) fn listen(id: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(id)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns the exec ids of a command: those inherited by this process, followed by its own.
fn exec_ids(id: &str) -> OsString {
    let mut ids = std::env::var_os(EXEC_IDS_VARIABLE).unwrap_or_default();
    if !ids.is_empty() {
        ids.push(":");
    }
    ids.push(id);
    ids
}
