//! Requests that change a cluster: create, destroy, scale, extend.

use axum::Json;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use tenure_app::extract::Idempotency;
use tenure_app::{Caller, Problem, Services};
use tenure_core::job::Verdict;
use tenure_core::resource::Resource;
use tenure_core::{
    Code, Command, Job, Outcome, Precondition, Put, ResourceAction, ResourceKey, Submit,
    TimerChange, TimerSetting,
};
use tenure_wire::{JobInfo, SubmitResponse, instant, to_document};

use super::{OnCluster, loaded, queue};
use crate::LoadedClusters;
use crate::cluster::{self, Cluster};
use crate::config::{ClusterConfig, ScaleArgs};
use crate::names::{CLUSTER, CREATE, DESTROY, JANITOR_DESTROY, PURGE, SCALE_WORKERS};
use crate::request::CreateRequest;
use crate::state::ClusterState;
use crate::status::{ClusterSpec, ClusterStatus, Extension};
use crate::wire::{ClusterResponse, ClusterVerdict, ExtendRequest, ExtendResponse, ScaleRequest};

/// Maximum number of tries to change the spec while others change it.
const TRIES_MAX: usize = 5;

type Changed = Result<(StatusCode, Json<ClusterResponse>), Problem>;

/// Refuses jobs that are submitted through the general API and were not checked by this one.
pub(crate) fn check_submit(key: &ResourceKey, operation: &str) -> Result<(), Problem> {
    let instead = match operation {
        _ if key.kind() != CLUSTER => return Ok(()),
        CREATE => "clusters are created by `tenure cluster create`, or POST /v1/clusters",
        SCALE_WORKERS => {
            "workers are scaled by `tenure cluster scale`, or POST /v1/clusters/{id}/scale"
        }
        JANITOR_DESTROY | PURGE => "this operation belongs to the engine; use DESTROY",
        _ => return Ok(()),
    };
    Err(Problem::new(409, "rejected", instead))
}

/// Creates a cluster.
pub(super) async fn create(
    services: &Services,
    caller: &Caller,
    key: &Idempotency,
    request: &CreateRequest,
) -> Changed {
    let app = loaded(services)?;
    let profile = app.profiles.get(&request.profile).map_err(|why| Problem::invalid(&why))?;
    let config = profile.resolve(request, &caller.tenant, &app.settings).map_err(|violations| {
        let all: Vec<String> = violations.iter().map(ToString::to_string).collect();
        Problem::invalid(&all.join("; "))
    })?;
    let on = cluster::key(caller, &config.id())?;
    if let Some(earlier) = Cluster::find(services, &on).await? {
        check_earlier(&earlier, &config)?;
    }
    let submitted = submit(services, caller, key, &on, CREATE, Some(&config)).await;
    let response = match submitted {
        Ok(response) => response,
        Err(problem) if problem.is(Code::BadTransition) || problem.is(Code::Rejected) => {
            return existing(services, &on, &config, problem).await;
        }
        Err(problem) => return Err(problem),
    };
    check_same(&on, &response.job, &config)?;
    Ok(answer(&app, &on, response))
}

/// Refuses to create a cluster that is kept, or that is being created with another configuration.
fn check_earlier(earlier: &Cluster, config: &ClusterConfig) -> Result<(), Problem> {
    if earlier.status.preserved {
        let detail = "a failed create of this cluster is kept for an investigation; destroy the \
                      cluster first";
        return Err(Problem::new(409, "rejected", detail));
    }
    let mut creates = earlier.resource.lane.iter().filter(|job| *job.operation == *CREATE);
    creates.try_for_each(|job| check_same(&earlier.key, &JobInfo::new(&earlier.key, job), config))
}

