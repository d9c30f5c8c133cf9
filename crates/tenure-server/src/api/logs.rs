//! Logs of jobs.

use axum::Json;
use axum::extract::State;
use tenure_app::Problem;
use tenure_app::extract::{OnJob, Params};
use tenure_app::openapi::NotFound;
use tenure_app::pages::LogParams;
use tenure_wire::LogResponse;

use crate::ServerState;

/// Reads the log of a job; with `wait_ms`, waits for new text.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}/logs",
    tag = "jobs",
    operation_id = "read_logs",
    params(OnJob, LogParams),
    responses((status = 200, description = "A page of the log", body = LogResponse), NotFound)
)]
pub(super) async fn read(
    State(state): State<ServerState>,
    on: OnJob,
    Params(params): Params<LogParams>,
) -> Result<Json<LogResponse>, Problem> {
    Ok(Json(state.services.log_page(&on.caller, on.id, &params).await?))
}
