//! Read-only queries on the file, concurrent with the writer.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use tenure_core::history::Hash;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{JobId, JobState, Millis, Record, ResourceKey};

use super::error::Error;
use crate::store::{
    HistoryQuery, HistoryRow, JobQuery, JobView, LogLine, LogQuery, ResourceQuery, ResourceView,
    key_range, matches_group,
};

/// Read-only connection to the file.
pub(crate) struct Reader(Connection);

impl Reader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|source| Error::Sqlite { path: path.to_path_buf(), source })?;
        Ok(Self(connection))
    }

    /// Lists history. `last` is the position of the newest line of the resource, if the query
    /// selects one.
    pub(crate) fn history(
        &self,
        query: &HistoryQuery,
        last: i64,
    ) -> rusqlite::Result<Vec<HistoryRow>> {
        const LINES: &str = "SELECT h.id, r.key, h.line, h.hash FROM history h \
                             JOIN resources r ON r.id = h.resource";
        match query {
            HistoryQuery::Of { key, before, limit } => {
                self.resource_history(key, *before, *limit, last)
            }
            HistoryQuery::Newest { tenant, before, limit } => {
                let sql = format!(
                    "{LINES} WHERE h.id < ?1 AND (?2 IS NULL OR r.key >= ?2 || '/' \
                     AND r.key < ?2 || '0') ORDER BY h.id DESC LIMIT ?3"
                );
                let mut query = self.0.prepare_cached(&sql)?;
                let before = sql_position(*before);
                let values = params![before, tenant.as_deref(), sql_limit(*limit)];
                query.query_map(values, history_row)?.collect()
            }
            HistoryQuery::Scan { after, limit } => {
                let sql = format!("{LINES} WHERE h.id > ?1 ORDER BY h.id LIMIT ?2");
                let mut query = self.0.prepare_cached(&sql)?;
                let values = [sql_position(Some(*after)), sql_limit(*limit)];
                query.query_map(values, history_row)?.collect()
            }
        }
    }

    /// Lists the keys of resources, in order.
    pub(crate) fn keys(
        &self,
        after: Option<&ResourceKey>,
        limit: usize,
    ) -> rusqlite::Result<Vec<ResourceKey>> {
        let sql = "SELECT key FROM resources WHERE key > ?1 ORDER BY key LIMIT ?2";
        let after = after.map_or("", ResourceKey::as_str);
        let read = |row: &Row<'_>| parse_key(&row.get::<_, String>(0)?);
        self.0.prepare_cached(sql)?.query_map(params![after, sql_limit(limit)], read)?.collect()
    }

    /// Lists the checkpoints of pruned history.
    pub(crate) fn checkpoints(
        &self,
        after: Option<&ResourceKey>,
        limit: usize,
    ) -> rusqlite::Result<Vec<(ResourceKey, ChainCheckpoint)>> {
        let sql = "SELECT key, base FROM resources WHERE base IS NOT NULL AND key > ?1 \
                   ORDER BY key LIMIT ?2";
        let after = after.map_or("", ResourceKey::as_str);
        let read = |row: &Row<'_>| {
            let (key, base): (String, String) = (row.get(0)?, row.get(1)?);
            Ok((parse_key(&key)?, parse(&base)?))
        };
        self.0.prepare_cached(sql)?.query_map(params![after, sql_limit(limit)], read)?.collect()
    }

    /// Returns the checkpoint of the pruned history of a resource.
    pub(crate) fn checkpoint(
        &self,
        key: &ResourceKey,
    ) -> rusqlite::Result<Option<ChainCheckpoint>> {
        let sql = "SELECT base FROM resources WHERE key = ?1 AND base IS NOT NULL";
        let read = |row: &Row<'_>| parse(&row.get::<_, String>(0)?);
        self.0.prepare_cached(sql)?.query_row([key.as_str()], read).optional()
    }

    /// Returns a finished job.
    pub(crate) fn job(&self, id: JobId) -> rusqlite::Result<Option<JobView>> {
        find_job(&self.0, id)
    }

    /// Lists finished jobs, newest first, up to one more than the limit.
    pub(crate) fn jobs(&self, query: &JobQuery) -> rusqlite::Result<Vec<JobView>> {
        if query.state.is_some_and(|state| !state.is_finished()) {
            // The table has finished jobs only: avoid a full scan without results.
            return Ok(Vec::new());
        }
        // Literals, so that SQLite uses a partial index.
        let selection = match (query.state, &query.group, &query.tenant, &query.kind) {
            (_, Some(_), Some(_), Some(_)) => {
                "instr(key, ':') > 0 AND key >= ?4 AND key < ?5 AND (?3 IS NULL OR state = ?3)"
            }
            (Some(JobState::Dead), _, _, _) => "state = 'dead' AND key >= ?4 AND key < ?5",
            _ => "(?3 IS NULL OR state = ?3) AND +key >= ?4 AND +key < ?5",
        };
        let sql = format!(
            "SELECT key, body FROM jobs WHERE id < ?1 AND {selection} \
             AND (?2 IS NULL OR operation = ?2) AND ?3 IS ?3 ORDER BY id DESC"
        );
        let (from, to) =
            key_range(query.tenant.as_ref(), query.kind.as_ref(), query.group.as_ref());
        let below = query.after.map_or([255; 16], |id| id.0.to_be_bytes());
        let state = query.state.map(JobState::as_str);
        let mut statement = self.0.prepare_cached(&sql)?;
        let values = params![below, query.operation.as_deref(), state, from, to];
        let found = statement.query_map(values, parse_job)?;
        let matches = |view: &rusqlite::Result<JobView>| {
            view.as_ref().map_or(true, |view| query.matches(&view.key, &view.job))
        };
        found.filter(matches).take(query.limit + 1).collect()
    }

    /// Lists the resources of all dead letters with the time of their death.
    pub(crate) fn dead_letters(&self) -> rusqlite::Result<Vec<(ResourceKey, Millis)>> {
        let sql = "SELECT key, ended FROM jobs WHERE state = 'dead'";
        let read = |row: &Row<'_>| {
            let (key, ended): (String, i64) = (row.get(0)?, row.get(1)?);
            Ok((parse_key(&key)?, Millis(ended.unsigned_abs())))
        };
        self.0.prepare_cached(sql)?.query_map([], read)?.collect()
    }

    /// Lists resources that have a state, up to one more than the limit.
    pub(crate) fn resources(&self, query: &ResourceQuery) -> rusqlite::Result<Vec<ResourceView>> {
        let sql = "SELECT key, body FROM resources WHERE key > ?1 AND key >= ?2 AND key < ?3 \
                   AND state IS NOT NULL ORDER BY key";
        let after = query.after.as_ref().map_or("", ResourceKey::as_str);
        let (from, to) =
            key_range(query.tenant.as_ref(), query.kind.as_ref(), query.group.as_ref());
        let mut statement = self.0.prepare_cached(sql)?;
        let mut found = statement.query(params![after, from, to])?;
        let mut views = Vec::new();
        while let Some(row) = found.next()? {
            let key = parse_key(&row.get::<_, String>(0)?)?;
            let is_kind = query.kind.as_ref().is_none_or(|kind| **kind == *key.kind());
            // Bodies are parsed only of what is listed: without a tenant, the list of a kind reads
            // all rows.
            if !is_kind || !matches_group(&query.group, &key) {
                continue;
            }
            let record: Record = parse(&row.get::<_, String>(1)?)?;
            if let Some(resource) = record.resource {
                views.push(ResourceView { key, resource });
            }
            if views.len() > query.limit {
                break;
            }
        }
        Ok(views)
    }

    /// Lists log chunks.
    pub(crate) fn logs(&self, query: LogQuery) -> rusqlite::Result<Vec<LogLine>> {
        let sql = "SELECT id, attempt, at, text FROM logs WHERE job = ?1 AND id > ?2 \
                   ORDER BY id LIMIT ?3";
        let read = |row: &Row<'_>| {
            let (position, at): (i64, i64) = (row.get(0)?, row.get(2)?);
            let (position, at) = (position.unsigned_abs(), Millis(at.unsigned_abs()));
            let text: String = row.get(3)?;
            Ok(LogLine { position, attempt: row.get(1)?, at, text: text.into() })
        };
        let id = query.job.0.to_be_bytes();
        let values = params![id, sql_position(Some(query.after)), sql_limit(query.limit)];
        self.0.prepare_cached(sql)?.query_map(values, read)?.collect()
    }

    /// Follows the lines of one resource backwards.
    fn resource_history(
        &self,
        key: &ResourceKey,
        before: Option<u64>,
        limit: usize,
        last: i64,
    ) -> rusqlite::Result<Vec<HistoryRow>> {
        let mut next = match before {
            None => last,
            Some(before) => self.line_before(key, before)?,
        };
        let sql = "SELECT id, ?2, line, hash, prev FROM history WHERE id = ?1";
        let mut statement = self.0.prepare_cached(sql)?;
        let mut lines = Vec::new();
        while next > 0 && lines.len() < limit {
            let read = |row: &Row<'_>| Ok((history_row(row)?, row.get(4)?));
            let found = statement.query_row(params![next, key.as_str()], read).optional()?;
            // Older lines were pruned.
            let Some((line, prev)) = found else { break };
            lines.push(line);
            next = prev;
        }
        Ok(lines)
    }

    /// Returns the line of a resource before `position`, or 0 if the line at `position` belongs to
    /// another resource.
    fn line_before(&self, key: &ResourceKey, position: u64) -> rusqlite::Result<i64> {
        let sql = "SELECT prev FROM history WHERE id = ?2 \
                   AND resource = (SELECT id FROM resources WHERE key = ?1)";
        let mut query = self.0.prepare_cached(sql)?;
        let values = params![key.as_str(), sql_position(Some(position))];
        let prev = query.query_row(values, |row| row.get(0)).optional()?;
        Ok(prev.unwrap_or(0))
    }
}

