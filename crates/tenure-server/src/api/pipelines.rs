//! Pipelines in the names of their users: triggered, looked at, cancelled, released by force.
//!
//! A run is a job and has its id, so everything under `/v1/jobs` works on it, too. The same routes
//! are under `/v1/pipelines`. Nothing is decided here: a trigger is a submit that attaches.

mod look;
mod trigger;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use tenure::wire::pipelines::{
    ForceReleaseAnswer, ForceReleaseBody, PipelineAnswer, PipelineLockAnswer, RunAnswer, RunDetail,
    TriggerAnswer, TriggerBody,
};
use tenure::wire::{ListAnswer, ReasonBody, schema};
use tenure_apps::pipelines::{Catalog, KIND, Pipeline, slots};
use tenure_core::session::ALL_TENANTS;
use tenure_core::{Command, JobAction, LockAction, Outcome, Refusal, ResourceKey};
use tenure_store::store::JobShown;
use utoipa::IntoParams;

use super::jobs::over;
use super::{find, page_size, submit, wait};
use crate::App;
use crate::auth::Caller;
use crate::extract::{Body, DocumentBody, Idempotency, OnJob, OnPipeline, Params};
use crate::openapi::{Conflict, NotFound};
use crate::problem::Problem;

/// The pipelines, and the one that is meant.
fn declared(app: &App, on: &OnPipeline) -> Result<(Arc<Catalog>, Arc<Pipeline>), Problem> {
    let catalog = app.pipelines().ok_or_else(|| {
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

/// Refuses a job of the general API that is to be a run and cannot be one.
pub(super) fn check_submit(
    app: &App,
    key: &ResourceKey,
    args: Option<&Value>,
) -> Result<(), Problem> {
    let Some(catalog) = app.pipelines().filter(|_| key.kind() == KIND) else { return Ok(()) };
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
fn run(shown: JobShown) -> Result<JobShown, Problem> {
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
pub(super) async fn trigger(
    State(app): State<Arc<App>>,
    on: OnPipeline,
    key: Idempotency,
    Body(body): DocumentBody<TriggerBody>,
) -> Result<Json<TriggerAnswer>, Problem> {
    let (catalog, pipeline) = declared(&app, &on)?;
    let scope = slots::key(&pipeline.tenant, &pipeline.name, 1).ok_or(Refusal::NoSuchResource)?;
    let request = key.id(scope.as_str())?;
    let trigger = trigger::Trigger { app: &app, catalog: &catalog, pipeline: &pipeline, request };
    Ok(Json(trigger.send(&on.caller, body).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitParams {
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
pub(super) async fn show(
    State(app): State<Arc<App>>,
    on: OnJob,
    Params(params): Params<WaitParams>,
) -> Result<Json<RunDetail>, Problem> {
    run(find(&app, &on.caller, on.id).await?)?;
    let shown = over(&app, &on.caller, on.id, wait(params.wait_ms)).await?;
    Ok(Json(look::detail(&app, &shown).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RunsParams {
    /// Only of this pipeline.
    #[param(value_type = String, required = false, inline)]
    pipeline_id: Option<String>,
    /// Only with this status.
    #[param(value_type = schema::RunStatusWord, required = false, inline)]
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
pub(super) async fn runs(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(params): Params<RunsParams>,
) -> Result<Json<ListAnswer<RunAnswer>>, Problem> {
    let status = params.status.map(|word| word.parse()).transpose();
    let wanted = look::Wanted {
        tenant: caller.only(),
        pipeline: params.pipeline_id,
        status: status.map_err(|why: String| Problem::invalid(&format!("status: {why}")))?,
        after: super::job_cursor(params.cursor)?,
        limit: page_size(params.limit)?,
    };
    Ok(Json(look::runs(&app, wanted).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct CancelParams {
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
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    on: OnJob,
    Params(params): Params<CancelParams>,
) -> Result<(StatusCode, Json<RunAnswer>), Problem> {
    let reason = on.caller.may_say_why(ReasonBody { reason: params.reason })?;
    run(find(&app, &on.caller, on.id).await?)?;
    let action = JobAction::Cancel { by: on.caller.name.clone(), reason };
    match submit(&app, Command::Job { id: on.id, action }).await? {
        Outcome::Cancelled { .. } => {
            let shown = find(&app, &on.caller, on.id).await?;
            let now = app.committer.store().status().await?.now;
            Ok((StatusCode::ACCEPTED, Json(look::answer(&shown, now))))
        }
        other => Err(Problem::unexpected(&other)),
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Paging {
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
pub(super) async fn locks(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(paging): Params<Paging>,
) -> Result<Json<ListAnswer<PipelineLockAnswer>>, Problem> {
    let after: Option<ResourceKey> = paging
        .cursor
        .map(|cursor| cursor.parse())
        .transpose()
        .map_err(|error| Problem::invalid(&format!("cursor: {error}")))?;
    let limit = page_size(paging.limit)?;
    Ok(Json(look::locks(&app, caller.only(), after, limit).await?))
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
pub(super) async fn release(
    State(app): State<Arc<App>>,
    on: OnPipeline,
    Body(body): Body<ForceReleaseBody>,
) -> Result<Json<ForceReleaseAnswer>, Problem> {
    let ForceReleaseBody { token, pipeline_logging_id, reason } = body;
    let reason = on.caller.must_say_why(ReasonBody { reason: Some(reason) })?;
    let (key, run) = look::holding(&app, &on, token, pipeline_logging_id).await?;
    let by = on.caller.name.clone();
    let action = LockAction::Break { token, locks: None, by: by.clone(), reason: reason.clone() };
    submit(&app, Command::Lock { key, action }).await?;
    if let Some(id) = run {
        // A rule that would try it again is not what was asked for. It may be over already.
        let action = JobAction::Cancel { by, reason };
        app.committer.submit(Command::Job { id, action }).await?;
    }
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
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
) -> Result<Json<ListAnswer<PipelineAnswer>>, Problem> {
    let tenant = caller.only();
    let items = look::pipelines(&app, tenant.as_deref()).await?;
    Ok(Json(ListAnswer { items, next: None }))
}
