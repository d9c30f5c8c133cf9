//! Results of tests: what becomes of a test that passed, failed or was not run to its end.
//!
//! A result is written in the step that ends the attempt, with the token of the attempt: a node
//! that has lost the test cannot write one. A failed test is run again if the limit of the test and
//! that of the build allow it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tenure_app::{Caller, Problem, Services};
use tenure_core::engine::check_text;
use tenure_core::job::{Attempt, AttemptOutcome};
use tenure_core::limits::{CODE_BYTES_MAX, MESSAGE_BYTES_MAX};
use tenure_core::retry::Class;
use tenure_core::{
    Command, Finish, Job, JobAction, Outcome, Refusal, ResourceKey, StatusUpdate, Text, Token,
};

use crate::build::Build;
use crate::names::{self, TEST_BYTES_MAX, test_group, test_index};
use crate::state::TestState;
use crate::tally;
use crate::wire::{AckVerdict, TestOutcome, TestResult};

/// Code of a failed test whose node named none.
const FAILED: &str = "FAILED";

/// Status of a test, written with each result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TestStatus {
    #[serde(default)]
    pub(crate) test: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ms: Option<u64>,
    /// Number of failed attempts.
    #[serde(default)]
    pub(crate) failures: u32,
    /// Number of attempts that lost their node.
    #[serde(default)]
    pub(crate) losses: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

impl TestStatus {
    /// Parses the status of a test, which has none before its first result.
    pub(crate) fn parse(document: Option<&Text>) -> Self {
        document.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Returns the number of attempts of a job that lost their node.
    pub(crate) fn losses_of(&self, job: &Job) -> u32 {
        let earlier =
            if job.state.is_running() { job.attempt.saturating_sub(1) } else { job.attempt };
        earlier.saturating_sub(self.failures)
    }

    fn update(&self) -> Box<StatusUpdate> {
        let merge = serde_json::to_string(self).expect("the status is JSON").into();
        Box::new(StatusUpdate { merge: Some(merge), timers: Vec::new() })
    }
}

/// Settles the results of a node.
pub(crate) struct Settlement<'a> {
    pub(crate) services: &'a Services,
    pub(crate) caller: &'a Caller,
    pub(crate) build: &'a Build,
    pub(crate) term: Token,
    pub(crate) worker: &'a str,
}

/// A result with the command that writes it.
struct Settled {
    command: Command,
    verdict: AckVerdict,
    /// Requeue that was granted for it.
    requeue: Option<String>,
    /// Index of the test that has failed.
    failed: Option<usize>,
}

