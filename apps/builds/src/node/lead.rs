//! The leader: collects the tests, orders them and publishes them.
//!
//! All of it happens under the heartbeat of the session. What is published counts only with the
//! last request, which the server refuses if the node has been replaced.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::Stdio;

use tenure::Tenure;
use tenure::exec::{EndReason, ExitKind, RunUnder, Spec, run_under};
use tenure_cli_kit::message;
use tenure_core::limits::CREDENTIAL_VARIABLES;
use tokio::sync::mpsc;

use super::command::STOP_SIGNALS;
use super::end::{Interruption, Stopped, failed};
use super::{Node, TestSource};
use crate::order;
use crate::wire::{BuildRules, LeadershipInfo, PublishRequest};

/// Number of tests in one request.
const CHUNK: usize = 1_000;
/// Maximum size of what a command that collects tests prints.
const COLLECTED_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Code of a setup without a list of tests.
const COLLECT_FAILED: &str = "COLLECT_FAILED";

impl Node {
    /// Publishes the tests.
    pub(super) async fn lead(
        &mut self,
        leadership: LeadershipInfo,
        tenure: &Tenure,
        rules: &BuildRules,
    ) -> Result<(), Interruption> {
        let tests = match self.tests(tenure).await {
            Ok(tests) => tests,
            Err(Interruption::Stop(Stopped::Application(why))) => {
                // No other node would get further.
                self.api.fail_setup(leadership, COLLECT_FAILED, &why).await?;
                return Err(Stopped::Application(why).into());
            }
            Err(other) => return Err(other),
        };
        let durations = self.durations().await;
        let ordered = order::order(&tests, &rules.seed, &durations);
        let (total, digest) = (ordered.len(), order::digest(&ordered));
        let LeadershipInfo { job, term } = leadership;
        let mut first = 0;
        for chunk in ordered.chunks(CHUNK) {
            let tests = chunk.to_vec();
            let body = PublishRequest { job, term, first, tests, total: None, digest: None };
            first += self.api.publish(&body).await?.published;
        }
        let (total, digest) = (Some(total), Some(digest));
        let tests = Vec::new();
        self.api.publish(&PublishRequest { job, term, first, tests, total, digest }).await?;
        message::say(&format!("published {first} {}", if first == 1 { "test" } else { "tests" }));
        Ok(())
    }

    async fn tests(&mut self, tenure: &Tenure) -> Result<Vec<String>, Interruption> {
        let tests = match self.options.tests.clone() {
            TestSource::List(tests) => tests,
            TestSource::Collect(command) => parse_tests(&self.collect(&command, tenure).await?),
        };
        check_tests(&tests).map_err(Stopped::Application)?;
        Ok(tests)
    }

    /// Runs the command that prints the tests.
    async fn collect(&mut self, command: &str, tenure: &Tenure) -> Result<String, Interruption> {
        let mut output = tempfile::tempfile().map_err(|error| failed("create a file", &error))?;
        let stdout = output.try_clone().map_err(|error| failed("create a file", &error))?;
        let mut spec = Spec::new(["sh", "-c", command]);
        (spec.stdin, spec.stdout) = (Some(Stdio::null()), Some(Stdio::from(stdout)));
        spec.env_remove = CREDENTIAL_VARIABLES.map(Into::into).into();
        spec.sole_child = true;
        let mut notify = |_| {};
        let (_sender, mut none) = mpsc::channel(1);
        let options = RunUnder {
            limit: None,
            signals: &mut none,
            stop_signals: &STOP_SIGNALS,
            notify: &mut notify,
        };
        let ended = tokio::select! {
            ended = run_under(tenure, spec, options) => ended,
            // Dropping the future kills the command.
            Some(signal) = self.signals.recv() => return Err(Stopped::Interrupted(signal).into()),
        };
        let ended = ended.map_err(|error| failed("run the command of --collect", &error))?;
        match (ended.reason, ended.status) {
            (EndReason::Exited, ExitKind::Code(0)) => {}
            (EndReason::Exited, status) => {
                let how = match status {
                    ExitKind::Code(code) => format!("exit code {code}"),
                    ExitKind::Signal(signal) => format!("signal {signal}"),
                };
                let why = format!("the command of --collect ended with {how}");
                return Err(Stopped::Application(why).into());
            }
            _ => {
                let why = "the leadership was lost while the tests were collected";
                return Err(Interruption::Lost(why.to_owned()));
            }
        }
        read(&mut output).map_err(|error| failed("read the collected tests", &error).into())
    }

    /// Returns the durations of tests in an earlier build, if the order uses them.
    async fn durations(&self) -> HashMap<String, u64> {
        let Some(earlier) = &self.timings else { return HashMap::new() };
        match earlier.report(true).await {
            Ok(report) => {
                let tests = report.tests.unwrap_or_default();
                let known = tests.into_iter().filter_map(|one| Some((one.test, one.duration_ms?)));
                known.collect()
            }
            Err(error) => {
                let name = self.options.timings_from.as_deref().unwrap_or_default();
                message::warn(&format!("the order has no durations of build {name}: {error}"));
                HashMap::new()
            }
        }
    }
}

/// Parses a list of tests, one per line; blank lines are ignored.
pub(crate) fn parse_tests(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim_end_matches('\r'));
    lines.filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

/// Refuses a list with duplicates.
pub(crate) fn check_tests(tests: &[String]) -> Result<(), String> {
    match order::find_duplicate(tests) {
        Some(test) => Err(format!("the test {test:?} is listed twice; every test must be unique")),
        None => Ok(()),
    }
}

fn read(file: &mut File) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut text = String::new();
    file.take(COLLECTED_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_one_test_per_line() {
        assert_eq!(parse_tests("a\r\n\n  \nb c\n"), ["a", "b c"]);
        assert!(parse_tests("").is_empty());
        let why = check_tests(&parse_tests("a\nb\na\n")).unwrap_err();
        assert!(why.contains("\"a\""), "{why}");
    }
}
