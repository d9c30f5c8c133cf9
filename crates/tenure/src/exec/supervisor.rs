//! The supervisor S: the caller's end of a command that runs under a lock.
//!
//! It forwards every new deadline to the watchdog and receives how the command ended. It is also
//! the second line of defence: if the watchdog dies or misses a deadline, the supervisor kills the
//! process tree itself. [`Supervisor::wait`] must never return while a process of the command is
//! alive, because the caller then releases the lock.
//!
//! See `spawn.rs` for the start, `watchdog.rs` for the other end, `tree.rs` for how orphans are
//! recognized.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, getpid, set_child_subreaper};
use rustix::termios::Termios;
use tokio::time::{sleep, timeout};

use super::protocol::{ControlMessage, LineReader, WatchdogReport, line_reader, receive, send};
use super::spawn::{self, Error, HelperProcess, POLL_INTERVAL, Spec};
use super::terminal::{self, Terminal};
use super::tree::{self, EMPTY_SCANS_MIN, Orphans};
use super::{CommandEnd, Deadlines, EndReason, ExitKind, KILL_WARN_AFTER, KILLED, StopReason};
use crate::clock::{BootInstant, SLEEP_MAX};
use crate::session::{DeadlineRegistration, Session};

/// Timeout of starting the watchdog and the command.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after `kill_at` at which a watchdog that has not begun to kill counts as stuck; it wakes at
/// least every 100 ms.
const IDLE_SLACK: Duration = Duration::from_millis(200);
/// Time after `kill_at` at which a watchdog that is killing counts as stuck. Killing it earlier
/// would only restart the work.
const KILLING_SLACK: Duration = Duration::from_secs(5);
/// Time to read reports that were sent while this process was delayed.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(5);

/// Time after which a process that stopped itself has been resumed: none of it passes while it is
/// stopped, and a stop takes effect at once.
const STOP_TIMEOUT: Duration = Duration::from_millis(100);

/// Interval of looking whether the shell has brought this process to the foreground.
const FOREGROUND_INTERVAL: Duration = Duration::from_millis(100);

/// What happened to a supervised command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was suspended on its terminal, for example by Ctrl-Z, and this process has the terminal.
    /// Call [`Supervisor::suspend`].
    Suspended,
    /// It and all its descendants are dead.
    Ended(CommandEnd),
}

/// Supervised command.
///
/// Dropping it kills every process of the command without waiting for their death: the lock may
/// only be released after [`Supervisor::wait`].
#[derive(Debug)]
pub struct Supervisor {
    /// Write end of the command's stdin, if [`Spec::stdin`] is a pipe.
    pub stdin: Option<ChildStdin>,
    /// Read end of the command's stdout, if [`Spec::stdout`] is a pipe.
    pub stdout: Option<ChildStdout>,
    /// Read end of the command's stderr, if [`Spec::stderr`] is a pipe.
    pub stderr: Option<ChildStderr>,
    handle: Handle,
    reports: LineReader,
    command: Pid,
    terminal: Option<Terminal>,
    suspended: bool,
    /// Modes that the suspended command had set on the terminal.
    modes: Option<Termios>,
    tree: Tree,
    /// Time after `kill_at` at which the watchdog counts as stuck.
    slack: Duration,
    /// Set when the watchdog is dead or stuck.
    watchdog_failure: Option<EndReason>,
    ended: Option<CommandEnd>,
    tree_dead: bool,
}

impl Supervisor {
    /// Starts the command, unless its deadline has passed.
    ///
    /// Makes this process a child subreaper. Must be called in a tokio runtime with I/O and time
    /// enabled.
    ///
    /// # Errors
    ///
    /// See [`Error`]; no process is left running. A command that cannot be executed is not an
    /// error: it ends with exit code 126 or 127.
    pub async fn start(spec: Spec, first: Deadlines) -> Result<Self, Error> {
        if spec.program.is_empty() {
            return Err(Error::NoProgram);
        }
        set_child_subreaper(Some(getpid())).map_err(|errno| Error::Prepare(errno.into()))?;
        let id = spawn::random_id().map_err(Error::Prepare)?;
        let listener = spawn::listen(&id).map_err(Error::Prepare)?;
        let (grace, sole_child) = (spec.grace, spec.sole_child);
        let terminal = spec.terminal.clone();
        let helper = spec.helper.clone();
        let watchdog = HelperProcess::start_watchdog(spec, &id)?;
        // On an error the watchdog finds no supervisor, and exits.
        let (guard, guard_socket) = HelperProcess::start_guard(helper, &id, watchdog.pid())?;
        let orphans = Orphans::new(id, watchdog.pid(), guard.pid(), sole_child);
        let mut tree = Tree { watchdog, guard, orphans };
        let handshake = handshake(&mut tree.watchdog, listener, guard_socket, first, grace);
        match timeout(START_TIMEOUT, handshake).await {
            Ok(Ok((handle, reports, command))) => {
                let mut supervisor = Self::new(tree, handle, reports, command);
                supervisor.terminal = terminal;
                Ok(supervisor)
            }
            Ok(Err(error)) => tree.kill(None, |_, _| {}).await.and(Err(error)),
            Err(_) => {
                let error = Error::Handshake(io::ErrorKind::TimedOut.into());
                tree.kill(None, |_, _| {}).await.and(Err(error))
            }
        }
    }

