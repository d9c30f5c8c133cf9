//! A build as it is stored: its spec, its status, and who leads it.
//!
//! The spec has the rules and what all nodes share: which requeues were granted, which tests have
//! failed. It changes under the condition that nobody else changed it. The status is written by
//! leaders with their term: the terms so far, and the term whose tests count.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_app::{Caller, Problem, Services};
use tenure_core::{
    Code, Command, JobId, Millis, Outcome, Precondition, Put, ResourceAction, ResourceKey,
    TenureView, Token,
};
use tenure_store::store::{PAGE_MAX, ResourceDetail, TenureQuery};
use tenure_wire::{FailureInfo, instant, to_document};

use crate::LoadedBuilds;
use crate::names::{self, BUILD, NODE, TEST, build_id, test_group};
use crate::state::BuildState;
use crate::wire::{BuildInfo, BuildRules, MasterStatus, NodeInfo, StopInfo, TestListInfo};

/// Code of a build that stopped because too many tests failed.
pub(crate) const TOO_MANY_FAILURES: &str = "too_many_failures";

/// Spec of a build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BuildSpec {
    pub(crate) created_at: Millis,
    pub(crate) expires_at: Millis,
    pub(crate) rules: BuildRules,
    /// The tests that the first node knew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tests: Option<TestListInfo>,
    /// Granted requeues: `INDEX.TOKEN` of the failed attempts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) requeued: Vec<String>,
    /// Indexes of failed tests, while a limit counts them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<usize>,
}

/// Status of a build, written by its leaders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BuildStatus {
    /// Terms of all leaders so far.
    #[serde(default)]
    pub(crate) terms: Vec<Token>,
    /// Name of the latest leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leader: Option<String>,
    /// The tests that count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) published: Option<Published>,
}

/// The tests that count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Published {
    pub(crate) term: Token,
    pub(crate) total: usize,
    pub(crate) digest: String,
}

/// A build.
pub(crate) struct Build {
    pub(crate) key: ResourceKey,
    pub(crate) state: BuildState,
    pub(crate) generation: u64,
    pub(crate) spec: BuildSpec,
    pub(crate) status: BuildStatus,
    /// Time of the last change of the status.
    status_at: Option<Millis>,
    /// Tenure of the leader, during the setup.
    pub(crate) setup: Option<TenureView>,
    /// Whether a setup is waiting or running.
    pub(crate) has_setup: bool,
    last_job: Option<JobId>,
}

/// Returns the key of a build.
pub(crate) fn key(caller: &Caller, id: &str) -> Result<ResourceKey, Problem> {
    names::check_build(id).map_err(|why| Problem::invalid(&why))?;
    caller.resource(BUILD, &names::resource_name(id))
}

impl Build {
    /// Reads a build, if it exists.
    pub(crate) async fn find(
        services: &Services,
        key: &ResourceKey,
    ) -> Result<Option<Self>, Problem> {
        let detail = services.store().reads().show(key).await?;
        detail.and_then(|detail| Self::parse(key, detail)).transpose()
    }

    /// Reads a build whose tests are to be reserved in a term. What does not change once they are
    /// published comes from a cache for a few seconds.
    pub(crate) async fn load_ready(
        services: &Services,
        key: &ResourceKey,
        term: Token,
    ) -> Result<Arc<Self>, Problem> {
        let app = services.live.app::<LoadedBuilds>();
        let ready = app.as_ref().map(|app| &app.ready);
        if let Some(build) = ready.and_then(|ready| ready.get(key, term)) {
            return Ok(build);
        }
        let build = Arc::new(Self::load(services, key).await?);
        build.require_term(term)?;
        // A limit of failures counts changes of the spec.
        if let Some(ready) = ready.filter(|_| build.spec.rules.max_failures.is_none()) {
            ready.insert(Arc::clone(&build));
        }
        Ok(build)
    }

    /// Reads a build.
    pub(crate) async fn load(services: &Services, key: &ResourceKey) -> Result<Self, Problem> {
        Self::find(services, key).await?.ok_or_else(|| {
            let id = build_id(key.name());
            Problem::not_found(&format!(
                "there is no build {id}: no node has joined it, or it has expired"
            ))
        })
    }

