//! The launcher C: the moment between the watchdog's fork and the command's first instruction.
//!
//! It asks the kernel to kill it when the watchdog dies, which only a process itself can ask for,
//! and then becomes the command. It must never become it if the watchdog is dead already.
//!
//! The request survives `exec`, except of a set-user-ID program or one with file capabilities.
//!
//! Next: `watchdog.rs`, which starts this and relies on it.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The shell's code for a command that cannot be executed.
const CANNOT_EXECUTE: u8 = 126;
/// The shell's code for a command that cannot be found.
const NOT_FOUND: u8 = 127;

/// `__child WATCHDOG_PID COMMAND [ARGUMENT...]`
pub(super) fn main(args: &[OsString]) -> ExitCode {
    let [watchdog, program, args @ ..] = args else {
        return fail(CANNOT_EXECUTE, "the launcher needs a process id and a command");
    };
    match die_with(watchdog) {
        Ok(true) => become_command(program, args),
        Ok(false) => ExitCode::from(CANNOT_EXECUTE),
        Err(error) => fail(CANNOT_EXECUTE, &format!("cannot bind the command's life: {error}")),
    }
}

/// Ties this process to its parent; false if the parent is not the watchdog any more. Checked after
/// the request, because a parent that died before it will send no signal.
fn die_with(watchdog: &OsString) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = getppid().map(|pid| pid.as_raw_pid().to_string());
    Ok(parent.is_some_and(|parent| *watchdog == *parent))
}

fn become_command(program: &OsString, args: &[OsString]) -> ExitCode {
    let error = Command::new(program).args(args).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_EXECUTE };
    fail(code, &format!("cannot run {}: {error}", program.display()))
}

fn fail(code: u8, message: &str) -> ExitCode {
    // The exit code says it too; there is nowhere to report that stderr is closed.
    writeln!(io::stderr(), "tenure: {message}").ok();
    ExitCode::from(code)
}
