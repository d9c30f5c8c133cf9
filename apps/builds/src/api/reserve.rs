//! `POST /v1/builds/{id}/reserve` and `…/ack`: results in, tests out.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure_app::services::wait_timeout;
use tenure_app::{Problem, Services};
use tenure_core::job::AttemptOutcome;
use tenure_core::{
    Assignment, Claim, ClaimScope, Command, Finish, JobAction, Outcome, RequestId, Token,
};

use super::OnBuild;
use crate::build::Build;
use crate::names::{TEST, test_group, test_index};
use crate::results::{Settlement, TestStatus, fail_lost, test_of};
use crate::tally;
use crate::wire::{
    AckRequest, AckResponse, AckVerdict, RESERVE_MAX, ReserveRequest, ReserveResponse,
    ReservedTest, TestResult,
};

/// Interval at which a waiting node looks whether the build is finished.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time for which a node leaves a test to others that it has failed itself.
const OWN_REQUEUE_DELAY_MS: u64 = 1_000;
/// Code of that deferral.
const OWN_REQUEUE: &str = "OWN_REQUEUE";

/// Acknowledges results.
pub(super) async fn ack(
    services: &Services,
    on: &OnBuild,
    body: &AckRequest,
) -> Result<AckResponse, Problem> {
    let build = Build::load_ready(services, &on.key, body.term).await?;
    let node = Node { services, on, build: &build, term: body.term, worker: &body.worker };
    Ok(AckResponse { verdicts: node.settle(&body.results).await? })
}

/// Acknowledges results and reserves tests, in one batch of the store if it can.
pub(super) async fn reserve(
    services: &Services,
    on: &OnBuild,
    request: RequestId,
    body: &ReserveRequest,
) -> Result<ReserveResponse, Problem> {
    if !(1..=RESERVE_MAX).contains(&body.max) {
        let detail = format!("max is {}; it must be between 1 and {RESERVE_MAX}", body.max);
        return Err(Problem::invalid(&detail));
    }
    let build = Build::load_ready(services, &on.key, body.term).await?;
    let node = Node { services, on, build: &build, term: body.term, worker: &body.worker };
    let claim = Claim {
        session: body.session,
        request,
        kinds: vec![TEST.into()],
        max: body.max,
        only: Some(ClaimScope::Group {
            tenant: on.key.tenant().into(),
            group: test_group(&on.key, body.term),
        }),
        tenant: on.caller.bound_tenant().cloned(),
    };
    let wait = wait_timeout(Some(body.wait_ms));
    if build.spec.rules.max_failures.is_none() {
        // Nothing that a result says prevents the next test.
        let settled = tokio::join!(node.settle(&body.results), node.claim(&claim, wait));
        return match settled {
            (Ok(verdicts), tests) => node.respond(verdicts, tests?, body.count).await,
            (Err(problem), tests) => {
                // The node does not learn of these tests.
                node.hand_back(&tests.unwrap_or_default()).await;
                Err(problem)
            }
        };
    }
    let verdicts = node.settle(&body.results).await?;
    let build = Build::load(services, &on.key).await?;
    let node = Node { build: &build, ..node };
    let tests = if build.stop().is_some() { Vec::new() } else { node.claim(&claim, wait).await? };
    node.respond(verdicts, tests, body.count).await
}

/// A node that works on a build.
struct Node<'a> {
    services: &'a Services,
    on: &'a OnBuild,
    build: &'a Build,
    term: Token,
    worker: &'a str,
}

