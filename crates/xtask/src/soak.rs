//! `cargo xtask soak NAME`: the full size of the proofs that `cargo xtask test` runs reduced.
//!
//! Each run prints its seed first, and how to repeat it. Nothing here changes what is checked: a
//! soak has more seeds or more random cases of the same tests.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell::{self, Stopwatch};
use crate::sim;

/// Seeds of the simulation that run in one process, so that progress is visible.
const SIM_CHUNK_SEEDS: u64 = 10_000;

/// A proof, and its size.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The proof to run
    #[arg(value_name = "NAME", value_enum)]
    suite: Suite,
    /// Number of seeds of the simulation, of random cases per test, of builds, or of clusters
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// First seed, as printed by another run; random by default
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// A proof that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// The simulation, 100,000 seeds
    Sim,
    /// The properties of the engine, 20,000 cases each
    Properties,
    /// Random commands on all stores, 1,000 cases each
    Differential,
    /// Builds of a thousand tests that leave no rows, 1,000 builds; nothing in it is random
    Builds,
    /// A hundred clusters whose workers are killed and frozen
    Clusters,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Properties => "properties",
            Self::Differential => "differential",
            Self::Builds => "builds",
            Self::Clusters => "clusters",
        }
    }

    /// Returns the size of a full run.
    fn seeds(self) -> u64 {
        match self {
            Self::Sim => 100_000,
            Self::Properties => 20_000,
            Self::Differential | Self::Builds => 1_000,
            Self::Clusters => 100,
        }
    }

    /// Returns the arguments of `cargo test` for a suite of random cases.
    fn tests(self) -> &'static [&'static str] {
        match self {
            Self::Sim => &[],
            Self::Properties => {
                &["-p", "tenure-core", "--test", "properties", "--test", "job_properties"]
            }
            Self::Differential => &["-p", "tenure-store", "--test", "differential"],
            Self::Builds => &["-p", "tenure-builds", "--test", "rules", "leave_no_rows"],
            Self::Clusters => {
                &["-p", "tenure-cli", "--test", "cluster_lifecycle", "leave_nothing_behind"]
            }
        }
    }
}

/// Runs one proof.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let (suite, seeds) = (args.suite, args.seeds.unwrap_or_else(|| args.suite.seeds()));
    let seed = args.seed.unwrap_or_else(random_seed);
    let name = suite.name();
    eprintln!("soak {name}: seed {seed}, size {seeds}");
    let watch = Stopwatch::start();
    let result = match suite {
        Suite::Sim => simulate(root, seed, seeds),
        Suite::Properties | Suite::Differential | Suite::Builds | Suite::Clusters => {
            shell::run(&mut random_cases(root, suite, seed, seeds))
        }
    };
    let repeat = format!("cargo xtask soak {name} --seed {seed} --seeds {seeds}");
    result.with_context(|| format!("repeat it with `{repeat}`"))?;
    let took = watch.elapsed().as_secs();
    eprintln!("soak {name} passed in {took} s; repeat it with `{repeat}`");
    Ok(())
}

fn simulate(root: &Path, seed: u64, seeds: u64) -> Result<()> {
    for (from, count) in chunks(seed, seeds)? {
        sim::run_range(root, from, count)?;
    }
    Ok(())
}

/// Divides a range of seeds. Returns the first seed and the number of seeds of each part.
fn chunks(seed: u64, seeds: u64) -> Result<Vec<(u64, u64)>> {
    let end = seed.checked_add(seeds);
    ensure!(end.is_some(), "--seed {seed} leaves no room for {seeds} seeds; use a lower one");
    let starts = (0..seeds).step_by(usize::try_from(SIM_CHUNK_SEEDS)?);
    Ok(starts.map(|at| (seed + at, SIM_CHUNK_SEEDS.min(seeds - at))).collect())
}

/// Builds the command that runs random cases from a seed.
fn random_cases(root: &Path, suite: Suite, seed: u64, cases: u64) -> Command {
    let mut command = shell::cargo(root);
    command.arg("test");
    // Clusters wait for processes, and are not worth the build.
    if suite != Suite::Clusters {
        command.arg("--release");
    }
    command.args(suite.tests());
    command.env("PROPTEST_CASES", cases.to_string()).env("PROPTEST_RNG_SEED", seed.to_string());
    command.env("TENURE_TEST_BUILDS", format!("{cases}x1000"));
    command.env("TENURE_TEST_CLUSTERS", cases.to_string());
    command.env("TENURE_TEST_SEED", seed.to_string());
    command
}

/// Returns a seed that differs from run to run, short enough to be typed.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 24
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Args {
        Line::try_parse_from([&["soak"], words].concat()).expect("a valid line").args
    }

    #[test]
    fn simulation_has_a_hundred_thousand_seeds_by_default() {
        let args = parse(&["sim"]);
        assert_eq!((args.suite, args.seeds, args.suite.seeds()), (Suite::Sim, None, 100_000));
        let args = parse(&["sim", "--seeds", "7", "--seed", "3"]);
        assert_eq!((args.seeds, args.seed), (Some(7), Some(3)));
        assert!(Line::try_parse_from(["soak", "sim", "--seeds", "0"]).is_err());
        assert!(Line::try_parse_from(["soak", "nonsense"]).is_err());
    }

    #[test]
    fn clusters_are_given_their_seed_and_number() {
        let command = random_cases(Path::new("."), Suite::Clusters, 42, 9);
        let line = shell::command_line(&command);
        assert!(line.ends_with("--test cluster_lifecycle leave_nothing_behind"), "{line}");
        let value = |name: &str| {
            command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value)
        };
        assert_eq!(value("TENURE_TEST_CLUSTERS"), Some("9".as_ref()));
        assert_eq!(value("TENURE_TEST_SEED"), Some("42".as_ref()));
    }

    #[test]
    fn chunks_cover_each_seed_once() {
        assert_eq!(chunks(5, 10_000).unwrap(), [(5, 10_000)]);
        assert_eq!(chunks(5, 20_001).unwrap(), [(5, 10_000), (10_005, 10_000), (20_005, 1)]);
        assert!(chunks(u64::MAX, 2).is_err());
    }

    #[test]
    fn random_cases_are_given_their_seed_and_number() {
        let command = random_cases(Path::new("."), Suite::Differential, 42, 9);
        let line = shell::command_line(&command);
        assert!(line.ends_with("test --release -p tenure-store --test differential"), "{line}");
        let value = |name: &str| {
            command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value)
        };
        assert_eq!(value("PROPTEST_CASES"), Some("9".as_ref()));
        assert_eq!(value("PROPTEST_RNG_SEED"), Some("42".as_ref()));
    }
}
