//! Jobs: submit, list, show, explain, cancel, retry, discard. The routes of workers are in
//! `claims`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use tenure_core::{Command, JobAction, Millis, Outcome, ResourceAction, Submit};
use tenure_store::store::{JobQuery, JobView};
use tenure_wire::request_schemas::RequiredReasonRequest;
use tenure_wire::{
    CancelResponse, DiscardJobResponse, JobInfo, ListResponse, ReasonRequest, SubmitRequest,
    SubmitResponse, WhyResponse, parse_instant, schema,
};
use utoipa::IntoParams;

use crate::ServerState;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::{
    Body, DocumentBody, Idempotency, IfMatch, OnJob, OnResource, Params, document,
};
use tenure_app::openapi::{Conflict, NotFound, PreconditionFailed};
use tenure_app::services::{group_filter, job_cursor, page_size, wait_timeout};

type Accepted<T> = Result<(StatusCode, Json<T>), Problem>;

/// Submits a job: an operation on a resource.
#[utoipa::path(
    post,
    path = "/v1/resources/{kind}/{name}/jobs",
    tag = "jobs",
    operation_id = "submit_job",
    params(OnResource, Idempotency, IfMatch),
    request_body = SubmitRequest,
    responses(
        (status = 202, description = "The verdict, and the job in effect", body = SubmitResponse),
        NotFound, Conflict, PreconditionFailed
    )
)]
pub(super) async fn submit(
    State(state): State<ServerState>,
    on: OnResource,
    key: Idempotency,
    IfMatch(precondition): IfMatch,
    Body(body): DocumentBody<SubmitRequest>,
) -> Accepted<SubmitResponse> {
    state.services.live.check_submit(&on.key, &body.operation, body.args.as_ref())?;
    let submit = Submit {
        request: key.id(on.key.as_str())?,
        operation: body.operation.into(),
        args: body.args.map(|args| document("args", &args)).transpose()?,
        priority: body.priority,
        run_at: body.run_at.as_deref().map(run_at).transpose()?,
        by: on.caller.name.clone(),
        precondition,
    };
    let action = ResourceAction::Submit(submit);
    let command = Command::Resource { key: on.key.clone(), action };
    let command = key.once_in_batch(on.key.as_str(), command)?;
    submit_command(&state, &on.caller, command).await
}

fn run_at(text: &str) -> Result<Millis, Problem> {
    parse_instant(text).map_err(|why| {
        let detail = format!("run_at is not an instant like 2030-01-31T12:00:00Z: {why}");
        Problem::invalid(&detail)
    })
}

async fn submit_command(
    state: &ServerState,
    caller: &Caller,
    command: Command,
) -> Accepted<SubmitResponse> {
    Ok((StatusCode::ACCEPTED, Json(state.services.submit_job(caller, command).await?)))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Filter by kind.
    #[param(value_type = String, required = false, inline)]
    kind: Option<String>,
    /// Filter by name.
    #[param(value_type = String, required = false, inline)]
    name: Option<String>,
    /// Filter by group; requires `kind`.
    #[param(value_type = String, required = false, inline)]
    group: Option<String>,
    /// Filter by operation.
    #[param(value_type = String, required = false, inline)]
    operation: Option<String>,
    /// Filter by state.
    #[param(value_type = schema::JobState, required = false, inline)]
    state: Option<String>,
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// `next` of the previous page.
    #[param(value_type = schema::Id, required = false, inline)]
    cursor: Option<String>,
}

