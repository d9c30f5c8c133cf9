//! The watchdog W: the process that ends a command in time, whatever happens to its supervisor.
//!
//! The rules, all by [`BootInstant`]:
//! - at `term_at` the lock is lost: TERM to the whole tree; no later extension is believed;
//! - at `kill_at`, or `grace` after a stop, or `grace` after the command ended and left processes
//!   behind: KILL to the whole tree, again and again until nothing is left;
//! - when the supervisor is gone: KILL at once.
//!
//! It must never say `gone` while a descendant exists, never outlive the tree, never wait for the
//! supervisor, and never die of a signal that was meant for somebody else. It has one thread,
//! because the kernel sends the command's death signal when the *thread* that started it ends.
//!
//! Next: `protocol.rs` for its two languages, `tree.rs` for the killing.

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
    Pid, Signal, WaitOptions, getpid, getppid, kill_process_group, set_child_subreaper, setsid,
    wait,
};
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};
use tokio::time::timeout;

use super::protocol::{Inbox, Order, Report, inbox, receive, send};
use super::{CHILD, Deadlines, Ended, ExitKind, RESIST_MAX, Stop, Why, forwarded_signals, tree};
use crate::clock::{BootInstant, SLEEP_MAX};

/// How long to look for orders that were sent while this process was late.
const CATCH_UP: Duration = Duration::from_millis(5);
/// So many orders are read in a row at most; the socket's buffer does not hold more.
const ORDERS_MAX: usize = 1000;
/// How soon the next KILL follows while processes are left.
const KILL_EVERY: Duration = Duration::from_millis(10);
/// The timer of the runtime counts in these.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// `__watch SOCKET COMMAND [ARGUMENT...]`
pub(super) fn main(args: &[OsString]) -> ExitCode {
    match args {
        [socket, program @ ..] if !program.is_empty() => match run(socket, program) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        _ => fail(&io::Error::other("it needs a socket and a command")),
    }
}

fn fail(error: &io::Error) -> ExitCode {
    // The supervisor notices that this process ended; a closed stderr changes nothing.
    writeln!(io::stderr(), "tenure: the watchdog failed: {error}").ok();
    ExitCode::FAILURE
}

fn run(socket: &OsStr, program: &[OsString]) -> io::Result<()> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    // Started through /proc/self/exe, it would show up as `exe` in lists of processes.
    rustix::thread::set_name(c"tenure-watch")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch(socket, program))
}

/// Connects to the supervisor. That it is the parent also says that the parent is still alive.
fn connect(socket: &OsStr) -> io::Result<tokio::net::UnixStream> {
    let address = SocketAddr::from_abstract_name(socket.as_bytes())?;
    let control = UnixStream::connect_addr(&address)?;
    control.set_nonblocking(true)?;
    let control = tokio::net::UnixStream::from_std(control)?;
    if control.peer_cred()?.pid() != getppid().map(Pid::as_raw_pid) {
        return Err(io::Error::other("the supervisor is not its parent"));
    }
    Ok(control)
}

async fn watch(socket: &OsStr, program: &[OsString]) -> io::Result<()> {
    let control = connect(socket)?.into_std()?;
    let mut events = Events::new(control.try_clone()?)?;
    let Some(Order::Start { first, grace }) = receive(&mut events.orders).await else {
        return Ok(());
    };
    if first.term_at.has_passed() {
        return send(&control, &Report::Late);
    }
    match spawn(program) {
        Ok(command) => Watchdog::new(control, command, first, grace).run(&mut events).await,
        Err(error) => send(&control, &Report::Failed(error.raw_os_error().unwrap_or(0)))?,
    }
    Ok(())
}

fn spawn(program: &[OsString]) -> io::Result<Pid> {
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg0("tenure").arg(CHILD).arg(getpid().to_string()).args(program).process_group(0);
    let id = launcher.spawn()?.id();
    Ok(i32::try_from(id).ok().and_then(Pid::from_raw).expect("the kernel's ids are positive"))
}

