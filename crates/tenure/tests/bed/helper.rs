//! What the tests of the runner start as watchdog and launcher of commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure::exec::run_helper().unwrap_or(ExitCode::FAILURE)
}
