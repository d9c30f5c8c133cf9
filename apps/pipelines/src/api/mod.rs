//! Pipelines in the names of their users: triggered, looked at, cancelled, released by force.
//!
//! A run is a job and has its id, so everything under `/v1/jobs` works on it, too. The same routes
//! are under `/v1/pipelines`. Nothing is decided here: a trigger is a submit that attaches.

mod look;
mod trigger;

use std::sync::Arc;

use crate::wire::{
    ForceReleaseAnswer, ForceReleaseBody, PipelineAnswer, PipelineLockAnswer, PipelineName,
    RunAnswer, RunDetail, RunStatusWord, TriggerAnswer, TriggerBody,
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
use tenure_wire::{ListAnswer, ReasonBody, schema};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, PartialSchema as _};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::Services;
use tenure_app::extract::{Body, DocumentBody, Idempotency, OnJob, OnName, Params};
use tenure_app::openapi::{Conflict, NotFound, path, tenant};
use tenure_app::services::{job_cursor, page_size, wait_timeout};

/// The routes; the same ones are served under `/v1`.
pub(crate) fn routes() -> AppRoutes {
    let router = OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(trigger))
        .routes(routes!(runs))
        .routes(routes!(show, cancel))
        .routes(routes!(locks))
        .routes(routes!(release));
    let rules = vec![
        Rule::read("/pipelines", Access::VIEWER),
        Rule::write("POST", "/pipelines/run/{pipeline_id}", Role::Worker, "pipeline.run"),
        Rule::read("/pipelines/runs", Access::VIEWER),
        Rule::read("/pipelines/runs/{id}", Access::VIEWER),
        Rule::write("DELETE", "/pipelines/runs/{id}", Role::Operator, "pipeline.cancel"),
        Rule::read("/pipelines/locks", Access::VIEWER),
        Rule::write(
            "POST",
            "/pipelines/locks/{pipeline_id}/release",
            Role::Operator,
            "pipeline.release",
        ),
    ];
    let tag = Some(("pipelines", "One run for each tenant and pipeline; also under /v1"));
    AppRoutes { router, rules, tag, also_under_v1: true }
}

/// The caller and the pipeline in the path.
struct OnPipeline {
    caller: Caller,
    /// The name of the pipeline.
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
        let name = path("pipeline_id", "The name of the pipeline", PipelineName::schema());
        vec![name, tenant(schema::Tenant::schema())]
    }
}

/// The pipelines, and the one that is meant.
fn declared(
    services: &Services,
    on: &OnPipeline,
) -> Result<(Arc<Catalog>, Arc<Pipeline>), Problem> {
    let catalog = services.live.app::<Catalog>().ok_or_else(|| {
        Problem::not_found(
            "no pipelines are declared: [pipelines] in tenure.toml names their `dir`",
        )
    })?;
    if *on.caller.tenant == *ALL_TENANTS {
        return Err(Problem::invalid(&"a pipeline is one tenant's; name it by ?tenant="));
    }
    let found = catalog.get(&on.caller.tenant, &on.id).cloned();
    let pipeline = found.ok_or_else(|| {
        let detail = "there is no such pipeline of this tenant; GET /pipelines lists them";
        Problem::not_found(detail)
    })?;
    Ok((catalog, pipeline))
}

/// Refuses a job of the general API that would be a run and cannot be one.
pub(super) fn check_submit(
    catalog: &Catalog,
    key: &ResourceKey,
    args: Option<&Value>,
) -> Result<(), Problem> {
    if key.kind() != KIND {
        return Ok(());
    }
    let declared = catalog.get(key.tenant(), slots::pipeline(key.name()));
    let Some(pipeline) = declared.filter(|one| one.keys().any(|place| place == *key)) else {
        return Err(Problem::not_found("there is no such pipeline; GET /pipelines lists them"));
    };
    let none = Map::new();
    let given = match args {
        None | Some(Value::Null) => &none,
        Some(Value::Object(given)) => given,
        Some(_) => {
            return Err(Problem::invalid(&"args: an object with the parameters is expected"));
        }
    };
    pipeline.fill(given).map(drop).map_err(|why| Problem::invalid(&why))
}

/// A run, if it is one and there for the caller.
fn run(shown: JobView) -> Result<JobView, Problem> {
    let is_run = shown.key.kind() == KIND;
    if is_run { Ok(shown) } else { Err(Refusal::NoSuchJob.into()) }
}