impl Settlement<'_> {
    /// Writes the results. Returns one verdict per result.
    pub(crate) async fn settle(&self, results: &[TestResult]) -> Result<Vec<AckVerdict>, Problem> {
        let mut verdicts = vec![AckVerdict::Lost; results.len()];
        let mut commands = Vec::new();
        for result in results {
            check(result)?;
        }
        for (index, result) in results.iter().enumerate() {
            let key = self.test(result).await?;
            match result.outcome {
                TestOutcome::Passed => commands.push((index, self.passed(result))),
                TestOutcome::NotRun => commands.push((index, not_run(result))),
                TestOutcome::Failed => match self.failed(result, &key).await? {
                    Ok(settled) => commands.push((index, settled)),
                    Err(settled_before) => verdicts[index] = settled_before,
                },
            }
        }
        let failed: Vec<usize> = commands.iter().filter_map(|(_, one)| one.failed).collect();
        tally::count_failures(self.services, self.caller, self.build, &failed).await?;
        let batch = commands.iter().map(|(_, settled)| settled.command.clone()).collect();
        let outcomes = self.services.committer.submit_all(batch).await;
        for ((index, settled), outcome) in commands.into_iter().zip(outcomes) {
            verdicts[index] = self.verdict(settled, outcome?).await?;
        }
        Ok(verdicts)
    }

    /// Returns the test of a result, which must be one of this build.
    async fn test(&self, result: &TestResult) -> Result<ResourceKey, Problem> {
        let key = self.services.resource_of_job(result.job).await?;
        let group = test_group(&self.build.key, self.term);
        let is_ours = |key: &ResourceKey| {
            key.tenant() == self.build.key.tenant() && key.group() == Some(&*group)
        };
        key.filter(is_ours).ok_or_else(|| Refusal::NoSuchJob.into())
    }

    fn passed(&self, result: &TestResult) -> Settled {
        let status =
            TestStatus { failures: result.failures, losses: result.losses, ..self.status(result) };
        // What earlier failures said stays: the status is merged.
        let finish = Finish::Ok { state: None, result: None };
        settled(result, finish, Some(status.update()), AckVerdict::Passed)
    }

    /// Decides about a failed test. Returns the verdict if it was settled before.
    async fn failed(
        &self,
        result: &TestResult,
        key: &ResourceKey,
    ) -> Result<Result<Settled, AckVerdict>, Problem> {
        let reads = self.services.store().reads();
        let view = reads.job(result.job).await?.ok_or(Refusal::NoSuchJob)?;
        let attempt = view.job.attempts.iter().find(|attempt| attempt.token == result.token);
        let Some(attempt) = attempt else { return Ok(Err(AckVerdict::Lost)) };
        if let Some(outcome) = attempt.outcome {
            let is_flaky = outcome == AttemptOutcome::Ok && result.known_flaky;
            let verdict = verdict_before(attempt, outcome, &view.job);
            return Ok(Err(if is_flaky { AckVerdict::Flaky } else { verdict }));
        }
        let resource = reads.show(key).await?.and_then(|detail| detail.record.resource);
        let document = resource.and_then(|resource| resource.status);
        let before = TestStatus::parse(document.as_ref().map(|status| &status.document));
        let status = TestStatus {
            failures: before.failures + 1,
            losses: before.losses_of(&view.job),
            code: Some(result.code.clone().unwrap_or_else(|| FAILED.to_owned())),
            message: result.message.as_deref().map(readable),
            ..self.status(result)
        };
        let index = test_index(key).unwrap_or_default();
        let update = Some(status.update());
        if result.known_flaky {
            let state = Some(TestState::Flaky.as_str().into());
            let finish = Finish::Ok { state, result: None };
            return Ok(Ok(settled(result, finish, update, AckVerdict::Flaky)));
        }
        let is_within = before.failures < self.build.spec.rules.max_requeues;
        let entry = format!("{index}.{}", result.token);
        let (services, caller, build) = (self.services, self.caller, &self.build.key);
        if is_within && tally::grant_requeue(services, caller, build, &entry).await? {
            let finish = failure(&status, Class::Transient);
            let settled = settled(result, finish, update, AckVerdict::Requeued);
            return Ok(Ok(Settled { requeue: Some(entry), ..settled }));
        }
        let finish = failure(&status, Class::Permanent);
        let settled = settled(result, finish, update, AckVerdict::Failed);
        Ok(Ok(Settled { failed: Some(index), ..settled }))
    }

    fn status(&self, result: &TestResult) -> TestStatus {
        TestStatus {
            test: result.test.clone(),
            worker: Some(self.worker.to_owned()),
            duration_ms: Some(result.duration_ms),
            ..TestStatus::default()
        }
    }

    async fn verdict(&self, settled: Settled, outcome: Outcome) -> Result<AckVerdict, Problem> {
        match outcome {
            Outcome::Finished { .. } => Ok(settled.verdict),
            Outcome::Refused(refusal) => {
                // The result does not count, because the node lost the test in between.
                if let Some(entry) = &settled.requeue {
                    let (services, caller) = (self.services, self.caller);
                    tally::return_requeue(services, caller, &self.build.key, entry).await?;
                }
                if let Some(index) = settled.failed {
                    let (services, caller) = (self.services, self.caller);
                    tally::forget_failures(services, caller, &self.build.key, &[index]).await?;
                }
                match refusal {
                    Refusal::Lost { .. } => Ok(AckVerdict::Lost),
                    other => Err(other.into()),
                }
            }
            other => Err(Problem::unexpected(&other)),
        }
    }
}

