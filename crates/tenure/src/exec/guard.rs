//! The guard G: kills the tree if neither the supervisor nor the watchdog does.
//!
//! A stopped process kills nothing, and both S and W can be stopped: by `pkill -STOP tenure`, by a
//! debugger, by a signal to every process of a service. G has its own process session and a name
//! without `tenure`, so such a signal misses it. It only reads deadlines and scans processes; in
//! normal operation it never acts.
//!
//! Rules: at `kill_at`, or when S is gone, and [`GUARD_DELAY`] later so that W comes first: KILL to
//! everything below W and to every process with the exec id, until several scans in a row find
//! nothing alive. W itself is spared until then, because its death would hand its orphans to S.
//!
//! See `watchdog.rs` for the process that it backs up, and `spawn.rs` for how it is started.

use std::ffi::OsString;
use std::future::ready;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, Signal, setsid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::protocol::{ControlMessage, LineReader, line_reader, receive};
use super::tree::{EMPTY_SCANS_MIN, Guarded};
use super::{Deadlines, KILL_INTERVAL, forwarded_signals};
use crate::clock::{BootInstant, SLEEP_MAX};

/// Time that the watchdog has before the guard acts. Far less than the time from `kill_at` to the
/// next grant, which is at least 450 ms.
const GUARD_DELAY: Duration = Duration::from_millis(50);
/// Number of pending messages from which on the socket may have been full; it holds more.
const FULL_SOCKET_MESSAGES_MIN: usize = 100;

/// `__guard EXEC_ID WATCHDOG_PID`, with the control socket as stdin.
pub(super) fn main(args: &[OsString]) -> ExitCode {
    let guarded = match args {
        [id, watchdog] => parse_pid(watchdog).and_then(|pid| Guarded::new(id.to_str()?, pid)),
        _ => None,
    };
    match guarded.map(run) {
        Some(Ok(())) => ExitCode::SUCCESS,
        // The supervisor and the watchdog do not depend on it.
        Some(Err(_)) | None => ExitCode::FAILURE,
    }
}

fn parse_pid(word: &OsString) -> Option<Pid> {
    word.to_str()?.parse().ok().and_then(Pid::from_raw)
}

fn run(guarded: Guarded) -> io::Result<()> {
    setsid()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Only the end of the supervisor or of the command ends it.
        for number in forwarded_signals()? {
            drop(signal(SignalKind::from_raw(number))?);
        }
        rustix::thread::set_name(c"lock-guard")?;
        let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        control.set_nonblocking(true)?;
        Guard::new(guarded).watch(line_reader(control)?).await;
        Ok(())
    })
}

struct Guard {
    guarded: Guarded,
    /// `None` until the first deadline arrives.
    act_at: Option<BootInstant>,
    /// Time to the first deadline, which is longer than the interval of heartbeats.
    lease: Duration,
    supervised: bool,
    /// Number of consecutive scans that found nothing alive.
    empty_scans: u32,
}

impl Guard {
    fn new(guarded: Guarded) -> Self {
        Self { guarded, act_at: None, lease: Duration::ZERO, supervised: true, empty_scans: 0 }
    }

    async fn watch(mut self, mut messages: LineReader) {
        while self.supervised || !self.is_clear() {
            tokio::select! {
                biased;
                message = receive(&mut messages), if self.supervised => self.handle(message),
                () = sleep(self.delay()) => {
                    self.catch_up(&mut messages).await;
                    self.tick();
                }
            }
        }
        // It may be stopped; nobody is left to resume or to reap it.
        self.guarded.signal_watchdog(Signal::KILL);
    }

    /// Reads pending deadlines before it acts: this process may have been stopped meanwhile. If
    /// they filled the socket, newer ones may be missing, so it waits for the next heartbeat.
    async fn catch_up(&mut self, messages: &mut LineReader) {
        let mut pending = 0;
        while self.supervised && self.is_due() {
            // The runtime asks the kernel which sockets are readable only when a task yields.
            yield_now().await;
            tokio::select! {
                biased;
                message = receive(messages) => self.handle(message),
                () = ready(()) => break,
            }
            pending += 1;
        }
        if pending >= FULL_SOCKET_MESSAGES_MIN && self.supervised && self.is_due() {
            self.act_at = Some(BootInstant::now() + self.lease);
        }
    }

    fn handle(&mut self, message: Option<ControlMessage>) {
        match message {
            Some(ControlMessage::Start { first, .. }) => {
                self.lease = first.kill_at.remaining();
                self.extend(first);
            }
            Some(ControlMessage::Extend(deadlines)) => self.extend(deadlines),
            Some(ControlMessage::Signal(_) | ControlMessage::Stop { .. }) => {}
            None => {
                self.supervised = false;
                self.act_at = Some(BootInstant::now() + GUARD_DELAY);
            }
        }
    }

    fn extend(&mut self, new: Deadlines) {
        self.act_at = self.act_at.max(Some(new.kill_at + GUARD_DELAY));
    }

    fn is_due(&self) -> bool {
        self.act_at.is_some_and(BootInstant::has_passed)
    }

    fn delay(&self) -> Duration {
        match self.act_at {
            Some(at) if !at.has_passed() => at.remaining().min(SLEEP_MAX),
            Some(_) if !self.is_clear() => KILL_INTERVAL,
            Some(_) | None => SLEEP_MAX,
        }
    }

    fn tick(&mut self) {
        if self.is_due() && !self.is_clear() {
            // If the processes cannot be listed, the scan is repeated.
            let clear = self.guarded.kill().is_ok_and(|living| living.is_empty());
            self.empty_scans = if clear { self.empty_scans + 1 } else { 0 };
        }
    }

    /// Returns whether the tree is dead. Nothing new can appear then: the watchdog starts nothing
    /// after its deadline.
    fn is_clear(&self) -> bool {
        self.empty_scans >= EMPTY_SCANS_MIN
    }
}
