//! Reading and writing the SQLite file. No rule of the model is here: rows in, rows out.
//!
//! A batch writes its history, its sessions and those records that changed in a way that history
//! does not tell. All other records are written later, a few at a time: should the process die
//! before, they are made up for from the history when the file is opened. So a batch costs a few
//! pages at the end of one table, and not a page for each of its resources.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::history::{Entry, Hash};
use tenure_core::{Millis, Record, ResourceKey, Session, SessionId};

use super::checkpoint::Checkpointer;
use super::error::Error;
use super::format::{migrate, recognise};
use super::guard::Life;
use crate::ledger::{Batch, Ledger};

/// Pages of 4 KiB that the write-ahead log has room for from the start: twice what it usually gets
/// to, see [`super::checkpoint`].
const ROOM_PAGES: u32 = 4_096;

/// Most records that may wait to be written; more are written with the next batch.
const OWED_MAX: usize = 32_768;
/// Most lines of history that a row may be behind while the store is busy: what has to be read
/// again after a crash. Less would write busy records more often than they are worth.
const LINES_BEHIND_MAX: i64 = 200_000;
/// Most records that are written at once beside a batch.
const PAY_MAX: usize = 1_024;

/// The writing side of the file.
pub(crate) struct Database {
    pub(super) connection: Connection,
    checkpointer: Checkpointer,
    path: PathBuf,
    /// The rows of the resources at hand.
    rows: HashMap<ResourceKey, ResourceRow>,
    /// Resources whose row is behind, longest first, with the first line that it does not know of.
    /// An entry that does not match its row was paid meanwhile.
    owed: VecDeque<(ResourceKey, i64)>,
    next_resource: i64,
    next_line: i64,
    /// The next line when it was last looked whether the store is busy.
    looked: i64,
}

/// Where a resource is kept.
#[derive(Clone, Copy, Debug)]
struct ResourceRow {
    id: i64,
    /// Its last line of history.
    last: i64,
    /// The first line of history that the row in the file does not know of; 0 when it knows all,
    /// [`NOT_KEPT`] when there is no row in the file yet.
    owes: i64,
    /// Whether the row in the file is found by lists of resources: this must not be behind.
    listed: bool,
}

/// Marks a resource that has no row in the file yet.
const NOT_KEPT: i64 = -1;

