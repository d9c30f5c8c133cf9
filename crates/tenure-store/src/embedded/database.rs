//! Reading and writing the SQLite file. No rule of the model is here: rows in, rows out.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use tenure_core::history::Hash;
use tenure_core::{Millis, Record, ResourceKey, Session};

use super::error::Error;
use super::guard::Life;
use crate::ledger::{Batch, Ledger};
use crate::store::{HistoryQuery, Line};

/// Marks the file as ours: "TENU".
const APPLICATION_ID: i64 = 0x5445_4e55;
/// The format that this program writes.
const FORMAT: i64 = 1;
/// Pages of 4 KiB that may gather in the write-ahead log before they are moved to the file: 32 MiB.
const WAL_PAGES_MAX: u32 = 8_192;

/// The writing side of the file.
pub(crate) struct Database {
    connection: Connection,
    path: PathBuf,
    /// The rows of the resources at hand.
    rows: HashMap<ResourceKey, ResourceRow>,
    next_resource: i64,
    next_line: i64,
}

/// Where a resource is kept.
#[derive(Clone, Copy, Debug)]
struct ResourceRow {
    id: i64,
    /// Its last line of history.
    last: i64,
    /// Whether the row is already in the file.
    kept: bool,
}

impl Database {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let sqlite = |source| Error::Sqlite { path: path.to_path_buf(), source };
        let connection = Connection::open(path).map_err(sqlite)?;
        recognise(&connection, path)?;
        connection
            .execute_batch(&format!(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                 PRAGMA wal_autocheckpoint = {WAL_PAGES_MAX}; PRAGMA cache_size = -32768;
                 PRAGMA temp_store = MEMORY;"
            ))
            .map_err(sqlite)?;
        connection.set_prepared_statement_cache_capacity(32);
        let mut database = Self {
            connection,
            path: path.to_path_buf(),
            rows: HashMap::new(),
            next_resource: 1,
            next_line: 1,
        };
        database.migrate().map_err(|error| database.error(error))?;
        database.forget_rows()?;
        Ok(database)
    }

    /// Forgets which rows are at hand and counts again from what is in the file.
    pub(crate) fn forget_rows(&mut self) -> Result<(), Error> {
        let highest = |table| format!("SELECT coalesce(max(id), 0) + 1 FROM {table}");
        self.next_resource = self.number(&highest("resources"))?;
        self.next_line = self.number(&highest("history"))?;
        self.rows.clear();
        Ok(())
    }

    /// Bounds the size of the file, in pages; what does not fit is refused like on a full disk.
    pub(crate) fn limit_pages(&self, pages_max: u32) -> Result<(), Error> {
        self.connection
            .execute_batch(&format!("PRAGMA max_page_count = {pages_max};"))
            .map_err(|error| self.error(error))
    }

    fn migrate(&self) -> rusqlite::Result<()> {
        if pragma(&self.connection, "user_version")? == 0 {
            self.connection.execute_batch(&format!(
                "BEGIN IMMEDIATE; {schema} PRAGMA application_id = {APPLICATION_ID};
                 PRAGMA user_version = {FORMAT}; COMMIT;",
                schema = include_str!("schema.sql")
            ))?;
        }
        Ok(())
    }

    fn number(&self, sql: &str) -> Result<i64, Error> {
        self.connection.query_row(sql, [], |row| row.get(0)).map_err(|error| self.error(error))
    }

    fn error(&self, source: rusqlite::Error) -> Error {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match source.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => self.damaged(source.to_string()),
            _ => Error::Sqlite { path: self.path.clone(), source },
        }
    }

    fn damaged(&self, what: String) -> Error {
        Error::Damaged { path: self.path.clone(), what }
    }

    // ----- the life of the store -----

    pub(crate) fn life(&self) -> Result<Option<Life>, Error> {
        let text: Option<String> = self
            .connection
            .query_row("SELECT value FROM meta WHERE key = 'life'", [], |row| row.get(0))
            .optional()
            .map_err(|error| self.error(error))?;
        let parse = |text: String| serde_json::from_str(&text);
        text.map(parse).transpose().map_err(|error| self.damaged(error.to_string()))
    }

    pub(crate) fn set_life(&self, life: &Life) -> Result<(), Error> {
        let text = serde_json::to_string(life).expect("a life has no map with odd keys");
        let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES ('life', ?1)";
        self.connection.execute(sql, [text]).map_err(|error| self.error(error))?;
        Ok(())
    }

    /// The latest instant that the rows know of.
    pub(crate) fn latest(&self) -> Result<Millis, Error> {
        let sql = "SELECT json_extract(line, '$.at') FROM history ORDER BY id DESC LIMIT 1";
        let at = self.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).optional();
        let at = at.map_err(|error| self.error(error))?.unwrap_or(0);
        Ok(Millis(u64::try_from(at).unwrap_or(0)))
    }

    // ----- reading rows -----

    pub(crate) fn sessions(&self) -> Result<Vec<Session>, Error> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut query = self.connection.prepare("SELECT body FROM sessions")?;
            query.query_map([], |row| row.get(0))?.collect()
        };
        let bodies = read().map_err(|error| self.error(error))?;
        let parse = |body: &String| serde_json::from_str(body);
        let sessions: Result<Vec<_>, _> = bodies.iter().map(parse).collect();
        sessions.map_err(|error| self.damaged(format!("a session: {error}")))
    }

    /// Puts every resource that somebody holds or waits for into the ledger.
    pub(crate) fn admit_live(&mut self, ledger: &mut Ledger) -> Result<(), Error> {
        let read = |connection: &Connection| -> rusqlite::Result<Vec<_>> {
            let sql = "SELECT key, id, last, body FROM resources WHERE live = 1";
            connection.prepare(sql)?.query_map([], resource)?.collect()
        };
        let rows = read(&self.connection).map_err(|error| self.error(error))?;
        for (key, row, body) in rows {
            self.admit(ledger, &key, row, &body)?;
        }
        Ok(())
    }

    /// Puts one resource into the ledger, if it is kept.
    pub(crate) fn admit_one(&mut self, ledger: &mut Ledger, key: &ResourceKey) -> Result<(), Error> {
        let read = |connection: &Connection| {
            let sql = "SELECT key, id, last, body FROM resources WHERE key = ?1";
            connection.prepare_cached(sql)?.query_row([key.as_str()], resource).optional()
        };
        match read(&self.connection).map_err(|error| self.error(error))? {
            Some((key, row, body)) => self.admit(ledger, &key, row, &body),
            None => Ok(()),
        }
    }

    fn admit(
        &mut self,
        ledger: &mut Ledger,
        key: &str,
        row: ResourceRow,
        body: &str,
    ) -> Result<(), Error> {
        let damaged = |what: String| self.damaged(format!("resource {key}: {what}"));
        let record: Record = serde_json::from_str(body).map_err(|e| damaged(e.to_string()))?;
        let key: ResourceKey = key.parse().map_err(|e| damaged(format!("{e}")))?;
        self.rows.insert(key.clone(), row);
        ledger.admit(key, record);
        Ok(())
    }

    pub(crate) fn evict(&mut self, key: &ResourceKey) {
        self.rows.remove(key);
    }

    // ----- writing a batch -----

    /// Writes what a batch changed in one transaction. On an error nothing of it is kept, unless
    /// only the news of the commit was lost.
    pub(crate) fn write(&mut self, ledger: &Ledger, batch: &Batch) -> rusqlite::Result<()> {
        let transaction = self.connection.unchecked_transaction()?;
        for id in &batch.sessions {
            match ledger.world().sessions.get(*id) {
                Some(session) => {
                    let sql = "INSERT OR REPLACE INTO sessions (id, body) VALUES (?1, ?2)";
                    let body = crate::store::durable(session);
                    transaction.prepare_cached(sql)?.execute(params![id.0.to_be_bytes(), body])?;
                }
                None => {
                    let sql = "DELETE FROM sessions WHERE id = ?1";
                    transaction.prepare_cached(sql)?.execute([id.0.to_be_bytes()])?;
                }
            }
        }
        for (key, sealed) in &batch.history {
            let row = self.rows.entry(key.clone()).or_insert_with(|| {
                self.next_resource += 1;
                ResourceRow { id: self.next_resource - 1, last: 0, kept: false }
            });
            let sql = "INSERT INTO history (id, resource, prev, line, hash) VALUES (?1,?2,?3,?4,?5)";
            transaction.prepare_cached(sql)?.execute(params![
                self.next_line,
                row.id,
                row.last,
                sealed.line,
                sealed.hash.0
            ])?;
            row.last = self.next_line;
            self.next_line += 1;
        }
        for key in &batch.records {
            let Some(record) = ledger.world().records.get(key) else { continue };
            let row = self.rows.entry(key.clone()).or_insert_with(|| {
                self.next_resource += 1;
                ResourceRow { id: self.next_resource - 1, last: 0, kept: false }
            });
            let body = serde_json::to_string(record).expect("a record has no map with odd keys");
            let live = record.is_live();
            if row.kept {
                let sql = "UPDATE resources SET live = ?2, last = ?3, body = ?4 WHERE id = ?1";
                let values = params![row.id, live, row.last, body];
                transaction.prepare_cached(sql)?.execute(values)?;
            } else {
                let sql = "INSERT INTO resources (id, key, live, last, body) VALUES (?1,?2,?3,?4,?5)";
                let values = params![row.id, key.as_str(), live, row.last, body];
                transaction.prepare_cached(sql)?.execute(values)?;
                row.kept = true;
            }
        }
        transaction.commit()
    }
}

