//! `cargo xtask test`: all checks that a change must pass, cheapest first.
//!
//! Stops at the first step that fails and never skips one: a step that cannot run fails.
//!
//! `prepare.rs` checks the machine, `tidy/` has the textual rules; see also `contract.rs` and
//! `sim.rs`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::shell::Stopwatch;
use crate::{contract, prepare, shell, sim, tidy};

/// Number of simulation seeds: enough to inject every kind of fault, few enough for every commit.
const SIM_SEEDS: u64 = 1000;

/// Runs all steps; `cargo_args` are passed to `cargo test --workspace`.
pub(crate) fn run(root: &Path, cargo_args: &[OsString]) -> Result<()> {
    let total = Stopwatch::start();
    step("prepare", || prepare::machine(root))?;
    step("fmt", || cargo(root, &["fmt", "--all", "--check"]))?;
    step("tidy", || tidy::run(root))?;
    step("clippy", || clippy(root))?;
    step("features", || library_features(root))?;
    step("docs", || docs(root))?;
    step("tests", || tests(root, cargo_args))?;
    step("traces", || traces(root))?;
    step("contract", || contract::run(root))?;
    step("simulation", || sim::run_quick(root, SIM_SEEDS))?;
    eprintln!("all steps passed in {}", seconds(total.elapsed()));
    Ok(())
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("==> {name}");
    let watch = Stopwatch::start();
    let result = work();
    let verdict = if result.is_ok() { "passed" } else { "FAILED" };
    eprintln!("    {name} {verdict} in {}", seconds(watch.elapsed()));
    result.with_context(|| format!("run step {name}"))
}

fn clippy(root: &Path) -> Result<()> {
    cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

/// Checks the features of the client library, each alone.
fn library_features(root: &Path) -> Result<()> {
    for features in ["http", "local", "worker", "exec"] {
        let target = ["clippy", "-p", "tenure", "--lib", "--no-default-features", "--features"];
        cargo(root, &[&target[..], &[features, "--", "-D", "warnings"]].concat())?;
    }
    Ok(())
}

/// Builds the documentation, without broken links.
fn docs(root: &Path) -> Result<()> {
    let mut cargo = shell::cargo(root);
    cargo.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    shell::run(&mut cargo)
}

fn tests(root: &Path, cargo_args: &[OsString]) -> Result<()> {
    shell::run(shell::cargo(root).args(["test", "--workspace"]).args(cargo_args))
}

/// Checks the `otel` feature, the only deployed feature that is off by default.
fn traces(root: &Path) -> Result<()> {
    let target = ["-p", "tenure-cli", "--features", "otel", "--test", "otel"];
    cargo(root, &[&["clippy"][..], &target, &["--bins", "--", "-D", "warnings"]].concat())?;
    cargo(root, &[&["test"][..], &target].concat())
}

fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    shell::run(shell::cargo(root).args(args))
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn failing_step_is_named_with_its_cause() {
        let error = step("fmt", || bail!("two files differ")).unwrap_err();
        assert_eq!(format!("{error:#}"), "run step fmt: two files differ");
    }

    #[test]
    fn durations_are_formatted_with_unit() {
        assert_eq!(seconds(Duration::from_millis(61_240)), "61.2 s");
    }
}
