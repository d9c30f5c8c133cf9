//! Logs of jobs.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure_store::queries::LogPage;
use tenure_store::store::{LogLine, LogQuery};
use tenure_wire::{LogChunkInfo, LogResponse, schema};
use utoipa::IntoParams;

use crate::ServerState;
use crate::auth::PositionCipher;
use tenure_app::Problem;
use tenure_app::extract::{OnJob, Params};
use tenure_app::openapi::NotFound;
use tenure_app::services::{page_size, wait_timeout};

/// Interval at which a waiting request polls: the store has no hints for logs.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct LogParams {
    /// `next` of the previous page.
    #[param(value_type = schema::Uint64, required = false, inline)]
    after: Option<u64>,
    /// Filter by attempt.
    #[param(value_type = schema::AttemptNumber, required = false, inline)]
    attempt: Option<u32>,
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// Maximum time to wait before responding, at most 60000.
    #[param(value_type = schema::Uint64, required = false, inline)]
    wait_ms: Option<u64>,
}

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
    let limit = page_size(params.limit)?;
    let timeout = wait_timeout(params.wait_ms);
    let timed_out = tokio::time::sleep(timeout);
    tokio::pin!(timed_out);
    let cipher = state.position_cipher(&on.caller);
    let mut after = state.decrypt_position(&on.caller, params.after).unwrap_or(0);
    loop {
        let mut wait = state.services.job_waits.register(on.id);
        // Read before the log, which then includes everything up to the end of the job.
        let finished = state.services.find_job(&on.caller, on.id).await?.job.state.is_finished();
        let query = LogQuery { job: on.id, after, limit };
        let page = state.services.store().reads().log_page(query, params.attempt).await?;
        if !page.chunks.is_empty() || finished || timeout.is_zero() {
            return Ok(Json(response(&page, cipher.as_ref())));
        }
        after = page.next;
        tokio::select! {
            () = wait.ended() => continue,
            () = tokio::time::sleep(POLL_INTERVAL) => continue,
            () = &mut timed_out => {}
            () = state.services.closing.cancelled() => {}
        }
        return Ok(Json(response(&page, cipher.as_ref())));
    }
}

/// Converts a page. Positions count across all tenants, so a tenant sees them encrypted.
fn response(page: &LogPage, cipher: Option<&PositionCipher>) -> LogResponse {
    let shown = |position| cipher.map_or(position, |cipher| cipher.encrypt(position));
    let chunk = |chunk: &LogLine| {
        LogChunkInfo::new(shown(chunk.position), chunk.attempt, chunk.at, &chunk.text)
    };
    LogResponse { items: page.chunks.iter().map(chunk).collect(), next: shown(page.next) }
}
