//! The project's automation: `cargo xtask <verb>`.
//!
//! A person, the README and the CI all call the same verbs, so a green run means the same
//! everywhere. Nothing here is shipped, and nothing shipped may depend on it.
//!
//! Next: `gate.rs` is what `cargo xtask test` does, `tidy/` holds the textual rules.

mod contract;
mod gate;
mod metadata;
mod openapi;
mod prepare;
mod shell;
mod sim;
mod tidy;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// The project's automation
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run everything a change has to pass: fmt, tidy, clippy, tests, traces, contract, simulation
    Test {
        /// Arguments for `cargo test --workspace`, handed on as they are
        #[arg(last = true)]
        cargo_args: Vec<OsString>,
    },
    /// Check the textual rules and the dependency arrows, and print every finding
    Tidy,
    /// Write openapi.json as the routes of the server make it
    Openapi,
    /// Send a real server what openapi.json allows, and what it does not
    Contract,
    /// Run the release build of the simulation
    Sim(sim::Args),
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
        Verb::Tidy => tidy::run(&root),
        Verb::Openapi => openapi::run(&root),
        Verb::Contract => contract::run(&root),
        Verb::Sim(args) => sim::run(&root, args),
    }
}

/// The repository's root. Cargo's variable comes first: a checkout that was moved after the build
/// still finds itself.
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
    fn arguments_after_the_dashes_are_handed_on_with_their_own_dashes() {
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
