//! Deletion of rows that are past their retention.
//!
//! Old history is folded into one checkpoint per resource, from which `verify` continues. A line
//! that is not yet included in the stored row of its resource is never deleted.

use std::collections::BTreeMap;

use rusqlite::{Row, params};
use tenure_core::history::Hash;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{Command, JobId, Kinds, Millis, ResourceKey};

use super::database::Database;
use super::jobs::millis_to_sql;
use super::reader::{parse, parse_key, sql_limit};
use crate::store::{Pruned, Retention};

/// History line to delete.
struct ExpiredLine {
    id: i64,
    resource: i64,
    line: String,
    hash: Hash,
}

impl Database {
    /// Deletes up to `rows_max` jobs and history lines that are past their retention. Also returns
    /// the commands that forget resources.
    pub(crate) fn prune(
        &mut self,
        retention: Retention,
        kinds: &Kinds,
        now: Millis,
    ) -> rusqlite::Result<(Pruned, Vec<Command>)> {
        self.in_transaction(|database| {
            let max = retention.rows_max;
            let mut jobs = database.prune_jobs(retention, now)?;
            jobs += database.prune_ephemeral_jobs(kinds, max - jobs, now)?;
            let lines = database.prune_lines(retention, now)?;
            let commands = database.forgettable(kinds, max, now)?;
            Ok((Pruned { jobs, lines, resources: 0 }, commands))
        })
    }

    fn prune_jobs(&self, retention: Retention, now: Millis) -> rusqlite::Result<usize> {
        let before = |keep_ms: u64| Millis(now.0.saturating_sub(keep_ms));
        let (ended, dead_ended) = (before(retention.jobs_ms), before(retention.dead_ms));
        // Ids sort by submit time, and a job ends after its submit: skip all newer ids.
        let sql = "SELECT id FROM jobs WHERE id < ?1 \
                   AND ended < CASE state WHEN 'dead' THEN ?3 ELSE ?2 END ORDER BY id LIMIT ?4";
        let below = JobId::first_at(ended.max(dead_ended)).0.to_be_bytes();
        let (ended, dead_ended) = (millis_to_sql(ended), millis_to_sql(dead_ended));
        let values = params![below, ended, dead_ended, sql_limit(retention.rows_max)];
        let mut query = self.connection.prepare_cached(sql)?;
        let expired: Vec<[u8; 16]> =
            query.query_map(values, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        self.delete_jobs(&expired)?;
        Ok(expired.len())
    }

    /// Deletes finished jobs with their logs.
    pub(super) fn delete_jobs(&self, ids: &[[u8; 16]]) -> rusqlite::Result<()> {
        for id in ids {
            self.connection.prepare_cached("DELETE FROM jobs WHERE id = ?1")?.execute([id])?;
            self.connection.prepare_cached("DELETE FROM logs WHERE job = ?1")?.execute([id])?;
        }
        Ok(())
    }

    fn prune_lines(&self, retention: Retention, now: Millis) -> rusqlite::Result<usize> {
        let expired = self.expired_lines(retention, now)?;
        let Some(last) = expired.last().map(|line| line.id) else { return Ok(0) };
        let mut by_resource: BTreeMap<i64, Vec<&ExpiredLine>> = BTreeMap::new();
        for line in &expired {
            by_resource.entry(line.resource).or_default().push(line);
        }
        for (resource, lines) in by_resource {
            self.fold_into_checkpoint(resource, &lines)?;
        }
        self.connection.prepare_cached("DELETE FROM history WHERE id <= ?1")?.execute([last])
    }

    /// Returns the oldest lines that are past their retention and included in the stored rows.
    fn expired_lines(
        &self,
        retention: Retention,
        now: Millis,
    ) -> rusqlite::Result<Vec<ExpiredLine>> {
        let sql = "SELECT id, resource, line, hash, json_extract(line, '$.at') FROM history \
                   WHERE id <= ?2 ORDER BY id LIMIT ?1";
        let read = |row: &Row<'_>| {
            let hash = Hash(row.get(3)?);
            let (id, resource, line) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((ExpiredLine { id, resource, line, hash }, row.get::<_, i64>(4)?))
        };
        let before = millis_to_sql(Millis(now.0.saturating_sub(retention.history_ms)));
        let values = [sql_limit(retention.rows_max), self.store_clean_position()?];
        let mut query = self.connection.prepare_cached(sql)?;
        let mut expired = Vec::new();
        for line in query.query_map(values, read)? {
            match line? {
                (line, at) if at < before => expired.push(line),
                _ => break,
            }
        }
        Ok(expired)
    }

    fn fold_into_checkpoint(&self, resource: i64, lines: &[&ExpiredLine]) -> rusqlite::Result<()> {
        let sql = "SELECT key, base FROM resources WHERE id = ?1";
        let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get(1)?));
        let (key, base): (String, Option<String>) =
            self.connection.prepare_cached(sql)?.query_row([resource], read)?;
        let key: ResourceKey = parse_key(&key)?;
        let mut replay = match base {
            Some(base) => parse(&base)?,
            None => ChainCheckpoint::new(&key),
        };
        for line in lines {
            let invalid = |error| {
                let text = rusqlite::types::Type::Text;
                rusqlite::Error::FromSqlConversionFailure(2, text, Box::new(error))
            };
            replay.fold(&line.line, line.hash).map_err(invalid)?;
        }
        let base = serde_json::to_string(&replay).expect("a checkpoint serializes to JSON");
        let sql = "UPDATE resources SET base = ?2 WHERE id = ?1";
        self.connection.prepare_cached(sql)?.execute(params![resource, base])?;
        Ok(())
    }
}