/// Refuses a result that the engine would refuse, before a requeue is granted to it.
fn check(result: &TestResult) -> Result<(), Problem> {
    if let Some(code) = &result.code {
        check_text("code", code, CODE_BYTES_MAX)?;
        if code.is_empty() {
            return Err(Problem::invalid(&"code: it is empty; leave it out, or name the failure"));
        }
    }
    if !names::is_test(&result.test) {
        let detail = format!("test: the id of a test is one line of 1 to {TEST_BYTES_MAX} bytes");
        return Err(Problem::invalid(&detail));
    }
    Ok(())
}

/// Returns the end of a message, which says most, within the limits of the engine: no result is
/// refused because of what a test printed.
pub(crate) fn readable(message: &str) -> String {
    let clean: String = message.chars().filter(|c| !c.is_control() || *c == '\n').collect();
    let clean = clean.trim();
    let start = clean.len().saturating_sub(MESSAGE_BYTES_MAX);
    let start = (start..=clean.len()).find(|at| clean.is_char_boundary(*at));
    clean[start.unwrap_or(clean.len())..].to_owned()
}

/// Returns the command that fails a test whose nodes were lost too often.
pub(crate) fn fail_lost(
    job: &Job,
    token: Token,
    test: &str,
    losses: u32,
    failures: u32,
) -> Command {
    let status = TestStatus {
        test: test.to_owned(),
        failures: failures + 1,
        losses,
        code: Some("NODE_LOST".to_owned()),
        message: Some(format!("{losses} nodes were lost while they ran it")),
        ..TestStatus::default()
    };
    let finish = failure(&status, Class::Permanent);
    let update = Some(status.update());
    Command::Job { id: job.id, action: JobAction::Finish { token, finish, update } }
}

fn not_run(result: &TestResult) -> Settled {
    settled(result, Finish::HandBack, None, AckVerdict::Returned)
}

fn settled(
    result: &TestResult,
    finish: Finish,
    update: Option<Box<StatusUpdate>>,
    verdict: AckVerdict,
) -> Settled {
    let action = JobAction::Finish { token: result.token, finish, update };
    let command = Command::Job { id: result.job, action };
    Settled { command, verdict, requeue: None, failed: None }
}

fn failure(status: &TestStatus, class: Class) -> Finish {
    Finish::Failed {
        code: status.code.as_deref().unwrap_or(FAILED).into(),
        message: status.message.as_deref().unwrap_or_default().into(),
        class: Some(class),
        state: None,
        // Other nodes may take it at once.
        delay_ms: (class == Class::Transient).then_some(0),
    }
}

/// Returns the verdict on an attempt that had ended before.
fn verdict_before(attempt: &Attempt, outcome: AttemptOutcome, job: &Job) -> AckVerdict {
    let is_last = job.attempts.last().is_some_and(|last| last.token == attempt.token);
    match outcome {
        AttemptOutcome::Ok => AckVerdict::Passed,
        AttemptOutcome::Failed if is_last && job.state.is_finished() => AckVerdict::Failed,
        AttemptOutcome::Failed => AckVerdict::Requeued,
        AttemptOutcome::HandedBack | AttemptOutcome::Deferred => AckVerdict::Returned,
        AttemptOutcome::Cancelled | AttemptOutcome::Lost => AckVerdict::Lost,
    }
}

/// Returns the arguments of the job of a test.
pub(crate) fn args(test: &str) -> Text {
    let args: Map<String, Value> = Map::from_iter([("test".to_owned(), json!(test))]);
    Value::Object(args).to_string().into()
}

/// Returns the test of a job.
pub(crate) fn test_of(job: &Job) -> String {
    let args = job.args.as_deref().and_then(|args| serde_json::from_str::<Value>(args).ok());
    let test = args.as_ref().and_then(|args| args["test"].as_str());
    test.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_shortened_to_their_end_and_have_no_control_characters() {
        assert_eq!(readable("\u{1b}[31mone\ntwo\u{0}\n"), "[31mone\ntwo");
        let long = format!("first {}é", "x".repeat(MESSAGE_BYTES_MAX - 1));
        let end = readable(&long);
        assert!(end.len() <= MESSAGE_BYTES_MAX && end.ends_with("xé"), "{end}");
    }
}
