//! Running a command under a lock, so that it can never outlive the lock.
//!
//! When the lock is lost, every process of the command is dead *before* the store may grant the
//! lock to somebody else: also when the command ignores TERM or has daemonised, and also when the
//! process that supervises it is stopped or killed. Three processes share the work:
//!
//! ```text
//! S        supervisor.rs  holds the lock; sends each new deadline to W; kills if W does not
//! └─ W     watchdog.rs    in a session of its own, so signals for S miss it;
//!    │                    kills the tree at the deadline, or when S dies
//!    └─ C  child.rs       the command; the kernel kills it if W dies
//!       └─ …              whatever it starts; orphans fall to W, and if W is dead to S
//! ```
//!
//! Nothing here talks to a server or knows what a lock is: it knows deadlines. And nothing here may
//! report the end of a command while one of its processes is alive.
//!
//! What it cannot do: processes that others start on the command's behalf (a container engine,
//! systemd, cron, another machine) are not its descendants. If S and W are both killed with KILL,
//! the command dies, but the processes it started do not. A process that runs as another user
//! can be neither killed nor outlived: [`Supervisor::wait`] then waits. After a suspend of the
//! machine the command may run for up to 100 ms before it is killed. All of these are what
//! the fencing token is for. The command has no controlling terminal.
//!
//! Next: [`Supervisor`] for the interface, `watchdog.rs` for the rules, `protocol.rs` for what
//! S and W say to each other, `tree.rs` for finding and killing processes.

mod child;
mod launch;
mod protocol;
mod supervisor;
mod tree;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use rustix::process::Signal;

use crate::clock::BootInstant;

pub use launch::{Error, GRACE_DEFAULT, Spec};
pub use supervisor::{Handle, Supervisor};

/// When the command must end if nothing extends its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// From here on the lock counts as lost: the command gets TERM.
    pub term_at: BootInstant,
    /// Every process of the command that is still there gets KILL.
    pub kill_at: BootInstant,
}

/// Before the lock could be lost, the command has this long to end by itself.
const TERM_LEAD_MAX: Duration = Duration::from_secs(5);

/// Below this time to live of a session the watchdog could not stop a command in time.
pub const TTL_MIN: Duration = Duration::from_millis(tenure_core::limits::SUPERVISED_TTL_MS_MIN);

impl Deadlines {
    /// The deadlines of a command under a session with this time to live and this deadline. The
    /// command has stopped a twentieth of the time to live before the holder's own deadline, which
    /// itself is a tenth before the store's.
    #[must_use]
    pub fn under(ttl: Duration, deadline: BootInstant) -> Self {
        let kill_at = deadline - ttl / 20;
        Self { term_at: kill_at - (ttl / 6).min(TERM_LEAD_MAX), kill_at }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// How its first process ended.
    pub status: ExitKind,
    /// Who made it end.
    pub why: Why,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// It exited with this code. 126 and 127 also say that the command could not be executed, or
    /// could not be found, like in a shell.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// Who made a command end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The command itself, or a signal that was passed on to it.
    ByItself,
    /// The lock was lost: `term_at` passed, or [`Stop::Lost`] was asked for.
    Lost,
    /// It was stopped; never [`Stop::Lost`], which is [`Why::Lost`].
    Stopped(Stop),
    /// Somebody killed the watchdog, so the command was killed.
    WatchdogDied,
}

/// The reasons to stop a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The holder knows that the lock is lost.
    Lost,
    /// The command took longer than it may.
    TimeLimit,
    /// Somebody asked for it.
    Asked,
}

impl From<Stop> for Why {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Lost => Self::Lost,
            Stop::TimeLimit | Stop::Asked => Self::Stopped(stop),
        }
    }
}

/// How long a process may resist KILL before somebody hears of it.
const RESIST_MAX: Duration = Duration::from_secs(2);

/// First argument that makes the executable a watchdog.
const WATCH: &str = "__watch";
/// First argument that makes the executable the command's launcher.
const CHILD: &str = "__child";

/// Acts as watchdog or launcher if this process was started as one, else returns `None`.
///
/// Every executable that serves as [`Spec::helper`] calls this first in `main`, before it starts
/// threads or reads its arguments.
#[must_use]
pub fn run_helper() -> Option<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.split_first()? {
        (first, rest) if first == WATCH => Some(watchdog::main(rest)),
        (first, rest) if first == CHILD => Some(child::main(rest)),
        _ => None,
    }
}

/// The signals that a supervisor passes on to its command.
const FORWARDED: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// The numbers of the signals to pass on: INT, TERM, HUP, QUIT, USR1 and USR2, without those that
/// this process was told to ignore (`nohup`, or a background job of a script).
///
/// To be called before any handler is installed.
///
/// # Errors
///
/// When `/proc` cannot be read.
pub fn forwarded_signals() -> io::Result<Vec<i32>> {
    let ignored = ignored_signals(&fs::read_to_string("/proc/self/status")?);
    let numbers = FORWARDED.map(Signal::as_raw);
    Ok(numbers.into_iter().filter(|number| ignored >> (number - 1) & 1 == 0).collect())
}

/// The mask of ignored signals in `/proc/self/status`; bit 0 is signal 1.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = "Name:\ttenure\nSigBlk:\t00000000ffffffff\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored_signals(status), 1 | 1 << 12);
        assert_eq!(ignored_signals("Name:\ttenure\n"), 0);
    }

    #[test]
    fn a_stop_for_loss_is_a_loss() {
        assert_eq!(Why::from(Stop::Lost), Why::Lost);
        assert_eq!(Why::from(Stop::TimeLimit), Why::Stopped(Stop::TimeLimit));
    }
}