impl Database {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let sqlite = |source| Error::Sqlite { path: path.to_path_buf(), source };
        let mut connection = Connection::open(path).map_err(sqlite)?;
        recognise(&connection, path)?;
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                 PRAGMA cache_size = -8192; PRAGMA temp_store = MEMORY;",
            )
            .map_err(sqlite)?;
        connection.set_prepared_statement_cache_capacity(32);
        let checkpointer = Checkpointer::start(&mut connection, path).map_err(sqlite)?;
        let mut database = Self {
            connection,
            checkpointer,
            path: path.to_path_buf(),
            rows: HashMap::new(),
            owed: VecDeque::new(),
            next_resource: 1,
            next_line: 1,
            looked: 0,
        };
        migrate(&database.connection).map_err(|error| database.error(error))?;
        database.forget_rows()?;
        Ok(database)
    }

    /// Forgets which rows are at hand and counts again from what is in the file.
    pub(crate) fn forget_rows(&mut self) -> Result<(), Error> {
        let highest = |table| format!("SELECT coalesce(max(id), 0) + 1 FROM {table}");
        self.next_resource = self.number(&highest("resources"))?;
        // Lines may have been pruned: their numbers are not given out again.
        let paid = "SELECT coalesce(max(value), 0) + 1 FROM meta WHERE key = 'paid'";
        self.next_line = self.number(&highest("history"))?.max(self.number(paid)?);
        self.rows.clear();
        self.owed.clear();
        Ok(())
    }

    /// Bounds the size of the file, in pages; what does not fit is refused like on a full disk.
    pub(crate) fn limit_pages(&self, pages_max: u32) -> Result<(), Error> {
        self.connection
            .execute_batch(&format!("PRAGMA max_page_count = {pages_max};"))
            .map_err(|error| self.error(error))
    }

    /// Lets the log grow to its full size before it is used, by spilling a transaction that is then
    /// rolled back.
    pub(crate) fn make_room(&self) -> Result<(), Error> {
        let bytes = ROOM_PAGES * 4_096;
        let fill = format!(
            "PRAGMA cache_size = 16; BEGIN IMMEDIATE; CREATE TABLE room (bytes BLOB);
             INSERT INTO room VALUES (zeroblob({bytes})); ROLLBACK; PRAGMA cache_size = -8192;"
        );
        self.connection.execute_batch(&fill).map_err(|error| self.error(error))
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

    /// Begins a life. In a restored store all sessions are over: what they hold here they may have
    /// given back, and others may have got it, after the backup was made.
    pub(crate) fn set_life(&mut self, life: &Life, restored: bool) -> Result<(), Error> {
        let text = serde_json::to_string(life).expect("a life has no map with odd keys");
        let done = self.in_transaction(|database| {
            let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES ('life', ?1)";
            database.connection.execute(sql, [text])?;
            if restored {
                database.connection.execute("DELETE FROM sessions", [])?;
            }
            Ok(())
        });
        done.map_err(|error| self.error(error))
    }

    /// The latest instant that the rows know of.
    pub(crate) fn latest(&self) -> Result<Millis, Error> {
        let sql = "SELECT json_extract(line, '$.at') FROM history ORDER BY id DESC LIMIT 1";
        let at = self.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).optional();
        let at = at.map_err(|error| self.error(error))?.unwrap_or(0);
        Ok(millis(at))
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

    /// Puts every resource that somebody holds or waits for into the ledger, making up from the
    /// history for what was not written before the process ended.
    pub(crate) fn admit_all(&mut self, ledger: &mut Ledger, now: Millis) -> Result<(), Error> {
        let mut loaded = BTreeMap::new();
        let live = "SELECT key, id, last, body, state IS NOT NULL FROM resources WHERE live = 1";
        for row in self.query(live, [], resource)? {
            let (key, row, record) = self.parse(row)?;
            loaded.insert(key, (row, record));
        }
        self.make_up(&mut loaded)?;
        for (key, (row, record)) in loaded {
            ledger.admit(&key, Box::new(record), now);
            self.rows.insert(key, row);
        }
        Ok(())
    }

    fn make_up(
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
                owe(row, &mut self.owed, &key, id);
            }
        }
        Ok(())
    }

    /// Puts one resource into the ledger, if it is kept.
    pub(crate) fn admit_one(
        &mut self,
        ledger: &mut Ledger,
        key: &ResourceKey,
        now: Millis,
    ) -> Result<(), Error> {
        if let Some((row, record)) = self.find(key)? {
            self.rows.insert(key.clone(), row);
            ledger.admit(key, Box::new(record), now);
        }
        Ok(())
    }

    fn find(&self, key: &ResourceKey) -> Result<Option<(ResourceRow, Record)>, Error> {
        let sql = "SELECT key, id, last, body, state IS NOT NULL FROM resources WHERE key = ?1";
        let mut found = self.query(sql, [key.as_str()], resource)?;
        let Some(row) = found.pop() else { return Ok(None) };
        let (_, row, record) = self.parse(row)?;
        Ok(Some((row, record)))
    }

    /// The last line of history of a resource.
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

    /// Forgets where a resource is kept, unless its row is behind. Says whether it did.
    pub(crate) fn forget(&mut self, key: &ResourceKey) -> bool {
        let paid = self.rows.get(key).is_none_or(|row| row.owes == 0);
        if paid {
            self.rows.remove(key);
        }
        paid
    }

    // ----- writing -----

    /// Writes what a batch changed in one transaction. On an error nothing of it is kept, unless
    /// only the news of the commit was lost.
    pub(crate) fn write(&mut self, ledger: &Ledger, batch: &Batch) -> rusqlite::Result<()> {
        self.in_transaction(|database| {
            for id in &batch.sessions {
                database.write_session(ledger, *id)?;
            }
            database.write_history(batch)?;
            database.write_jobs(batch)?;
            for key in &batch.records {
                let row = *database.row(key);
                let behind = row.owes == NOT_KEPT || row.listed != is_listed(ledger, key);
                if batch.untold.contains(key) || behind {
                    database.write_record(ledger, key)?;
                }
            }
            if database.owed.len() > OWED_MAX { database.pay(ledger) } else { Ok(()) }
        })
    }

    /// Writes some of the records that are behind, unless the store has better things to do.
    pub(crate) fn catch_up(&mut self, ledger: &Ledger) -> rusqlite::Result<()> {
        let quiet = self.looked == self.next_line;
        self.looked = self.next_line;
        let behind = self.owed.front().map_or(0, |(_, since)| self.next_line - since);
        if behind > LINES_BEHIND_MAX || quiet && behind > 0 {
            self.in_transaction(|database| database.pay(ledger))?;
        }
        Ok(())
    }

    /// Writes all records that are behind.
    pub(crate) fn settle_up(&mut self, ledger: &Ledger) -> rusqlite::Result<()> {
        while !self.owed.is_empty() {
            self.in_transaction(|database| database.pay(ledger))?;
        }
        Ok(())
    }

    pub(super) fn in_transaction<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let done = work(self);
        let done = done.and_then(|done| {
            self.connection.prepare_cached("COMMIT")?.execute([])?;
            Ok(done)
        });
        if done.is_err() {
            // SQLite may have rolled back by itself; then there is nothing to roll back.
            self.connection.execute_batch("ROLLBACK").ok();
        }
        done
    }

    /// Writes something that changes nothing, to see whether it can.
    pub(crate) fn probe(&mut self) -> rusqlite::Result<()> {
        self.in_transaction(|database| {
            let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES ('probe', zeroblob(8192))";
            database.connection.prepare_cached(sql)?.execute([])?;
            Ok(())
        })
    }

    /// The number of the last line of history.
    pub(crate) fn last(&self) -> i64 {
        self.next_line - 1
    }

    fn pay(&mut self, ledger: &Ledger) -> rusqlite::Result<()> {
        for _ in 0..PAY_MAX {
            let Some((key, since)) = self.owed.pop_front() else { break };
            if self.rows.get(&key).is_some_and(|row| row.owes == since) {
                self.write_record(ledger, &key)?;
            }
        }
        self.note_paid().map(drop)
    }

    /// Notes up to which line the rows in the file know everything. Says which it is.
    pub(super) fn note_paid(&self) -> rusqlite::Result<i64> {
        let paid = self.owed.front().map_or(self.next_line, |(_, since)| *since) - 1;
        let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES ('paid', ?1)";
        self.connection.prepare_cached(sql)?.execute([paid])?;
        Ok(paid)
    }

    fn write_session(&self, ledger: &Ledger, id: SessionId) -> rusqlite::Result<()> {
        let key = id.0.to_be_bytes();
        match ledger.world().sessions.get(id) {
            Some(session) => {
                let sql = "INSERT OR REPLACE INTO sessions (id, body) VALUES (?1, ?2)";
                let body = crate::store::durable(session);
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
            let row = self.rows.get_mut(key).expect("its row was asked for above");
            row.last = id;
            owe(row, &mut self.owed, key, id);
        }
        Ok(())
    }

    fn write_record(&mut self, ledger: &Ledger, key: &ResourceKey) -> rusqlite::Result<()> {
        let Some(record) = ledger.world().records.get(key) else { return Ok(()) };
        let row = *self.row(key);
        let body = serde_json::to_string(record).expect("a record has no map with odd keys");
        let live = record.is_live();
        let state = record.resource.as_ref().map(|resource| &*resource.state);
        if row.owes != NOT_KEPT {
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
        (row.owes, row.listed) = (0, is_listed(ledger, key));
        Ok(())
    }

    /// Where a resource is kept, or will be.
    fn row(&mut self, key: &ResourceKey) -> &mut ResourceRow {
        if !self.rows.contains_key(key) {
            let fresh =
                ResourceRow { id: self.next_resource, last: 0, owes: NOT_KEPT, listed: false };
            self.next_resource += 1;
            self.rows.insert(key.clone(), fresh);
        }
        self.rows.get_mut(key).expect("it is there")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.checkpointer.stop(&mut self.connection);
    }
}

/// Whether lists of resources have it.
fn is_listed(ledger: &Ledger, key: &ResourceKey) -> bool {
    ledger.world().records.get(key).is_some_and(|record| record.resource.is_some())
}

/// Notes that a row does not know of a line.
fn owe(
    row: &mut ResourceRow,
    owed: &mut VecDeque<(ResourceKey, i64)>,
    key: &ResourceKey,
    line: i64,
) {
    if row.owes == 0 {
        row.owes = line;
        owed.push_back((key.clone(), line));
    }
}

fn resource(row: &Row<'_>) -> rusqlite::Result<(String, ResourceRow, String)> {
    let at = ResourceRow { id: row.get(1)?, last: row.get(2)?, owes: 0, listed: row.get(4)? };
    Ok((row.get(0)?, at, row.get(3)?))
}

/// An instant as a column has it.
pub(super) fn millis(at: i64) -> Millis {
    Millis(u64::try_from(at).unwrap_or(0))
}
