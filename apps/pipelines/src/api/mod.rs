//! HTTP API: trigger, list, show and cancel runs, and force the release of a lock.
//!
//! A run is a job with the same id, so everything under `/v1/jobs` works on it, too. The same
//! routes are also under `/v1/pipelines`. The store decides everything: a trigger is a submit that
//! attaches.

mod queries;
mod trigger;

use std::sync::Arc;

use crate::wire::{
    ForceReleaseRequest, ForceReleaseResponse, PipelineInfo, PipelineLockInfo, PipelineName,
    RunDetail, RunInfo, RunStatusParam, TriggerRequest, TriggerResponse,
};
use crate::{Catalog, KIND, Pipeline, slots};
use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value};
use tenure_app::{Access, AppRoutes, Rule};
use tenure_core::session::ALL_TENANTS;
use tenure_core::{Command, JobAction, LockAction, Outcome, Refusal, ResourceKey, Role};
use tenure_store::store::JobView;
use tenure_wire::{ListResponse, ReasonRequest, schema};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, PartialSchema as _};
use utoipa_axum::routes;

use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::Services;
use tenure_app::extract::{Body, DocumentBody, Idempotency, OnJob, OnName, Params};
use tenure_app::openapi::{Conflict, NotFound, path, tenant};
use tenure_app::services::{job_cursor, page_size, wait_timeout};

/// The routes; the same ones are served under `/v1`.
pub(crate) fn routes() -> AppRoutes {
    let read = |path| Rule::read(path, Access::VIEWER);
    let (run, release) = ("/pipelines/run/{pipeline_id}", "/pipelines/locks/{pipeline_id}/release");
    let cancel_run =
        Rule::write("DELETE", "/pipelines/runs/{id}", Role::Operator, "pipeline.cancel");
    AppRoutes::new("pipelines", "One run at a time per tenant and pipeline; also under /v1")
        .route(routes!(list), [read("/pipelines")])
        .route(routes!(trigger), [Rule::write("POST", run, Role::Worker, "pipeline.run")])
        .route(routes!(runs), [read("/pipelines/runs")])
        .route(routes!(show, cancel), [read("/pipelines/runs/{id}"), cancel_run])
        .route(routes!(locks), [read("/pipelines/locks")])
        .route(
            routes!(self::release),
            [Rule::write("POST", release, Role::Operator, "pipeline.release")],
        )
        .also_under_v1()
}

/// The caller and the pipeline in the path.
struct OnPipeline {
    caller: Caller,
    /// Name of the pipeline.
    id: String,
}

impl<S: Send + Sync> FromRequestParts<S> for OnPipeline {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let OnName { caller, name } = OnName::from_request_parts(parts, state).await?;
        Ok(Self { caller, id: name })
    }
}

impl IntoParams for OnPipeline {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let name = path("pipeline_id", "Name of the pipeline", PipelineName::schema());
        vec![name, tenant(schema::Tenant::schema())]
    }
}

/// Returns the catalog and the pipeline in the path.
fn find_pipeline(
    services: &Services,
    on: &OnPipeline,
) -> Result<(Arc<Catalog>, Arc<Pipeline>), Problem> {
    let catalog = services.live.app::<Catalog>().ok_or_else(|| {
        Problem::not_found("no pipelines are declared; set `dir` in [pipelines] of tenure.toml")
    })?;
    if *on.caller.tenant == *ALL_TENANTS {
        return Err(Problem::invalid(
            &"a pipeline belongs to one tenant: name it with ?tenant=NAME, not *",
        ));
    }
    let found = catalog.get(&on.caller.tenant, &on.id).cloned();
    let pipeline = found.ok_or_else(|| no_such_pipeline(&catalog, &on.caller.tenant, &on.id))?;
    Ok((catalog, pipeline))
}

/// Returns the error for a pipeline that is not in the catalog, with the problems of its file.
fn no_such_pipeline(catalog: &Catalog, tenant: &str, name: &str) -> Problem {
    match catalog.broken(tenant, name) {
        Some(why) => Problem::not_found(&format!(
            "the pipeline is disabled until its file is fixed, which needs no restart: {why}"
        )),
        None => Problem::not_found("the tenant has no such pipeline"),
    }
}

