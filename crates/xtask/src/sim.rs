//! `cargo xtask sim`: runs the simulation of `crates/tenure-sim`.
//!
//! Checks first that the binary exists, so that the step cannot pass without running anything.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::metadata::{self, Package};
use crate::shell;

const CRATE: &str = "tenure-sim";
const BINARY: &str = "sim";

/// Seeds to run, passed to the simulator.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of seeds to run
    #[arg(long, value_name = "N", required_unless_present = "seed")]
    seeds: Option<u64>,
    /// Seed to replay, as printed by a failing run
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// Runs the release build, for many seeds.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    require_binary(&metadata::packages(root)?)?;
    let mut command = cargo_run(root, &["--release"]);
    shell::run(with_seeds(&mut command, args))
}

/// Runs the development build, which the tests have already compiled.
pub(crate) fn run_quick(root: &Path, seeds: u64) -> Result<()> {
    require_binary(&metadata::packages(root)?)?;
    let mut command = cargo_run(root, &[]);
    shell::run(with_seeds(&mut command, &Args { seeds: Some(seeds), seed: None }))
}

/// Runs the release build for a range of seeds.
pub(crate) fn run_range(root: &Path, from: u64, seeds: u64) -> Result<()> {
    require_binary(&metadata::packages(root)?)?;
    let mut command = cargo_run(root, &["--release"]);
    shell::run(command.args(["--from", &from.to_string(), "--seeds", &seeds.to_string()]))
}

fn require_binary(packages: &[Package]) -> Result<()> {
    let mut crates = packages.iter().filter(|package| package.name == CRATE);
    let found = crates.any(|package| package.binaries.iter().any(|name| name == BINARY));
    ensure!(found, "the simulation cannot run: crate {CRATE} has no binary `{BINARY}`");
    Ok(())
}

fn cargo_run(root: &Path, flags: &[&str]) -> Command {
    let mut command = shell::cargo(root);
    command.args(["run", "--package", CRATE, "--bin", BINARY]).args(flags).arg("--");
    command
}

fn with_seeds<'a>(command: &'a mut Command, args: &Args) -> &'a mut Command {
    for (flag, value) in [("--seeds", args.seeds), ("--seed", args.seed)] {
        if let Some(value) = value {
            command.args([flag, &value.to_string()]);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, binaries: &[&str]) -> Package {
        let binaries = binaries.iter().map(|&name| name.into()).collect();
        Package { name: name.into(), binaries, ..Package::default() }
    }

    #[test]
    fn missing_binary_is_a_failure() {
        let error =
            require_binary(&[package("tenure-sim", &[]), package("other", &["sim"])]).unwrap_err();
        assert!(error.to_string().contains("crate tenure-sim has no binary `sim`"), "{error}");
    }

    #[test]
    fn binary_of_the_right_crate_is_found() {
        assert!(require_binary(&[package("tenure-sim", &["sim"])]).is_ok());
    }

    #[test]
    fn seeds_are_passed_to_the_simulator() {
        let mut command = cargo_run(Path::new("."), &["--release"]);
        with_seeds(&mut command, &Args { seeds: Some(5), seed: Some(42) });
        let expected = "run --package tenure-sim --bin sim --release -- --seeds 5 --seed 42";
        assert!(
            shell::command_line(&command).ends_with(expected),
            "{}",
            shell::command_line(&command)
        );
    }
}
