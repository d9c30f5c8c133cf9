//! The one thread that writes.
//!
//! It owns the ledger and the database. A batch is stepped in memory, written in one transaction,
//! and only then answered: an acknowledged command survives kill -9 and power loss. When a write
//! fails the batch is not answered with its outcomes, and the rows are read from the file again
//! before anything else is decided; when even a flush failed, nothing on this machine can be
//! trusted any more and every later batch is refused until somebody restarts the server.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use rusqlite::ffi;
use tenure_core::{
    Command, JobId, Kinds, Millis, Outcome, ResourceKey, SessionId, TenureView, Text,
};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::database::Database;
use super::error::Error;
use super::guard::{Guard, Life};
use crate::census::Part;
use crate::clock::Clock;
use crate::ledger::{Batch, Ledger};
use crate::observer::Observers;
use crate::store::{
    Hint, JobQuery, JobShown, ListQuery, Page, Pruned, ResourceShown, Result, Retention,
    SafetyClass, Shown, Status, StoreError, Swept, WorkerShown,
};

/// Most idle records that are kept in memory; older ones are read again when they are asked for.
const IDLE_MAX: usize = 100_000;

/// What can be asked of the writer.
pub(crate) enum Ask {
    Apply(Vec<Command>, oneshot::Sender<Result<Vec<Outcome>>>),
    Sweep(oneshot::Sender<Result<Swept>>),
    List(ListQuery, oneshot::Sender<Result<Page<TenureView>>>),
    Show(ResourceKey, oneshot::Sender<Result<Option<Shown>>>),
    Declare(Arc<Kinds>, oneshot::Sender<Result<()>>),
    Prune(Retention, oneshot::Sender<Result<Pruned>>),
    Job(JobId, oneshot::Sender<Result<Option<JobShown>>>),
    Jobs(JobQuery, oneshot::Sender<Result<LiveJobs>>),
    Fresh(Vec<ResourceKey>, oneshot::Sender<Result<Vec<ResourceShown>>>),
    Session(SessionId, oneshot::Sender<Result<Option<Text>>>),
    Workers(oneshot::Sender<Result<Vec<WorkerShown>>>),
    Census(Option<ResourceKey>, oneshot::Sender<Result<Part>>),
    LastLine(ResourceKey, oneshot::Sender<Result<i64>>),
    Status(oneshot::Sender<Result<Status>>),
    /// Something that the model knows nothing of.
    Beside(Box<dyn FnOnce(&mut Writer) + Send>),
}

/// Jobs that are not over, and where those of the resource that are over begin.
pub(crate) type LiveJobs = (Vec<JobShown>, Option<JobId>);

/// Who is told what became durable.
pub(crate) struct Told {
    pub(crate) hints: broadcast::Sender<Hint>,
    pub(crate) observers: Arc<Observers>,
}

/// The state of the writing thread.
pub(crate) struct Writer {
    pub(crate) database: Database,
    pub(crate) clock: Arc<dyn Clock>,
    told: Told,
    guard: Arc<Guard>,
    /// What is remembered beside the file.
    life: Life,
    /// The rows in memory; none after a failed write, until they are read again.
    ledger: Option<Ledger>,
    /// Set when a flush failed: nothing is written any more.
    dead: Option<String>,
    /// Whether the last write failed.
    failing: bool,
    idle: VecDeque<ResourceKey>,
    idle_set: HashSet<ResourceKey>,
    /// What was declared last, for when the rows are read again.
    kinds: Arc<Kinds>,
}

impl Writer {
    pub(crate) fn new(
        database: Database,
        clock: Arc<dyn Clock>,
        told: Told,
        guard: Arc<Guard>,
        life: Life,
    ) -> std::result::Result<Self, Error> {
        let mut writer = Self {
            database,
            clock,
            told,
            guard,
            life,
            ledger: None,
            dead: None,
            failing: false,
            idle: VecDeque::new(),
            idle_set: HashSet::new(),
            kinds: Arc::default(),
        };
        writer.reload()?;
        Ok(writer)
    }

    /// Answers until nobody can ask any more.
    pub(crate) fn run(mut self, mut asks: mpsc::Receiver<Ask>) {
        while let Some(ask) = asks.blocking_recv() {
            self.answer(ask);
        }
        // A clean end leaves nothing to make up for.
        if let Some(ledger) = &self.ledger
            && let Err(error) = self.database.settle_up(ledger)
        {
            tracing::warn!(%error, "cannot write all records before the end");
        }
        // After a failed write nobody knows how far the history in the file has come.
        if self.ledger.is_some() {
            self.note_life();
        }
    }

