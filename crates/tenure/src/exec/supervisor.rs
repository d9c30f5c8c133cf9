//! The supervisor S: the caller's end of a command that runs under a lock.
//!
//! It tells the watchdog every new deadline, and hears how the command ended. It is the second line
//! of defence too: if the watchdog dies, or does not do its work in time, the tree is killed from
//! here. [`Supervisor::wait`] must never return while a process of the command lives, since
//! the caller then gives the lock away.
//!
//! Next: `launch.rs` for how it starts, `watchdog.rs` for the other end, `tree.rs` for how orphans
//! are recognised.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, set_child_subreaper};
use tokio::time::{sleep, timeout};

use super::launch::{self, Error, LOOK_EVERY, Spec, Watchdog};
use super::protocol::{Inbox, Order, Report, inbox, receive, send};
use super::tree::Orphans;
use super::{Deadlines, Ended, ExitKind, RESIST_MAX, Stop, Why};
use crate::clock::{BootInstant, SLEEP_MAX};

/// How long the watchdog may take until the command runs.
const START_MAX: Duration = Duration::from_secs(10);
/// How long after `kill_at` the watchdog is stuck if it has not begun; it looks every 100 ms.
const IDLE_MAX: Duration = Duration::from_millis(200);
/// How long after `kill_at` it counts as stuck in any case. To kill it while it works would only
/// make the killing start again.
const KILLING_MAX: Duration = Duration::from_secs(5);
/// How long to look for reports that were sent while this process was late.
const CATCH_UP: Duration = Duration::from_millis(5);
/// So many scans in a row must find no orphan, because one can miss a process that is just born.
const CALM_SCANS: u32 = 3;

/// A command that runs under a lock.
///
/// Dropping it kills every process of the command, but does not wait until they are dead: a lock
/// may be given away only after [`Supervisor::wait`].
#[derive(Debug)]
pub struct Supervisor {
    /// The writing end of the command's input, if [`Spec::stdin`] is a pipe.
    pub stdin: Option<ChildStdin>,
    /// The reading end of the command's output, if [`Spec::stdout`] is a pipe.
    pub stdout: Option<ChildStdout>,
    /// The reading end of the command's errors, if [`Spec::stderr`] is a pipe.
    pub stderr: Option<ChildStderr>,
    handle: Handle,
    reports: Inbox,
    command: Pid,
    tree: Tree,
    /// How long the watchdog may be late.
    patience: Duration,
    /// Why the watchdog cannot be relied on any more.
    failed: Option<Why>,
    ended: Option<Ended>,
    gone: bool,
}

impl Supervisor {
    /// Starts the command, if its deadline has not passed yet.
    ///
    /// Makes this process the reaper of orphaned descendants. To be called in a tokio runtime with
    /// I/O and time.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing is running then. A command that cannot be executed is no error
    /// but ends with the code 126 or 127.
    pub async fn start(spec: Spec, first: Deadlines) -> Result<Self, Error> {
        if spec.program.is_empty() {
            return Err(Error::NoProgram);
        }
        set_child_subreaper(Some(getpid())).map_err(|errno| Error::Prepare(errno.into()))?;
        let id = launch::random_id().map_err(Error::Prepare)?;
        let listener = launch::listen(&id).map_err(Error::Prepare)?;
        let (grace, alone) = (spec.grace, spec.alone);
        let watchdog = Watchdog::start(spec, &id)?;
        let orphans = Orphans::new(id, watchdog.pid(), alone);
        let mut tree = Tree { watchdog, orphans };
        let contact = make_contact(&mut tree.watchdog, listener, first, grace);
        match timeout(START_MAX, contact).await {
            Ok(Ok((handle, reports, command))) => Ok(Self::new(tree, handle, reports, command)),
            Ok(Err(error)) => tree.kill(|_, _| {}).await.and(Err(error)),
            Err(_) => {
                let error = Error::NoContact(io::ErrorKind::TimedOut.into());
                tree.kill(|_, _| {}).await.and(Err(error))
            }
        }
    }

    fn new(mut tree: Tree, handle: Handle, reports: Inbox, command: Pid) -> Self {
        let streams = &mut tree.watchdog.0;
        Self {
            stdin: streams.stdin.take(),
            stdout: streams.stdout.take(),
            stderr: streams.stderr.take(),
            handle,
            reports,
            command,
            tree,
            patience: IDLE_MAX,
            failed: None,
            ended: None,
            gone: false,
        }
    }

    /// A way to reach the command from other tasks and threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Process id of the command.
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
    pub fn stop(&self, why: Stop) {
        self.handle.stop(why);
    }

    /// Waits until the command and everything it started is dead. Only then the lock may be given
    /// away, and until then it must be renewed.
    ///
    /// May be cancelled and called again. To be polled while the command runs, since this is also
    /// what kills the tree when the watchdog does not.
    ///
    /// # Errors
    ///
    /// When it cannot be known whether the tree is dead: the lock must then be left to expire.
    pub async fn wait(&mut self) -> Result<Ended, Error> {
        while !self.gone {
            match self.failed {
                Some(why) => self.take_over(why).await?,
                None => self.listen().await,
            }
        }
        // It has nothing left to do, but a watchdog that is stopped would not end.
        self.tree.watchdog.kill().await;
        Ok(self.ended.unwrap_or(Ended { status: KILLED, why: Why::WatchdogDied }))
    }

