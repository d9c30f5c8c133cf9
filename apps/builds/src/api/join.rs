//! `POST /v1/builds/{id}/join`: create the build, lead it, or wait for its tests.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure_app::services::wait_timeout;
use tenure_app::{Problem, Services};
use tenure_core::{
    Acquire, Assignment, Claim, ClaimScope, Claimant, Code, Command, JobAction, LockAction,
    LockName, Millis, Outcome, Refusal, RequestId, ResourceAction, ResourceKey, SessionId,
    StatusUpdate, Submit, Token,
};

use super::OnBuild;
use crate::LoadedBuilds;
use crate::build::{self, Build, BuildSpec, BuildStatus};
use crate::names::{BUILD, NODE, SETUP, build_id, node_lock};
use crate::settings::Settings;
use crate::state::BuildState;
use crate::wire::{
    BuildRules, BuildRulesRequest, JoinRequest, JoinResponse, LeadershipInfo, MAX_FAILURES_MAX,
    MAX_LOSSES_MAX, MAX_REQUEUES_MAX, NodeRole, SEED_BYTES_MAX, TIMEOUT_MS_MAX, TestListInfo,
};

/// Interval at which a waiting node looks at the build.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of tries to create a build: another node may create or delete it in between.
const CREATE_TRIES_MAX: usize = 3;
/// Default time limit of a test.
const TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// Default number of requeues per test.
const MAX_REQUEUES_DEFAULT: u32 = 1;
/// Default fraction of the tests that may be requeued.
const REQUEUE_TOLERANCE_DEFAULT: f64 = 0.05;
/// Default number of lost attempts per test.
const MAX_LOSSES_DEFAULT: u32 = 3;

/// A request to join.
pub(super) struct Join {
    pub(super) services: Services,
    pub(super) on: OnBuild,
    pub(super) app: Arc<LoadedBuilds>,
    pub(super) request: RequestId,
}

impl Join {
    pub(super) async fn run(&self, body: &JoinRequest) -> Result<JoinResponse, Problem> {
        let deadline = BootInstant::now() + wait_timeout(Some(body.wait_ms));
        let build = self.find_or_create(body).await?;
        let Some(session) = body.session else { return self.follow(&build).await };
        self.hold_node_lock(session, &body.worker).await?;
        let (mut build, mut restart) = (build, body.restart);
        loop {
            match build.state {
                BuildState::Ready => return self.follow(&build).await,
                BuildState::New if !build.has_setup => self.submit_setup().await?,
                BuildState::Failed if restart && !build.has_setup => {
                    self.submit_setup().await?;
                    // Only once: the next failure counts.
                    restart = false;
                }
                BuildState::Failed if !build.has_setup => return self.follow(&build).await,
                BuildState::New | BuildState::Setup | BuildState::Failed => {}
            }
            let left = deadline.remaining();
            let claimed = self.claim_setup(session, left.min(POLL_INTERVAL)).await?;
            if let Some(assignment) = claimed
                && let Some(leadership) = self.lead(&build, &assignment).await?
            {
                let build = Build::load(&self.services, &self.on.key).await?;
                let (role, leadership) = (NodeRole::Leader, Some(leadership));
                let build = build.info(&self.services).await?;
                return Ok(JoinResponse { role, leadership, build });
            }
            build = Build::load(&self.services, &self.on.key).await?;
            if left.is_zero() || self.services.closing.is_cancelled() {
                return self.follow(&build).await;
            }
        }
    }

    async fn follow(&self, build: &Build) -> Result<JoinResponse, Problem> {
        let build = build.info(&self.services).await?;
        Ok(JoinResponse { role: NodeRole::Follower, leadership: None, build })
    }

