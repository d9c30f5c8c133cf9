//! The writer thread.
//!
//! It owns the ledger and the database. A batch is applied in memory, written in one transaction,
//! and only then acknowledged: an acknowledged command survives `kill -9` and power loss. If a
//! write fails, the batch returns an error and the ledger is reloaded from the file before the next
//! decision. If an fsync fails, the state of the file is unknown and every later batch is rejected
//! until the server is restarted.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use rusqlite::ffi;
use tenure_core::ready::GroupCounts;
use tenure_core::{Command, JobId, Kinds, Millis, Outcome, ResourceKey, TenureView, Text};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::database::Database;
use super::error::Error;
use super::ownership::{IncarnationRecord, Ownership};
use crate::census::CensusPage;
use crate::clock::Clock;
use crate::forget;
use crate::ledger::{Batch, Ledger};
use crate::observer::Observers;
use crate::store::{
    Hint, JobQuery, JobView, Page, Pruned, ResourceDetail, ResourceView, Result, Retention,
    SafetyClass, Status, StoreError, Swept, TenureQuery, WorkerView,
};

/// Maximum number of idle records in memory; older ones are evicted and loaded on demand.
const IDLE_MAX: usize = 100_000;

/// Request to the writer thread, with its reply channel.
pub(crate) enum WriterRequest {
    Apply(Vec<Command>, oneshot::Sender<Result<Vec<Outcome>>>),
    Sweep(oneshot::Sender<Result<Swept>>),
    Tenures(TenureQuery, oneshot::Sender<Result<Page<TenureView>>>),
    Show(ResourceKey, oneshot::Sender<Result<Option<ResourceDetail>>>),
    Declare(Arc<Kinds>, oneshot::Sender<Result<()>>),
    Prune(Retention, oneshot::Sender<Result<Pruned>>),
    Job(JobId, oneshot::Sender<Result<Option<JobView>>>),
    Jobs(JobQuery, oneshot::Sender<Result<LiveJobs>>),
    Resources(Vec<ResourceKey>, oneshot::Sender<Result<Vec<ResourceView>>>),
    /// Tenant, kind and group.
    Group([Text; 3], oneshot::Sender<Result<GroupCounts>>),
    Workers(oneshot::Sender<Result<Vec<WorkerView>>>),
    Census(Option<ResourceKey>, oneshot::Sender<Result<CensusPage>>),
    LastPosition(ResourceKey, oneshot::Sender<Result<i64>>),
    Status(oneshot::Sender<Result<Status>>),
    /// Runs a closure on the writer thread.
    Run(Box<dyn FnOnce(&mut Writer) + Send>),
}

/// Live jobs, and the last finished job of the resource if the query selects one.
pub(crate) type LiveJobs = (Vec<JobView>, Option<JobId>);

/// Receivers of hints and facts of durable batches.
pub(crate) struct Publisher {
    pub(crate) hints: broadcast::Sender<Hint>,
    pub(crate) observers: Arc<Observers>,
}

/// State of the writer thread.
pub(crate) struct Writer {
    pub(crate) database: Database,
    pub(crate) clock: Arc<dyn Clock>,
    publisher: Publisher,
    ownership: Arc<Ownership>,
    /// Record in the file next to the database.
    record: IncarnationRecord,
    /// Live rows; `None` after a failed write until they are reloaded.
    ledger: Option<Ledger>,
    /// Error message after a failed fsync, which rejects all requests.
    fatal: Option<String>,
    /// Whether the last write failed.
    failing: bool,
    /// Idle records in memory, in the order in which they became idle.
    idle: VecDeque<ResourceKey>,
    idle_set: HashSet<ResourceKey>,
    /// Declared kinds, for a reload.
    kinds: Arc<Kinds>,
}

