//! Logs of jobs.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure_core::JobId;
use tenure_store::store::{LogLine, LogQuery};
use tenure_wire::{LogChunkInfo, LogResponse, instant, schema};
use utoipa::IntoParams;

use crate::ServerState;
use crate::auth::PositionCipher;
use tenure_app::Problem;
use tenure_app::extract::{OnJob, Params};
use tenure_app::openapi::NotFound;
use tenure_app::services::{page_size, wait_timeout};

/// Interval at which a waiting request polls: the store has no hints for logs.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of pages read for one response while filtering by attempt.
const PAGES_MAX: usize = 16;

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
        let answer = page(&state, on.id, after, params.attempt, limit).await?;
        if !answer.items.is_empty() || finished || timeout.is_zero() {
            return Ok(Json(encrypt_positions(answer, cipher.as_ref())));
        }
        after = answer.next;
        tokio::select! {
            () = wait.ended() => continue,
            () = tokio::time::sleep(POLL_INTERVAL) => continue,
            () = &mut timed_out => {}
            () = state.services.closing.cancelled() => {}
        }
        return Ok(Json(encrypt_positions(answer, cipher.as_ref())));
    }
}

/// Encrypts positions for a caller that may not see them: they count across all tenants.
fn encrypt_positions(mut answer: LogResponse, cipher: Option<&PositionCipher>) -> LogResponse {
    let Some(cipher) = cipher else { return answer };
    for chunk in &mut answer.items {
        chunk.position = cipher.encrypt(chunk.position);
    }
    answer.next = cipher.encrypt(answer.next);
    answer
}

async fn page(
    state: &ServerState,
    job: JobId,
    after: u64,
    attempt: Option<u32>,
    limit: usize,
) -> Result<LogResponse, Problem> {
    let mut answer = LogResponse { items: Vec::new(), next: after };
    for _ in 0..PAGES_MAX {
        let query = LogQuery { job, after: answer.next, limit };
        let lines = state.services.store().reads().logs(query).await?;
        let last = lines.len() < limit;
        for line in lines {
            if answer.items.len() == limit {
                return Ok(answer);
            }
            answer.next = line.position;
            if attempt.is_none_or(|attempt| attempt == line.attempt) {
                answer.items.push(chunk(&line));
            }
        }
        if last || answer.items.len() == limit {
            break;
        }
    }
    Ok(answer)
}

fn chunk(line: &LogLine) -> LogChunkInfo {
    LogChunkInfo {
        position: line.position,
        attempt: line.attempt,
        at: instant(line.at),
        text: line.text.to_string(),
    }
}