    async fn find_or_create(&self, body: &JoinRequest) -> Result<Build, Problem> {
        let rules = rules(&self.app.settings, &self.on.key, &body.rules)?;
        for _ in 0..CREATE_TRIES_MAX {
            if let Some(build) = Build::find(&self.services, &self.on.key).await? {
                check_tests(&build, body.tests.as_ref())?;
                return Ok(build);
            }
            if body.existing {
                let id = build_id(self.on.key.name());
                let detail = format!(
                    "build {id} does not exist any more: it is too old to be retried. Start a new \
                     build"
                );
                return Err(Problem::not_found(&detail));
            }
            let now = self.services.store().status().await?.now;
            let spec = BuildSpec {
                created_at: now,
                expires_at: Millis(now.0 + self.app.settings.ttl_ms),
                rules: rules.clone(),
                tests: body.tests.clone(),
                requeued: Vec::new(),
                failed: Vec::new(),
            };
            build::create(&self.services, &self.on.caller, &self.on.key, &spec).await?;
        }
        let key = &self.on.key;
        let detail = format!("the resource {key} exists, but no node has created it; delete it");
        Err(Problem::new(409, "conflict", &detail))
    }

    /// Takes the lock that shows others that the node works on the build.
    async fn hold_node_lock(&self, session: SessionId, worker: &str) -> Result<(), Problem> {
        let key = self.on.caller.resource(NODE, &node_lock(&self.on.key, session))?;
        let acquire = Acquire {
            locks: LockName::main().into(),
            claimant: Claimant::Session(session),
            request: self.services.derive_request_id(&format!("{key}\n{session}")),
            wait_ms: 0,
            purpose: Some(format!("node {worker}").chars().take(128).collect::<String>().into()),
            max_age_ms: None,
            tenant: self.on.caller.bound_tenant().cloned(),
        };
        let action = LockAction::Acquire(acquire);
        match self.services.committer.submit(Command::Lock { key, action }).await? {
            Outcome::Granted(_) => Ok(()),
            // A node may have acquired it before it joined.
            Outcome::Refused(Refusal::Held { by: Some(by), .. }) if by.session == session => Ok(()),
            Outcome::Refused(refusal) => Err(refusal.into()),
            other => Err(Problem::unexpected(&other)),
        }
    }

    /// Asks for a leader. Several nodes may do so at once: they attach to one job.
    async fn submit_setup(&self) -> Result<(), Problem> {
        let request = tenure_store::random::request_id();
        let submit = Submit::new(request, SETUP, self.on.caller.name.clone());
        let action = ResourceAction::Submit(submit);
        match self.services.submit(Command::Resource { key: self.on.key.clone(), action }).await {
            Ok(_) => Ok(()),
            // Another node led it in between.
            Err(problem) if problem.is(Code::BadTransition) => Ok(()),
            Err(problem) => Err(problem),
        }
    }

    /// Stands for election: exactly one node gets the job.
    async fn claim_setup(
        &self,
        session: SessionId,
        wait: Duration,
    ) -> Result<Option<Assignment>, Problem> {
        let (tenant, name) = (self.on.key.tenant().into(), self.on.key.name().into());
        let claim = Claim {
            session,
            request: self.request,
            kinds: vec![BUILD.into()],
            max: 1,
            only: Some(ClaimScope::Resource { tenant, name }),
            tenant: self.on.caller.bound_tenant().cloned(),
        };
        match self.services.committer.claim(&claim, wait).await? {
            Outcome::Claimed(jobs) => Ok(jobs.into_iter().next()),
            Outcome::Refused(refusal) => Err(refusal.into()),
            other => Err(Problem::unexpected(&other)),
        }
    }

    /// Records the term of a leader before it publishes anything: the duty deletes tests of all
    /// terms but the latest. Returns `None` if it has lost the leadership already.
    async fn lead(
        &self,
        build: &Build,
        assignment: &Assignment,
    ) -> Result<Option<LeadershipInfo>, Problem> {
        let term = assignment.tenure.token;
        let mut terms = match &assignment.status {
            Some(status) => serde_json::from_str::<BuildStatus>(status).unwrap_or_default().terms,
            None => build.status.terms.clone(),
        };
        if !terms.contains(&term) {
            terms.push(term);
        }
        let leader = Some(assignment.tenure.holder.to_string());
        let update = status_update(&BuildStatus { terms, leader, published: None });
        let action = JobAction::Status { token: term, update };
        let id = assignment.job.id;
        match self.services.submit(Command::Job { id, action }).await {
            Ok(Outcome::Noted { .. }) => Ok(Some(LeadershipInfo { job: id, term })),
            Ok(other) => Err(Problem::unexpected(&other)),
            Err(problem) if problem.is(Code::Lost) => Ok(None),
            Err(problem) => Err(problem),
        }
    }
}

