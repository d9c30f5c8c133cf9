//! A cluster as it is stored: the state, status and spec of its resource, and its jobs.

use tenure_app::{Caller, Problem, Services};
use tenure_core::resource::Resource;
use tenure_core::{Job, Millis, ResourceKey, TenureView};
use tenure_store::store::{PAGE_MAX, ResourceDetail, ResourceQuery, ResourceView};
use tenure_wire::{FailureInfo, ProgressInfo, instant};

use crate::config::ClusterConfig;
use crate::names::{CLUSTER, CREATE};
use crate::progress::{Phase, remaining_ms};
use crate::state::ClusterState;
use crate::status::{ClusterSpec, ClusterStatus};
use crate::wire::{ClusterErrorInfo, ClusterInfo, ClusterOperationInfo, OutputsInfo};

/// A cluster.
pub(crate) struct Cluster {
    pub(crate) key: ResourceKey,
    pub(crate) resource: Resource,
    pub(crate) status: ClusterStatus,
    pub(crate) spec: ClusterSpec,
    /// Tenure of the running job.
    pub(crate) tenure: Option<TenureView>,
}

/// Returns the key of a cluster.
pub(crate) fn key(caller: &Caller, id: &str) -> Result<ResourceKey, Problem> {
    caller.resource(CLUSTER, id)
}

impl Cluster {
    /// Reads a cluster.
    pub(crate) async fn load(services: &Services, key: &ResourceKey) -> Result<Self, Problem> {
        Self::find(services, key).await?.ok_or_else(|| {
            let id = key.name();
            Problem::not_found(&format!("there is no cluster {id}; `tenure cluster ls` lists them"))
        })
    }

    /// Reads a cluster, if it exists.
    pub(crate) async fn find(
        services: &Services,
        key: &ResourceKey,
    ) -> Result<Option<Self>, Problem> {
        let Some(detail) = services.store().reads().show(key).await? else { return Ok(None) };
        let ResourceDetail { record, tenures, .. } = detail;
        let Some(resource) = record.resource else { return Ok(None) };
        let tenure = tenures.into_iter().find(|tenure| tenure.job.is_some());
        Self::parse(key, *resource, tenure).map(Some)
    }

    /// Parses a resource of a list.
    pub(crate) fn from_view(view: ResourceView) -> Result<Self, Problem> {
        Self::parse(&view.key, *view.resource, None)
    }

    /// Parses a resource.
    pub(crate) fn parse(
        key: &ResourceKey,
        resource: Resource,
        tenure: Option<TenureView>,
    ) -> Result<Self, Problem> {
        let bad = |error: serde_json::Error| {
            let detail =
                format!("the status or spec of {key} was written by another program: {error}");
            Problem::new(409, "conflict", &detail)
        };
        let document = resource.status.as_ref().map(|status| &*status.document);
        let status = ClusterStatus::parse(document).map_err(bad)?;
        let spec = ClusterSpec::parse(resource.spec.as_deref()).map_err(bad)?;
        Ok(Self { key: key.clone(), resource, status, spec, tenure })
    }

    /// Returns the state.
    pub(crate) fn state(&self) -> Option<ClusterState> {
        ClusterState::parse(&self.resource.state)
    }

    /// Returns the job that is running, or the first that waits.
    pub(crate) fn current_job(&self) -> Option<&Job> {
        let lane = &self.resource.lane;
        lane.iter().find(|job| job.state.is_running()).or_else(|| lane.front()).map(|job| &**job)
    }

    /// Returns the configuration: that of a CREATE that has not begun yet, or of the last one that
    /// has.
    pub(crate) fn config(&self) -> Option<ClusterConfig> {
        let create = self.resource.lane.iter().find(|job| *job.operation == *CREATE);
        let requested = create
            .filter(|job| Some(job.id) != self.status.create_job)
            .and_then(|job| serde_json::from_str(job.args.as_deref()?).ok());
        requested.or_else(|| self.status.config.clone()).or_else(|| self.config_of_name())
    }

    /// Returns what the name tells of a cluster whose create never began.
    fn config_of_name(&self) -> Option<ClusterConfig> {
        let (platform, domain) = self.key.name().split_once(':')?;
        let (name, base_domain) = domain.split_once('.')?;
        Some(ClusterConfig {
            name: name.to_owned(),
            platform: platform.to_owned(),
            base_domain: base_domain.to_owned(),
            ..ClusterConfig::default()
        })
    }

