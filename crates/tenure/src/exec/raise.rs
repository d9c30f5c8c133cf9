//! Dying of a signal that this process handles.
//!
//! A shell ends its script after Ctrl-C only if the program that it waits for died of the signal.
//! Safe Rust cannot remove a signal handler, but `exec` does: this process becomes a helper that
//! has none and sends the signal to itself.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getpid, kill_process};

use super::RAISE_ARG;

/// Ends this process with a signal, without running destructors. Its executable must call
/// [`super::run_helper`]. Returns only if that fails.
pub fn die_of(signal: i32) -> io::Error {
    let mut helper = Command::new("/proc/self/exe");
    helper.arg0("tenure").arg(RAISE_ARG).arg(signal.to_string()).exec()
}

/// `__raise NUMBER`
pub(super) fn main(args: &[OsString]) -> ExitCode {
    let number = args.first().and_then(|word| word.to_str()?.parse::<u8>().ok()).unwrap_or(0);
    if let Some(signal) = Signal::from_named_raw(number.into()) {
        // A process may always signal itself.
        kill_process(getpid(), signal).ok();
    }
    // The signal is ignored.
    ExitCode::from(number.saturating_add(128))
}
