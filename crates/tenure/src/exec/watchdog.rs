//! The watchdog W: the process that ends a command in time, even if its supervisor fails.
//!
//! Rules, all on the clock of [`BootInstant`]:
//! - at `term_at` the lock is lost: TERM to the whole tree; later extensions are ignored;
//! - at `kill_at`, or `grace` after a stop, or `grace` after the command exited and left processes
//!   behind: KILL to the whole tree, repeatedly until nothing is left. Whichever is first counts: a
//!   stop may bring its own, long grace, but no loss and no exit waits for it;
//! - when the supervisor is gone: KILL at once.
//!
//! On a terminal it also reports when the command is suspended, and takes the terminal back before
//! it reaps it.
//!
//! It must never report `gone` while a descendant exists, never outlive the tree, never wait for
//! the supervisor, and never die of a forwarded signal. It has a single thread, because the kernel
//! sends the command's parent death signal when the *thread* that started it exits.
//!
//! See `protocol.rs` for its messages, `tree.rs` for the killing.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpgrp, getpid, getppid, kill_process_group,
    set_child_subreaper, setpgid, setsid, wait, waitid, waitpid,
};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::timeout;

use super::protocol::{ControlMessage, LineReader, WatchdogReport, line_reader, receive, send};
use super::{
    CommandEnd, Deadlines, EndReason, ExitKind, KILL_INTERVAL, KILL_WARN_AFTER, KILLED,
    LAUNCHER_ARG, SESSION_ARG, StopReason, TERMINAL_ARG, forwarded_signals, terminal, tree,
    without_ignored,
};
use crate::clock::{BootInstant, SLEEP_MAX};

/// Time to read messages that were sent while this process was delayed.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(5);
/// Maximum number of messages read in a row; the socket's buffer does not hold more.
const CATCH_UP_MESSAGES_MAX: usize = 1000;
/// Maximum number of children reaped before the deadlines are looked at again.
const REAP_MAX: usize = 1000;
/// Resolution of the runtime's timer.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// `__watch terminal|session SOCKET COMMAND [ARGUMENT...]`
pub(super) fn main(args: &[OsString]) -> ExitCode {
    match args {
        [mode, socket, program @ ..] if !program.is_empty() => {
            // Its own group, as long as it has not left that of the supervisor.
            let home = (mode == TERMINAL_ARG).then(getpgrp);
            match run(socket, program, home) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            }
        }
        _ => fail(&io::Error::other("the watchdog needs a mode, a socket and a command")),
    }
}

fn fail(error: &io::Error) -> ExitCode {
    // The supervisor notices that this process exited; a closed stderr changes nothing.
    writeln!(io::stderr(), "tenure: the watchdog failed: {error}").ok();
    ExitCode::FAILURE
}

/// `home` is the supervisor's process group if the command gets the terminal.
fn run(socket: &OsStr, program: &[OsString], home: Option<Pid>) -> io::Result<()> {
    match home {
        Some(_) => setpgid(None, None)?,
        None => setsid().map(drop)?,
    }
    set_child_subreaper(Some(getpid()))?;
    // Started through /proc/self/exe, it would otherwise appear as `exe` in process lists.
    rustix::thread::set_name(c"tenure-watch")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch(socket, program, home))
}

/// Connects to the supervisor. That the peer is the parent also proves that the parent is alive.
fn connect(socket: &OsStr) -> io::Result<tokio::net::UnixStream> {
    let address = SocketAddr::from_abstract_name(socket.as_bytes())?;
    let control = UnixStream::connect_addr(&address)?;
    control.set_nonblocking(true)?;
    let control = tokio::net::UnixStream::from_std(control)?;
    if control.peer_cred()?.pid() != getppid().map(Pid::as_raw_pid) {
        return Err(io::Error::other("the supervisor is not the parent process"));
    }
    Ok(control)
}