/// What can wake the watchdog.
struct Events {
    orders: Inbox,
    terminate: Arrivals,
    child: Arrivals,
}

#[derive(Clone, Copy)]
enum Event {
    Order(Order),
    SupervisorGone,
    Terminate,
    /// A child ended, or time has passed.
    Look,
}

impl Events {
    fn new(control: UnixStream) -> io::Result<Self> {
        // A handler stays for good, so these signals do nothing from here on. Signals that were
        // ignored stay ignored, for the command's sake: it inherits that.
        for number in forwarded_signals()? {
            drop(signal(SignalKind::from_raw(number))?);
        }
        Ok(Self {
            orders: inbox(control)?,
            terminate: signal(SignalKind::terminate())?,
            child: signal(SignalKind::child())?,
        })
    }

    async fn next(&mut self, pause: Duration, supervised: bool) -> Event {
        tokio::select! {
            order = receive(&mut self.orders), if supervised => order.into(),
            Some(()) = self.terminate.recv() => Event::Terminate,
            Some(()) = self.child.recv() => Event::Look,
            () = tokio::time::sleep(pause) => Event::Look,
        }
    }

    /// An order that is there already.
    async fn unread(&mut self) -> Option<Event> {
        timeout(CATCH_UP, receive(&mut self.orders)).await.ok().map(Event::from)
    }
}

impl From<Option<Order>> for Event {
    fn from(order: Option<Order>) -> Self {
        order.map_or(Self::SupervisorGone, Self::Order)
    }
}

/// The state of one command.
struct Watchdog {
    control: UnixStream,
    command: Pid,
    deadlines: Deadlines,
    grace: Duration,
    supervised: bool,
    command_ended: bool,
    /// Set once, by the first thing that ends the command.
    ending: Option<Ending>,
    /// Whether somebody has to be told to end.
    term_due: bool,
    /// Who got TERM already; a second one would interrupt the cleaning up.
    termed: HashSet<(Pid, u64)>,
    first_kill: Option<BootInstant>,
    next_kill: BootInstant,
    resistance_told: bool,
}

#[derive(Clone, Copy)]
struct Ending {
    why: Why,
    kill_at: BootInstant,
}

impl Watchdog {
    fn new(control: UnixStream, command: Pid, deadlines: Deadlines, grace: Duration) -> Self {
        Self {
            control,
            command,
            deadlines,
            grace,
            supervised: true,
            command_ended: false,
            ending: None,
            term_due: false,
            termed: HashSet::new(),
            first_kill: None,
            next_kill: BootInstant::now(),
            resistance_told: false,
        }
    }

    async fn run(mut self, events: &mut Events) {
        self.report(&Report::Started(self.command.as_raw_pid()));
        while !self.reap() {
            self.catch_up(events).await;
            self.keep_time();
            let event = events.next(self.pause(), self.supervised).await;
            self.react(event);
        }
        self.report(&Report::Gone);
    }

    /// Reads what has been sent before the lock counts as lost: perhaps only this process was late.
    async fn catch_up(&mut self, events: &mut Events) {
        for _ in 0..ORDERS_MAX {
            if self.ending.is_some() || !self.supervised || !self.loss_at().has_passed() {
                return;
            }
            let Some(event) = events.unread().await else {
                return;
            };
            self.react(event);
        }
    }

    fn react(&mut self, event: Event) {
        match event {
            Event::Order(order) => self.obey(order),
            Event::SupervisorGone => self.supervised = false,
            Event::Terminate => self.end(Stop::Asked.into()),
            Event::Look => {}
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Extend(deadlines) => self.extend(deadlines),
            Order::Signal(number) => self.forward(number),
            Order::Stop(stop) => self.end(stop.into()),
            // Only the first line may be one; a supervisor that repeats it is out of its mind.
            Order::Start { .. } => self.supervised = false,
        }
    }

    fn extend(&mut self, new: Deadlines) {
        self.deadlines.term_at = self.deadlines.term_at.max(new.term_at);
        self.deadlines.kill_at = self.deadlines.kill_at.max(new.kill_at);
    }