/// Returns the update that writes the status of a build.
pub(super) fn status_update(status: &BuildStatus) -> Box<StatusUpdate> {
    let merge = serde_json::to_string(status).expect("the status is JSON").into();
    Box::new(StatusUpdate { merge: Some(merge), timers: Vec::new() })
}

/// Refuses a node whose tests are not those of the build.
fn check_tests(build: &Build, tests: Option<&TestListInfo>) -> Result<(), Problem> {
    let Some(tests) = tests else { return Ok(()) };
    let published = build.status.published.as_ref();
    let published = published.map(|published| (published.total, published.digest.as_str()));
    let declared = build.spec.tests.as_ref().map(|tests| (tests.total, tests.digest.as_str()));
    match published.or(declared) {
        Some((total, digest)) if digest != tests.digest => {
            let (id, own) = (build_id(build.key.name()), tests.total);
            let detail = format!(
                "build {id} has other tests: {total} tests with the digest {digest:.12}…, this \
                 node has {own} with {own_digest:.12}…. All nodes need the same list; use another \
                 build id for another list",
                own_digest = tests.digest
            );
            Err(Problem::new(409, "rejected", &detail))
        }
        _ => Ok(()),
    }
}

/// Returns the rules of a new build.
fn rules(
    settings: &Settings,
    key: &ResourceKey,
    request: &BuildRulesRequest,
) -> Result<BuildRules, Problem> {
    let BuildRulesRequest {
        seed,
        timeout_ms,
        max_requeues,
        requeue_tolerance,
        max_failures,
        max_losses,
    } = request.clone();
    let rules = BuildRules {
        seed: seed.unwrap_or_else(|| build_id(key.name())),
        timeout_ms: timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT),
        max_requeues: max_requeues.unwrap_or(MAX_REQUEUES_DEFAULT),
        requeue_tolerance: requeue_tolerance.unwrap_or(REQUEUE_TOLERANCE_DEFAULT),
        max_failures,
        max_losses: max_losses.unwrap_or(MAX_LOSSES_DEFAULT),
        heartbeat_ms: settings.heartbeat_ms,
        stale_ms: settings.stale_ms,
        wait_ms: settings.wait_ms,
    };
    let problems = [
        (!(1..=SEED_BYTES_MAX).contains(&rules.seed.len())
            || rules.seed.contains(char::is_control))
        .then(|| format!("seed must be one line of 1 to {SEED_BYTES_MAX} bytes")),
        (!(100..=TIMEOUT_MS_MAX).contains(&rules.timeout_ms))
            .then(|| format!("timeout_ms must be between 100 and {TIMEOUT_MS_MAX}")),
        (rules.max_requeues > MAX_REQUEUES_MAX)
            .then(|| format!("max_requeues must be at most {MAX_REQUEUES_MAX}")),
        (!(0.0..=1.0).contains(&rules.requeue_tolerance))
            .then(|| "requeue_tolerance must be between 0 and 1".to_owned()),
        max_failures
            .filter(|max| !(1..=MAX_FAILURES_MAX).contains(max))
            .map(|_| format!("max_failures must be between 1 and {MAX_FAILURES_MAX}")),
        (!(1..=MAX_LOSSES_MAX).contains(&rules.max_losses))
            .then(|| format!("max_losses must be between 1 and {MAX_LOSSES_MAX}")),
    ];
    let problems: Vec<String> = problems.into_iter().flatten().collect();
    if problems.is_empty() {
        Ok(rules)
    } else {
        Err(Problem::invalid(&format!("rules: {}", problems.join("; "))))
    }
}

/// Returns whether the leader of a term may still publish.
pub(super) fn is_leader(build: &Build, term: Token) -> bool {
    build.setup.as_ref().is_some_and(|tenure| tenure.token == term)
}