impl Writer {
    pub(crate) fn new(
        database: Database,
        clock: Arc<dyn Clock>,
        publisher: Publisher,
        ownership: Arc<Ownership>,
        record: IncarnationRecord,
    ) -> std::result::Result<Self, Error> {
        let mut writer = Self {
            database,
            clock,
            publisher,
            ownership,
            record,
            ledger: None,
            fatal: None,
            failing: false,
            idle: VecDeque::new(),
            idle_set: HashSet::new(),
            kinds: Arc::default(),
        };
        writer.reload()?;
        Ok(writer)
    }

    /// Handles requests until all senders are gone.
    pub(crate) fn run(mut self, mut requests: mpsc::Receiver<WriterRequest>) {
        while let Some(request) = requests.blocking_recv() {
            self.handle(request);
        }
        // After a clean shutdown there is nothing to replay.
        if let Some(ledger) = &self.ledger
            && let Err(error) = self.database.write_back_all(ledger)
        {
            tracing::warn!(%error, "cannot write back all records at shutdown");
        }
        // After a failed write the last position in the file is unknown.
        if self.ledger.is_some() {
            self.record_position();
        }
    }

    // Replies to callers that are gone are dropped.
    fn handle(&mut self, request: WriterRequest) {
        match request {
            WriterRequest::Apply(commands, reply) => drop(reply.send(self.apply(&commands))),
            WriterRequest::Sweep(reply) => drop(reply.send(self.sweep())),
            WriterRequest::Tenures(query, reply) => {
                drop(reply.send(self.read(|ledger, now| ledger.tenures(&query, now))));
            }
            WriterRequest::Show(key, reply) => drop(reply.send(self.show(&key))),
            WriterRequest::Declare(kinds, reply) => drop(reply.send(self.declare(kinds))),
            WriterRequest::Prune(retention, reply) => drop(reply.send(self.prune(retention))),
            WriterRequest::Job(id, reply) => {
                drop(reply.send(self.read(|ledger, _| ledger.job(id))));
            }
            WriterRequest::Jobs(query, reply) => drop(reply.send(self.jobs(&query))),
            WriterRequest::Resources(keys, reply) => {
                drop(reply.send(self.read(|ledger, _| {
                    keys.iter().filter_map(|key| ledger.resource(key)).collect()
                })));
            }
            WriterRequest::Group([tenant, kind, group], reply) => {
                let count = |ledger: &Ledger, _| ledger.group(&tenant, &kind, &group);
                drop(reply.send(self.read(count)));
            }
            WriterRequest::Workers(reply) => drop(reply.send(self.read(Ledger::workers))),
            WriterRequest::Census(after, reply) => {
                drop(reply.send(self.read(|ledger, now| ledger.census(after.as_ref(), now))));
            }
            WriterRequest::LastPosition(key, reply) => drop(reply.send(self.last_position(&key))),
            WriterRequest::Status(reply) => drop(reply.send(self.status())),
            WriterRequest::Run(work) => work(self),
        }
    }

    fn apply(&mut self, commands: &[Command]) -> Result<Vec<Outcome>> {
        let now = self.clock.now();
        self.ensure_loaded()?;
        for key in commands.iter().filter_map(Command::key) {
            self.load_record(key)?;
        }
        for id in commands.iter().filter_map(Command::job) {
            self.load_finished_job(id)?;
        }
        let (outcomes, batch) = self.ledger()?.apply(commands, now);
        self.commit(batch)?;
        Ok(outcomes)
    }

    fn sweep(&mut self) -> Result<Swept> {
        let now = self.clock.now();
        self.ensure_loaded()?;
        let (swept, batch) = self.ledger()?.sweep(now);
        self.commit(batch)?;
        let ledger = self.ledger.as_ref().expect("loaded above");
        if let Err(error) = self.database.write_back_if_idle(ledger) {
            return Err(self.handle_write_error(error));
        }
        self.record_position();
        Ok(swept)
    }