/// Refuses a create that would attach to one with another configuration.
fn check_same(on: &ResourceKey, job: &JobInfo, config: &ClusterConfig) -> Result<(), Problem> {
    let args = job.args.clone().unwrap_or(Value::Null);
    if serde_json::from_value::<ClusterConfig>(args).ok().as_ref() == Some(config) {
        return Ok(());
    }
    let detail = format!(
        "job {} is creating {} with another configuration; wait for it, or destroy the cluster",
        job.id,
        on.name()
    );
    Err(Problem::new(409, "conflict", &detail))
}

/// Answers a create of a cluster that exists with the same configuration.
async fn existing(
    services: &Services,
    on: &ResourceKey,
    config: &ClusterConfig,
    problem: Problem,
) -> Changed {
    let cluster = Cluster::load(services, on).await?;
    let runs = matches!(cluster.state(), Some(ClusterState::Ready | ClusterState::Scaling));
    // The destroy of a running cluster may still wait for a worker.
    let mut lane = cluster.resource.lane.iter();
    if !runs || lane.any(|job| [DESTROY, JANITOR_DESTROY].contains(&&*job.operation)) {
        return Err(problem);
    }
    if cluster.status.config.as_ref() != Some(config) {
        let detail = format!(
            "the cluster {} exists with another configuration; `tenure cluster show {0}` prints it",
            on.name()
        );
        return Err(Problem::new(409, "conflict", &detail));
    }
    let id = on.name().to_owned();
    let response = ClusterResponse { verdict: ClusterVerdict::Exists, id, job: None };
    Ok((StatusCode::OK, Json(response)))
}

/// Destroys a cluster.
pub(super) async fn destroy(services: &Services, on: &OnCluster, key: &Idempotency) -> Changed {
    let app = loaded(services)?;
    Cluster::load(services, &on.key).await?;
    let none = None::<&()>;
    let response = submit(services, &on.caller, key, &on.key, DESTROY, none).await?;
    Ok(answer(&app, &on.key, response))
}

/// Changes the number of workers.
pub(super) async fn scale(
    services: &Services,
    on: &OnCluster,
    key: &Idempotency,
    request: ScaleRequest,
) -> Changed {
    let app = loaded(services)?;
    let cluster = Cluster::load(services, &on.key).await?;
    if let Some(config) = &cluster.status.config {
        let profile = app.profiles.get(&config.profile).map_err(|why| Problem::invalid(&why))?;
        profile.check_workers(request.workers).map_err(|why| Problem::invalid(&why))?;
    }
    let args = ScaleArgs { workers: request.workers };
    let response = submit(services, &on.caller, key, &on.key, SCALE_WORKERS, Some(&args)).await?;
    Ok(answer(&app, &on.key, response))
}

async fn submit(
    services: &Services,
    caller: &Caller,
    key: &Idempotency,
    on: &ResourceKey,
    operation: &str,
    args: Option<&impl Serialize>,
) -> Result<SubmitResponse, Problem> {
    let request = key.id(&format!("{on}\n{operation}"))?;
    let args = args.map(serde_json::to_value).transpose();
    let args = args.map_err(|error| Problem::invalid(&error))?;
    let submit = Submit {
        args: args.as_ref().map(to_document),
        ..Submit::new(request, operation, caller.name.clone())
    };
    let command = Command::Resource { key: on.clone(), action: ResourceAction::Submit(submit) };
    services.submit_job(caller, command).await
}

fn answer(
    app: &LoadedClusters,
    on: &ResourceKey,
    response: SubmitResponse,
) -> (StatusCode, Json<ClusterResponse>) {
    let verdict = match response.verdict {
        Verdict::Started => ClusterVerdict::Started,
        Verdict::Queued => ClusterVerdict::Queued,
        Verdict::Attached => ClusterVerdict::Attached,
        Verdict::Replaced => ClusterVerdict::Replaced,
    };
    if verdict != ClusterVerdict::Attached {
        queue::send_wakeup(app, on, &response.job);
    }
    let id = on.name().to_owned();
    (StatusCode::ACCEPTED, Json(ClusterResponse { verdict, id, job: Some(response.job) }))
}