    fn new(mut tree: Tree, handle: Handle, reports: LineReader, command: Pid) -> Self {
        let streams = &mut tree.watchdog.0;
        Self {
            stdin: streams.stdin.take(),
            stdout: streams.stdout.take(),
            stderr: streams.stderr.take(),
            handle,
            reports,
            command,
            terminal: None,
            suspended: false,
            modes: None,
            tree,
            slack: IDLE_SLACK,
            watchdog_failure: None,
            ended: None,
            tree_dead: false,
        }
    }

    /// Returns a handle to control the command from other tasks and threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns the process id of the command.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.command.as_raw_pid()
    }

    /// See [`Handle::extend`].
    pub fn extend(&self, deadlines: Deadlines) {
        self.handle.extend(deadlines);
    }

    /// See [`Handle::signal`].
    pub fn signal(&self, signal: i32) {
        self.handle.signal(signal);
    }

    /// See [`Handle::stop`].
    pub fn stop(&self, reason: StopReason) {
        self.handle.stop(reason);
    }

    /// See [`Handle::stop_within`].
    pub fn stop_within(&self, reason: StopReason, grace: Duration) {
        self.handle.stop_within(reason, grace);
    }

    /// Waits until the command and all its descendants are dead. The lock may be released only
    /// then, and must be renewed until then.
    ///
    /// Cancellation safe. Must be polled while the command runs, because it also kills the tree if
    /// the watchdog does not.
    ///
    /// # Errors
    ///
    /// Fails if it is unknown whether the tree is dead: the lock must then be left to expire.
    pub async fn wait(&mut self) -> Result<CommandEnd, Error> {
        loop {
            match self.next().await? {
                Event::Ended(ended) => return Ok(ended),
                Event::Suspended => self.suspend().await,
            }
        }
    }

    /// Waits for the next event, like [`Supervisor::wait`]. Cancellation safe.
    ///
    /// # Errors
    ///
    /// See [`Supervisor::wait`].
    pub async fn next(&mut self) -> Result<Event, Error> {
        while !self.tree_dead {
            match self.watchdog_failure {
                Some(reason) => self.kill_tree(reason).await?,
                None => self.receive_report().await,
            }
            if std::mem::take(&mut self.suspended) {
                return Ok(Event::Suspended);
            }
        }
        // Their work is done, but helpers that are stopped (SIGSTOP) would not exit by themselves.
        self.tree.guard.start_kill();
        self.tree.watchdog.kill().await;
        let unknown = CommandEnd { status: KILLED, reason: EndReason::WatchdogDied };
        let ended = self.ended.unwrap_or(unknown);
        if matches!(ended.status, ExitKind::Signal(_)) {
            // It could not do so itself.
            self.terminal.as_ref().and_then(Terminal::restore);
        }
        Ok(Event::Ended(ended))
    }

    /// Suspends this process with its job, and resumes the command when the shell resumes them.
    /// Until then no heartbeat is sent: at its deadline the watchdog kills the command.
    ///
    /// Has no effect but to resume the command if no shell could resume this process.
    pub async fn suspend(&mut self) {
        terminal::stop_own_group();
        sleep(STOP_TIMEOUT).await;
        self.resume();
    }

    fn resume(&mut self) {
        // The watchdog itself resumes a command whose lock is lost, so that it can clean up.
        terminal::give(self.command, &mut self.modes);
        self.signal(Signal::CONT.as_raw());
    }

    /// Gives the terminal to the running command if this process has it. A shell does not tell a
    /// job that runs in the background (`bg`) that it is in the foreground now (`fg`).
    fn follow_foreground(&mut self) {
        if terminal::is_foreground() && tree::is_running(self.command) {
            terminal::give(self.command, &mut self.modes);
        }
    }

    fn on_suspended(&mut self, signal: i32) {
        let Some(terminal) = self.terminal.as_ref().filter(|_| tree::is_stopped(self.command))
        else {
            return;
        };
        let background = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw);
        if background.contains(&signal) && terminal::is_foreground() {
            // It wanted the terminal, and the user has brought its job to the foreground.
            return self.resume();
        }
        self.modes = terminal.restore();
        self.suspended = true;
    }

    async fn receive_report(&mut self) {
        let report = tokio::select! {
            report = receive(&mut self.reports) => Ok(report),
            // This process may have been delayed, and the report may have arrived already.
            () = self.handle.0.overdue(self.slack) => {
                timeout(CATCH_UP_TIMEOUT, receive(&mut self.reports)).await
            }
            () = sleep(FOREGROUND_INTERVAL), if self.terminal.is_some() => {
                return self.follow_foreground();
            }
        };
        match report {
            Ok(Some(report)) => self.apply_report(report),
            Ok(None) => self.watchdog_failure = Some(EndReason::WatchdogDied),
            Err(_) => self.watchdog_failure = Some(EndReason::Lost),
        }
    }

    fn apply_report(&mut self, report: WatchdogReport) {
        match report {
            WatchdogReport::Suspended(signal) => self.on_suspended(signal),
            WatchdogReport::Exited(ended) => self.ended = Some(ended),
            WatchdogReport::Killing => self.slack = KILLING_SLACK,
            WatchdogReport::Survives(pid) => warn_survivor(pid),
            WatchdogReport::Gone => self.tree_dead = true,
            WatchdogReport::Started(_) | WatchdogReport::Late | WatchdogReport::Failed(_) => {}
        }
    }

    async fn kill_tree(&mut self, reason: EndReason) -> Result<(), Error> {
        let (command, ended) = (self.command, &mut self.ended);
        let record_exit = |child, status| {
            if child == command {
                ended.get_or_insert(CommandEnd { status, reason });
            }
        };
        self.tree.kill(self.terminal.as_ref().map(|_| command), record_exit).await?;
        self.ended.get_or_insert(CommandEnd { status: KILLED, reason });
        self.tree_dead = true;
        Ok(())
    }
}

