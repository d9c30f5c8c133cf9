//! The verbs of the command line, one file each.

use std::process::ExitCode;

pub(crate) fn run() -> ExitCode {
    ExitCode::SUCCESS
}
