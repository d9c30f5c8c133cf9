//! `tenure build grind`: runs each test many times to find those that fail sometimes.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::text::{print_line, sanitize, table};
use tenure_cli_kit::{CliContext, Done, Output, print_json};

use super::run::NodeArgs;
use super::stopped;
use crate::names::TESTS_MAX;
use crate::node::TestSource;
use crate::node::command::REPETITION;
use crate::node::end::{FAILED, PASSED};
use crate::state::TestState;
use crate::wire::TestReport;

/// Run each test many times, to find tests that fail sometimes
///
/// Like `tenure build run`, on as many nodes as you like. No failure is run again; at the end each
/// test is listed that failed, with the number of its failures.
#[derive(Args)]
#[command(after_help = "\
Example:
  tenure build grind grind-4711 --tests suspects.txt --count 100 -- pytest -q {}")]
pub(super) struct Grind {
    /// Number of times that each test is run
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    #[command(flatten)]
    node: NodeArgs,
}

/// How often a test was run and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
struct Tally {
    runs: usize,
    failures: usize,
}

impl Grind {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let mut options = self.node.options().map_err(usage_error)?;
        let TestSource::List(tests) = &options.tests else {
            return Err(usage_error("grind needs --tests: a list that every node has".to_owned()));
        };
        if options.command.takes_files() {
            let why = "grind runs each test alone: use {} in the command".to_owned();
            return Err(usage_error(why));
        }
        options.tests = TestSource::List(repeat(tests, self.count).map_err(usage_error)?);
        options.command.strip_repetitions();
        options.rules.max_requeues = Some(0);
        let (api, ended) = self.node.take_part(cx, options).await?;
        if let Err(why) = ended {
            return Ok(stopped(&why));
        }
        let tallies = tally(&api.report(true).await?.tests.unwrap_or_default());
        let failed: BTreeMap<_, _> =
            tallies.iter().filter(|(_, tally)| tally.failures > 0).collect();
        match cx.output {
            Output::Json => print_json(&tallies)?,
            Output::Table if failed.is_empty() => {
                let (tests, count) = (tallies.len(), self.count);
                print_line(&format!("{tests} tests passed {count} times"))?;
            }
            Output::Table => {
                let row = |(test, tally): (&&String, &&Tally)| {
                    [sanitize(test), tally.failures.to_string(), tally.runs.to_string()]
                };
                print_line(&table(["TEST", "FAILURES", "RUNS"], failed.iter().map(row)))?;
            }
        }
        Ok(ExitCode::from(if failed.is_empty() { PASSED } else { FAILED }))
    }
}

/// Returns each test `count` times, under different ids.
fn repeat(tests: &[String], count: u32) -> Result<Vec<String>, String> {
    let total = tests.len().saturating_mul(usize::try_from(count).unwrap_or(usize::MAX));
    if total > TESTS_MAX {
        return Err(format!("{total} runs are too many; at most {TESTS_MAX} are allowed"));
    }
    let ids =
        (1..=count).flat_map(|n| tests.iter().map(move |test| format!("{test}{REPETITION}{n}")));
    Ok(ids.collect())
}

/// Adds up the runs of each test.
fn tally(runs: &[TestReport]) -> BTreeMap<String, Tally> {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for run in runs {
        let test = run.test.rsplit_once(REPETITION).map_or(&*run.test, |(test, _)| test);
        let tally = tallies.entry(test.to_owned()).or_default();
        tally.runs += 1;
        tally.failures += usize::from(run.state == TestState::Failed.as_str());
    }
    tallies
}
