//! Exit codes: part of the contract.

use std::io::ErrorKind;
use std::process::ExitCode;

use tenure::Error;
use tenure_core::Code;

use crate::{Output, message};

/// Something failed.
pub const FAILED: u8 = 1;
/// Invalid command line or input.
pub const USAGE: u8 = 2;
/// Another holder has the lock.
pub const HELD: u8 = 3;
/// Not found.
pub const NOT_FOUND: u8 = 4;
/// Conflict, or refused.
pub const REFUSED: u8 = 5;
/// The tenure is lost.
pub const LOST: u8 = 6;
/// The store or the server cannot be reached.
pub const UNAVAILABLE: u8 = 69;
/// Following was interrupted: 128 plus the number of SIGINT, as in a shell.
pub const INTERRUPTED: u8 = 130;

/// The codes of `tenure exec` itself; all others are those of the command.
pub mod under_exec {
    /// The tenure was lost; the command was killed.
    pub const LOST: u8 = 122;
    /// Another holder has the lock.
    pub const HELD: u8 = 123;
    /// The command exceeded its time limit.
    pub const TIME_LIMIT: u8 = 124;
    /// Tenure itself failed.
    pub const FAILED: u8 = 125;
}

/// Prints an error with its causes, as JSON on request, and returns its exit code. A closed pipe is
/// not an error: `tenure job ls | head` succeeds.
pub fn report(error: &anyhow::Error, output: Output) -> ExitCode {
    let is_closed_pipe = |error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(is_closed_pipe) {
        return ExitCode::SUCCESS;
    }
    message::error(error, output);
    ExitCode::from(code(error))
}

/// Returns the exit code that belongs to an error.
#[must_use]
pub fn code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Error>() {
        Some(Error::Unavailable(_)) => UNAVAILABLE,
        Some(Error::NotFound(_)) => NOT_FOUND,
        Some(Error::Denied(_)) => REFUSED,
        Some(Error::Waiting { .. }) => HELD,
        Some(error) => error.code().map_or(FAILED, of_refusal),
        None => FAILED,
    }
}

fn of_refusal(code: Code) -> u8 {
    match code {
        Code::Held => HELD,
        Code::Lost => LOST,
        Code::Invalid | Code::TooLarge => USAGE,
        Code::NotFound => NOT_FOUND,
        Code::Unavailable => UNAVAILABLE,
        Code::Rejected
        | Code::BadTransition
        | Code::Conflict
        | Code::PreconditionFailed
        | Code::Forbidden => REFUSED,
    }
}
