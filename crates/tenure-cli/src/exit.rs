//! Exit codes: part of the contract.

use std::io::ErrorKind;
use std::process::ExitCode;

use tenure::Error;
use tenure_core::Code;

use crate::log;

pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const HELD: u8 = 3;
pub(crate) const NOT_FOUND: u8 = 4;
pub(crate) const REFUSED: u8 = 5;
pub(crate) const LOST: u8 = 6;
pub(crate) const UNAVAILABLE: u8 = 69;
/// Somebody stopped following, as shells say it: 128 and the number of SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// The codes of `tenure exec` itself; all others are those of the command.
pub(crate) mod under_exec {
    pub(crate) const LOST: u8 = 122;
    pub(crate) const HELD: u8 = 123;
    pub(crate) const TIME_LIMIT: u8 = 124;
    pub(crate) const FAILED: u8 = 125;
}

/// Prints an error with its causes and gives the code that belongs to it. That nobody reads the
/// data any more is none: `tenure job ls | head` has done what was asked.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let gone = |error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(gone) {
        return ExitCode::SUCCESS;
    }
    log::complain(&format!("{error:#}"));
    ExitCode::from(code(error))
}

pub(crate) fn code(error: &anyhow::Error) -> u8 {
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
        Code::Invalid => USAGE,
        Code::NotFound => NOT_FOUND,
        Code::Unavailable => UNAVAILABLE,
        Code::Rejected | Code::BadTransition | Code::Conflict | Code::Forbidden => REFUSED,
    }
}