async fn watch(socket: &OsStr, program: &[OsString], home: Option<Pid>) -> io::Result<()> {
    let control = connect(socket)?.into_std()?;
    let mut events = Events::new(control.try_clone()?)?;
    if home.is_some() {
        // It is in the foreground for a moment when it takes the terminal back.
        for number in without_ignored(&[Signal::TSTP])? {
            drop(signal(SignalKind::from_raw(number))?);
        }
    }
    let Some(ControlMessage::Start { first, grace }) = receive(&mut events.messages).await else {
        return Ok(());
    };
    if first.term_at.has_passed() {
        return send(&control, &WatchdogReport::Late);
    }
    match spawn(program, home) {
        Ok(command) => Watchdog::new(control, command, home, first, grace).run(&mut events).await,
        Err(error) => send(&control, &WatchdogReport::Failed(error.raw_os_error().unwrap_or(0)))?,
    }
    Ok(())
}

fn spawn(program: &[OsString], home: Option<Pid>) -> io::Result<Pid> {
    // On a terminal the launcher starts in the foreground, where it may take it.
    let (mode, group) = match home {
        Some(home) => (TERMINAL_ARG, home.as_raw_pid()),
        None => (SESSION_ARG, 0),
    };
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg0("tenure").arg(LAUNCHER_ARG).arg(mode).arg(getpid().to_string());
    launcher.args(program).process_group(group);
    let id = launcher.spawn()?.id();
    Ok(i32::try_from(id).ok().and_then(Pid::from_raw).expect("the kernel's ids are positive"))
}

/// Sources of events.
struct Events {
    messages: LineReader,
    terminate: SignalStream,
    child: SignalStream,
}

#[derive(Clone, Copy)]
enum Event {
    Message(ControlMessage),
    SupervisorGone,
    Terminate,
    /// A child exited, or a timer fired.
    Tick,
}

impl Events {
    fn new(control: UnixStream) -> io::Result<Self> {
        // An installed handler is never removed, so these signals have no effect from here on.
        // Signals that were ignored stay ignored, because the command inherits that.
        for number in forwarded_signals()? {
            drop(signal(SignalKind::from_raw(number))?);
        }
        Ok(Self {
            messages: line_reader(control)?,
            terminate: signal(SignalKind::terminate())?,
            child: signal(SignalKind::child())?,
        })
    }

    async fn next(&mut self, wait: Duration, supervised: bool) -> Event {
        tokio::select! {
            message = receive(&mut self.messages), if supervised => message.into(),
            Some(()) = self.terminate.recv() => Event::Terminate,
            Some(()) = self.child.recv() => Event::Tick,
            () = tokio::time::sleep(wait) => Event::Tick,
        }
    }

    /// Returns a message that has already arrived.
    async fn try_next(&mut self) -> Option<Event> {
        timeout(CATCH_UP_TIMEOUT, receive(&mut self.messages)).await.ok().map(Event::from)
    }
}

impl From<Option<ControlMessage>> for Event {
    fn from(message: Option<ControlMessage>) -> Self {
        message.map_or(Self::SupervisorGone, Self::Message)
    }
}

/// State of one command.
struct Watchdog {
    control: UnixStream,
    command: Pid,
    /// The supervisor's process group if the command got the terminal.
    home: Option<Pid>,
    deadlines: Deadlines,
    grace: Duration,
    supervised: bool,
    command_exited: bool,
    /// Set by the first reason to end the command; later ones may bring KILL forward.
    termination: Option<Termination>,
    /// Whether TERM has yet to be sent.
    term_due: bool,
    /// Processes that already received TERM; a second one would interrupt their cleanup.
    term_sent: HashSet<(Pid, u64)>,
    first_kill: Option<BootInstant>,
    next_kill: BootInstant,
    survivor_reported: bool,
}

#[derive(Clone, Copy)]
struct Termination {
    reason: EndReason,
    kill_at: BootInstant,
}

impl Watchdog {
    fn new(
        control: UnixStream,
        command: Pid,
        home: Option<Pid>,
        deadlines: Deadlines,
        grace: Duration,
    ) -> Self {
        Self {
            control,
            command,
            home,
            deadlines,
            grace,
            supervised: true,
            command_exited: false,
            termination: None,
            term_due: false,
            term_sent: HashSet::new(),
            first_kill: None,
            next_kill: BootInstant::now(),
            survivor_reported: false,
        }
    }