/// Refuses a file that is something else, or that a later version wrote.
fn recognise(connection: &Connection, path: &Path) -> Result<(), Error> {
    let foreign = |_| Error::Foreign(path.to_path_buf());
    let application = pragma(connection, "application_id").map_err(foreign)?;
    let found = pragma(connection, "user_version").map_err(foreign)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(foreign)?;
    if tables > 0 && application != APPLICATION_ID {
        return Err(Error::Foreign(path.to_path_buf()));
    }
    if found > FORMAT {
        return Err(Error::Newer { path: path.to_path_buf(), found, known: FORMAT });
    }
    Ok(())
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
}

fn resource(row: &Row<'_>) -> rusqlite::Result<(String, ResourceRow, String)> {
    let at = ResourceRow { id: row.get(1)?, last: row.get(2)?, kept: true };
    Ok((row.get(0)?, at, row.get(3)?))
}

/// The reading side of the file, for history, beside the writer.
pub(crate) struct Reader(Connection);

impl Reader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|source| Error::Sqlite { path: path.to_path_buf(), source })?;
        Ok(Self(connection))
    }

    pub(crate) fn history(&self, query: &HistoryQuery) -> rusqlite::Result<Vec<Line>> {
        const LINES: &str = "SELECT h.id, r.key, h.line, h.hash FROM history h \
                             JOIN resources r ON r.id = h.resource";
        match query {
            HistoryQuery::Of { key, before, limit } => self.of(key, *before, *limit),
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

    /// Follows the entries of one resource backwards.
    fn of(&self, key: &ResourceKey, before: Option<u64>, limit: usize) -> rusqlite::Result<Vec<Line>> {
        let first = match before {
            None => self.0.prepare_cached("SELECT last FROM resources WHERE key = ?1")?
                .query_row([key.as_str()], |row| row.get(0)).optional()?,
            Some(before) => self.0.prepare_cached("SELECT prev FROM history WHERE id = ?2 \
                    AND resource = (SELECT id FROM resources WHERE key = ?1)")?
                .query_row(params![key.as_str(), position(Some(before))], |row| row.get(0)).optional()?,
        };
        let mut next: i64 = first.unwrap_or(0);
        let mut entry = self.0.prepare_cached("SELECT id, ?2, line, hash, prev FROM history WHERE id = ?1")?;
        let mut lines = Vec::new();
        while next > 0 && lines.len() < limit {
            let read = |row: &Row<'_>| Ok((line(row)?, row.get(4)?));
            let (line, prev) = entry.query_row(params![next, key.as_str()], read)?;
            lines.push(line);
            next = prev;
        }
        Ok(lines)
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
    let bad = |what: String| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, what.into())
    };
    Ok(Line {
        position: position.unsigned_abs(),
        key: key.parse().map_err(|error| bad(format!("{error}")))?,
        text: row.get(2)?,
        hash: Hash(row.get(3)?),
    })
}
