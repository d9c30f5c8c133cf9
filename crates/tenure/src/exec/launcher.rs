//! The launcher C: runs between the watchdog's fork and the command's `exec`.
//!
//! It sets its parent death signal and, on a terminal, takes the foreground, which only the process
//! itself can do, and then executes the command. It must never execute it if the watchdog is
//! already dead.
//!
//! The parent death signal survives `exec`, except of a set-user-ID program or one with file
//! capabilities.
//!
//! See `watchdog.rs`, which starts this process and relies on it.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::{TERMINAL_ARG, terminal};

/// Exit code of shells for a command that cannot be executed.
const CANNOT_EXECUTE: u8 = 126;
/// Exit code of shells for a command that was not found.
const NOT_FOUND: u8 = 127;

/// `__child terminal|session WATCHDOG_PID COMMAND [ARGUMENT...]`
pub(super) fn main(args: &[OsString]) -> ExitCode {
    let [mode, watchdog, program, args @ ..] = args else {
        return fail(CANNOT_EXECUTE, "the launcher needs a mode, a process id and a command");
    };
    match set_death_signal(watchdog) {
        Ok(true) if mode == TERMINAL_ARG => match terminal::enter_own_group() {
            Ok(()) => exec_command(program, args),
            Err(error) => fail(CANNOT_EXECUTE, &format!("cannot use the terminal: {error}")),
        },
        Ok(true) => exec_command(program, args),
        Ok(false) => ExitCode::from(CANNOT_EXECUTE),
        Err(error) => fail(CANNOT_EXECUTE, &format!("cannot set the parent death signal: {error}")),
    }
}

/// Sets the parent death signal; returns false if the parent is no longer the watchdog. The parent
/// is checked afterwards, because one that died before sends no signal.
fn set_death_signal(watchdog: &OsString) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = getppid().map(|pid| pid.as_raw_pid().to_string());
    Ok(parent.is_some_and(|parent| *watchdog == *parent))
}

fn exec_command(program: &OsString, args: &[OsString]) -> ExitCode {
    let error = Command::new(program).args(args).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_EXECUTE };
    fail(code, &format!("cannot run {}: {error}", program.display()))
}

fn fail(code: u8, message: &str) -> ExitCode {
    // The exit code reports it too; a closed stderr cannot be reported.
    writeln!(io::stderr(), "tenure: {message}").ok();
    ExitCode::from(code)
}
