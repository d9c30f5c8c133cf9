//! `tenure`: one binary for the server, the locks, the jobs and the benchmarks.
//!
//! `commands` has one file per verb, `bench` the measuring; everything that is not talk with a
//! person lives in the crates below.

mod bench;
mod clock;
mod commands;
mod context;
mod exit;
mod log;
#[cfg(feature = "otel")]
mod otel;
mod progress;
mod text;

use std::process::ExitCode;

/// Steps and rows are made of many small pieces: this one is quicker with them than the system's.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match tenure::exec::run_helper() {
        Some(code) => code,
        None => commands::run(),
    }
}