/// Moves the time of the automatic destroy.
///
/// The timer and the spec change in one step. A JANITOR_DESTROY that was submitted before, but has
/// not started, sees the spec of that step or of a later one, and does nothing. One that has
/// started is in the answer of the step: then the request is refused.
pub(super) async fn extend(
    services: &Services,
    on: &OnCluster,
    request: ExtendRequest,
) -> Result<ExtendResponse, Problem> {
    let app = loaded(services)?;
    for _ in 0..TRIES_MAX {
        let cluster = Cluster::load(services, &on.key).await?;
        check_extendable(&cluster.resource, &cluster.status)?;
        let (Some(config), Some(create_job)) = (&cluster.status.config, cluster.status.create_job)
        else {
            return Err(not_begun());
        };
        let now = services.store().status().await?.now;
        let created_at = cluster.status.created_at.unwrap_or(now);
        let expires_at = (request.ttl_ms > 0).then(|| now.plus(request.ttl_ms));
        let total_ms = expires_at.map_or(0, |expires_at| expires_at.since(created_at));
        let profile = app.profiles.get(&config.profile).map_err(|why| Problem::invalid(&why))?;
        profile.check_ttl(total_ms).map_err(|why| Problem::invalid(&why))?;
        let extension = Some(Extension { create_job, expires_at });
        let spec = ClusterSpec { extension, ..cluster.spec.clone() };
        let setting = expires_at.map_or(TimerSetting::Remove, TimerSetting::At);
        let spec = serde_json::to_value(spec).map_err(|error| Problem::invalid(&error))?;
        let put = Put {
            precondition: Some(Precondition::Generation(cluster.resource.generation)),
            timers: vec![TimerChange { operation: JANITOR_DESTROY.into(), setting }],
            ..Put::new(to_document(&spec), on.caller.name.clone())
        };
        let command = Command::Resource { key: on.key.clone(), action: ResourceAction::Put(put) };
        match services.submit(command).await {
            Ok(Outcome::Put { snapshot: Some(resource), .. }) => {
                let after = Cluster::parse(&on.key, *resource, None)?;
                check_extendable(&after.resource, &after.status)?;
                if after.status.create_job != Some(create_job) {
                    // Another life of the cluster has begun meanwhile.
                    continue;
                }
                let id = on.key.name().to_owned();
                return Ok(ExtendResponse { id, expires_at: expires_at.map(instant) });
            }
            Ok(other) => return Err(Problem::unexpected(&other)),
            Err(problem) if problem.is(Code::PreconditionFailed) => {}
            Err(problem) => return Err(problem),
        }
    }
    Err(Problem::new(409, "conflict", "others change this cluster at the same time; try again"))
}

fn not_begun() -> Problem {
    let detail = "the create of the cluster has not begun; extend it later";
    Problem::new(409, "conflict", detail)
}

/// Refuses to extend a cluster that is destroyed or being destroyed, or about to begin another
/// life, which would not know of it.
fn check_extendable(resource: &Resource, status: &ClusterStatus) -> Result<(), Problem> {
    let waits = |job: &Job| *job.operation == *CREATE && Some(job.id) != status.create_job;
    if resource.lane.iter().any(|job| waits(job)) {
        return Err(not_begun());
    }
    let ends = resource.lane.iter().any(|job| {
        *job.operation == *DESTROY || (*job.operation == *JANITOR_DESTROY && job.state.is_running())
    });
    let gone = [ClusterState::Destroyed, ClusterState::Destroying, ClusterState::DestroyFailed]
        .iter()
        .any(|state| *resource.state == *state.as_str());
    if ends || gone || status.destroying {
        let detail = "the cluster is destroyed or being destroyed; it cannot be extended";
        return Err(Problem::new(409, "conflict", detail));
    }
    Ok(())
}
