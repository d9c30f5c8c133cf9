//! `tenure build bisect`: finds the test that makes another one fail when it runs before it.

use std::io::Write as _;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use clap::Args;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::text::{print_line, sanitize};
use tenure_cli_kit::{CliContext, Done, message};
use tenure_core::limits::CREDENTIAL_VARIABLES;

use super::parse_build;
use crate::node::api::{BuildApi, SERVER_TIMEOUT};
use crate::node::end::{FAILED, PASSED};
use crate::wire::TestReport;

/// Placeholder for a file with tests, one per line.
const FILE: &str = "{file}";

/// Find the test that makes another one fail
///
/// Takes the tests that ran before it on the same node, in their order, and runs the command on
/// this machine with smaller and smaller parts of them, followed by the test. The command must run
/// the tests of {file} in one process and in this order, and fail if one of them fails.
#[derive(Args)]
#[command(after_help = "\
Example:
  tenure build bisect 4711 tests/test_b.py::test_total -- pytest -q @{file}

Prints the test that is to blame, and ends with 0; ends with 1 if there is none.")]
pub(super) struct Bisect {
    /// Id of the build
    #[arg(value_parser = parse_build)]
    build: String,
    /// The test that fails
    test: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Bisect {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        if !self.command.iter().any(|word| word.contains(FILE)) {
            return Err(usage_error("the command has no {file} for the tests".to_owned()));
        }
        cx.server.one_tenant()?;
        let api = BuildApi::new(cx.server.transport()?, &self.build, SERVER_TIMEOUT);
        let tests = api.report(true).await?.tests.unwrap_or_default();
        let suspects = before(&tests, &self.test).map_err(usage_error)?;
        if self.fails_after(&[])? {
            message::say("the test fails alone: no other test is to blame");
            return Ok(ExitCode::from(FAILED));
        }
        let count = suspects.len();
        if !self.fails_after(&suspects)? {
            message::say(&format!("the test passes after the {count} tests before it, too"));
            return Ok(ExitCode::from(FAILED));
        }
        match search(suspects, |part| self.fails_after(part))? {
            Some(culprit) => {
                print_line(&sanitize(&culprit))?;
                Ok(ExitCode::from(PASSED))
            }
            None => {
                message::say("several tests together make it fail; none of them does alone");
                Ok(ExitCode::from(FAILED))
            }
        }
    }

    /// Returns whether the command fails with some tests followed by the one that fails.
    fn fails_after(&self, earlier: &[String]) -> anyhow::Result<bool> {
        let mut file = tempfile::NamedTempFile::new().context("cannot create a file")?;
        for test in earlier.iter().chain([&self.test]) {
            writeln!(file, "{test}").context("cannot write the tests")?;
        }
        file.flush().context("cannot write the tests")?;
        let path = file.path().to_string_lossy();
        let mut words = self.command.iter().map(|word| word.replace(FILE, &path));
        let program = words.next().unwrap_or_default();
        let mut command = Command::new(&program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        CREDENTIAL_VARIABLES.iter().for_each(|name| {
            command.env_remove(name);
        });
        let status = command.status().with_context(|| format!("cannot run {program}"))?;
        let verdict = if status.success() { "passes" } else { "fails" };
        message::say(&format!("{verdict} after {} tests", earlier.len()));
        Ok(!status.success())
    }
}

/// Returns the tests that ran before `test` on its node, in their order.
fn before(tests: &[TestReport], test: &str) -> Result<Vec<String>, String> {
    let found = tests.iter().find(|one| one.test == test);
    let found = found.ok_or_else(|| format!("the build has no test {test:?}"))?;
    let worker = found.worker.as_ref().ok_or_else(|| format!("{test:?} has no result"))?;
    let ended = |one: &TestReport| (one.ended_at.clone(), one.index);
    let mut earlier: Vec<&TestReport> = tests
        .iter()
        .filter(|one| one.worker.as_ref() == Some(worker) && ended(one) < ended(found))
        .collect();
    earlier.sort_by_key(|one| ended(one));
    Ok(earlier.into_iter().map(|one| one.test.clone()).collect())
}

/// Searches the one test after which another one fails, given that it fails after all of them.
fn search(
    mut suspects: Vec<String>,
    mut fails_after: impl FnMut(&[String]) -> anyhow::Result<bool>,
) -> anyhow::Result<Option<String>> {
    while suspects.len() > 1 {
        let later = suspects.split_off(suspects.len() / 2);
        if !fails_after(&suspects)? {
            if !fails_after(&later)? {
                return Ok(None);
            }
            suspects = later;
        }
    }
    Ok(suspects.pop())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_culprit_is_found_in_a_logarithmic_number_of_runs() {
        let suspects: Vec<String> = (0..1_000).map(|n| format!("t{n}")).collect();
        for culprit in ["t0", "t499", "t500", "t999"] {
            let mut runs = 0;
            let found = search(suspects.clone(), |part| {
                runs += 1;
                Ok(part.iter().any(|test| test == culprit))
            });
            assert_eq!(found.unwrap().as_deref(), Some(culprit));
            assert!(runs <= 20, "{runs} runs");
        }
    }

    #[test]
    fn two_tests_that_are_to_blame_together_are_not_found() {
        let suspects: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
        let both = |part: &[String]| Ok(["t1", "t6"].iter().all(|t| part.iter().any(|p| p == t)));
        assert_eq!(search(suspects, both).unwrap(), None);
    }
}