/// Rejects a job submitted through the general API that is not a valid run.
pub(super) fn check_submit(
    catalog: &Catalog,
    key: &ResourceKey,
    args: Option<&Value>,
) -> Result<(), Problem> {
    if key.kind() != KIND {
        return Ok(());
    }
    let (tenant, name) = (key.tenant(), slots::pipeline(key.name()));
    let declared = catalog.get(tenant, name);
    let Some(pipeline) = declared.filter(|one| one.keys().any(|slot| slot == *key)) else {
        return Err(no_such_pipeline(catalog, tenant, name));
    };
    let none = Map::new();
    let given = match args {
        None | Some(Value::Null) => &none,
        Some(Value::Object(given)) => given,
        Some(_) => {
            return Err(Problem::invalid(&"args: expected an object with the parameters"));
        }
    };
    pipeline.fill(given).map(drop).map_err(|why| Problem::invalid(&why))
}

/// Returns the job if it is a run.
fn require_run(view: JobView) -> Result<JobView, Problem> {
    let is_run = view.key.kind() == KIND;
    if is_run { Ok(view) } else { Err(Refusal::NoSuchJob.into()) }
}

/// Triggers a run, or returns the id of the active one.
#[utoipa::path(
    post,
    path = "/pipelines/run/{pipeline_id}",
    tag = "pipelines",
    operation_id = "trigger_pipeline",
    params(OnPipeline, Idempotency),
    request_body = TriggerRequest,
    responses(
        (status = 200, description = "The new run, or the active one", body = TriggerResponse),
        NotFound, Conflict
    )
)]
async fn trigger(
    State(services): State<Services>,
    on: OnPipeline,
    key: Idempotency,
    Body(body): DocumentBody<TriggerRequest>,
) -> Result<Json<TriggerResponse>, Problem> {
    let (catalog, pipeline) = find_pipeline(&services, &on)?;
    let scope = slots::key(&pipeline.tenant, &pipeline.name, 1).ok_or(Refusal::NoSuchResource)?;
    let request = key.id(scope.as_str())?;
    let trigger =
        trigger::Trigger { services: &services, catalog: &catalog, pipeline: &pipeline, request };
    Ok(Json(trigger.send(&on.caller, body).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct WaitParams {
    /// Maximum time in milliseconds to wait for the end of the run, at most one minute.
    #[param(value_type = schema::Uint64, required = false, inline)]
    wait_ms: Option<u64>,
}

/// Shows a run with its steps and attached triggers, optionally after waiting for its end.
#[utoipa::path(
    get,
    path = "/pipelines/runs/{id}",
    tag = "pipelines",
    operation_id = "show_run",
    params(OnJob, WaitParams),
    responses((status = 200, description = "The run", body = RunDetail), NotFound)
)]
async fn show(
    State(services): State<Services>,
    on: OnJob,
    Params(params): Params<WaitParams>,
) -> Result<Json<RunDetail>, Problem> {
    require_run(services.find_job(&on.caller, on.id).await?)?;
    let view = services.wait_for_job(&on.caller, on.id, wait_timeout(params.wait_ms)).await?;
    Ok(Json(queries::run_detail(&services, &view).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct RunsParams {
    /// Returns runs of this pipeline only.
    #[param(value_type = String, required = false, inline)]
    pipeline_id: Option<String>,
    /// Returns runs with this status only.
    #[param(value_type = RunStatusParam, required = false, inline)]
    status: Option<String>,
    /// Maximum number of items. Defaults to 100.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// Value of `next` of the previous page.
    #[param(value_type = schema::Id, required = false, inline)]
    cursor: Option<String>,
}

/// Lists runs, newest first.
#[utoipa::path(
    get,
    path = "/pipelines/runs",
    tag = "pipelines",
    operation_id = "list_runs",
    params(Caller, RunsParams),
    responses((status = 200, description = "A page", body = ListResponse<RunInfo>))
)]
async fn runs(
    State(services): State<Services>,
    caller: Caller,
    Params(params): Params<RunsParams>,
) -> Result<Json<ListResponse<RunInfo>>, Problem> {
    let status = params.status.map(|status| status.parse()).transpose();
    let filter = queries::RunFilter {
        tenant: caller.only_tenant(),
        pipeline: params.pipeline_id,
        status: status.map_err(|why: String| Problem::invalid(&format!("status: {why}")))?,
        after: job_cursor(params.cursor)?,
        limit: page_size(params.limit)?,
    };
    Ok(Json(queries::runs(&services, filter).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct CancelParams {
    /// Reason for the cancellation, kept with the run.
    #[param(value_type = schema::OptionalReason, required = false, inline)]
    reason: Option<String>,
}

/// Cancels a run: a waiting run ends immediately, a running one is requested to stop.
#[utoipa::path(
    delete,
    path = "/pipelines/runs/{id}",
    tag = "pipelines",
    operation_id = "cancel_run",
    params(OnJob, CancelParams),
    responses(
        (status = 202, description = "The run after the request", body = RunInfo),
        NotFound, Conflict
    )
)]
async fn cancel(
    State(services): State<Services>,
    on: OnJob,
    Params(params): Params<CancelParams>,
) -> Result<(StatusCode, Json<RunInfo>), Problem> {
    let reason = on.caller.optional_reason(ReasonRequest { reason: params.reason })?;
    require_run(services.find_job(&on.caller, on.id).await?)?;
    let action = JobAction::Cancel { by: on.caller.name.clone(), reason };
    match services.submit(Command::Job { id: on.id, action }).await? {
        Outcome::Cancelled { .. } => {
            let view = services.find_job(&on.caller, on.id).await?;
            let now = services.store().status().await?.now;
            Ok((StatusCode::ACCEPTED, Json(queries::run_info(&view, now))))
        }
        other => Err(Problem::unexpected(&other)),
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Paging {
    /// Maximum number of items. Defaults to 100.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// Value of `next` of the previous page.
    #[param(value_type = schema::ResourcePath, required = false, inline)]
    cursor: Option<String>,
}

/// Lists the locks held by runs.
#[utoipa::path(
    get,
    path = "/pipelines/locks",
    tag = "pipelines",
    operation_id = "list_pipeline_locks",
    params(Caller, Paging),
    responses((status = 200, description = "A page", body = ListResponse<PipelineLockInfo>))
)]
async fn locks(
    State(services): State<Services>,
    caller: Caller,
    Params(paging): Params<Paging>,
) -> Result<Json<ListResponse<PipelineLockInfo>>, Problem> {
    let after: Option<ResourceKey> = paging
        .cursor
        .map(|cursor| cursor.parse())
        .transpose()
        .map_err(|error| Problem::invalid(&format!("cursor: {error}")))?;
    let limit = page_size(paging.limit)?;
    Ok(Json(queries::locks(&services, caller.only_tenant(), after, limit).await?))
}

/// Forces the release of a lock and ends its run. The next run can start immediately; the worker
/// of the old one learns of it with its next heartbeat and stops.
#[utoipa::path(
    post,
    path = "/pipelines/locks/{pipeline_id}/release",
    tag = "pipelines",
    operation_id = "release_pipeline_lock",
    params(OnPipeline),
    request_body = ForceReleaseRequest,
    responses(
        (status = 200, description = "The lock is released", body = ForceReleaseResponse),
        NotFound, Conflict
    )
)]
async fn release(
    State(services): State<Services>,
    on: OnPipeline,
    Body(body): Body<ForceReleaseRequest>,
) -> Result<Json<ForceReleaseResponse>, Problem> {
    let ForceReleaseRequest { token, pipeline_logging_id, reason } = body;
    let reason = on.caller.required_reason(ReasonRequest { reason: Some(reason) })?;
    let key = queries::find_tenure(&services, &on, token, pipeline_logging_id).await?;
    let by = on.caller.name.clone();
    // One step: a retry rule must not start the run again in between.
    let action = LockAction::Break { token, locks: None, by, reason, end_job: true };
    services.submit(Command::Lock { key, action }).await?;
    Ok(Json(ForceReleaseResponse { pipeline_id: on.id, released: true }))
}

/// Lists the declared pipelines.
#[utoipa::path(
    get,
    path = "/pipelines",
    tag = "pipelines",
    operation_id = "list_pipelines",
    params(Caller),
    responses((status = 200, description = "All pipelines", body = ListResponse<PipelineInfo>))
)]
async fn list(
    State(services): State<Services>,
    caller: Caller,
) -> Result<Json<ListResponse<PipelineInfo>>, Problem> {
    let tenant = caller.only_tenant();
    let items = queries::pipelines(&services, tenant.as_deref()).await?;
    Ok(Json(ListResponse { items, next: None }))
}
