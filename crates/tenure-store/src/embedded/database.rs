//! Rows of the SQLite file: reading, writing, and write-back of records.
//!
//! A batch writes its history, its sessions, and the records that cannot be rebuilt from history.
//! All other changed records are dirty and written back later, a few at a time; after a crash they
//! are rebuilt by replaying history when the file is opened. So a batch costs a few pages at the
//! end of one table rather than a page per resource.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::history::{Entry, Hash};
use tenure_core::{Millis, Record, ResourceKey, Session, SessionId};

use super::checkpoint::Checkpointer;
use super::error::Error;
use super::forget::Examined;
use super::format::{check_format, migrate};
use super::ownership::{IncarnationRecord, restrict_files};
use super::room::Room;
use crate::ledger::{Batch, Ledger};
use crate::private_file;

/// Number of dirty records above which a batch writes some of them back.
const DIRTY_MAX: usize = 32_768;
/// Number of history lines that a busy store lets a row lag, which bounds the replay after a crash.
/// A lower value writes frequently changing records more often.
const LAG_MAX_LINES: i64 = 200_000;
/// Maximum number of records written back per transaction.
const WRITE_BACK_MAX: usize = 1_024;

/// Read-write connection to the file.
pub(crate) struct Database {
    pub(super) connection: Connection,
    checkpointer: Checkpointer,
    path: PathBuf,
    /// How far pruning has examined resources and jobs of ephemeral kinds.
    pub(super) examined: Examined,
    /// Rows of the resources in memory.
    pub(super) rows: HashMap<ResourceKey, ResourceRow>,
    /// Dirty resources in order of age, with the first line that their row does not include. An
    /// entry that does not match its row is stale: the row was written back since.
    dirty: VecDeque<(ResourceKey, i64)>,
    next_resource: i64,
    next_line: i64,
    /// Value of `next_line` at the previous idle check.
    idle_check_line: i64,
}

/// Location and write-back state of a resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceRow {
    pub(super) id: i64,
    /// Last history line of the resource.
    pub(super) last: i64,
    /// First history line that the stored row does not include; 0 if the row is clean,
    /// [`NOT_STORED`] if there is no row yet.
    dirty_since: i64,
    /// Whether the stored row appears in lists of resources, which must never be stale.
    listed: bool,
}

/// Value of `dirty_since` for a resource without a row.
const NOT_STORED: i64 = -1;

