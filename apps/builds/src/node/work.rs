//! The loop of a node: reserve tests, run them, acknowledge their results with the next
//! reservation.

use std::time::Duration;

use tenure::{Session, Tenure};
use tenure_core::Token;

use super::Node;
use super::command::Run;
use super::end::{Interruption, Stopped};
use crate::wire::{AckRequest, AckVerdict, ReserveRequest, ReservedTest, TestOutcome, TestResult};

/// Time that the server may hold back a reservation.
const RESERVE_WAIT_MS: u64 = 10_000;
/// Length of a failure code, at most.
const CODE_BYTES_MAX: usize = tenure_core::limits::CODE_BYTES_MAX;

/// Results that are not acknowledged yet, with what interrupted the node.
type Finished = (Vec<TestResult>, Option<Interruption>);

impl Node {
    /// Runs tests until every test of the build has its final result.
    pub(super) async fn work(
        &mut self,
        session: &Session,
        tenure: &Tenure,
        term: Token,
    ) -> Result<(), Interruption> {
        let build = self.api.show().await?;
        self.progress.start(&build);
        let limit = Duration::from_millis(build.rules.timeout_ms);
        let variables = [
            ("TENURE_BUILD", self.options.build.clone()),
            ("TENURE_WORKER", self.options.worker.clone()),
            ("TENURE_TERM", term.to_string()),
            ("TENURE_SEED", build.rules.seed.clone()),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        self.options.command.env = variables.into();
        let mut results = Vec::new();
        loop {
            if self.is_over_time() {
                self.acknowledge(term, results).await?;
                return Err(self.timed_out().into());
            }
            let Some(tests) = self.reserve(session, tenure, term, results).await? else {
                return Ok(());
            };
            let (done, interruption) = self.run_tests(tenure, tests, limit).await;
            if let Some(interruption) = interruption {
                self.acknowledge(term, done).await.ok();
                return Err(interruption);
            }
            results = done;
        }
    }

    /// Acknowledges results and reserves tests. Returns `None` if the build is finished.
    async fn reserve(
        &mut self,
        session: &Session,
        tenure: &Tenure,
        term: Token,
        results: Vec<TestResult>,
    ) -> Result<Option<Vec<ReservedTest>>, Interruption> {
        let body = ReserveRequest {
            worker: self.options.worker.clone(),
            session: session.id(),
            term,
            max: self.options.batch,
            wait_ms: RESERVE_WAIT_MS,
            count: self.progress.wants_count(),
            results,
        };
        let answer = tokio::select! {
            answer = self.api.reserve(&body) => answer?,
            lost = tenure.lost() => return Err(Interruption::Lost(lost.to_string())),
            Some(signal) = self.signals.recv() => return Err(Stopped::Interrupted(signal).into()),
        };
        self.count(&body.results, &answer.verdicts)?;
        if let Some(remaining) = answer.remaining {
            self.progress.update(remaining);
        }
        match answer.stopped {
            _ if answer.finished => Ok(None),
            Some(stopped) => Err(Stopped::TooManyFailures(stopped.message).into()),
            None => Ok(Some(answer.tests)),
        }
    }

    async fn acknowledge(
        &mut self,
        term: Token,
        results: Vec<TestResult>,
    ) -> Result<(), Interruption> {
        if results.is_empty() {
            return Ok(());
        }
        let worker = self.options.worker.clone();
        let body = AckRequest { worker, term, results };
        let answer = self.api.ack(&body).await?;
        self.count(&body.results, &answer.verdicts)
    }

    /// Counts the verdicts, and stops the node after too many failures in a row. A failure that is
    /// run again is none.
    fn count(
        &mut self,
        results: &[TestResult],
        verdicts: &[AckVerdict],
    ) -> Result<(), Interruption> {
        for (result, verdict) in results.iter().zip(verdicts) {
            self.progress.verdict(result, *verdict);
            match verdict {
                AckVerdict::Failed => self.consecutive_failures += 1,
                AckVerdict::Passed | AckVerdict::Flaky => self.consecutive_failures = 0,
                AckVerdict::Requeued | AckVerdict::Returned | AckVerdict::Lost => {}
            }
        }
        let failures = self.consecutive_failures;
        match self.options.max_consecutive_failures {
            Some(max) if failures >= max => {
                let why = format!("{failures} tests in a row have failed on this node");
                Err(Stopped::TooManyFailures(why).into())
            }
            _ => Ok(()),
        }
    }

    /// Runs reserved tests.
    async fn run_tests(
        &mut self,
        tenure: &Tenure,
        tests: Vec<ReservedTest>,
        limit: Duration,
    ) -> Finished {
        let mut results = Vec::with_capacity(tests.len());
        if self.options.command.takes_files() && tests.len() > 1 {
            let count = u32::try_from(tests.len()).unwrap_or(u32::MAX);
            match self.run_command(tenure, &tests, limit.saturating_mul(count)).await {
                Err(interruption) => return (results, Some(interruption)),
                Ok(run) if run.failure.is_none() => {
                    let each = run.duration / count;
                    results.extend(tests.iter().map(|test| self.passed(test, each)));
                    return (results, None);
                }
                // One of them failed: each is run alone.
                Ok(_) => {}
            }
        }
        for test in &tests {
            match self.run_command(tenure, std::slice::from_ref(test), limit).await {
                Ok(run) => results.push(self.result(test, run)),
                Err(interruption) => return (results, Some(interruption)),
            }
        }
        (results, None)
    }

    async fn run_command(
        &mut self,
        tenure: &Tenure,
        tests: &[ReservedTest],
        limit: Duration,
    ) -> Result<Run, Interruption> {
        // The last check before an effect.
        tenure.check().map_err(|lost| Interruption::Lost(lost.to_string()))?;
        self.progress.running(tests);
        let names: Vec<&str> = tests.iter().map(|test| test.test.as_str()).collect();
        self.options.command.run(tenure, &names, limit, &mut self.signals).await
    }

    fn passed(&self, test: &ReservedTest, duration: Duration) -> TestResult {
        TestResult {
            job: test.job,
            token: test.token,
            test: test.test.clone(),
            outcome: TestOutcome::Passed,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            failures: test.failures,
            losses: test.losses,
            code: None,
            message: None,
            known_flaky: self.options.known_flaky.contains(&test.test),
        }
    }

    fn result(&mut self, test: &ReservedTest, run: Run) -> TestResult {
        let passed = self.passed(test, run.duration);
        let Some((code, message)) = run.failure else { return passed };
        self.progress.failed(&test.test, &code, &run.output);
        let code = Some(code.chars().take(CODE_BYTES_MAX).collect());
        TestResult { outcome: TestOutcome::Failed, code, message: Some(message), ..passed }
    }
}
