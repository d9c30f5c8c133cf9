//! Job control: the command gets the terminal of its supervisor, as a job of a shell does.
//!
//! If S is in the foreground of the terminal on stdin, C runs in a process group of its own in the
//! session of S, and that group becomes the foreground group. So Ctrl-C and Ctrl-Z reach C and its
//! children only, and C may read. W then has its own process group instead of its own session:
//! a group whose parents are all in other sessions could not be stopped by Ctrl-Z.
//!
//! In a pipeline the terminal belongs to the whole job, for example to a pager, so C does not get
//! it if one of its streams is a pipe.
//!
//! The kernel stops a process that changes the foreground group from the background. So each change
//! is made by a member of the foreground group: the launcher gives the terminal to itself before
//! it enters its group, and W takes it back by joining that group for a moment.
//!
//! A stopped supervisor sends no heartbeat. W and G are not stopped, and kill the command in time.
//!
//! See `launcher.rs`, `watchdog.rs` and `supervisor.rs`, which call this.

use std::io::{stderr, stdin, stdout};
use std::os::fd::AsFd;

use rustix::fs::{FileType, fstat};
use rustix::io::Result;
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process_group, setpgid};
use rustix::termios::{
    LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp,
};

use super::tree;

/// The terminal on the stdin of this process, with the modes it had.
#[derive(Debug, Clone)]
pub struct Terminal {
    modes: Termios,
}

impl Terminal {
    /// Returns the terminal on stdin, if this process is in its foreground and neither stdout nor
    /// stderr is a pipe or a socket: another member of the job may need the terminal then.
    #[must_use]
    pub fn foreground() -> Option<Self> {
        if !is_foreground() || is_pipe(stdout()) || is_pipe(stderr()) {
            return None;
        }
        Some(Self { modes: tcgetattr(stdin()).ok()? })
    }

    /// Returns whether output to stderr would stop this process: the terminal is set to `tostop`,
    /// and this process is in its background, for example because the command has it.
    #[must_use]
    pub fn stops_output() -> bool {
        let tostop =
            tcgetattr(stderr()).is_ok_and(|modes| modes.local_modes.contains(LocalModes::TOSTOP));
        tostop && tcgetpgrp(stderr()).is_ok_and(|group| group != getpgrp())
    }

    /// Sets the modes that the terminal had and returns those of the command. Does nothing in the
    /// background.
    pub(super) fn restore(&self) -> Option<Termios> {
        if !is_foreground() {
            return None;
        }
        let theirs = tcgetattr(stdin()).ok();
        // It fails if the terminal is closed; there is nothing to restore then.
        tcsetattr(stdin(), OptionalActions::Now, &self.modes).ok();
        theirs
    }
}

/// Returns whether stdin is the controlling terminal and this process is in its foreground.
pub(super) fn is_foreground() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

fn is_pipe(stream: impl AsFd) -> bool {
    let kind = fstat(stream).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind.is_ok_and(|kind| matches!(kind, FileType::Fifo | FileType::Socket))
}

/// Moves this process into its own group, and that group into the foreground if this process is
/// there. The group may become the foreground group before it has a member.
pub(super) fn enter_own_group() -> Result<()> {
    if is_foreground() {
        tcsetpgrp(stdin(), getpid())?;
    }
    setpgid(None, None)
}

/// Gives the terminal to the group of a command, with its modes, if this process has it. Takes the
/// modes only then.
pub(super) fn give(command: Pid, modes: &mut Option<Termios>) {
    if is_foreground() {
        // Both fail only if the terminal is closed or the command is dead.
        modes.take().map(|modes| tcsetattr(stdin(), OptionalActions::Now, &modes).ok());
        tcsetpgrp(stdin(), command).ok();
    }
}

/// Gives the terminal back to the group `home` if a process group of the command has it. A group
/// needs a member for this, so it must be called before the command is reaped.
pub(super) fn take_back(command: Pid, home: Pid) {
    let Ok(owner) = tcgetpgrp(stdin()) else {
        return;
    };
    // An interactive shell in the command has groups of its own. The user's shell has the terminal
    // if it has noticed the end before.
    let is_theirs = || {
        let descendants = tree::descendants().unwrap_or_default();
        descendants.iter().any(|process| process.group == owner.as_raw_pid())
    };
    if owner == home || !(owner == command || is_theirs()) {
        return;
    }
    let own = getpgrp();
    if setpgid(None, Some(owner)).is_ok() {
        // It fails if the terminal is closed.
        tcsetpgrp(stdin(), home).ok();
        setpgid(None, Some(own)).ok();
    }
}

/// Stops the job of this process, as Ctrl-Z does. It has no effect if no shell could resume it.
pub(super) fn stop_own_group() {
    // The own group exists and may be signalled.
    kill_process_group(getpgrp(), Signal::TSTP).ok();
}
