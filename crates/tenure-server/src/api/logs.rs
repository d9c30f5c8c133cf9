//! What workers wrote while they worked.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure::wire::{LogAnswer, LogsAnswer, instant, schema};
use tenure_core::JobId;
use tenure_store::store::{LogLine, LogQuery};
use utoipa::IntoParams;

use super::{find, page_size, wait};
use crate::App;
use crate::auth::Veil;
use crate::extract::{OnJob, Params};
use crate::openapi::NotFound;
use crate::problem::Problem;

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
    State(app): State<Arc<App>>,
    on: OnJob,
    Params(params): Params<LogParams>,
) -> Result<Json<LogsAnswer>, Problem> {
    let limit = page_size(params.limit)?;
    let patience = wait(params.wait_ms);
    let given_up = tokio::time::sleep(patience);
    tokio::pin!(given_up);
    let veil = app.veil(&on.caller);
    let mut after = app.position(&on.caller, params.after).unwrap_or(0);
    loop {
        let mut place = app.waits.enter(on.id);
        // Before the log: what was written before the end is there then.
        let over = find(&app, &on.caller, on.id).await?.job.state.is_over();
        let answer = page(&app, on.id, after, params.attempt, limit).await?;
        if !answer.items.is_empty() || over || patience.is_zero() {
            return Ok(Json(hidden(answer, veil.as_ref())));
        }
        after = answer.next;
        tokio::select! {
            () = place.told() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = &mut given_up => return Ok(Json(hidden(answer, veil.as_ref()))),
            () = app.closing.cancelled() => return Ok(Json(hidden(answer, veil.as_ref()))),
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
    app: &App,
    job: JobId,
    after: u64,
    attempt: Option<u32>,
    limit: usize,
) -> Result<LogsAnswer, Problem> {
    let mut answer = LogsAnswer { items: Vec::new(), next: after };
    for _ in 0..PAGES_MAX {
        let query = LogQuery { job, after: answer.next, limit };
        let lines = app.committer.store().reads().logs(query).await?;
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
