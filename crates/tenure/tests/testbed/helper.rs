//! Executable that the command tests start as watchdog and launcher.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure::exec::run_helper().unwrap_or(ExitCode::FAILURE)
}