    fn parse(key: &ResourceKey, detail: ResourceDetail) -> Option<Result<Self, Problem>> {
        let setup = detail.tenures.into_iter().find(|tenure| tenure.job.is_some());
        let resource = detail.record.resource?;
        // Only `join` writes specs; a job that was submitted by hand leaves none.
        let spec = serde_json::from_str(resource.spec.as_deref()?);
        let status = resource.status.as_ref().map(|status| serde_json::from_str(&status.document));
        let (Ok(spec), Ok(status)) = (spec, status.transpose()) else {
            let detail = format!("{key} is not a build: its spec or status was changed by hand");
            return Some(Err(Problem::new(409, "conflict", &detail)));
        };
        Some(Ok(Self {
            key: key.clone(),
            state: BuildState::parse(&resource.state).unwrap_or(BuildState::Failed),
            generation: resource.generation,
            spec,
            status: status.unwrap_or_default(),
            status_at: resource.status.as_ref().map(|status| status.at),
            setup,
            has_setup: !resource.lane.is_empty(),
            last_job: resource.last_job,
        }))
    }

    /// Returns the published tests.
    ///
    /// # Errors
    ///
    /// Fails if none are published, or if those of the caller are of another term.
    pub(crate) fn require_term(&self, term: Token) -> Result<&Published, Problem> {
        let id = build_id(self.key.name());
        let published = self.status.published.as_ref().filter(|_| self.state == BuildState::Ready);
        let Some(published) = published else {
            let detail = format!("the tests of build {id} are not published yet; join it first");
            return Err(Problem::new(409, "rejected", &detail));
        };
        if published.term != term {
            let current = published.term;
            let detail = format!(
                "the tests of build {id} are of term {current}, not {term}: join the build again"
            );
            return Err(Problem::new(409, "conflict", &detail));
        }
        Ok(published)
    }

    /// Returns why no more tests are run.
    pub(crate) fn stop(&self) -> Option<StopInfo> {
        let max = self.spec.rules.max_failures?;
        let failed = self.spec.failed.len();
        (failed >= usize::try_from(max).unwrap_or(usize::MAX)).then(|| StopInfo {
            code: TOO_MANY_FAILURES.to_owned(),
            message: format!("{failed} tests have failed; the limit is {max}"),
        })
    }

    /// Replaces the spec, unless somebody else has changed it: then returns `false`.
    pub(crate) async fn replace_spec(
        &self,
        services: &Services,
        caller: &Caller,
        spec: &BuildSpec,
    ) -> Result<bool, Problem> {
        let condition = Precondition::Generation(self.generation);
        put(services, caller, &self.key, spec, condition).await
    }

    /// Counts the unfinished tests: running ones and others.
    pub(crate) async fn unfinished(&self, services: &Services) -> Result<(usize, usize), Problem> {
        let Some(published) = &self.status.published else { return Ok((0, 0)) };
        let group = test_group(&self.key, published.term);
        let reads = services.store().reads();
        let counts = reads.group(self.key.tenant().into(), TEST.into(), group).await?;
        Ok((counts.running, counts.waiting))
    }

    /// Returns the nodes that work on the build.
    pub(crate) async fn nodes(&self, services: &Services) -> Result<Vec<TenureView>, Problem> {
        let query = TenureQuery {
            tenant: Some(self.key.tenant().into()),
            kind: Some(NODE.into()),
            group: Some(self.key.name().into()),
            limit: PAGE_MAX,
            ..TenureQuery::default()
        };
        Ok(services.store().reads().tenures(query).await?.items)
    }

