//! `tenure`: one binary for the server, the locks, the jobs, the apps and the benchmarks.

use std::process::ExitCode;

/// Steps and rows are made of many small allocations, for which this allocator is faster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match tenure::exec::run_helper() {
        Some(code) => code,
        None => tenure_cli::run(),
    }
}