/// Lists jobs, newest first.
#[utoipa::path(
    get,
    path = "/v1/jobs",
    tag = "jobs",
    operation_id = "list_jobs",
    params(Caller, ListParams),
    responses((status = 200, description = "A page of jobs", body = ListResponse<JobInfo>))
)]
pub(super) async fn list(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Json<ListResponse<JobInfo>>, Problem> {
    let wanted = params.state.map(|word| word.parse()).transpose();
    let query = JobQuery {
        tenant: caller.only_tenant(),
        kind: params.kind.clone().map(Into::into),
        name: params.name.map(Into::into),
        operation: params.operation.map(Into::into),
        state: wanted.map_err(|why: String| Problem::invalid(&format!("state: {why}")))?,
        after: job_cursor(params.cursor)?,
        limit: page_size(params.limit)?,
        group: group_filter(params.group, &params.kind)?,
    };
    let page = state.services.store().reads().jobs(query).await?;
    let items = page.items.iter().map(|shown| JobInfo::new(&shown.key, &shown.job)).collect();
    Ok(Json(ListResponse { items, next: page.next.map(|id| id.to_string()) }))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitParams {
    /// Maximum time to wait before responding, at most 60000.
    #[param(value_type = schema::Uint64, required = false, inline)]
    wait_ms: Option<u64>,
}

/// Shows a job; with `wait_ms`, when it has finished or the time has passed.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}",
    tag = "jobs",
    operation_id = "show_job",
    params(OnJob, WaitParams),
    responses((status = 200, description = "The job", body = JobInfo), NotFound)
)]
pub(super) async fn show(
    State(state): State<ServerState>,
    on: OnJob,
    Params(params): Params<WaitParams>,
) -> Result<Json<JobInfo>, Problem> {
    let JobView { key, job } =
        state.services.wait_for_job(&on.caller, on.id, wait_timeout(params.wait_ms)).await?;
    let kinds = state.services.live.kinds();
    Ok(Json(
        JobInfo::new(&key, &job).with_attempts_max(kinds.get(key.kind()).map(|kind| &**kind), &key),
    ))
}

/// Explains what a job waits for.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}/why",
    tag = "jobs",
    operation_id = "why_job",
    params(OnJob),
    responses((status = 200, description = "What it waits for", body = WhyResponse), NotFound)
)]
pub(super) async fn why(
    State(state): State<ServerState>,
    on: OnJob,
) -> Result<Json<WhyResponse>, Problem> {
    let OnJob { caller, id } = on;
    let job = state.services.find_job(&caller, id).await?;
    let why = state.services.store().reads().explain_job(job).await?;
    Ok(Json(WhyResponse::new(Some(id), &why)))
}

/// Cancels a waiting job, or requests a running one to stop.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/cancel",
    tag = "jobs",
    operation_id = "cancel_job",
    params(OnJob, Idempotency),
    request_body = ReasonRequest,
    responses(
        (status = 202, description = "The new state of the job", body = CancelResponse),
        NotFound, Conflict
    )
)]
pub(super) async fn cancel(
    State(state): State<ServerState>,
    on: OnJob,
    key: Idempotency,
    Body(body): Body<ReasonRequest>,
) -> Accepted<CancelResponse> {
    let reason = on.caller.optional_reason(body)?;
    state.services.check_job(&on.caller, on.id).await?;
    let action = JobAction::Cancel { by: on.caller.name, reason };
    let command = key.once(&on.id.to_string(), Command::Job { id: on.id, action })?;
    match state.services.submit(command).await? {
        Outcome::Cancelled { state } => Ok((StatusCode::ACCEPTED, Json(CancelResponse { state }))),
        other => Err(Problem::unexpected(&other)),
    }
}

/// Submits a finished job again, or ends the backoff of an unfinished one.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/retry",
    tag = "jobs",
    operation_id = "retry_job",
    params(OnJob, Idempotency),
    request_body = RequiredReasonRequest,
    responses(
        (status = 202, description = "The verdict, and the job in effect", body = SubmitResponse),
        NotFound, Conflict
    )
)]
pub(super) async fn retry(
    State(state): State<ServerState>,
    on: OnJob,
    key: Idempotency,
    Body(body): Body<ReasonRequest>,
) -> Accepted<SubmitResponse> {
    let (request, by) = (key.id(&on.id.to_string())?, on.caller.name.clone());
    let reason = on.caller.required_reason(body)?;
    let action = JobAction::Retry { request, by, reason };
    let command = Command::Job { id: on.id, action };
    let command = key.once_in_batch(&on.id.to_string(), command)?;
    submit_command(&state, &on.caller, command).await
}

/// Discards a dead job.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/discard",
    tag = "jobs",
    operation_id = "discard_job",
    params(OnJob, Idempotency),
    request_body = RequiredReasonRequest,
    responses(
        (status = 200, description = "Discarded", body = DiscardJobResponse),
        NotFound, Conflict
    )
)]
pub(super) async fn discard(
    State(state): State<ServerState>,
    on: OnJob,
    key: Idempotency,
    Body(body): Body<ReasonRequest>,
) -> Result<Json<DiscardJobResponse>, Problem> {
    let reason = on.caller.required_reason(body)?;
    let action = JobAction::Discard { by: on.caller.name.clone(), reason };
    state.services.check_job(&on.caller, on.id).await?;
    let command = key.once(&on.id.to_string(), Command::Job { id: on.id, action })?;
    state.services.submit(command).await?;
    Ok(Json(DiscardJobResponse { discarded: true }))
}