/// Triggers a run; while one goes on, gives its id.
#[utoipa::path(
    post,
    path = "/pipelines/run/{pipeline_id}",
    tag = "pipelines",
    operation_id = "trigger_pipeline",
    params(OnPipeline, Idempotency),
    request_body = TriggerBody,
    responses(
        (status = 200, description = "The run that counts", body = TriggerAnswer),
        NotFound, Conflict
    )
)]
async fn trigger(
    State(services): State<Services>,
    on: OnPipeline,
    key: Idempotency,
    Body(body): DocumentBody<TriggerBody>,
) -> Result<Json<TriggerAnswer>, Problem> {
    let (catalog, pipeline) = declared(&services, &on)?;
    let scope = slots::key(&pipeline.tenant, &pipeline.name, 1).ok_or(Refusal::NoSuchResource)?;
    let request = key.id(scope.as_str())?;
    let trigger =
        trigger::Trigger { services: &services, catalog: &catalog, pipeline: &pipeline, request };
    Ok(Json(trigger.send(&on.caller, body).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct WaitParams {
    /// How long the answer may be held back until the run is over, at most a minute.
    #[param(value_type = schema::Count, required = false, inline)]
    wait_ms: Option<u64>,
}

/// Shows a run with its steps and who else triggered it, or waits until it is over.
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
    run(services.find_job(&on.caller, on.id).await?)?;
    let shown = services.wait_for_job(&on.caller, on.id, wait_timeout(params.wait_ms)).await?;
    Ok(Json(look::detail(&services, &shown).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct RunsParams {
    /// Only of this pipeline.
    #[param(value_type = String, required = false, inline)]
    pipeline_id: Option<String>,
    /// Only with this status.
    #[param(value_type = RunStatusWord, required = false, inline)]
    status: Option<String>,
    /// How many rows at most; 100 when nothing is said.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// `next` of the page before.
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
    responses((status = 200, description = "A page", body = ListAnswer<RunAnswer>))
)]
async fn runs(
    State(services): State<Services>,
    caller: Caller,
    Params(params): Params<RunsParams>,
) -> Result<Json<ListAnswer<RunAnswer>>, Problem> {
    let status = params.status.map(|word| word.parse()).transpose();
    let wanted = look::Wanted {
        tenant: caller.only_tenant(),
        pipeline: params.pipeline_id,
        status: status.map_err(|why: String| Problem::invalid(&format!("status: {why}")))?,
        after: job_cursor(params.cursor)?,
        limit: page_size(params.limit)?,
    };
    Ok(Json(look::runs(&services, wanted).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct CancelParams {
    /// Why.
    #[param(value_type = schema::Note, required = false, inline)]
    reason: Option<String>,
}

/// Cancels a run: one that waits is over, one that runs has its step stopped.
#[utoipa::path(
    delete,
    path = "/pipelines/runs/{id}",
    tag = "pipelines",
    operation_id = "cancel_run",
    params(OnJob, CancelParams),
    responses(
        (status = 202, description = "The run as it is now", body = RunAnswer),
        NotFound, Conflict
    )
)]
async fn cancel(
    State(services): State<Services>,
    on: OnJob,
    Params(params): Params<CancelParams>,
) -> Result<(StatusCode, Json<RunAnswer>), Problem> {
    let reason = on.caller.optional_reason(ReasonBody { reason: params.reason })?;
    run(services.find_job(&on.caller, on.id).await?)?;
    let action = JobAction::Cancel { by: on.caller.name.clone(), reason };
    match services.submit(Command::Job { id: on.id, action }).await? {
        Outcome::Cancelled { .. } => {
            let shown = services.find_job(&on.caller, on.id).await?;
            let now = services.store().status().await?.now;
            Ok((StatusCode::ACCEPTED, Json(look::answer(&shown, now))))
        }
        other => Err(Problem::unexpected(&other)),
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Paging {
    /// How many rows at most; 100 when nothing is said.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// `next` of the page before.
    #[param(value_type = schema::ResourcePath, required = false, inline)]
    cursor: Option<String>,
}

/// Lists the locks that runs hold.
#[utoipa::path(
    get,
    path = "/pipelines/locks",
    tag = "pipelines",
    operation_id = "list_pipeline_locks",
    params(Caller, Paging),
    responses((status = 200, description = "A page", body = ListAnswer<PipelineLockAnswer>))
)]
async fn locks(
    State(services): State<Services>,
    caller: Caller,
    Params(paging): Params<Paging>,
) -> Result<Json<ListAnswer<PipelineLockAnswer>>, Problem> {
    let after: Option<ResourceKey> = paging
        .cursor
        .map(|cursor| cursor.parse())
        .transpose()
        .map_err(|error| Problem::invalid(&format!("cursor: {error}")))?;
    let limit = page_size(paging.limit)?;
    Ok(Json(look::locks(&services, caller.only_tenant(), after, limit).await?))
}

/// Ends a run by force, by the exact token of its tenure: the next one can begin at once. The old
/// process learns of it with its next heartbeat, and stops.
#[utoipa::path(
    post,
    path = "/pipelines/locks/{pipeline_id}/release",
    tag = "pipelines",
    operation_id = "release_pipeline_lock",
    params(OnPipeline),
    request_body = ForceReleaseBody,
    responses(
        (status = 200, description = "It is over", body = ForceReleaseAnswer),
        NotFound, Conflict
    )
)]
async fn release(
    State(services): State<Services>,
    on: OnPipeline,
    Body(body): Body<ForceReleaseBody>,
) -> Result<Json<ForceReleaseAnswer>, Problem> {
    let ForceReleaseBody { token, pipeline_logging_id, reason } = body;
    let reason = on.caller.required_reason(ReasonBody { reason: Some(reason) })?;
    let (key, run) = look::holding(&services, &on, token, pipeline_logging_id).await?;
    let by = on.caller.name.clone();
    // One step: a retry rule must not start the run again in between.
    let action = LockAction::Break { token, locks: None, by, reason, end_job: true };
    services.submit(Command::Lock { key, action }).await?;
    Ok(Json(ForceReleaseAnswer { pipeline_id: on.id, released: true }))
}

/// Lists the pipelines that are declared.
#[utoipa::path(
    get,
    path = "/pipelines",
    tag = "pipelines",
    operation_id = "list_pipelines",
    params(Caller),
    responses((status = 200, description = "All of them", body = ListAnswer<PipelineAnswer>))
)]
async fn list(
    State(services): State<Services>,
    caller: Caller,
) -> Result<Json<ListAnswer<PipelineAnswer>>, Problem> {
    let tenant = caller.only_tenant();
    let items = look::pipelines(&services, tenant.as_deref()).await?;
    Ok(Json(ListAnswer { items, next: None }))
}