    /// Records the last position of the history in the file next to the database.
    fn record_position(&mut self) {
        let position = self.database.last_position();
        if self.record.position != position {
            self.record.position = position;
            if let Err(error) = self.ownership.write_record(&self.record) {
                tracing::warn!(%error, position, "cannot record the history position");
            }
        }
    }

    fn last_position(&mut self, key: &ResourceKey) -> Result<i64> {
        self.ensure_loaded()?;
        self.database.last_line(key).map_err(store_error)
    }

    /// Reads from the ledger.
    fn read<T>(&mut self, read: impl FnOnce(&Ledger, Millis) -> T) -> Result<T> {
        let now = self.clock.now();
        self.ensure_loaded()?;
        Ok(read(self.ledger()?, now))
    }

    fn jobs(&mut self, query: &JobQuery) -> Result<LiveJobs> {
        self.ensure_loaded()?;
        let Some(key) = query.resource() else { return Ok((self.ledger()?.jobs(query), None)) };
        self.load_record(&key)?;
        let ledger = self.ledger()?;
        let last = ledger.resource(&key).and_then(|view| view.resource.last_job);
        let live = ledger.jobs(query);
        self.track_idle(&key);
        Ok((live, last))
    }

    fn declare(&mut self, kinds: Arc<Kinds>) -> Result<()> {
        let now = self.clock.now();
        self.kinds = Arc::clone(&kinds);
        self.ensure_loaded()?;
        let ready = self.ledger()?.declare(kinds, now);
        self.commit(Batch { ready, ..Batch::default() })
    }

    fn prune(&mut self, retention: Retention) -> Result<Pruned> {
        let now = self.clock.now();
        self.ensure_loaded()?;
        let kinds = Arc::clone(&self.kinds);
        let prune = self.database.prune(retention, &kinds, now);
        let (mut pruned, commands) = prune.map_err(|error| self.handle_write_error(error))?;
        pruned.resources = forget::count(&self.apply(&commands)?);
        for key in commands.iter().filter_map(Command::key) {
            self.track_idle(key);
        }
        Ok(pruned)
    }

    /// Runs a closure with the database, for tables that are not part of the model.
    pub(super) fn with_database<T>(
        &mut self,
        work: impl FnOnce(&Database) -> rusqlite::Result<T>,
    ) -> Result<T> {
        self.ensure_loaded()?;
        work(&self.database).map_err(|error| self.handle_write_error(error))
    }

    fn show(&mut self, key: &ResourceKey) -> Result<Option<ResourceDetail>> {
        let now = self.clock.now();
        self.ensure_loaded()?;
        self.load_record(key)?;
        let detail = self.ledger()?.show(key, now);
        self.track_idle(key);
        Ok(detail)
    }

    fn status(&mut self) -> Result<Status> {
        self.ensure_loaded()?;
        if self.failing {
            // Only a write shows whether writes work again.
            self.database.probe().map_err(|error| self.handle_write_error(error))?;
            self.failing = false;
            self.ensure_loaded()?;
        }
        let (now, incarnation) = (self.clock.now(), self.record.incarnation);
        let ledger = self.ledger()?;
        Ok(Status {
            store: "embedded",
            safety: SafetyClass::ExclusiveIfClocksRunSanely,
            incarnation,
            now,
            sessions: ledger.world().sessions.len(),
            live: ledger.live_count(),
            wakeups: None,
        })
    }

    // ----- writing -----

    /// Writes a batch, then publishes its facts and hints.
    fn commit(&mut self, batch: Batch) -> Result<()> {
        if !batch.is_clean() {
            let ledger = self.ledger.as_ref().expect("the batch comes from the ledger");
            if let Err(error) = self.database.write(ledger, &batch) {
                return Err(self.handle_write_error(error));
            }
            self.failing = false;
        }
        for key in &batch.records {
            self.track_idle(key);
        }
        self.publisher.observers.notify(&batch.facts);
        for hint in batch.into_hints() {
            // There may be no receivers.
            self.publisher.hints.send(hint).ok();
        }
        Ok(())
    }