    /// Describes the build.
    pub(crate) async fn info(&self, services: &Services) -> Result<BuildInfo, Problem> {
        let (running, waiting) = self.unfinished(services).await?;
        let remaining = running + waiting;
        let nodes = self.nodes(services).await?;
        let now = services.store().status().await?.now;
        let published = self.status.published.as_ref();
        let heartbeat_age = self.setup.as_ref().map(|tenure| tenure.heartbeat_age_ms);
        let leader = self.setup.as_ref().map(|tenure| tenure.holder.to_string());
        let ms = |ms: Millis| instant(ms);
        Ok(BuildInfo {
            tenant: self.key.tenant().to_owned(),
            build: build_id(self.key.name()),
            master_status: self.master_status(remaining),
            master_worker_id: leader.or_else(|| self.status.leader.clone()),
            master_setup_heartbeat: heartbeat_age.map(|age| ms(Millis(now.0.saturating_sub(age)))),
            master_setup_heartbeat_age_ms: heartbeat_age,
            term: published
                .map(|published| published.term)
                .or_else(|| self.setup.as_ref().map(|tenure| tenure.token)),
            elections: u32::try_from(self.status.terms.len()).unwrap_or(u32::MAX),
            total: published.map(|published| published.total),
            remaining,
            running,
            requeues: self.spec.requeued.len(),
            requeues_max: published
                .map(|published| crate::tally::requeues_max(&self.spec.rules, published.total)),
            rules: self.spec.rules.clone(),
            digest: published
                .map(|published| published.digest.clone())
                .or_else(|| self.spec.tests.as_ref().map(|tests| tests.digest.clone())),
            stopped: self.stop(),
            error: self.error(services).await?,
            nodes: nodes.iter().map(node_info).collect(),
            created_at: ms(self.spec.created_at),
            published_at: published.and(self.status_at).map(ms),
            expires_at: ms(self.spec.expires_at),
        })
    }

    /// Returns the status, given the number of tests without a final result.
    pub(crate) fn master_status(&self, remaining: usize) -> MasterStatus {
        match self.state {
            BuildState::New => MasterStatus::None,
            BuildState::Setup => MasterStatus::Setup,
            BuildState::Ready if remaining == 0 => MasterStatus::Finished,
            BuildState::Ready => MasterStatus::Ready,
            BuildState::Failed => MasterStatus::Failed,
        }
    }

    /// Returns the time at which the tests were published.
    pub(crate) fn published_at(&self) -> Option<Millis> {
        self.status.published.as_ref().and(self.status_at)
    }

    /// Returns why the setup failed.
    async fn error(&self, services: &Services) -> Result<Option<FailureInfo>, Problem> {
        let Some(job) = self.last_job.filter(|_| self.state == BuildState::Failed) else {
            return Ok(None);
        };
        let view = services.store().reads().job(job).await?;
        Ok(view.and_then(|view| view.job.error.as_ref().map(FailureInfo::new)))
    }
}

/// Creates a build. Returns `false` if it exists.
pub(crate) async fn create(
    services: &Services,
    caller: &Caller,
    key: &ResourceKey,
    spec: &BuildSpec,
) -> Result<bool, Problem> {
    put(services, caller, key, spec, Precondition::Absent).await
}

async fn put(
    services: &Services,
    caller: &Caller,
    key: &ResourceKey,
    spec: &BuildSpec,
    condition: Precondition,
) -> Result<bool, Problem> {
    let spec = to_document(&serde_json::to_value(spec).map_err(|error| Problem::invalid(&error))?);
    let put = Put { precondition: Some(condition), ..Put::new(spec, caller.name.clone()) };
    let command = Command::Resource { key: key.clone(), action: ResourceAction::Put(put) };
    match services.submit(command).await {
        Ok(Outcome::Put { .. }) => Ok(true),
        Ok(other) => Err(Problem::unexpected(&other)),
        Err(problem) if problem.is(Code::PreconditionFailed) => Ok(false),
        Err(problem) => Err(problem),
    }
}

fn node_info(tenure: &TenureView) -> NodeInfo {
    NodeInfo {
        worker: tenure.holder.to_string(),
        session: tenure.session,
        since: instant(tenure.since),
        heartbeat_age_ms: tenure.heartbeat_age_ms,
        expires_in_ms: tenure.expires_in_ms,
    }
}
