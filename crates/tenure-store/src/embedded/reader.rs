//! Reading history from the file, beside the writer and never in its way.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use tenure_core::ResourceKey;
use tenure_core::history::Hash;

use super::error::Error;
use crate::store::{HistoryQuery, Line};

/// The reading side of the file, for history, beside the writer.
pub(crate) struct Reader(Connection);

impl Reader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|source| Error::Sqlite { path: path.to_path_buf(), source })?;
        Ok(Self(connection))
    }

    /// Lines of history; those of one resource begin at its `last` line.
    pub(crate) fn history(&self, query: &HistoryQuery, last: i64) -> rusqlite::Result<Vec<Line>> {
        const LINES: &str = "SELECT h.id, r.key, h.line, h.hash FROM history h \
                             JOIN resources r ON r.id = h.resource";
        match query {
            HistoryQuery::Of { key, before, limit } => self.of(key, *before, *limit, last),
            HistoryQuery::Newest { tenant, before, limit } => {
                let sql = format!(
                    "{LINES} WHERE h.id < ?1 AND (?2 IS NULL OR r.key >= ?2 || '/' \
                     AND r.key < ?2 || '0') ORDER BY h.id DESC LIMIT ?3"
                );
                let mut query = self.0.prepare_cached(&sql)?;
                let values = params![position(*before), tenant.as_deref(), rows(*limit)];
                query.query_map(values, line)?.collect()
            }
            HistoryQuery::Scan { after, limit } => {
                let sql = format!("{LINES} WHERE h.id > ?1 ORDER BY h.id LIMIT ?2");
                let mut query = self.0.prepare_cached(&sql)?;
                query.query_map([position(Some(*after)), rows(*limit)], line)?.collect()
            }
        }
    }

    /// Keys of resources, in order.
    pub(crate) fn keys(
        &self,
        after: Option<&ResourceKey>,
        limit: usize,
    ) -> rusqlite::Result<Vec<ResourceKey>> {
        let sql = "SELECT key FROM resources WHERE key > ?1 ORDER BY key LIMIT ?2";
        let after = after.map_or("", ResourceKey::as_str);
        let read = |row: &Row<'_>| parse_key(&row.get::<_, String>(0)?);
        self.0.prepare_cached(sql)?.query_map(params![after, rows(limit)], read)?.collect()
    }

    /// Follows the entries of one resource backwards.
    fn of(
        &self,
        key: &ResourceKey,
        before: Option<u64>,
        limit: usize,
        last: i64,
    ) -> rusqlite::Result<Vec<Line>> {
        let mut next = match before {
            None => last,
            Some(before) => self.entry_before(key, before)?,
        };
        let sql = "SELECT id, ?2, line, hash, prev FROM history WHERE id = ?1";
        let mut entry = self.0.prepare_cached(sql)?;
        let mut lines = Vec::new();
        while next > 0 && lines.len() < limit {
            let read = |row: &Row<'_>| Ok((line(row)?, row.get(4)?));
            let (line, prev) = entry.query_row(params![next, key.as_str()], read)?;
            lines.push(line);
            next = prev;
        }
        Ok(lines)
    }

    /// The entry of a resource before one of its own; none before somebody else's.
    fn entry_before(&self, key: &ResourceKey, position: u64) -> rusqlite::Result<i64> {
        let sql = "SELECT prev FROM history WHERE id = ?2 \
                   AND resource = (SELECT id FROM resources WHERE key = ?1)";
        let mut query = self.0.prepare_cached(sql)?;
        let values = params![key.as_str(), self::position(Some(position))];
        let prev = query.query_row(values, |row| row.get(0)).optional()?;
        Ok(prev.unwrap_or(0))
    }
}

fn position(at: Option<u64>) -> i64 {
    at.map_or(i64::MAX, |at| i64::try_from(at).unwrap_or(i64::MAX))
}

fn rows(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn line(row: &Row<'_>) -> rusqlite::Result<Line> {
    let (position, key): (i64, String) = (row.get(0)?, row.get(1)?);
    Ok(Line {
        position: position.unsigned_abs(),
        key: parse_key(&key)?,
        text: row.get(2)?,
        hash: Hash(row.get(3)?),
    })
}

fn parse_key(key: &str) -> rusqlite::Result<ResourceKey> {
    key.parse().map_err(|error| {
        let text = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(0, text, Box::new(error))
    })
}