    async fn run(mut self, events: &mut Events) {
        self.report(&WatchdogReport::Started(self.command.as_raw_pid()));
        loop {
            self.catch_up(events).await;
            if self.reap() {
                break;
            }
            self.notice_suspension();
            self.enforce_deadlines();
            let event = events.next(self.wakeup_delay(), self.supervised).await;
            self.handle_event(event);
        }
        self.report(&WatchdogReport::Gone);
    }

    /// Reads pending messages before the lock counts as lost: this process may only have been
    /// delayed.
    async fn catch_up(&mut self, events: &mut Events) {
        for _ in 0..CATCH_UP_MESSAGES_MAX {
            if !self.awaits_loss() || !self.supervised || !self.lost_at().has_passed() {
                return;
            }
            let Some(event) = events.try_next().await else {
                return;
            };
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Message(message) => self.handle_message(message),
            Event::SupervisorGone => self.supervised = false,
            Event::Terminate => self.terminate(StopReason::Requested.into()),
            Event::Tick => {}
        }
    }

    fn handle_message(&mut self, message: ControlMessage) {
        match message {
            ControlMessage::Extend(deadlines) => self.extend(deadlines),
            ControlMessage::Signal(number) => self.forward(number),
            ControlMessage::Stop { reason, grace } => self.stop(reason, grace),
            // `start` is only valid as the first message; a supervisor that repeats it is broken.
            ControlMessage::Start { .. } => self.supervised = false,
        }
    }

    fn extend(&mut self, new: Deadlines) {
        self.deadlines.term_at = self.deadlines.term_at.max(new.term_at);
        self.deadlines.kill_at = self.deadlines.kill_at.max(new.kill_at);
    }