impl Drop for Supervisor {
    /// Handles may keep the sockets open, but watchdog and guard must see their end now.
    fn drop(&mut self) {
        // Fails only if the peer is already dead.
        self.handle.0.socket.shutdown(Shutdown::Both).ok();
        self.handle.0.guard_socket.shutdown(Shutdown::Both).ok();
    }
}

/// All processes of the command, as far as they can be reached without the watchdog.
#[derive(Debug)]
struct Tree {
    watchdog: HelperProcess,
    /// Not part of the tree, but ends with it.
    guard: HelperProcess,
    orphans: Orphans,
}

impl Tree {
    /// Kills the watchdog and then the processes that are reparented to this one, until none is
    /// left. Calls `on_reaped` with the exit status of each. Takes the terminal back from
    /// `on_terminal`.
    async fn kill(
        &mut self,
        on_terminal: Option<Pid>,
        mut on_reaped: impl FnMut(Pid, ExitKind),
    ) -> Result<(), Error> {
        self.watchdog.kill().await;
        if let Some(command) = on_terminal {
            terminal::take_back(command, getpgrp());
        }
        let mut warn_at = Some(BootInstant::now() + KILL_WARN_AFTER);
        let mut empty_scans = 0;
        while empty_scans < EMPTY_SCANS_MIN {
            let seen = self.orphans.kill_and_reap(&mut on_reaped).map_err(Error::Scan)?;
            empty_scans = if seen.is_empty() { empty_scans + 1 } else { 0 };
            if warn_at.is_some_and(BootInstant::has_passed) {
                seen.first().iter().for_each(|process| warn_survivor(process.pid.as_raw_pid()));
                warn_at = None;
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

fn warn_survivor(pid: i32) {
    tracing::warn!(pid, "process of the command survives SIGKILL; retrying");
}

/// Controls a running command. No method blocks or fails: if the watchdog cannot be reached, the
/// command ends by its last deadline, and [`Supervisor::wait`] reports it.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Control>);

#[derive(Debug)]
struct Control {
    /// Written without the runtime: a blocked runtime must not withhold a deadline from the
    /// watchdog.
    socket: UnixStream,
    /// The guard needs the deadlines only.
    guard_socket: UnixStream,
    kill_at_nanos: AtomicU64,
}

impl Handle {
    /// Extends the deadlines after a successful heartbeat. Never shortens them.
    pub fn extend(&self, deadlines: Deadlines) {
        self.0.kill_at_nanos.fetch_max(deadlines.kill_at.as_nanos(), Ordering::Relaxed);
        self.send(ControlMessage::Extend(deadlines));
        // A guard that is dead or does not read cannot be helped.
        send(&self.0.guard_socket, &ControlMessage::Extend(deadlines)).ok();
    }

    /// Follows the deadline of a session until the result is dropped.
    pub(crate) fn follow(&self, session: &Session) -> DeadlineRegistration {
        let (handle, ttl) = (self.clone(), session.ttl());
        session.on_deadline(move |deadline| handle.extend(Deadlines::for_session(ttl, deadline)))
    }

    /// Sends a signal to the command's process group; unknown numbers are ignored.
    pub fn signal(&self, signal: i32) {
        self.send(ControlMessage::Signal(signal));
    }

    /// Sends TERM to every process now, and KILL after the grace period of the [`Spec`], or at
    /// `kill_at` if that is earlier.
    ///
    /// The first reason is the one that is reported. A later stop never postpones KILL, and brings
    /// it forward if its own is due earlier.
    pub fn stop(&self, reason: StopReason) {
        self.send(ControlMessage::Stop { reason, grace: None });
    }

    /// Like [`Handle::stop`], with its own grace period. It has no effect on [`StopReason::Lost`]:
    /// what is lost is not kept for longer.
    pub fn stop_within(&self, reason: StopReason, grace: Duration) {
        self.send(ControlMessage::Stop { reason, grace: Some(grace) });
    }

    fn send(&self, message: ControlMessage) {
        // Safe to lose, see the type.
        send(&self.0.socket, &message).ok();
    }
}

impl Control {
    fn kill_at(&self) -> BootInstant {
        BootInstant::from_nanos(self.kill_at_nanos.load(Ordering::Relaxed))
    }

    /// Completes when the tree should have been dead for `slack`.
    async fn overdue(&self, slack: Duration) {
        while !(self.kill_at() + slack).has_passed() {
            sleep((self.kill_at() + slack).remaining().min(SLEEP_MAX)).await;
        }
    }
}

async fn handshake(
    watchdog: &mut HelperProcess,
    listener: UnixListener,
    guard_socket: UnixStream,
    first: Deadlines,
    grace: Duration,
) -> Result<(Handle, LineReader, Pid), Error> {
    let control = watchdog.accept(listener).await.map_err(Error::Handshake)?;
    let (handle, mut reports) =
        split_control(control, guard_socket, first).map_err(Error::Handshake)?;
    let start = ControlMessage::Start { first, grace };
    send(&handle.0.guard_socket, &start).map_err(Error::Handshake)?;
    send(&handle.0.socket, &start).map_err(Error::Handshake)?;
    let command = receive_start(&mut reports).await?;
    Ok((handle, reports, command))
}

/// Splits the control socket into a handle and the reader of reports.
fn split_control(
    control: tokio::net::UnixStream,
    guard_socket: UnixStream,
    first: Deadlines,
) -> io::Result<(Handle, LineReader)> {
    let control = control.into_std()?;
    let socket = control.try_clone()?;
    let reports = line_reader(control)?;
    let kill_at_nanos = AtomicU64::new(first.kill_at.as_nanos());
    Ok((Handle(Arc::new(Control { socket, guard_socket, kill_at_nanos })), reports))
}

async fn receive_start(reports: &mut LineReader) -> Result<Pid, Error> {
    match receive(reports).await {
        Some(WatchdogReport::Started(pid)) => {
            Pid::from_raw(pid).ok_or_else(|| Error::Handshake(io::ErrorKind::InvalidData.into()))
        }
        Some(WatchdogReport::Late) => Err(Error::Late),
        Some(WatchdogReport::Failed(errno)) => {
            Err(Error::Start(io::Error::from_raw_os_error(errno)))
        }
        _ => Err(Error::Handshake(io::ErrorKind::UnexpectedEof.into())),
    }
}
