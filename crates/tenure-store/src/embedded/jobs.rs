//! Rows of finished jobs and of logs.

use rusqlite::params;
use tenure_core::world::LogChunk;
use tenure_core::{JobId, Millis};

use super::database::Database;
use super::error::Error;
use super::reader::find_job;
use crate::ledger::Batch;
use crate::store::JobView;

impl Database {
    /// Returns a finished job.
    pub(crate) fn job(&self, id: JobId) -> Result<Option<JobView>, Error> {
        find_job(&self.connection, id).map_err(|error| self.error(error))
    }

    pub(super) fn write_jobs(&self, batch: &Batch) -> rusqlite::Result<()> {
        for (key, job) in &batch.finished {
            let sql = "INSERT OR REPLACE INTO jobs (id, key, operation, state, ended, body) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            let body = serde_json::to_string(job).expect("a job serializes to JSON");
            let (id, ended) =
                (job.id.0.to_be_bytes(), millis_to_sql(job.ended_at.unwrap_or_default()));
            let values =
                params![id, key.as_str(), &*job.operation, job.state.as_str(), ended, body];
            self.connection.prepare_cached(sql)?.execute(values)?;
        }
        for LogChunk { job, attempt, at, text } in &batch.logs {
            let sql = "INSERT INTO logs (job, attempt, at, text) VALUES (?1, ?2, ?3, ?4)";
            let values = params![job.0.to_be_bytes(), attempt, millis_to_sql(*at), &**text];
            self.connection.prepare_cached(sql)?.execute(values)?;
        }
        Ok(())
    }
}

/// Converts an instant to its column.
pub(super) fn millis_to_sql(at: Millis) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}