    /// Once the command is reaped, its process group id may be reused.
    fn forward(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number).filter(|_| !self.command_exited) {
            // The group may be empty if the command moved to another one.
            kill_process_group(self.command, signal).ok();
        }
    }

    fn stop(&mut self, reason: StopReason, grace: Option<Duration>) {
        let grace = grace.filter(|_| reason != StopReason::Lost).unwrap_or(self.grace);
        self.terminate_by(reason.into(), BootInstant::now() + grace);
    }

    fn terminate(&mut self, reason: EndReason) {
        self.terminate_by(reason, BootInstant::now() + self.grace);
    }

    /// Starts to end the tree. The first reason is reported; the earliest KILL counts.
    fn terminate_by(&mut self, reason: EndReason, kill_at: BootInstant) {
        // A lost lock stays lost: no extension moves this deadline.
        let lost = reason == EndReason::Lost;
        let kill_at = if lost { kill_at.min(self.deadlines.kill_at) } else { kill_at };
        if self.termination.is_none_or(|termination| kill_at < termination.kill_at) {
            let reason = self.termination.map_or(reason, |termination| termination.reason);
            self.termination = Some(Termination { reason, kill_at });
            // Also to processes that were started to clean up.
            self.term_due = true;
        }
    }

    fn enforce_deadlines(&mut self) {
        if self.lost_at().has_passed() {
            // The time until `kill_at` is reserved for this, so the grace period does not apply.
            self.terminate_by(EndReason::Lost, self.deadlines.kill_at);
        }
        if std::mem::take(&mut self.term_due) {
            self.terminate_tree();
        }
        if self.kill_at().has_passed() && self.next_kill.has_passed() {
            self.kill_tree();
        }
    }

    fn lost_at(&self) -> BootInstant {
        self.deadlines.term_at.min(self.deadlines.kill_at)
    }

    /// Returns whether a loss would bring KILL forward.
    fn awaits_loss(&self) -> bool {
        let kill_at = self.deadlines.kill_at;
        self.termination.is_none_or(|termination| termination.kill_at > kill_at)
    }

    fn kill_at(&self) -> BootInstant {
        let by_termination =
            self.termination.map_or(self.deadlines.kill_at, |termination| termination.kill_at);
        if self.supervised {
            by_termination.min(self.deadlines.kill_at)
        } else {
            BootInstant::from_nanos(0)
        }
    }

    fn wakeup_delay(&self) -> Duration {
        let kill_at = self.kill_at().max(self.next_kill);
        let next = if self.awaits_loss() { kill_at.min(self.lost_at()) } else { kill_at };
        next.remaining().clamp(SLEEP_MIN, SLEEP_MAX)
    }

    fn terminate_tree(&mut self) {
        let Ok(processes) = tree::descendants() else {
            return self.forward(Signal::TERM.as_raw());
        };
        for process in processes {
            if self.term_sent.insert(process.identity()) {
                process.terminate();
            }
        }
    }

    fn kill_tree(&mut self) {
        let now = BootInstant::now();
        self.next_kill = now + KILL_INTERVAL;
        // One call reaches nearly all processes; those that fork meanwhile cannot escape it, and on
        // a machine that they keep busy the scan is faster without them.
        self.forward(Signal::KILL.as_raw());
        if self.first_kill.is_none() {
            self.first_kill = Some(now);
            self.report(&WatchdogReport::Killing);
        }
        // Without a process list only the group can be reached; the scan is repeated.
        let processes = tree::kill_descendants().unwrap_or_default();
        let overdue = self.first_kill.is_some_and(|first| (first + KILL_WARN_AFTER).has_passed());
        if let Some(process) = processes.first().filter(|_| overdue && !self.survivor_reported) {
            self.report(&WatchdogReport::Survives(process.pid.as_raw_pid()));
            self.survivor_reported = true;
        }
    }

    /// Reaps children that exited. Returns true if no descendant is left, which the kernel knows
    /// for certain: orphans become children of this process.
    ///
    /// A command may create orphans faster than they are reaped, so the work is limited, and the
    /// caller enforces the deadlines before it calls this again.
    fn reap(&mut self) -> bool {
        if let Some(home) = self.home.filter(|_| !self.command_exited) {
            if !has_exited(WaitId::Pid(self.command)) {
                self.reap_orphans();
                return false;
            }
            terminal::take_back(self.command, home);
        }
        for _ in 0..REAP_MAX {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((child, status))) if child == self.command => {
                    self.on_command_exit(tree::exit_kind(status));
                }
                Ok(Some(_)) => {}
                Err(Errno::CHILD) => return true,
                Ok(None) | Err(_) => return false,
            }
        }
        false
    }

    /// Reaps children other than the command, which may exit meanwhile. One scan finds all of them;
    /// the kernel sends a signal for each that exits after it.
    fn reap_orphans(&self) {
        if !has_exited(WaitId::All) {
            return;
        }
        let children = tree::children().unwrap_or_default();
        for orphan in children.iter().filter(|child| child.pid != self.command) {
            // It may be alive.
            waitpid(Some(orphan.pid), WaitOptions::NOHANG).ok();
        }
    }

    /// Reports a command on a terminal that was stopped, for example by Ctrl-Z.
    fn notice_suspension(&self) {
        let Some(home) = self.home.filter(|_| !self.command_exited) else {
            return;
        };
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.command), stopped).ok().flatten();
        if let Some(signal) = status.and_then(|status| status.stopping_signal()) {
            terminal::take_back(self.command, home);
            self.report(&WatchdogReport::Suspended(signal));
        }
    }

    fn on_command_exit(&mut self, status: Option<ExitKind>) {
        self.command_exited = true;
        let status = status.unwrap_or(KILLED);
        if status == KILLED && self.lost_at().has_passed() {
            // The guard killed it while this process was stopped.
            self.terminate_by(EndReason::Lost, self.deadlines.kill_at);
        }
        self.terminate(EndReason::Exited);
        // Processes that it left behind and that have not received TERM.
        self.term_due = true;
        let reason = self.termination.map_or(EndReason::Exited, |termination| termination.reason);
        self.report(&WatchdogReport::Exited(CommandEnd { status, reason }));
    }

    /// A supervisor that cannot receive reports is stopped or dead; the watchdog continues.
    fn report(&self, report: &WatchdogReport) {
        send(&self.control, report).ok();
    }
}

/// Returns whether such a child has exited and waits to be reaped.
fn has_exited(id: WaitId<'_>) -> bool {
    let exited = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(id, exited).is_ok_and(|status| status.is_some())
}
