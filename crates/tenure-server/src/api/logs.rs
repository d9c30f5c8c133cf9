//! What workers wrote while they worked.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure_core::JobId;
use tenure_store::store::{LogLine, LogQuery};
use tenure_wire::{LogAnswer, LogsAnswer, instant, schema};
use utoipa::IntoParams;

use crate::ServerState;
use crate::auth::Veil;
use tenure_app::Problem;
use tenure_app::extract::{OnJob, Params};
use tenure_app::openapi::NotFound;
use tenure_app::services::{page_size, wait_timeout};

/// How often somebody who follows a log looks again: nobody is told of a new piece.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Most pages that are read for one answer to find the pieces of one attempt.
const PAGES_MAX: usize = 16;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct LogParams {
    /// `next` of the page before.
    #[param(value_type = schema::Count, required = false, inline)]
    after: Option<u64>,
    /// Only of this attempt.
    #[param(value_type = schema::AttemptNumber, required = false, inline)]
    attempt: Option<u32>,
    /// How many rows at most; 100 when nothing is said.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// How long the answer may be held back, at most a minute.
    #[param(value_type = schema::Count, required = false, inline)]
    wait_ms: Option<u64>,
}

/// Reads what workers wrote about a job, or waits for more.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}/logs",
    tag = "jobs",
    operation_id = "read_logs",
    params(OnJob, LogParams),
    responses((status = 200, description = "Pieces", body = LogsAnswer), NotFound)
)]
pub(super) async fn read(
    State(state): State<ServerState>,
    on: OnJob,
    Params(params): Params<LogParams>,
) -> Result<Json<LogsAnswer>, Problem> {
    let limit = page_size(params.limit)?;
    let patience = wait_timeout(params.wait_ms);
    let given_up = tokio::time::sleep(patience);
    tokio::pin!(given_up);
    let veil = state.veil(&on.caller);
    let mut after = state.position(&on.caller, params.after).unwrap_or(0);
    loop {
        let mut place = state.services.job_waits.register(on.id);
        // Before the log: what was written before the end is there then.
        let over = state.services.find_job(&on.caller, on.id).await?.job.state.is_finished();
        let answer = page(&state, on.id, after, params.attempt, limit).await?;
        if !answer.items.is_empty() || over || patience.is_zero() {
            return Ok(Json(hidden(answer, veil.as_ref())));
        }
        after = answer.next;
        tokio::select! {
            () = place.ended() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = &mut given_up => return Ok(Json(hidden(answer, veil.as_ref()))),
            () = state.services.closing.cancelled() => return Ok(Json(hidden(answer, veil.as_ref()))),
        }
    }
}

/// What a caller sees: positions count across all tenants, so they are hidden from one.
fn hidden(mut answer: LogsAnswer, veil: Option<&Veil>) -> LogsAnswer {
    let Some(veil) = veil else { return answer };
    for piece in &mut answer.items {
        piece.position = veil.hide(piece.position);
    }
    answer.next = veil.hide(answer.next);
    answer
}

async fn page(
    state: &ServerState,
    job: JobId,
    after: u64,
    attempt: Option<u32>,
    limit: usize,
) -> Result<LogsAnswer, Problem> {
    let mut answer = LogsAnswer { items: Vec::new(), next: after };
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
                answer.items.push(piece(&line));
            }
        }
        if last || answer.items.len() == limit {
            break;
        }
    }
    Ok(answer)
}

fn piece(line: &LogLine) -> LogAnswer {
    LogAnswer {
        position: line.position,
        attempt: line.attempt,
        at: instant(line.at),
        text: line.text.to_string(),
    }
}