    // Whoever asked may have gone away: an answer that cannot be delivered is dropped.
    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Apply(commands, to) => drop(to.send(self.apply(&commands))),
            Ask::Sweep(to) => drop(to.send(self.sweep())),
            Ask::List(query, to) => {
                drop(to.send(self.read(|ledger, now| ledger.list(&query, now))));
            }
            Ask::Show(key, to) => drop(to.send(self.show(&key))),
            Ask::Declare(kinds, to) => drop(to.send(self.declare(kinds))),
            Ask::Prune(keep, to) => drop(to.send(self.prune(keep))),
            Ask::Job(id, to) => drop(to.send(self.read(|ledger, _| ledger.job(id)))),
            Ask::Jobs(query, to) => drop(to.send(self.jobs(&query))),
            Ask::Fresh(keys, to) => {
                drop(to.send(self.read(|ledger, _| {
                    keys.iter().filter_map(|key| ledger.resource(key)).collect()
                })));
            }
            Ask::Session(id, to) => drop(to.send(self.read(|ledger, _| ledger.tenant_of(id)))),
            Ask::Workers(to) => drop(to.send(self.read(Ledger::workers))),
            Ask::Census(after, to) => {
                drop(to.send(self.read(|ledger, now| ledger.census(after.as_ref(), now))));
            }
            Ask::LastLine(key, to) => drop(to.send(self.last_line(&key))),
            Ask::Status(to) => drop(to.send(self.status())),
            Ask::Beside(work) => work(self),
        }
    }

    fn apply(&mut self, commands: &[Command]) -> Result<Vec<Outcome>> {
        let now = self.clock.now();
        self.ready()?;
        for key in commands.iter().filter_map(Command::key) {
            self.at_hand(key)?;
        }
        for id in commands.iter().filter_map(Command::job) {
            self.recall(id)?;
        }
        let (outcomes, batch) = self.ledger()?.apply(commands, now);
        self.keep(batch)?;
        Ok(outcomes)
    }

    fn sweep(&mut self) -> Result<Swept> {
        let now = self.clock.now();
        self.ready()?;
        let (swept, batch) = self.ledger()?.sweep(now);
        self.keep(batch)?;
        let ledger = self.ledger.as_ref().expect("it was there a moment ago");
        if let Err(error) = self.database.catch_up(ledger) {
            return Err(self.failed(&error));
        }
        self.note_life();
        Ok(swept)
    }

    /// Notes beside the file how far its history has come.
    fn note_life(&mut self) {
        if self.life.seen != self.database.last() {
            self.life.seen = self.database.last();
            if let Err(error) = self.guard.note(&self.life) {
                tracing::warn!(%error, "cannot note how far the history has come");
            }
        }
    }

    fn last_line(&mut self, key: &ResourceKey) -> Result<i64> {
        self.ready()?;
        self.database.last_line(key).map_err(|error| refuse(&error))
    }

    /// Reads from the rows in memory.
    fn read<T>(&mut self, read: impl FnOnce(&Ledger, Millis) -> T) -> Result<T> {
        let now = self.clock.now();
        self.ready()?;
        Ok(read(self.ledger()?, now))
    }

    fn jobs(&mut self, query: &JobQuery) -> Result<LiveJobs> {
        self.ready()?;
        let Some(key) = query.resource() else { return Ok((self.ledger()?.jobs(query), None)) };
        self.at_hand(&key)?;
        let ledger = self.ledger()?;
        let last = ledger.resource(&key).and_then(|shown| shown.resource.last_job);
        let live = ledger.jobs(query);
        self.rest(&key);
        Ok((live, last))
    }

    fn declare(&mut self, kinds: Arc<Kinds>) -> Result<()> {
        let now = self.clock.now();
        self.kinds = Arc::clone(&kinds);
        self.ready()?;
        let ready = self.ledger()?.declare(kinds, now);
        self.keep(Batch { ready, ..Batch::default() })
    }

    fn prune(&mut self, keep: Retention) -> Result<Pruned> {
        let now = self.clock.now();
        self.ready()?;
        self.database.prune(keep, now).map_err(|error| self.failed(&error))
    }

    /// Does something to the file beside the rows of the model.
    pub(super) fn beside<T>(
        &mut self,
        work: impl FnOnce(&Database) -> rusqlite::Result<T>,
    ) -> Result<T> {
        self.ready()?;
        work(&self.database).map_err(|error| self.failed(&error))
    }

    fn show(&mut self, key: &ResourceKey) -> Result<Option<Shown>> {
        let now = self.clock.now();
        self.ready()?;
        self.at_hand(key)?;
        let shown = self.ledger()?.show(key, now);
        self.rest(key);
        Ok(shown)
    }

    fn status(&mut self) -> Result<Status> {
        self.ready()?;
        if self.failing {
            // Whether it can write again is found out by writing.
            self.database.probe().map_err(|error| self.failed(&error))?;
            self.failing = false;
            self.ready()?;
        }
        let (now, incarnation) = (self.clock.now(), self.life.incarnation);
        let ledger = self.ledger()?;
        Ok(Status {
            store: "embedded",
            safety: SafetyClass::ExclusiveIfClocksRunSanely,
            incarnation,
            now,
            sessions: ledger.world().sessions.len(),
            live: ledger.live(),
            wakeups: None,
        })
    }

    // ----- keeping -----

    /// Makes a batch durable, then wakes whom it concerns.
    fn keep(&mut self, batch: Batch) -> Result<()> {
        if !batch.is_clean() {
            let ledger = self.ledger.as_ref().expect("a batch comes from a ledger");
            if let Err(error) = self.database.write(ledger, &batch) {
                return Err(self.failed(&error));
            }
            self.failing = false;
        }
        for key in &batch.records {
            self.rest(key);
        }
        self.told.observers.tell(&batch.facts);
        for hint in batch.into_hints() {
            // Nobody listening is fine: a hint is a hint.
            self.told.hints.send(hint).ok();
        }
        Ok(())
    }

    /// A write failed: what is in memory is not what is on disk.
    fn failed(&mut self, error: &rusqlite::Error) -> StoreError {
        self.ledger = None;
        self.failing = true;
        let extended = error.sqlite_error().map(|e| e.extended_code);
        let flush = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC];
        if extended.is_some_and(|code| flush.contains(&code)) {
            let why = "a flush to disk failed; check the disk, then restart the server";
            self.dead = Some(why.to_owned());
        }
        let remedy = match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => "; make room on the disk",
            Some(rusqlite::ErrorCode::ReadOnly) => "; make the file writable",
            _ => "",
        };
        StoreError::Unavailable(format!("cannot write: {error}{remedy}"))
    }

    /// Sees to it that there are rows in memory, reading them again after a failed write.
    fn ready(&mut self) -> Result<()> {
        if let Some(why) = &self.dead {
            return Err(StoreError::Unavailable(why.clone()));
        }
        if self.ledger.is_none() {
            self.reload().map_err(|error| refuse(&error))?;
        }
        Ok(())
    }

    fn reload(&mut self) -> std::result::Result<(), Error> {
        self.database.forget_rows()?;
        let sessions = self.database.sessions()?;
        let now = self.clock.now();
        let mut ledger = Ledger::load(self.life.incarnation, sessions, now);
        ledger.declare(Arc::clone(&self.kinds), now);
        self.database.admit_all(&mut ledger, now)?;
        self.idle.clear();
        self.idle_set.clear();
        self.ledger = Some(ledger);
        Ok(())
    }

    fn ledger(&mut self) -> Result<&mut Ledger> {
        self.ledger.as_mut().ok_or_else(|| StoreError::Unavailable("not loaded".to_owned()))
    }

    // ----- which records are in memory -----

    fn at_hand(&mut self, key: &ResourceKey) -> Result<()> {
        let Some(ledger) = self.ledger.as_mut() else { return Ok(()) };
        if ledger.has(key) {
            return Ok(());
        }
        let now = self.clock.now();
        self.database.admit_one(ledger, key, now).map_err(|error| refuse(&error))
    }

    /// Sees to it that a job that is over is at hand.
    fn recall(&mut self, id: JobId) -> Result<()> {
        if self.ledger()?.has_job(id) {
            return Ok(());
        }
        if let Some(JobShown { key, job }) = self.database.job(id).map_err(|e| refuse(&e))? {
            self.at_hand(&key)?;
            self.ledger()?.recall(key, job);
        }
        Ok(())
    }

    /// Puts a record that is idle now at the end of those that may be dropped from memory.
    fn rest(&mut self, key: &ResourceKey) {
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
        } else if self.database.forget(&oldest) {
            self.idle_set.remove(&oldest);
            ledger.evict(&oldest);
        } else {
            self.idle.push_back(oldest);
        }
    }
}

fn refuse(error: &Error) -> StoreError {
    match error {
        Error::Damaged { .. } => StoreError::Corrupt(error.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}