    /// Returns the time of the automatic destroy.
    pub(crate) fn expires_at(&self) -> Option<Millis> {
        self.status.effective_expiry(&self.spec)
    }

    /// Describes the cluster; `None` if it was never requested by this app. `installs` are the
    /// durations of earlier installs of its profile.
    pub(crate) fn info(&self, now: Millis, installs: &[u64]) -> Option<ClusterInfo> {
        let config = self.config()?;
        let status = &self.status;
        let infra = status.infra.as_ref();
        Some(ClusterInfo {
            tenant: self.key.tenant().to_owned(),
            id: self.key.name().to_owned(),
            name: config.name,
            platform: config.platform,
            base_domain: config.base_domain,
            state: self.resource.state.to_string(),
            since: instant(self.resource.since),
            profile: config.profile,
            version: config.version,
            region: config.region,
            workers: status.workers.unwrap_or(config.workers),
            owner: config.owner,
            tags: config.tags,
            preserve_on_failure: config.preserve_on_failure,
            preserved: status.preserved,
            created_at: status.created_at.map(instant),
            expires_at: self.expires_at().map(instant),
            infra_id: infra.map(|infra| infra.infra_id.clone()),
            cluster_id: infra.map(|infra| infra.cluster_id.clone()),
            outputs: self.outputs(),
            operation: self.current_job().map(|job| self.operation(job, now, installs)),
            last_error: status.last_error.as_ref().map(|error| ClusterErrorInfo {
                operation: error.operation.clone(),
                job: error.job,
                attempt: error.attempt,
                code: error.code.clone(),
                class: error.class.clone(),
                message: error.message.clone(),
                fingerprint: error.fingerprint.clone(),
            }),
            paused: self.resource.paused.is_some(),
        })
    }

    /// Returns the addresses.
    pub(crate) fn outputs(&self) -> Option<OutputsInfo> {
        self.status.outputs.as_ref().map(|outputs| OutputsInfo {
            api_url: outputs.api_url.clone(),
            console_url: outputs.console_url.clone(),
        })
    }

    fn operation(&self, job: &Job, now: Millis, installs: &[u64]) -> ClusterOperationInfo {
        let attempt = job.attempts.last().filter(|_| job.state.is_running());
        let backoff = job.state == tenure_core::JobState::Backoff;
        let creating = *job.operation == *CREATE && job.state.is_running();
        let remaining = |progress: &tenure_core::job::Progress| {
            // A phase reports its progress when it begins.
            let in_phase_ms = now.since(progress.at);
            remaining_ms(installs, phase_at(progress.percent), in_phase_ms)
        };
        ClusterOperationInfo {
            job: job.id,
            operation: job.operation.to_string(),
            state: job.state.as_str().to_owned(),
            attempt: job.attempt,
            progress: job.progress.as_ref().map(ProgressInfo::new),
            worker: attempt.map(|attempt| attempt.worker.to_string()),
            started_at: attempt.map(|attempt| instant(attempt.started_at)),
            remaining_ms: job.progress.as_ref().filter(|_| creating).and_then(remaining),
            next_attempt_at: backoff.then(|| instant(job.due)),
            error: job.error.as_ref().map(FailureInfo::new),
            waiting: self.resource.lane.len() - 1,
        }
    }
}

/// Returns the phase of an install that has reported a percentage.
fn phase_at(percent: u8) -> Phase {
    let of_install = Phase::ALL.into_iter().take_while(|phase| *phase < Phase::Destroying);
    of_install.filter(|phase| phase.percent() <= percent).last().unwrap_or(Phase::Starting)
}

/// Maximum number of clusters whose installs are used for an estimate.
const INSTALLS_MAX: usize = PAGE_MAX;

/// Returns the durations of earlier installs of a profile.
pub(crate) async fn installs(
    services: &Services,
    tenant: &str,
    profile: &str,
) -> Result<Vec<u64>, Problem> {
    let query = ResourceQuery {
        tenant: Some(tenant.into()),
        kind: Some(CLUSTER.into()),
        limit: INSTALLS_MAX,
        ..ResourceQuery::default()
    };
    let page = services.store().reads().resources(query).await?;
    let clusters = page.items.into_iter().filter_map(|view| Cluster::from_view(view).ok());
    let of_profile = clusters.filter(|cluster| {
        cluster.status.config.as_ref().is_some_and(|config| config.profile == profile)
    });
    Ok(of_profile.filter_map(|cluster| cluster.status.install_ms).collect())
}
