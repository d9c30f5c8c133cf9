//! Pages of logs and of history, as routes of the server and of apps return them.
//!
//! Positions count across all tenants, so a caller that is bound to a tenant sees them encrypted.

use std::time::Duration;

use serde::Deserialize;
use tenure_core::JobId;
use tenure_store::queries::LogPage;
use tenure_store::store::{HistoryQuery, HistoryRow, LogLine, LogQuery};
use tenure_wire::{HistoryEntry, ListResponse, LogChunkInfo, LogResponse, schema};
use utoipa::IntoParams;

use crate::caller::Caller;
use crate::position_cipher::PositionCipher;
use crate::problem::Problem;
use crate::services::{Services, page_size, wait_timeout};

/// Interval at which a request that waits for log text polls: the store has no hints for logs.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Parameters of a page of a log.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LogParams {
    /// `next` of the previous page.
    #[param(value_type = schema::Uint64, required = false, inline)]
    pub after: Option<u64>,
    /// Filter by attempt.
    #[param(value_type = schema::AttemptNumber, required = false, inline)]
    pub attempt: Option<u32>,
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    pub limit: Option<usize>,
    /// Maximum time to wait before responding, at most 60000.
    #[param(value_type = schema::Uint64, required = false, inline)]
    pub wait_ms: Option<u64>,
}

/// Parameters of a page of history.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct HistoryParams {
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    pub limit: Option<usize>,
    /// `next` of the previous page.
    #[param(value_type = schema::Uint64, required = false, inline)]
    pub cursor: Option<u64>,
}

impl Services {
    /// Returns a page of the log of a job that the caller may see; waits for text if `wait_ms` asks
    /// for it.
    pub async fn log_page(
        &self,
        caller: &Caller,
        job: JobId,
        params: &LogParams,
    ) -> Result<LogResponse, Problem> {
        let limit = page_size(params.limit)?;
        let timeout = wait_timeout(params.wait_ms);
        let timed_out = tokio::time::sleep(timeout);
        tokio::pin!(timed_out);
        let cipher = self.position_cipher(caller);
        let mut after = self.decrypt_position(caller, params.after).unwrap_or(0);
        loop {
            let mut wait = self.job_waits.register(job);
            // Read before the log, which then includes everything up to the end of the job.
            let finished = self.find_job(caller, job).await?.job.state.is_finished();
            let query = LogQuery { job, after, limit };
            let page = self.store().reads().log_page(query, params.attempt).await?;
            if !page.chunks.is_empty() || finished || timeout.is_zero() {
                return Ok(log_response(&page, cipher.as_ref()));
            }
            after = page.next;
            tokio::select! {
                () = wait.ended() => continue,
                () = tokio::time::sleep(POLL_INTERVAL) => continue,
                () = &mut timed_out => {}
                () = self.closing.cancelled() => {}
            }
            return Ok(log_response(&page, cipher.as_ref()));
        }
    }

    /// Returns a page of history, newest first. `query` makes the query for an exclusive end and a
    /// number of events.
    pub async fn history_page(
        &self,
        caller: &Caller,
        params: &HistoryParams,
        query: impl FnOnce(Option<u64>, usize) -> HistoryQuery,
    ) -> Result<ListResponse<HistoryEntry>, Problem> {
        let limit = page_size(params.limit)?;
        let before = self.decrypt_position(caller, params.cursor);
        let lines = self.store().reads().history(query(before, limit)).await?;
        let cipher = self.position_cipher(caller);
        let full = lines.len() == limit;
        let lines = lines.into_iter().map(|line| history_entry(line, cipher.as_ref()));
        let items = lines.collect::<Result<Vec<_>, _>>()?;
        let next = items.last().filter(|_| full).map(|line| line.position.to_string());
        Ok(ListResponse { items, next })
    }

    /// Returns the cipher of the positions shown to `caller`; `None` if it may see them in clear.
    #[must_use]
    pub fn position_cipher(&self, caller: &Caller) -> Option<PositionCipher> {
        caller.bound_tenant().map(|tenant| PositionCipher::new(self.secret(), tenant))
    }

    /// Decrypts a position that was shown to `caller`.
    #[must_use]
    pub fn decrypt_position(&self, caller: &Caller, shown: Option<u64>) -> Option<u64> {
        let cipher = self.position_cipher(caller);
        shown.map(|shown| cipher.map_or(shown, |cipher| cipher.decrypt(shown)))
    }
}

fn log_response(page: &LogPage, cipher: Option<&PositionCipher>) -> LogResponse {
    let shown = |position| cipher.map_or(position, |cipher| cipher.encrypt(position));
    let chunk = |chunk: &LogLine| {
        LogChunkInfo::new(shown(chunk.position), chunk.attempt, chunk.at, &chunk.text)
    };
    LogResponse { items: page.chunks.iter().map(chunk).collect(), next: shown(page.next) }
}

/// Converts an event for a caller whose positions `cipher` encrypts.
pub fn history_entry(
    line: HistoryRow,
    cipher: Option<&PositionCipher>,
) -> Result<HistoryEntry, Problem> {
    let HistoryRow { position, key, text, hash } = line;
    let shown = cipher.map_or(position, |cipher| cipher.encrypt(position));
    let entry = HistoryEntry::new(shown, key.clone(), text, hash.to_string());
    entry.map_err(|error| {
        Problem::unavailable(&format!("cannot parse entry {position} of {key}: {error}"))
    })
}
