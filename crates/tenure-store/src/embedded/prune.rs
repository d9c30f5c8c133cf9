//! Dropping what is older than it has to be kept.
//!
//! Old lines of history are folded into one row for each resource, from which `verify` goes on; the
//! line of a resource that its row in the file does not know of yet is never dropped.

use std::collections::BTreeMap;

use rusqlite::{Row, params};
use tenure_core::history::Hash;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{JobId, Millis, ResourceKey};

use super::database::Database;
use super::jobs::millis;
use super::reader::{parse, parse_key, rows};
use crate::store::{Pruned, Retention};

/// A line that is about to go.
struct Old {
    id: i64,
    resource: i64,
    line: String,
    hash: Hash,
}

impl Database {
    /// Drops some of what is too old.
    pub(crate) fn prune(&mut self, keep: Retention, now: Millis) -> rusqlite::Result<Pruned> {
        self.in_transaction(|database| {
            let jobs = database.prune_jobs(keep, now)?;
            Ok(Pruned { jobs, lines: database.prune_lines(keep, now)? })
        })
    }

    fn prune_jobs(&self, keep: Retention, now: Millis) -> rusqlite::Result<usize> {
        let before = |keep_ms: u64| Millis(now.0.saturating_sub(keep_ms));
        let (ended, dead_ended) = (before(keep.jobs_ms), before(keep.dead_ms));
        // A job ended after it was submitted, and ids sort by that: nothing newer has to be read.
        let sql = "SELECT id FROM jobs WHERE id < ?1 \
                   AND ended < CASE state WHEN 'dead' THEN ?3 ELSE ?2 END ORDER BY id LIMIT ?4";
        let below = JobId::first_at(ended.max(dead_ended)).0.to_be_bytes();
        let values = params![below, millis(ended), millis(dead_ended), rows(keep.rows_max)];
        let mut query = self.connection.prepare_cached(sql)?;
        let gone: Vec<[u8; 16]> =
            query.query_map(values, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        for id in &gone {
            self.connection.prepare_cached("DELETE FROM jobs WHERE id = ?1")?.execute([id])?;
            self.connection.prepare_cached("DELETE FROM logs WHERE job = ?1")?.execute([id])?;
        }
        Ok(gone.len())
    }

    fn prune_lines(&self, keep: Retention, now: Millis) -> rusqlite::Result<usize> {
        let old = self.old_lines(keep, now)?;
        let Some(last) = old.last().map(|line| line.id) else { return Ok(0) };
        let mut of: BTreeMap<i64, Vec<&Old>> = BTreeMap::new();
        for line in &old {
            of.entry(line.resource).or_default().push(line);
        }
        for (resource, lines) in of {
            self.fold(resource, &lines)?;
        }
        self.connection.prepare_cached("DELETE FROM history WHERE id <= ?1")?.execute([last])
    }

    /// The oldest lines, as long as they are too old and their rows know of them.
    fn old_lines(&self, keep: Retention, now: Millis) -> rusqlite::Result<Vec<Old>> {
        let sql = "SELECT id, resource, line, hash, json_extract(line, '$.at') FROM history \
                   WHERE id <= ?2 ORDER BY id LIMIT ?1";
        let read = |row: &Row<'_>| {
            let hash = Hash(row.get(3)?);
            let old = Old { id: row.get(0)?, resource: row.get(1)?, line: row.get(2)?, hash };
            Ok((old, row.get::<_, i64>(4)?))
        };
        let before = millis(Millis(now.0.saturating_sub(keep.history_ms)));
        let mut query = self.connection.prepare_cached(sql)?;
        let lines = query.query_map([rows(keep.rows_max), self.note_paid()?], read)?;
        let mut old = Vec::new();
        for line in lines {
            match line? {
                (line, at) if at < before => old.push(line),
                _ => break,
            }
        }
        Ok(old)
    }

    fn fold(&self, resource: i64, lines: &[&Old]) -> rusqlite::Result<()> {
        let sql = "SELECT key, base FROM resources WHERE id = ?1";
        let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get(1)?));
        let (key, base): (String, Option<String>) =
            self.connection.prepare_cached(sql)?.query_row([resource], read)?;
        let key: ResourceKey = parse_key(&key)?;
        let mut replay = match base {
            Some(base) => parse(&base)?,
            None => ChainCheckpoint::new(&key),
        };
        for old in lines {
            let bad = |error| {
                let text = rusqlite::types::Type::Text;
                rusqlite::Error::FromSqlConversionFailure(2, text, Box::new(error))
            };
            replay.fold(&old.line, old.hash).map_err(bad)?;
        }
        let base = serde_json::to_string(&replay).expect("its keys are texts");
        let sql = "UPDATE resources SET base = ?2 WHERE id = ?1";
        self.connection.prepare_cached(sql)?.execute(params![resource, base])?;
        Ok(())
    }
}