impl Node<'_> {
    async fn settle(&self, results: &[TestResult]) -> Result<Vec<AckVerdict>, Problem> {
        if results.len() > RESERVE_MAX {
            let detail = format!("results: at most {RESERVE_MAX} are allowed in one request");
            return Err(Problem::invalid(&detail));
        }
        if results.is_empty() {
            return Ok(Vec::new());
        }
        let (services, caller, build) = (self.services, &self.on.caller, self.build);
        let (term, worker) = (self.term, self.worker);
        Settlement { services, caller, build, term, worker }.settle(results).await
    }

    async fn respond(
        &self,
        verdicts: Vec<AckVerdict>,
        tests: Vec<ReservedTest>,
        count: bool,
    ) -> Result<ReserveResponse, Problem> {
        let stopped = self.build.stop();
        if !count && !tests.is_empty() {
            // The node has a test, so the build is not finished.
            let (finished, remaining) = (false, None);
            return Ok(ReserveResponse { tests, verdicts, finished, remaining, stopped });
        }
        let (running, waiting) = self.build.unfinished(self.services).await?;
        let remaining = running + waiting;
        let finished = remaining == 0;
        let remaining = Some(remaining);
        Ok(ReserveResponse { tests, verdicts, finished, remaining, stopped })
    }

    /// Claims tests, or waits until there are some, every test has its result, or the time is over.
    async fn claim(&self, claim: &Claim, wait: Duration) -> Result<Vec<ReservedTest>, Problem> {
        let deadline = BootInstant::now() + wait;
        loop {
            let left = deadline.remaining();
            let outcome = self.services.committer.claim(claim, left.min(POLL_INTERVAL)).await?;
            let assignments = match outcome {
                Outcome::Claimed(assignments) => assignments,
                Outcome::Refused(refusal) => return Err(refusal.into()),
                other => return Err(Problem::unexpected(&other)),
            };
            let was_empty = assignments.is_empty();
            let tests = self.accept(assignments).await?;
            if !tests.is_empty() || left.is_zero() || self.services.closing.is_cancelled() {
                return Ok(tests);
            }
            if !was_empty {
                // A repeated claim would return the tests that were not accepted.
                return Ok(tests);
            }
            if self.build.unfinished(self.services).await? == (0, 0) {
                return Ok(tests);
            }
        }
    }

    /// Gives tests back that the node does not run.
    async fn hand_back(&self, tests: &[ReservedTest]) {
        let commands = tests.iter().map(hand_back).collect();
        for outcome in self.services.committer.submit_all(commands).await {
            if let Err(error) = outcome {
                // They are lost with the session of the node at the latest.
                tracing::warn!(%error, "cannot give a test back");
            }
        }
    }

    /// Returns the tests that the node is to run. Leaves its own failures to others for a moment,
    /// and fails tests that have lost too many nodes.
    async fn accept(&self, assignments: Vec<Assignment>) -> Result<Vec<ReservedTest>, Problem> {
        let mut accepted = Vec::with_capacity(assignments.len());
        let (mut commands, mut failed) = (Vec::new(), Vec::new());
        for assignment in assignments {
            let (job, token) = (&assignment.job, assignment.tenure.token);
            let status = TestStatus::parse(assignment.status.as_ref());
            let (test, failures, losses) = (test_of(job), status.failures, status.losses_of(job));
            if losses >= self.build.spec.rules.max_losses {
                commands.push(fail_lost(job, token, &test, losses, failures));
                failed.extend(test_index(&assignment.tenure.key));
            } else if is_own_requeue(&assignment) {
                commands.push(leave_to_others(&assignment));
            } else {
                let key = assignment.tenure.key.clone();
                self.services.remember_resource_of_job(job.id, key);
                accepted.push(ReservedTest { job: job.id, token, test, failures, losses });
            }
        }
        if accepted.len() > 1
            && let Some(index) = accepted.iter().position(|test| test.losses > 0)
        {
            // Alone, so that no other test counts as lost if it kills the node.
            let suspect = accepted.swap_remove(index);
            commands.extend(accepted.iter().map(hand_back));
            accepted = vec![suspect];
        }
        tally::count_failures(self.services, &self.on.caller, self.build, &failed).await?;
        for outcome in self.services.committer.submit_all(commands).await {
            // The session may have ended in between; then other nodes get the test.
            outcome?;
        }
        Ok(accepted)
    }
}

/// Returns whether the node itself has failed the test in its previous run, and has not left it to
/// others since.
fn is_own_requeue(assignment: &Assignment) -> bool {
    let job = &assignment.job;
    let mut earlier = job.attempts.iter().rev().filter(|attempt| attempt.outcome.is_some());
    let last = earlier.find(|attempt| attempt.outcome != Some(AttemptOutcome::Deferred));
    job.deferrals == 0
        && last.is_some_and(|last| {
            last.outcome == Some(AttemptOutcome::Failed) && last.worker == assignment.tenure.holder
        })
}

fn hand_back(test: &ReservedTest) -> Command {
    let action = JobAction::Finish { token: test.token, finish: Finish::HandBack, update: None };
    Command::Job { id: test.job, action }
}

fn leave_to_others(assignment: &Assignment) -> Command {
    let finish = Finish::Deferred {
        delay_ms: OWN_REQUEUE_DELAY_MS,
        code: OWN_REQUEUE.into(),
        message: "left to other nodes for a moment".into(),
    };
    let token = assignment.tenure.token;
    let action = JobAction::Finish { token, finish, update: None };
    Command::Job { id: assignment.job.id, action }
}
