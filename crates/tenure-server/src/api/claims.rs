//! Routes of workers: claim jobs, report progress, write logs, finish.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use futures_util::FutureExt as _;
use serde_json::Value;
use tenure_core::session::ALL_TENANTS;
use tenure_core::{Claim, ClaimScope, Command, JobAction, Outcome, ResourceKey, Text};
use tenure_wire::request_schemas::FinishRequestSchema;
use tenure_wire::{
    AppendLogRequest, AssignmentInfo, ClaimRequest, ClaimResponse, ClaimScopeRequest,
    FinishRequest, FinishResponse, ProgressRequest, ReportResponse, StatusRequest, status_update,
};

use crate::ServerState;
use crate::in_flight::shutting_down;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::{Body, DocumentBody, Idempotency, OnJob, document};
use tenure_app::openapi::{BadRequest, Conflict, NotFound};
use tenure_app::services::wait_timeout;

/// Claims jobs for a worker, or waits until one is ready.
#[utoipa::path(
    post,
    path = "/v1/jobs/claim",
    tag = "work",
    operation_id = "claim_jobs",
    params(Caller, Idempotency),
    request_body = ClaimRequest,
    responses(
        (status = 200, description = "The jobs, possibly none", body = ClaimResponse),
        Conflict
    )
)]
pub(super) async fn claim(
    State(state): State<ServerState>,
    caller: Caller,
    key: Idempotency,
    Body(body): Body<ClaimRequest>,
) -> Result<Json<ClaimResponse>, Problem> {
    let timeout = wait_timeout(Some(body.wait_ms));
    let (kinds, only) = scope(&caller, body.kinds, body.only)?;
    let claim = Claim {
        session: body.session,
        request: key.id(&body.session.to_string())?,
        kinds: kinds.into_iter().map(kind_name).collect::<Result<_, _>>()?,
        max: body.max,
        tenant: caller.bound_tenant().cloned(),
        only,
    };
    match wait_for_jobs(&state, &claim, timeout).await? {
        Outcome::Claimed(jobs) => {
            Ok(Json(ClaimResponse { jobs: jobs.iter().map(AssignmentInfo::new).collect() }))
        }
        Outcome::Refused(refusal) => Err(refusal.into()),
        other => Err(Problem::unexpected(&other)),
    }
}

/// Returns the kinds of a claim and its restriction, which belongs to the tenant of the caller.
fn scope(
    caller: &Caller,
    kinds: Vec<String>,
    only: Option<ClaimScopeRequest>,
) -> Result<(Vec<String>, Option<ClaimScope>), Problem> {
    let Some(ClaimScopeRequest { kind, group, name }) = only else { return Ok((kinds, None)) };
    if !kinds.is_empty() && kinds != [kind.as_str()] {
        let detail = "`kinds` must be left out or contain only the kind of `only`";
        return Err(Problem::invalid(&detail));
    }
    let part = |part: &str| {
        let key = caller.resource(&kind, part)?;
        Ok::<_, Problem>((key.tenant().into(), key.name().into()))
    };
    let only = match (group, name) {
        (None, None) => None,
        (Some(group), None) => {
            let (tenant, group) = part(&group)?;
            Some(ClaimScope::Group { tenant, group })
        }
        (None, Some(name)) => {
            let (tenant, name) = part(&name)?;
            Some(ClaimScope::Resource { tenant, name })
        }
        (Some(_), Some(_)) => {
            return Err(Problem::invalid(&"only: give either `group` or `name`"));
        }
    };
    Ok((vec![kind], only))
}

/// Validates the name of a kind, which need not be declared.
fn kind_name(name: String) -> Result<Text, Problem> {
    let checked = ResourceKey::new("tenant", &name, "name");
    checked.map_err(|error| Problem::invalid(&format!("kinds: {error}")))?;
    Ok(name.into())
}

/// Claims until there are jobs, the timeout passes or the server shuts down. Jobs claimed for
/// disconnected clients are handed back by the committer, which finds the response channel closed.
async fn wait_for_jobs(
    state: &ServerState,
    claim: &Claim,
    timeout: Duration,
) -> Result<Outcome, Problem> {
    // With the tenant, so that a caller that will be refused joins no one else.
    let scope = format!("{}/{}", claim.tenant.as_deref().unwrap_or(ALL_TENANTS), claim.session);
    let (services, claim) = (state.services.clone(), claim.clone());
    let command = Command::Claim(claim.clone());
    let execution = state.in_flight.join(&scope, claim.request, command, |registration| {
        let execution = async move {
            let _lock = registration.lock().await;
            tokio::select! {
                outcome = services.committer.claim(&claim, timeout) => outcome,
                () = services.closing.cancelled() => Err(shutting_down()),
            }
        };
        execution.boxed()
    })?;
    Ok(execution.await?)
}

