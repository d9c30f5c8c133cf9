//! Runs commands under a lock and guarantees that they never outlive it.
//!
//! When the lock is lost, every process of the command is dead *before* the store may grant the
//! lock to another holder, even if the command ignores TERM or has daemonized, and even if its
//! supervisor and its watchdog are stopped or killed. These processes cooperate:
//!
//! ```text
//! S        supervisor.rs  holds the lock; sends each new deadline to W and G; kills if W fails
//! ├─ G     guard.rs       kills the tree if S and W do not, because both are stopped or killed
//! └─ W     watchdog.rs    in its own process session, so signals to S miss it;
//!    │                    kills the tree at the deadline, or when S dies
//!    └─ C  launcher.rs    the command; the kernel kills it if W dies
//!       └─ …              its descendants; orphans are reparented to W, or to S if W is dead
//! ```
//!
//! This module does not talk to a server and knows no locks, only deadlines. It must never report
//! the end of a command while one of its processes is alive.
//!
//! Limits: processes that others start on behalf of the command (a container engine, systemd, cron,
//! another machine) are not its descendants. If S, W and G are all stopped or killed, nothing
//! enforces the deadline. If S and W are killed with KILL, G finds the command's descendants by
//! their environment only. A process of another user cannot be killed, so [`Supervisor::wait`]
//! blocks until it exits. After the machine resumes from suspend, the command may run for up to
//! 100 ms before it is killed. The fencing token covers all of these cases. The command has no
//! controlling terminal, unless it gets that of the supervisor: `terminal.rs`.
//!
//! See [`Supervisor`] for the interface, `watchdog.rs` for the rules, `protocol.rs` for the
//! messages between S and W, `tree.rs` for finding and killing processes.

mod guard;
mod launcher;
mod protocol;
mod raise;
mod run_under;
mod spawn;
mod supervisor;
mod terminal;
mod tree;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use rustix::process::Signal;

use crate::clock::BootInstant;

pub use raise::die_of;
pub use run_under::{Notice, RunUnder, run_under};
pub use spawn::{Error, GRACE_DEFAULT, Spec};
pub use supervisor::{Event, Handle, Supervisor};
pub use terminal::Terminal;

/// Deadlines of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// The lock counts as lost from this instant: the command receives TERM.
    pub term_at: BootInstant,
    /// All remaining processes of the command receive KILL.
    pub kill_at: BootInstant,
}

/// Maximum time between TERM and KILL when the lock is lost.
const TERM_LEAD_MAX: Duration = Duration::from_secs(5);

/// Minimum time to live of a session that runs commands: with less, the watchdog could not stop a
/// command in time.
pub const TTL_MIN: Duration = Duration::from_millis(tenure_core::limits::SUPERVISED_TTL_MS_MIN);

impl Deadlines {
    /// Returns the deadlines of a command under a session with this time to live and deadline.
    ///
    /// The command is dead a twentieth of the time to live before the holder's deadline, which
    /// itself is a tenth before the store's.
    #[must_use]
    pub fn for_session(ttl: Duration, deadline: BootInstant) -> Self {
        let kill_at = deadline - ttl / 20;
        Self { term_at: kill_at - (ttl / 6).min(TERM_LEAD_MAX), kill_at }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandEnd {
    /// Exit status of its first process.
    pub status: ExitKind,
    /// Why it ended.
    pub reason: EndReason,
}

/// Exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// Exit code. As in a shell, 126 and 127 also mean that the command could not be executed or
    /// was not found.
    Code(i32),
    /// Terminated by this signal.
    Signal(i32),
}

/// Exit status of a command that was killed, or whose own status is unknown.
const KILLED: ExitKind = ExitKind::Signal(Signal::KILL.as_raw());

/// Why a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// It exited by itself, or because of a forwarded signal.
    Exited,
    /// The lock was lost: `term_at` passed, or [`StopReason::Lost`] was requested.
    Lost,
    /// It was stopped for a reason other than [`StopReason::Lost`], which is [`EndReason::Lost`].
    Stopped(StopReason),
    /// The watchdog was killed, so the command was killed.
    WatchdogDied,
}

/// Reason to stop a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The lock is lost.
    Lost,
    /// The command exceeded its time limit.
    TimeLimit,
    /// The caller requested it.
    Requested,
}

impl From<StopReason> for EndReason {
    fn from(stop: StopReason) -> Self {
        match stop {
            StopReason::Lost => Self::Lost,
            StopReason::TimeLimit | StopReason::Requested => Self::Stopped(stop),
        }
    }
}

/// Time after which a process that survives KILL is reported.
const KILL_WARN_AFTER: Duration = Duration::from_secs(2);

/// Interval between two rounds of KILL while processes are left.
const KILL_INTERVAL: Duration = Duration::from_millis(10);

/// First argument that starts the executable as guard.
const GUARD_ARG: &str = "__guard";
/// First argument that starts the executable as watchdog.
const WATCHDOG_ARG: &str = "__watch";
/// First argument that starts the executable as launcher of the command.
const LAUNCHER_ARG: &str = "__child";
/// First argument that starts the executable to die of a signal.
const RAISE_ARG: &str = "__raise";
/// Argument of watchdog and launcher: the command gets the terminal on stdin.
const TERMINAL_ARG: &str = "terminal";
/// Argument of watchdog and launcher: the command has no terminal.
const SESSION_ARG: &str = "session";

/// Runs as guard, watchdog or launcher if this process was started as one, else returns `None`.
///
/// Every executable that serves as [`Spec::helper`] must call this first in `main`, before it
/// starts threads or reads its arguments.
#[must_use]
pub fn run_helper() -> Option<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.split_first()? {
        (first, rest) if first == GUARD_ARG => Some(guard::main(rest)),
        (first, rest) if first == WATCHDOG_ARG => Some(watchdog::main(rest)),
        (first, rest) if first == LAUNCHER_ARG => Some(launcher::main(rest)),
        (first, rest) if first == RAISE_ARG => Some(raise::main(rest)),
        _ => None,
    }
}

/// Signals that a supervisor forwards to its command.
const FORWARDED: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Returns the numbers of the signals to forward: INT, TERM, HUP, QUIT, USR1 and USR2, except those
/// that this process ignores (`nohup`, or a background job of a script).
///
/// Call it before any signal handler is installed.
///
/// # Errors
///
/// Fails if `/proc` cannot be read.
pub fn forwarded_signals() -> io::Result<Vec<i32>> {
    without_ignored(&FORWARDED)
}

/// Returns the numbers of those signals that this process does not ignore.
fn without_ignored(signals: &[Signal]) -> io::Result<Vec<i32>> {
    let ignored = ignored_signals(&fs::read_to_string("/proc/self/status")?);
    let numbers = signals.iter().map(|signal| signal.as_raw());
    Ok(numbers.filter(|number| ignored >> (number - 1) & 1 == 0).collect())
}

/// Parses the mask of ignored signals from `/proc/self/status`; bit 0 is signal 1.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_parsed() {
        let status = "Name:\ttenure\nSigBlk:\t00000000ffffffff\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored_signals(status), 1 | 1 << 12);
        assert_eq!(ignored_signals("Name:\ttenure\n"), 0);
    }

    #[test]
    fn a_stop_because_of_loss_ends_as_lost() {
        assert_eq!(EndReason::from(StopReason::Lost), EndReason::Lost);
        assert_eq!(
            EndReason::from(StopReason::TimeLimit),
            EndReason::Stopped(StopReason::TimeLimit)
        );
    }
}