    async fn listen(&mut self) {
        let report = tokio::select! {
            report = receive(&mut self.reports) => Ok(report),
            // Perhaps only this process was late, and the report is there.
            () = self.handle.0.overdue(self.patience) => {
                timeout(CATCH_UP, receive(&mut self.reports)).await
            }
        };
        match report {
            Ok(Some(report)) => self.hear(report),
            Ok(None) => self.failed = Some(Why::WatchdogDied),
            Err(_) => self.failed = Some(Why::Lost),
        }
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Exited(ended) => self.ended = Some(ended),
            Report::Killing => self.patience = KILLING_MAX,
            Report::Survives(pid) => warn_of(pid),
            Report::Gone => self.gone = true,
            Report::Started(_) | Report::Late | Report::Failed(_) => {}
        }
    }

    async fn take_over(&mut self, why: Why) -> Result<(), Error> {
        let (command, ended) = (self.command, &mut self.ended);
        let note = |child, status| {
            if child == command {
                ended.get_or_insert(Ended { status, why });
            }
        };
        self.tree.kill(note).await?;
        self.ended.get_or_insert(Ended { status: KILLED, why });
        self.gone = true;
        Ok(())
    }
}

impl Drop for Supervisor {
    /// Handles may keep the socket open; the watchdog must hear the end of it now.
    fn drop(&mut self) {
        // It fails only if the watchdog is dead already.
        self.handle.0.socket.shutdown(Shutdown::Both).ok();
    }
}

/// The end of a command of which nothing is known but that it is dead.
const KILLED: ExitKind = ExitKind::Signal(Signal::KILL.as_raw());

/// Everything that was started, as far as it can be reached without the watchdog's help.
#[derive(Debug)]
struct Tree {
    watchdog: Watchdog,
    orphans: Orphans,
}

impl Tree {
    /// Kills the watchdog, then whatever falls to this process because of that, until nothing is
    /// left. `reaped` hears how each process ended.
    async fn kill(&mut self, mut reaped: impl FnMut(Pid, ExitKind)) -> Result<(), Error> {
        self.watchdog.kill().await;
        let mut warn_at = Some(BootInstant::now() + RESIST_MAX);
        let mut calm = 0;
        while calm < CALM_SCANS {
            let seen = self.orphans.sweep(&mut reaped).map_err(Error::Scan)?;
            calm = if seen.is_empty() { calm + 1 } else { 0 };
            if warn_at.is_some_and(BootInstant::has_passed) {
                seen.first().iter().for_each(|process| warn_of(process.pid.as_raw_pid()));
                warn_at = None;
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

fn warn_of(pid: i32) {
    tracing::warn!(pid, "a process of the command does not die, trying on");
}

/// Talks to a running command. Nothing here waits, and nothing fails: if the watchdog cannot hear
/// it, the command ends by its last deadline, and [`Supervisor::wait`] tells.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Control>);

#[derive(Debug)]
struct Control {
    /// Used without the runtime: a blocked runtime must not keep a new deadline from the watchdog.
    socket: UnixStream,
    kill_at_nanos: AtomicU64,
}

impl Handle {
    /// Gives the command time, after each heartbeat that succeeded. Never takes time away.
    pub fn extend(&self, deadlines: Deadlines) {
        self.0.kill_at_nanos.fetch_max(deadlines.kill_at.as_nanos(), Ordering::Relaxed);
        self.tell(Order::Extend(deadlines));
    }

    /// Sends a signal to the command's process group; unknown numbers are ignored.
    pub fn signal(&self, signal: i32) {
        self.tell(Order::Signal(signal));
    }

    /// TERM for every process now, KILL after the grace, or at `kill_at` if that is earlier.
    pub fn stop(&self, why: Stop) {
        self.tell(Order::Stop(why));
    }

    fn tell(&self, order: Order) {
        // Safe to miss, see the type.
        send(&self.0.socket, &order).ok();
    }
}

impl Control {
    fn kill_at(&self) -> BootInstant {
        BootInstant::from_nanos(self.kill_at_nanos.load(Ordering::Relaxed))
    }

    /// Returns when the tree should have been dead for a while.
    async fn overdue(&self, patience: Duration) {
        while !(self.kill_at() + patience).has_passed() {
            sleep((self.kill_at() + patience).remaining().min(SLEEP_MAX)).await;
        }
    }
}

async fn make_contact(
    watchdog: &mut Watchdog,
    listener: UnixListener,
    first: Deadlines,
    grace: Duration,
) -> Result<(Handle, Inbox, Pid), Error> {
    let control = watchdog.connection(listener).await.map_err(Error::NoContact)?;
    let (handle, mut reports) = converse(control, first).map_err(Error::NoContact)?;
    send(&handle.0.socket, &Order::Start { first, grace }).map_err(Error::NoContact)?;
    let command = hear_start(&mut reports).await?;
    Ok((handle, reports, command))
}

/// The two directions of the control socket.
fn converse(control: tokio::net::UnixStream, first: Deadlines) -> io::Result<(Handle, Inbox)> {
    let control = control.into_std()?;
    let socket = control.try_clone()?;
    let reports = inbox(control)?;
    let kill_at_nanos = AtomicU64::new(first.kill_at.as_nanos());
    Ok((Handle(Arc::new(Control { socket, kill_at_nanos })), reports))
}

async fn hear_start(reports: &mut Inbox) -> Result<Pid, Error> {
    match receive(reports).await {
        Some(Report::Started(pid)) => {
            Pid::from_raw(pid).ok_or_else(|| Error::NoContact(io::ErrorKind::InvalidData.into()))
        }
        Some(Report::Late) => Err(Error::Late),
        Some(Report::Failed(errno)) => Err(Error::Start(io::Error::from_raw_os_error(errno))),
        _ => Err(Error::NoContact(io::ErrorKind::UnexpectedEof.into())),
    }
}
