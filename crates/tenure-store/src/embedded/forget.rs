//! Forgetting resources, and pruning the jobs of ephemeral kinds.
//!
//! Both examine a bounded range of rows per call, in rotation: no index serves them, because every
//! commit would have to maintain it.

use rusqlite::{OptionalExtension, Row, params};
use tenure_core::{Command, JobId, Kinds, Millis, ResourceKey, TokenFloors};

use super::database::{Database, millis_from_sql};
use super::error::Error;
use super::jobs::millis_to_sql;
use super::reader::parse_key;
use crate::forget;
use crate::ledger::{Batch, Ledger};

/// Maximum number of rows that one call examines.
const EXAMINED_MAX: i64 = 10_000;

/// How far the rows have been examined.
#[derive(Default)]
pub(super) struct Examined {
    resource: i64,
    job: Option<JobId>,
}

impl Database {
    /// Returns the stored token floors.
    pub(super) fn floors(&self) -> Result<TokenFloors, Error> {
        let text: Option<String> = self
            .connection
            .query_row("SELECT value FROM meta WHERE key = 'floors'", [], |row| row.get(0))
            .optional()
            .map_err(|error| self.error(error))?;
        let parse = |text: String| serde_json::from_str(&text);
        let floors = text.map(parse).transpose().map_err(|e| self.damaged(e.to_string()))?;
        Ok(floors.unwrap_or_default())
    }

    /// Deletes the forgotten resources of a batch with their history, and stores the floors.
    pub(super) fn write_forgotten(
        &mut self,
        ledger: &Ledger,
        batch: &Batch,
    ) -> rusqlite::Result<()> {
        if batch.forgotten.is_empty() {
            return Ok(());
        }
        for (key, _) in &batch.forgotten {
            let Some(row) = self.rows.remove(key) else { continue };
            self.delete_history(row.last)?;
            let sql = "DELETE FROM resources WHERE id = ?1";
            self.connection.prepare_cached(sql)?.execute([row.id])?;
        }
        let floors = serde_json::to_string(&ledger.world().floors).expect("serializes to JSON");
        let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES ('floors', ?1)";
        self.connection.prepare_cached(sql)?.execute([floors])?;
        Ok(())
    }

    /// Deletes the history of one resource, from its last line backwards.
    fn delete_history(&self, last: i64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM history WHERE id = ?1 RETURNING prev";
        let mut delete = self.connection.prepare_cached(sql)?;
        let mut line = Some(last);
        while let Some(id) = line.filter(|id| *id != 0) {
            line = delete.query_row([id], |row| row.get(0)).optional()?;
        }
        Ok(())
    }

    /// Returns the commands that forget resources, from the next range of rows.
    pub(super) fn forgettable(
        &mut self,
        kinds: &Kinds,
        max: usize,
        now: Millis,
    ) -> rusqlite::Result<Vec<Command>> {
        let sql = "SELECT r.id, r.key, json_extract(r.body, '$.chain.n'), \
                          (SELECT json_extract(h.line, '$.at') FROM history h WHERE h.id = r.last) \
                   FROM resources r \
                   WHERE r.id > ?1 AND r.id <= ?2 AND r.live = 0 AND r.state IS NULL ORDER BY r.id";
        let read = |row: &Row<'_>| {
            let key: ResourceKey = parse_key(&row.get::<_, String>(1)?)?;
            let (n, last_at): (i64, Option<i64>) = (row.get(2)?, row.get(3)?);
            Ok((row.get::<_, i64>(0)?, key, n, last_at.map(millis_from_sql)))
        };
        let from = self.examined.resource;
        let mut end = from + EXAMINED_MAX;
        let mut commands = Vec::new();
        for candidate in self.connection.prepare_cached(sql)?.query_map([from, end], read)? {
            let (id, key, n, last_at) = candidate?;
            if forget::may_forget(kinds, &key, last_at, now) {
                commands.push(forget::command(&key, n.unsigned_abs()));
            }
            if commands.len() == max {
                end = id;
                break;
            }
        }
        let highest = "SELECT coalesce(max(id), 0) FROM resources";
        let highest: i64 = self.connection.prepare_cached(highest)?.query_row([], |r| r.get(0))?;
        self.examined.resource = if end >= highest { 0 } else { end };
        Ok(commands)
    }

    /// Deletes finished jobs of ephemeral kinds, from the next range of rows.
    pub(super) fn prune_ephemeral_jobs(
        &mut self,
        kinds: &Kinds,
        max: usize,
        now: Millis,
    ) -> rusqlite::Result<usize> {
        let shortest = kinds.iter().filter_map(|kind| kind.ephemeral_ms).min();
        let Some(shortest) = shortest.filter(|_| max > 0) else { return Ok(0) };
        let sql = "SELECT id, key, ended FROM jobs WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3";
        let read = |row: &Row<'_>| {
            let id = JobId(u128::from_be_bytes(row.get(0)?));
            let key: ResourceKey = parse_key(&row.get::<_, String>(1)?)?;
            Ok((id, key, row.get::<_, i64>(2)?))
        };
        let from = self.examined.job.unwrap_or(JobId(0)).0.to_be_bytes();
        let below = JobId::first_at(Millis(now.0.saturating_sub(shortest))).0.to_be_bytes();
        let values = params![from, below, EXAMINED_MAX];
        let mut query = self.connection.prepare_cached(sql)?;
        let (mut expired, mut examined, mut last) = (Vec::new(), 0, None);
        for job in query.query_map(values, read)? {
            let (id, key, ended) = job?;
            (examined, last) = (examined + 1, Some(id));
            let keep = |ephemeral_ms| millis_to_sql(Millis(now.0.saturating_sub(ephemeral_ms)));
            if kinds.ephemeral_ms(&key).is_some_and(|ephemeral_ms| ended < keep(ephemeral_ms)) {
                expired.push(id.0.to_be_bytes());
            }
            if expired.len() == max {
                break;
            }
        }
        // The next call starts again when all rows have been examined.
        let more = examined == EXAMINED_MAX || expired.len() == max;
        self.examined.job = last.filter(|_| more);
        self.delete_jobs(&expired)?;
        Ok(expired.len())
    }
}