fn sql_position(position: Option<u64>) -> i64 {
    position.map_or(i64::MAX, |position| i64::try_from(position).unwrap_or(i64::MAX))
}

pub(super) fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn history_row(row: &Row<'_>) -> rusqlite::Result<HistoryRow> {
    let (position, key): (i64, String) = (row.get(0)?, row.get(1)?);
    Ok(HistoryRow {
        position: position.unsigned_abs(),
        key: parse_key(&key)?,
        text: row.get(2)?,
        hash: Hash(row.get(3)?),
    })
}

/// Returns a finished job.
pub(crate) fn find_job(connection: &Connection, id: JobId) -> rusqlite::Result<Option<JobView>> {
    let sql = "SELECT key, body FROM jobs WHERE id = ?1";
    connection.prepare_cached(sql)?.query_row([id.0.to_be_bytes()], parse_job).optional()
}

fn parse_job(row: &Row<'_>) -> rusqlite::Result<JobView> {
    let (key, body): (String, String) = (row.get(0)?, row.get(1)?);
    Ok(JobView { key: parse_key(&key)?, job: parse(&body)? })
}

/// Parses the JSON body of a row.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(body: &str) -> rusqlite::Result<T> {
    serde_json::from_str(body).map_err(|error| {
        let text = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(0, text, Box::new(error))
    })
}

pub(super) fn parse_key(key: &str) -> rusqlite::Result<ResourceKey> {
    key.parse().map_err(|error| {
        let text = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(0, text, Box::new(error))
    })
}