    /// Once the command was reaped, its group's number may belong to somebody else.
    fn forward(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number).filter(|_| !self.command_ended) {
            // The group may be empty when the command moved to another one.
            kill_process_group(self.command, signal).ok();
        }
    }

    /// Starts the end of the tree; the first reason counts.
    fn end(&mut self, why: Why) {
        self.end_by(why, BootInstant::now() + self.grace);
    }

    fn end_by(&mut self, why: Why, kill_at: BootInstant) {
        if self.ending.is_none() {
            // What is lost stays lost: no extension gives more than this.
            let lost = why == Why::Lost;
            let kill_at = if lost { kill_at.min(self.deadlines.kill_at) } else { kill_at };
            self.ending = Some(Ending { why, kill_at });
            self.term_due = true;
        }
    }

    fn keep_time(&mut self) {
        if self.loss_at().has_passed() {
            // The time until `kill_at` was made for this, so the grace does not matter.
            self.end_by(Why::Lost, self.deadlines.kill_at);
        }
        if std::mem::take(&mut self.term_due) {
            self.terminate_tree();
        }
        if self.kill_at().has_passed() && self.next_kill.has_passed() {
            self.kill_tree();
        }
    }

    fn loss_at(&self) -> BootInstant {
        self.deadlines.term_at.min(self.deadlines.kill_at)
    }

    fn kill_at(&self) -> BootInstant {
        let by_ending = self.ending.map_or(self.deadlines.kill_at, |ending| ending.kill_at);
        if self.supervised {
            by_ending.min(self.deadlines.kill_at)
        } else {
            BootInstant::from_nanos(0)
        }
    }

    fn pause(&self) -> Duration {
        let kill_at = self.kill_at().max(self.next_kill);
        let next = if self.ending.is_some() { kill_at } else { kill_at.min(self.loss_at()) };
        next.remaining().clamp(SLEEP_MIN, SLEEP_MAX)
    }

    fn terminate_tree(&mut self) {
        let Ok(processes) = tree::descendants() else {
            return self.forward(Signal::TERM.as_raw());
        };
        for process in processes {
            if self.termed.insert(process.name()) {
                process.terminate();
            }
        }
    }

    fn kill_tree(&mut self) {
        let now = BootInstant::now();
        self.next_kill = now + KILL_EVERY;
        // One call for nearly everybody; who forks meanwhile cannot escape it, and on a machine
        // that they keep busy the scan is faster without them.
        self.forward(Signal::KILL.as_raw());
        if self.first_kill.is_none() {
            self.first_kill = Some(now);
            self.report(&Report::Killing);
        }
        // Without a list of processes the group is all that can be reached; it is tried again.
        let processes = tree::kill_descendants().unwrap_or_default();
        let late = self.first_kill.is_some_and(|first| (first + RESIST_MAX).has_passed());
        if let Some(process) = processes.first().filter(|_| late && !self.resistance_told) {
            self.report(&Report::Survives(process.pid.as_raw_pid()));
            self.resistance_told = true;
        }
    }

    /// Takes the status of every child that ended; true if no descendant is left, which the kernel
    /// knows for certain: whoever loses its parent becomes a child of this process.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((child, status))) if child == self.command => {
                    self.command_ended(tree::exit_kind(status));
                }
                Ok(Some(_)) => {}
                Err(Errno::CHILD) => return true,
                Ok(None) | Err(_) => return false,
            }
        }
    }

    fn command_ended(&mut self, status: Option<ExitKind>) {
        self.command_ended = true;
        self.end(Why::ByItself);
        // Whoever it left behind and was not told before.
        self.term_due = true;
        let status = status.unwrap_or(ExitKind::Signal(Signal::KILL.as_raw()));
        let why = self.ending.map_or(Why::ByItself, |ending| ending.why);
        self.report(&Report::Exited(Ended { status, why }));
    }

    /// A supervisor that cannot hear this is stopped or dead; the watch goes on.
    fn report(&self, report: &Report) {
        send(&self.control, report).ok();
    }
}