    /// Discards the ledger after a failed write, because it differs from the file.
    fn handle_write_error(&mut self, error: rusqlite::Error) -> StoreError {
        self.ledger = None;
        self.failing = true;
        let extended = error.sqlite_error().map(|e| e.extended_code);
        let fsync_codes = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC];
        if extended.is_some_and(|code| fsync_codes.contains(&code)) {
            let message = "a flush to disk failed; check the disk, then restart the server";
            self.fatal = Some(message.to_owned());
        }
        let remedy = match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => "; make room on the disk",
            Some(rusqlite::ErrorCode::ReadOnly) => "; make the file writable",
            _ => "",
        };
        StoreError::unavailable(format!("cannot write: {error}{remedy}")).caused_by(error)
    }

    /// Reloads the ledger if a write failed. Returns an error after a failed fsync.
    fn ensure_loaded(&mut self) -> Result<()> {
        if let Some(message) = &self.fatal {
            return Err(StoreError::unavailable(message.clone()));
        }
        if self.ledger.is_none() {
            self.reload().map_err(store_error)?;
        }
        Ok(())
    }

    fn reload(&mut self) -> std::result::Result<(), Error> {
        self.database.reset_rows()?;
        let sessions = self.database.sessions()?;
        let now = self.clock.now();
        let mut ledger = Ledger::load(self.record.incarnation, sessions, now);
        ledger.set_floors(self.database.floors()?);
        ledger.declare(Arc::clone(&self.kinds), now);
        self.database.load_live(&mut ledger, now)?;
        self.idle.clear();
        self.idle_set.clear();
        self.ledger = Some(ledger);
        Ok(())
    }

    fn ledger(&mut self) -> Result<&mut Ledger> {
        self.ledger.as_mut().ok_or_else(|| StoreError::unavailable("not loaded"))
    }

    // ----- caching of records -----

    /// Loads a record into the ledger, if it is stored and not loaded yet.
    fn load_record(&mut self, key: &ResourceKey) -> Result<()> {
        let Some(ledger) = self.ledger.as_mut() else { return Ok(()) };
        if ledger.has_record(key) {
            return Ok(());
        }
        let now = self.clock.now();
        self.database.load_record(ledger, key, now).map_err(store_error)
    }

    /// Loads a finished job and its record into the ledger.
    fn load_finished_job(&mut self, id: JobId) -> Result<()> {
        if self.ledger()?.has_live_job(id) {
            return Ok(());
        }
        if let Some(JobView { key, job }) = self.database.job(id).map_err(store_error)? {
            self.load_record(&key)?;
            self.ledger()?.insert_finished_job(key, job);
        }
        Ok(())
    }

    /// Adds a record that became idle to the eviction queue and evicts the oldest one if the queue
    /// is full. Dirty records are not evicted.
    fn track_idle(&mut self, key: &ResourceKey) {
        if self.ledger.as_ref().is_some_and(|ledger| ledger.is_live(key)) {
            return;
        }
        if self.idle_set.insert(key.clone()) {
            self.idle.push_back(key.clone());
        }
        if self.idle.len() <= IDLE_MAX {
            return;
        }
        let (Some(oldest), Some(ledger)) = (self.idle.pop_front(), self.ledger.as_mut()) else {
            return;
        };
        if ledger.is_live(&oldest) {
            self.idle_set.remove(&oldest);
        } else if self.database.evict_row(&oldest) {
            self.idle_set.remove(&oldest);
            ledger.evict(&oldest);
        } else {
            self.idle.push_back(oldest);
        }
    }
}

fn store_error(error: Error) -> StoreError {
    let message = error.to_string();
    let converted = match error {
        Error::Damaged { .. } => StoreError::corrupt(message),
        _ => StoreError::unavailable(message),
    };
    converted.caused_by(error)
}
