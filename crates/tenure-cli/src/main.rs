//! `tenure`: one binary for the server, the locks and the benchmarks.

mod bench;
mod commands;

fn main() -> std::process::ExitCode {
    commands::run()
}