/// Reports the progress of an attempt.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/progress",
    tag = "work",
    operation_id = "tell_progress",
    params(OnJob),
    request_body = ProgressRequest,
    responses((status = 200, description = "Recorded", body = ReportResponse), NotFound, Conflict)
)]
pub(super) async fn progress(
    State(state): State<ServerState>,
    on: OnJob,
    Body(body): Body<ProgressRequest>,
) -> Result<Json<ReportResponse>, Problem> {
    let (token, percent, message) = (body.token, body.percent, body.message.into());
    let action = JobAction::Progress { token, percent, message };
    record(&state, &on, Command::Job { id: on.id, action }).await
}

/// Appends text to the log of an attempt.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/logs",
    tag = "work",
    operation_id = "write_log",
    params(OnJob),
    request_body = AppendLogRequest,
    responses((status = 200, description = "Recorded", body = ReportResponse), NotFound, Conflict)
)]
pub(super) async fn log(
    State(state): State<ServerState>,
    on: OnJob,
    Body(body): DocumentBody<AppendLogRequest>,
) -> Result<Json<ReportResponse>, Problem> {
    let action = JobAction::Log { token: body.token, text: body.text.into() };
    record(&state, &on, Command::Job { id: on.id, action }).await
}

async fn record(
    state: &ServerState,
    on: &OnJob,
    command: Command,
) -> Result<Json<ReportResponse>, Problem> {
    state.services.check_job(&on.caller, on.id).await?;
    match state.services.submit(command).await? {
        Outcome::Noted { cancelling } => Ok(Json(ReportResponse { cancelling })),
        other => Err(Problem::unexpected(&other)),
    }
}

/// Updates the status and the timers of the resource on behalf of an attempt.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/status",
    tag = "work",
    operation_id = "update_status",
    params(OnJob, Idempotency),
    request_body = StatusRequest,
    responses(
        (status = 200, description = "Recorded", body = ReportResponse),
        BadRequest, NotFound, Conflict
    )
)]
pub(super) async fn status(
    State(state): State<ServerState>,
    on: OnJob,
    key: Idempotency,
    Body(body): DocumentBody<StatusRequest>,
) -> Result<Json<ReportResponse>, Problem> {
    check_merge(body.merge.as_ref())?;
    let update = status_update(body.merge.as_ref(), &body.timers);
    let update = update.map_err(|why| Problem::invalid(&why))?;
    let update = update.ok_or_else(|| Problem::invalid(&"give `merge`, `timers`, or both"))?;
    let action = JobAction::Status { token: body.token, update };
    let command = key.once(&on.id.to_string(), Command::Job { id: on.id, action })?;
    record(&state, &on, command).await
}

/// Refuses a merge patch that is not an object: it would replace the whole status.
fn check_merge(merge: Option<&Value>) -> Result<(), Problem> {
    let Some(merge) = merge else { return Ok(()) };
    if !merge.is_object() {
        return Err(Problem::new(400, "invalid", "`merge` must be a JSON object"));
    }
    document("merge", merge)?;
    Ok(())
}

/// Finishes an attempt: ok, failed, deferred, cancelled or handed back.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/finish",
    tag = "work",
    operation_id = "finish_job",
    params(OnJob),
    request_body = FinishRequestSchema,
    responses(
        (status = 200, description = "The new state of the job", body = FinishResponse),
        BadRequest, NotFound, Conflict
    )
)]
pub(super) async fn finish(
    State(state): State<ServerState>,
    on: OnJob,
    Body(body): DocumentBody<FinishRequest>,
) -> Result<Json<FinishResponse>, Problem> {
    if let Some(result) = &body.result {
        document("result", result)?;
    }
    check_merge(body.merge.as_ref())?;
    let finish = body.to_finish().map_err(|why| Problem::invalid(&why))?;
    let update = body.to_update().map_err(|why| Problem::invalid(&why))?;
    state.services.check_job(&on.caller, on.id).await?;
    let action = JobAction::Finish { token: body.token, finish, update };
    match state.services.submit(Command::Job { id: on.id, action }).await? {
        Outcome::Finished { state, already } => Ok(Json(FinishResponse { state, already })),
        other => Err(Problem::unexpected(&other)),
    }
}