impl Database {
    pub(crate) fn open(path: &Path, room: &Room) -> Result<Self, Error> {
        let sqlite = |source| Error::Sqlite { path: path.to_path_buf(), source };
        // SQLite creates the log and its index with the mode of the file.
        private_file::create(path).map_err(|source| Error::Io {
            what: "create",
            path: path.to_path_buf(),
            source,
        })?;
        let mut connection = Connection::open(path).map_err(sqlite)?;
        check_format(&connection, path)?;
        restrict_files(path)?;
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                 PRAGMA cache_size = -8192; PRAGMA temp_store = MEMORY;",
            )
            .map_err(sqlite)?;
        connection.set_prepared_statement_cache_capacity(32);
        let checkpointer = Checkpointer::start(&mut connection, path, room).map_err(sqlite)?;
        let mut database = Self {
            connection,
            checkpointer,
            path: path.to_path_buf(),
            examined: Examined::default(),
            rows: HashMap::new(),
            dirty: VecDeque::new(),
            next_resource: 1,
            next_line: 1,
            idle_check_line: 0,
        };
        migrate(&database.connection).map_err(|error| database.error(error))?;
        database.reset_rows()?;
        Ok(database)
    }

    /// Clears the row index and reads the counters from the file.
    pub(crate) fn reset_rows(&mut self) -> Result<(), Error> {
        let highest = |table| format!("SELECT coalesce(max(id), 0) + 1 FROM {table}");
        self.next_resource = self.number(&highest("resources"))?;
        // Numbers of pruned lines must not be reused.
        let clean = "SELECT coalesce(max(value), 0) + 1 FROM meta WHERE key = 'paid'";
        self.next_line = self.number(&highest("history"))?.max(self.number(clean)?);
        self.rows.clear();
        self.dirty.clear();
        Ok(())
    }

    /// Limits the size of the file in pages. Beyond it, writes fail as on a full disk.
    pub(crate) fn limit_pages(&self, pages_max: u32) -> Result<(), Error> {
        self.connection
            .execute_batch(&format!("PRAGMA max_page_count = {pages_max};"))
            .map_err(|error| self.error(error))
    }

    fn number(&self, sql: &str) -> Result<i64, Error> {
        self.connection.query_row(sql, [], |row| row.get(0)).map_err(|error| self.error(error))
    }

    pub(super) fn error(&self, source: rusqlite::Error) -> Error {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match source.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => self.damaged(source.to_string()),
            _ => Error::Sqlite { path: self.path.clone(), source },
        }
    }

    pub(super) fn damaged(&self, what: String) -> Error {
        Error::Damaged { path: self.path.clone(), what }
    }

    // ----- incarnation -----

    pub(crate) fn incarnation(&self) -> Result<Option<IncarnationRecord>, Error> {
        let text: Option<String> = self
            .connection
            .query_row("SELECT value FROM meta WHERE key = 'life'", [], |row| row.get(0))
            .optional()
            .map_err(|error| self.error(error))?;
        let parse = |text: String| serde_json::from_str(&text);
        text.map(parse).transpose().map_err(|error| self.damaged(error.to_string()))
    }

    /// Stores the incarnation. If the store was `restored`, deletes all sessions: their locks may
    /// have been released and granted to others after the backup.
    pub(crate) fn set_incarnation(
        &mut self,
        incarnation: &IncarnationRecord,
        restored: bool,
    ) -> Result<(), Error> {
        let text = serde_json::to_string(incarnation).expect("it serializes to JSON");
        let result = self.in_transaction(|database| {
            let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES ('life', ?1)";
            database.connection.execute(sql, [text])?;
            if restored {
                database.connection.execute("DELETE FROM sessions", [])?;
            }
            Ok(())
        });
        result.map_err(|error| self.error(error))
    }

    /// Returns the time of the last history line.
    pub(crate) fn latest(&self) -> Result<Millis, Error> {
        let sql = "SELECT json_extract(line, '$.at') FROM history ORDER BY id DESC LIMIT 1";
        let at = self.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).optional();
        let at = at.map_err(|error| self.error(error))?.unwrap_or(0);
        Ok(millis_from_sql(at))
    }

    // ----- reading -----

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

    /// Loads every live record into the ledger, after replaying the history that was not written
    /// back.
    pub(crate) fn load_live(&mut self, ledger: &mut Ledger, now: Millis) -> Result<(), Error> {
        let mut loaded = BTreeMap::new();
        let live = "SELECT key, id, last, body, state IS NOT NULL FROM resources WHERE live = 1";
        for row in self.query(live, [], resource_row)? {
            let (key, row, record) = self.parse(row)?;
            loaded.insert(key, (row, record));
        }
        self.replay_history(&mut loaded)?;
        for (key, (row, record)) in loaded {
            ledger.insert_record(&key, Box::new(record), now);
            self.rows.insert(key, row);
        }
        Ok(())
    }

    fn replay_history(
        &mut self,
        loaded: &mut BTreeMap<ResourceKey, (ResourceRow, Record)>,
    ) -> Result<(), Error> {
        let lines = "SELECT r.key, h.id, h.line, h.hash FROM history h \
                     JOIN resources r ON r.id = h.resource \
                     WHERE h.id > coalesce((SELECT value FROM meta WHERE key = 'paid'), 0) \
                     ORDER BY h.id";
        let line = |row: &Row<'_>| {
            let line: String = row.get(2)?;
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, line, Hash(row.get(3)?)))
        };
        for (key, id, line, hash) in self.query(lines, [], line)? {
            let bad = |what: String| self.damaged(format!("entry {id} of {key}: {what}"));
            let entry = Entry::parse(&line).map_err(|error| bad(error.to_string()))?;
            let key: ResourceKey = key.parse().map_err(|error| bad(format!("{error}")))?;
            if !loaded.contains_key(&key)
                && let Some((row, record)) = self.find(&key)?
            {
                loaded.insert(key.clone(), (row, record));
            }
            let Some((row, record)) = loaded.get_mut(&key) else { continue };
            if entry.n > record.chain.n {
                record.replay(&entry, hash);
                row.last = id;
                mark_dirty(row, &mut self.dirty, &key, id);
            }
        }
        Ok(())
    }

    /// Loads one record into the ledger, if it is stored.
    pub(crate) fn load_record(
        &mut self,
        ledger: &mut Ledger,
        key: &ResourceKey,
        now: Millis,
    ) -> Result<(), Error> {
        if let Some((row, record)) = self.find(key)? {
            self.rows.insert(key.clone(), row);
            ledger.insert_record(key, Box::new(record), now);
        }
        Ok(())
    }

    fn find(&self, key: &ResourceKey) -> Result<Option<(ResourceRow, Record)>, Error> {
        let sql = "SELECT key, id, last, body, state IS NOT NULL FROM resources WHERE key = ?1";
        let mut found = self.query(sql, [key.as_str()], resource_row)?;
        let Some(row) = found.pop() else { return Ok(None) };
        let (_, row, record) = self.parse(row)?;
        Ok(Some((row, record)))
    }

    /// Returns the position of the last history line of a resource.
    pub(crate) fn last_line(&self, key: &ResourceKey) -> Result<i64, Error> {
        if let Some(row) = self.rows.get(key) {
            return Ok(row.last);
        }
        let sql = "SELECT last FROM resources WHERE key = ?1";
        let last = self.query(sql, [key.as_str()], |row| row.get(0))?;
        Ok(last.first().copied().unwrap_or(0))
    }

    fn query<T>(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let rows = || -> rusqlite::Result<Vec<T>> {
            self.connection.prepare_cached(sql)?.query_map(values, read)?.collect()
        };
        rows().map_err(|error| self.error(error))
    }

    fn parse(
        &self,
        (key, row, body): (String, ResourceRow, String),
    ) -> Result<(ResourceKey, ResourceRow, Record), Error> {
        let damaged = |what: String| self.damaged(format!("resource {key}: {what}"));
        let record = serde_json::from_str(&body).map_err(|error| damaged(error.to_string()))?;
        Ok((key.parse().map_err(|error| damaged(format!("{error}")))?, row, record))
    }

    /// Removes a clean resource from the row index. Returns `false` if it is dirty.
    pub(crate) fn evict_row(&mut self, key: &ResourceKey) -> bool {
        let clean = self.rows.get(key).is_none_or(|row| row.dirty_since == 0);
        if clean {
            self.rows.remove(key);
        }
        clean
    }

    // ----- writing -----

    /// Writes a batch in one transaction. After an error nothing of it is stored, unless only the
    /// acknowledgement of the commit was lost.
    pub(crate) fn write(&mut self, ledger: &Ledger, batch: &Batch) -> rusqlite::Result<()> {
        self.in_transaction(|database| {
            database.write_forgotten(ledger, batch)?;
            for id in &batch.sessions {
                database.write_session(ledger, *id)?;
            }
            database.write_history(batch)?;
            database.write_jobs(batch)?;
            for key in &batch.records {
                let row = *database.row(key);
                let stale = row.dirty_since == NOT_STORED || row.listed != is_listed(ledger, key);
                if batch.unreplayable.contains(key) || stale {
                    database.write_record(ledger, key)?;
                }
            }
            if database.dirty.len() > DIRTY_MAX { database.write_back(ledger) } else { Ok(()) }
        })
    }

    /// Writes back some dirty records if the store is idle or the oldest lags too far.
    pub(crate) fn write_back_if_idle(&mut self, ledger: &Ledger) -> rusqlite::Result<()> {
        let idle = self.idle_check_line == self.next_line;
        self.idle_check_line = self.next_line;
        let lag = self.dirty.front().map_or(0, |(_, since)| self.next_line - since);
        if lag > LAG_MAX_LINES || idle && lag > 0 {
            self.in_transaction(|database| database.write_back(ledger))?;
        }
        Ok(())
    }

    /// Writes back all dirty records.
    pub(crate) fn write_back_all(&mut self, ledger: &Ledger) -> rusqlite::Result<()> {
        while !self.dirty.is_empty() {
            self.in_transaction(|database| database.write_back(ledger))?;
        }
        Ok(())
    }

    pub(super) fn in_transaction<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let result = work(self).and_then(|value| {
            self.connection.prepare_cached("COMMIT")?.execute([])?;
            Ok(value)
        });
        if result.is_err() {
            // Fails if SQLite has already rolled back.
            self.connection.execute_batch("ROLLBACK").ok();
        }
        result
    }

    /// Tests whether the file can be written.
    pub(crate) fn probe(&mut self) -> rusqlite::Result<()> {
        self.in_transaction(|database| {
            let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES ('probe', zeroblob(8192))";
            database.connection.prepare_cached(sql)?.execute([])?;
            Ok(())
        })
    }

    /// Returns the position of the last history line.
    pub(crate) fn last_position(&self) -> i64 {
        self.next_line - 1
    }

    fn write_back(&mut self, ledger: &Ledger) -> rusqlite::Result<()> {
        for _ in 0..WRITE_BACK_MAX {
            let Some((key, since)) = self.dirty.pop_front() else { break };
            if self.rows.get(&key).is_some_and(|row| row.dirty_since == since) {
                self.write_record(ledger, &key)?;
            }
        }
        self.store_clean_position().map(drop)
    }

    /// Stores and returns the position up to which the stored rows include all history.
    pub(super) fn store_clean_position(&self) -> rusqlite::Result<i64> {
        let clean = self.dirty.front().map_or(self.next_line, |(_, since)| *since) - 1;
        let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES ('paid', ?1)";
        self.connection.prepare_cached(sql)?.execute([clean])?;
        Ok(clean)
    }

    fn write_session(&self, ledger: &Ledger, id: SessionId) -> rusqlite::Result<()> {
        let key = id.0.to_be_bytes();
        match ledger.world().sessions.get(id) {
            Some(session) => {
                let sql = "INSERT OR REPLACE INTO sessions (id, body) VALUES (?1, ?2)";
                let body = crate::store::session_json(session);
                self.connection.prepare_cached(sql)?.execute(params![key, body])?;
            }
            None => {
                let sql = "DELETE FROM sessions WHERE id = ?1";
                self.connection.prepare_cached(sql)?.execute([key])?;
            }
        }
        Ok(())
    }

    fn write_history(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        let sql =
            "INSERT INTO history (id, resource, prev, line, hash) VALUES (?1, ?2, ?3, ?4, ?5)";
        for (key, sealed) in &batch.history {
            let id = self.next_line;
            let row = *self.row(key);
            let values = params![id, row.id, row.last, sealed.line, sealed.hash.0];
            self.connection.prepare_cached(sql)?.execute(values)?;
            self.next_line += 1;
            let row = self.rows.get_mut(key).expect("created above");
            row.last = id;
            mark_dirty(row, &mut self.dirty, key, id);
        }
        Ok(())
    }

    fn write_record(&mut self, ledger: &Ledger, key: &ResourceKey) -> rusqlite::Result<()> {
        let Some(record) = ledger.world().records.get(key) else { return Ok(()) };
        let row = *self.row(key);
        let body = serde_json::to_string(record).expect("a record serializes to JSON");
        let live = record.is_live();
        let state = record.resource.as_ref().map(|resource| &*resource.state);
        if row.dirty_since != NOT_STORED {
            let sql =
                "UPDATE resources SET live = ?2, last = ?3, body = ?4, state = ?5 WHERE id = ?1";
            let values = params![row.id, live, row.last, body, state];
            self.connection.prepare_cached(sql)?.execute(values)?;
        } else {
            let sql = "INSERT INTO resources (id, key, live, last, body, state) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            let values = params![row.id, key.as_str(), live, row.last, body, state];
            self.connection.prepare_cached(sql)?.execute(values)?;
        }
        let row = self.row(key);
        (row.dirty_since, row.listed) = (0, is_listed(ledger, key));
        Ok(())
    }

    /// Returns the row of a resource, allocating an id for a new one.
    fn row(&mut self, key: &ResourceKey) -> &mut ResourceRow {
        if !self.rows.contains_key(key) {
            let id = self.next_resource;
            let row = ResourceRow { id, last: 0, dirty_since: NOT_STORED, listed: false };
            self.next_resource += 1;
            self.rows.insert(key.clone(), row);
        }
        self.rows.get_mut(key).expect("inserted above")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.checkpointer.stop(&mut self.connection);
    }
}

/// Returns whether a resource appears in lists of resources.
fn is_listed(ledger: &Ledger, key: &ResourceKey) -> bool {
    ledger.world().records.get(key).is_some_and(|record| record.resource.is_some())
}

/// Marks a clean row as dirty from `line` on.
fn mark_dirty(
    row: &mut ResourceRow,
    dirty: &mut VecDeque<(ResourceKey, i64)>,
    key: &ResourceKey,
    line: i64,
) {
    if row.dirty_since == 0 {
        row.dirty_since = line;
        dirty.push_back((key.clone(), line));
    }
}

fn resource_row(row: &Row<'_>) -> rusqlite::Result<(String, ResourceRow, String)> {
    let (id, last, listed) = (row.get(1)?, row.get(2)?, row.get(4)?);
    let resource = ResourceRow { id, last, dirty_since: 0, listed };
    Ok((row.get(0)?, resource, row.get(3)?))
}

/// Converts an instant from its column.
pub(super) fn millis_from_sql(at: i64) -> Millis {
    Millis(u64::try_from(at).unwrap_or(0))
}
