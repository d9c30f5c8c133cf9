//! Sessions of remote processes.

use axum::Json;
use axum::extract::State;
use tenure_core::{Command, Outcome, SessionId};
use tenure_wire::{CloseSessionResponse, HeartbeatRequest, OpenSessionRequest, SessionResponse};

use crate::ServerState;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::{Body, Idempotency, OnSession};
use tenure_app::openapi::Conflict;

/// Opens a session; the same `Idempotency-Key` opens the same one.
#[utoipa::path(
    post,
    path = "/v1/sessions",
    tag = "sessions",
    operation_id = "open_session",
    params(Caller, Idempotency),
    request_body = OpenSessionRequest,
    responses((status = 200, description = "The session", body = SessionResponse), Conflict)
)]
pub(super) async fn open(
    State(state): State<ServerState>,
    caller: Caller,
    key: Idempotency,
    Body(body): Body<OpenSessionRequest>,
) -> Result<Json<SessionResponse>, Problem> {
    let session = SessionId(key.id(&caller.tenant)?.0);
    let (tenant, name, ttl_ms) = (caller.tenant, body.name.into(), body.ttl_ms);
    session_answer(state.services.submit(Command::Open { session, tenant, name, ttl_ms }).await?)
}

/// Renews a session and all its tenures.
#[utoipa::path(
    post,
    path = "/v1/sessions/{id}/beat",
    tag = "sessions",
    operation_id = "beat_session",
    params(OnSession),
    request_body = HeartbeatRequest,
    responses((status = 200, description = "The session", body = SessionResponse), Conflict)
)]
pub(super) async fn heartbeat(
    State(state): State<ServerState>,
    on: OnSession,
    Body(body): Body<HeartbeatRequest>,
) -> Result<Json<SessionResponse>, Problem> {
    let tenant = on.caller.bound_tenant().cloned();
    let command = Command::Heartbeat { session: on.id, seen: body.seen, tenant };
    session_answer(state.services.submit(command).await?)
}

/// Closes a session and releases all its tenures.
#[utoipa::path(
    delete,
    path = "/v1/sessions/{id}",
    tag = "sessions",
    operation_id = "close_session",
    params(OnSession),
    responses((status = 200, description = "Closed", body = CloseSessionResponse))
)]
pub(super) async fn close(
    State(state): State<ServerState>,
    on: OnSession,
) -> Result<Json<CloseSessionResponse>, Problem> {
    let tenant = on.caller.bound_tenant().cloned();
    state.services.submit(Command::Close { session: on.id, tenant }).await?;
    Ok(Json(CloseSessionResponse { closed: true }))
}

fn session_answer(outcome: Outcome) -> Result<Json<SessionResponse>, Problem> {
    match outcome {
        Outcome::Alive { session, ttl_ms, revoked } => {
            let revoked = revoked.into_iter().map(Into::into).collect();
            Ok(Json(SessionResponse { session, ttl_ms, revoked }))
        }
        other => Err(Problem::unexpected(&other)),
    }
}
