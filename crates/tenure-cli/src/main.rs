//! The `tenure` binary: server, worker, command line, apps and benchmarks.

use std::process::ExitCode;

/// Faster than the system allocator for the many small allocations of commands and rows.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match tenure::exec::run_helper() {
        Some(code) => code,
        None => tenure_cli::run(),
    }
}
