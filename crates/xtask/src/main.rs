//! Project automation: `cargo xtask <verb>`.
//!
//! Developers and CI run the same verbs, so a passing run means the same everywhere. Nothing here
//! is shipped, and no shipped crate may depend on it.
//!
//! `gate.rs` implements `cargo xtask test`, `tidy/` has the textual rules.

mod contract;
mod gate;
mod metadata;
mod openapi;
mod prepare;
mod shell;
mod sim;
mod soak;
mod tidy;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Project automation
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run all checks: fmt, tidy, clippy, tests, traces, contract, simulation
    Test {
        /// Arguments for `cargo test --workspace`
        #[arg(last = true)]
        cargo_args: Vec<OsString>,
    },
    /// Check that the machine has what the tests need, and install what is missing
    Prepare,
    /// Check the textual rules and the dependency directions, and print all findings
    Tidy,
    /// Generate openapi.json from the routes of the server
    Openapi,
    /// Test a real server with valid and invalid requests generated from openapi.json
    Contract,
    /// Run the release build of the simulation
    Sim(sim::Args),
    /// Run a long proof in full: what `test` runs reduced
    Soak(soak::Args),
}

fn main() -> ExitCode {
    match run(&Args::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: &Verb) -> Result<()> {
    let root = root()?;
    match verb {
        Verb::Test { cargo_args } => gate::run(&root, cargo_args),
        Verb::Prepare => prepare::machine(&root),
        Verb::Tidy => tidy::run(&root),
        Verb::Openapi => openapi::run(&root),
        Verb::Contract => contract::run(&root),
        Verb::Sim(args) => sim::run(&root, args),
        Verb::Soak(args) => soak::run(&root, args),
    }
}

/// Returns the repository root. The run-time variable takes precedence over the build-time path, so
/// that a checkout can be moved after the build.
fn root() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.join("../..").canonicalize().context("find the repository root")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_well_formed() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn arguments_after_double_dash_are_passed_to_cargo() {
        let line = ["xtask", "test", "--", "held", "--", "--nocapture"];
        let Verb::Test { cargo_args } = Args::parse_from(line).verb else {
            panic!("parsed another verb")
        };
        assert_eq!(cargo_args, ["held", "--", "--nocapture"]);
    }

    #[test]
    fn root_holds_the_workspace_manifest() {
        assert!(root().unwrap().join("Cargo.toml").is_file());
    }
}
