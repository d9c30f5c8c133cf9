//! The replica: live state built from the journal, and the backlog of the projection.
//!
//! A record that is not in the replica is in its row, and the row is up to date: a record that
//! changes stays in memory until its row has been flushed.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use tenure_core::history::SealedEntry;
use tenure_core::map::Map;
use tenure_core::record::{Tenure, Waiter};
use tenure_core::resource::Resource;
use tenure_core::world::LogChunk;
use tenure_core::{
    Incarnation, Job, JobId, JobState, Millis, Record, ResourceKey, Session, SessionId, Text,
    Token, TokenFloors,
};

use super::corrupt;
use super::journal::{DecodedEntry, Entry, JournaledSessions, Position, set_journaled};
use super::pages::{EventSpan, UnflushedEvents};
use crate::ledger::{Batch, Ledger};
use crate::random;
use crate::store::Result;

/// Number of idle records in memory above which all of them are evicted.
const IDLE_RECORDS_MAX: usize = 65_536;
/// Number of empty entries that count as one row of the backlog.
const EMPTY_ENTRIES_PER_ROW: usize = 128;
/// Age up to which entries are kept for servers that are behind.
const JOURNAL_RETENTION_MS: u64 = 60_000;
/// Maximum number of entries that one flush deletes from the journal.
const TRUNCATE_ENTRIES_MAX: i64 = 20_000;
/// Maximum number of history events by which the record in a row may lag.
const RECORD_LAG_MAX: usize = 128;

/// The live state of the store in this process.
pub(super) struct Replica {
    pub(super) ledger: Ledger,
    /// The last applied position of the journal.
    pub(super) position: Position,
    pub(super) backlog: Backlog,
    /// Whether other servers were writing at the last catch-up.
    pub(super) has_concurrent_writers: bool,
    journaled: JournaledSessions,
    /// Distinguishes this replica from ones that were loaded earlier or later.
    pub(super) nonce: i64,
}

/// Changes that the projection does not contain yet. Dirty objects are mapped to the id of the last
/// entry that changed them.
#[derive(Default)]
pub(super) struct Backlog {
    /// The entry up to which the projection is flushed.
    pub(super) flushed: i64,
    /// An entry that a row was found to contain before its flush was observed. A projection that is
    /// behind it has gone back, and this backlog must not be written to it.
    pub(super) flushed_at_least: i64,
    records: Map<ResourceKey, DirtyRecord>,
    /// Number of history events that the records written by this process contain.
    written_events: Map<ResourceKey, u64>,
    sessions: Map<SessionId, i64>,
    jobs: Map<JobId, i64>,
    /// Jobs without a row, with the entries that submitted them.
    new_jobs: Map<JobId, i64>,
    finished_jobs: Map<JobId, (i64, Arc<FinishedJob>)>,
    events: VecDeque<Arc<UnflushedEvents>>,
    logs: VecDeque<Arc<UnflushedLog>>,
    /// Forgotten resources whose rows may still exist, with the last entry that forgot them. Their
    /// new records stay in memory, so that the old rows are not read.
    forgotten: Map<ResourceKey, i64>,
    /// Entries that servers that are behind may need, with their instants.
    recent_entries: VecDeque<(i64, Millis)>,
    /// Entries up to which the journal may be truncated, and up to which it has been.
    expired: i64,
    truncated: i64,
}

/// A record whose row is out of date.
#[derive(Clone, Copy)]
struct DirtyRecord {
    /// The last entry that changed it.
    last: i64,
    /// The last entry with a change that is not in history.
    last_outside_history: i64,
}

/// A finished job and its resource.
pub(super) struct FinishedJob {
    pub(super) key: ResourceKey,
    pub(super) job: Box<Job>,
}

/// A log piece that has not been flushed.
pub(super) struct UnflushedLog {
    pub(super) entry: i64,
    pub(super) position: i64,
    pub(super) piece: LogChunk,
}

/// A copy of the backlog at one journal position. Each dirty object occurs once, with the id of the
/// last entry that changed it.
pub(super) struct BacklogSnapshot {
    pub(super) position: Position,
    pub(super) records: Vec<ResourceRow>,
    pub(super) sessions: Vec<(i64, SessionId, Option<Session>)>,
    pub(super) live_jobs: Vec<(i64, ResourceKey, Box<Job>)>,
    pub(super) finished_jobs: Vec<(i64, Arc<FinishedJob>)>,
    /// Jobs without a row, with the entries that submitted them.
    pub(super) new_jobs: Map<JobId, i64>,
    pub(super) events: Vec<Arc<UnflushedEvents>>,
    pub(super) logs: Vec<Arc<UnflushedLog>>,
    /// Forgotten resources, with the last entry that forgot them.
    pub(super) forgotten: Vec<(i64, ResourceKey)>,
    pub(super) floors: TokenFloors,
    /// Range of entries to delete from the journal: after the first, up to and including the last.
    pub(super) truncate: (i64, i64),
    /// See [`Backlog::flushed_at_least`].
    pub(super) flushed_at_least: i64,
    pub(super) replica_nonce: i64,
}

/// A row of `tenure.resources`.
pub(super) struct ResourceRow {
    /// The last entry that changed it.
    pub(super) entry: i64,
    pub(super) key: ResourceKey,
    /// Number of history events of the resource.
    pub(super) n: u64,
    pub(super) token: Token,
    pub(super) state: Option<Text>,
    pub(super) running: usize,
    pub(super) live: bool,
    pub(super) tenures: Vec<Tenure>,
    pub(super) queue: VecDeque<Waiter>,
    /// The complete record. If `None`, the row keeps its record, and readers replay the history
    /// events after it.
    pub(super) record: Option<Box<Record>>,
}

impl Replica {
    /// Creates a replica from the sessions of the projection at `position`.
    pub(super) fn new(
        incarnation: Incarnation,
        sessions: Vec<Session>,
        position: Position,
    ) -> Self {
        let mut journaled = JournaledSessions::default();
        for session in &sessions {
            set_journaled(session, &mut journaled);
        }
        let ledger = Ledger::resume(incarnation, sessions, position.at);
        let backlog = Backlog { flushed: position.id, ..Backlog::default() };
        let nonce = random::nonce();
        Self { ledger, position, backlog, has_concurrent_writers: false, journaled, nonce }
    }

    /// Builds the journal entry of a batch.
    pub(super) fn build_entry(&mut self, batch: &Batch, now: Millis) -> Entry {
        Entry::new(self.ledger.world(), batch, self.position, now, &mut self.journaled)
    }

    /// Advances past an entry that this process has committed. The ledger already includes its
    /// batch; the history, logs and finished jobs move to the backlog.
    pub(super) fn advance(&mut self, entry: Entry, batch: &mut Batch) {
        let after = entry.position;
        let before = std::mem::replace(&mut self.position, after);
        let (text, ranges) = entry.into_events();
        let events = batch.history.drain(..).zip(ranges);
        let events = events.map(|((key, SealedEntry { n, hash, .. }), range)| EventSpan {
            key,
            n,
            hash,
            range,
        });
        for (key, _) in &batch.forgotten {
            self.mark_forgotten(key, after.id);
        }
        let logs = std::mem::take(&mut batch.logs);
        self.backlog.append(before, after, text, events.collect(), logs);
        for (key, job) in batch.finished.drain(..) {
            self.backlog.add_finished(after.id, FinishedJob { key, job });
        }
        self.backlog.jobs.extend(batch.jobs.iter().map(|id| (*id, after.id)));
        self.backlog.new_jobs.extend(batch.submitted.iter().map(|id| (*id, after.id)));
        for key in batch.records.iter().chain(&batch.progressed) {
            self.mark_dirty(key, after.id);
        }
        for key in batch.unreplayable.iter().chain(&batch.progressed) {
            self.mark_outside_history(key, after.id);
            self.mark_jobs_dirty(key, after.id, |job| job.state != JobState::Queued);
        }
        for key in &batch.lanes {
            self.mark_jobs_dirty(key, after.id, |_| true);
        }
        let sessions = batch.sessions.iter().chain(&batch.heartbeats);
        self.backlog.sessions.extend(sessions.map(|id| (*id, after.id)));
        if batch.grace {
            self.mark_all_sessions_dirty(after.id);
        }
    }

    /// Applies an entry of another server. Existing records that it changes must have been
    /// admitted.
    pub(super) fn apply(&mut self, entry: DecodedEntry) -> Result<()> {
        let before = std::mem::replace(&mut self.position, entry.position);
        let (id, at) = (entry.position.id, entry.position.at);
        self.ledger.note_activity(at);
        if entry.grace {
            self.ledger.grant_grace(at);
            self.mark_all_sessions_dirty(id);
        }
        for session in entry.sessions {
            set_journaled(&session, &mut self.journaled);
            self.backlog.sessions.insert(session.id, id);
            self.ledger.insert_session(session);
        }
        for (key, token) in &entry.forgotten {
            self.ledger.forget(key, *token);
            self.mark_forgotten(key, id);
        }
        let mut replayed: Map<ResourceKey, Box<Record>> = Map::default();
        let mut spans = Vec::with_capacity(entry.events.len());
        let mut lanes = Vec::new();
        for (key, event, range) in entry.events {
            if event.event.affects_lane() {
                lanes.push(key.clone());
            }
            self.backlog.jobs.extend(event.event.job().map(|job| (job, id)));
            self.backlog.new_jobs.extend(event.event.submitted_job().map(|job| (job, id)));
            let record =
                replayed.entry(key.clone()).or_insert_with(|| self.ledger.take_record(&key));
            let (n, next) = (event.n, record.chain.after(&entry.body[range.clone()]));
            let hash = next.head;
            match n.cmp(&next.n) {
                // The record comes from a row that already contains the event. Neither the event
                // nor its hash is written again.
                Ordering::Less => {
                    self.backlog.flushed_at_least = self.backlog.flushed_at_least.max(id);
                }
                Ordering::Greater => {
                    let gap = format!("event {n} follows event {}", record.chain.n);
                    return Err(corrupt(&format!("the history of {key}"), &gap));
                }
                Ordering::Equal if entry.records.contains_key(&key) => record.chain = next,
                Ordering::Equal => {
                    if let Some(job) = record.replay(&event, hash) {
                        self.backlog.add_finished(id, FinishedJob { key: key.clone(), job });
                    }
                }
            }
            spans.push(EventSpan { key, n, hash, range });
        }
        replayed.retain(|key, _| !entry.records.contains_key(key));
        self.replace_records(replayed, entry.records, entry.position);
        for key in lanes {
            self.mark_jobs_dirty(&key, id, |_| true);
        }
        for session in entry.removed_sessions {
            self.journaled.remove(&session);
            self.backlog.sessions.insert(session, id);
            self.ledger.remove_session(session);
        }
        for job in entry.finished_jobs {
            self.backlog.add_finished(id, job);
        }
        self.backlog.append(before, entry.position, entry.body, spans, entry.logs);
        Ok(())
    }

    /// Replaces the records that an entry changes: those of which it contains the events, and those
    /// that it contains as a whole.
    fn replace_records(
        &mut self,
        replayed: Map<ResourceKey, Box<Record>>,
        whole: Map<ResourceKey, Box<Record>>,
        Position { id, at, .. }: Position,
    ) {
        let keys: Vec<ResourceKey> = whole.keys().cloned().collect();
        for (key, record) in replayed.into_iter().chain(whole) {
            self.ledger.insert_record(&key, record, at);
            self.mark_dirty(&key, id);
        }
        for key in keys {
            self.mark_outside_history(&key, id);
            self.mark_jobs_dirty(&key, id, |job| job.state != JobState::Queued);
        }
    }

    /// Marks the rows of a resource for deletion. Its new record stays in memory until then.
    fn mark_forgotten(&mut self, key: &ResourceKey, entry: i64) {
        self.backlog.records.remove(key);
        self.backlog.written_events.remove(key);
        self.backlog.forgotten.insert(key.clone(), entry);
        if !self.ledger.has_record(key) {
            let record = self.ledger.take_record(key);
            self.ledger.insert_record(key, record, self.position.at);
        }
    }

    fn mark_dirty(&mut self, key: &ResourceKey, entry: i64) {
        match self.backlog.records.get_mut(key) {
            Some(dirty) => dirty.last = entry,
            None => {
                let dirty = DirtyRecord { last: entry, last_outside_history: 0 };
                self.backlog.records.insert(key.clone(), dirty);
            }
        }
    }

    /// Marks that a dirty record has changes that are not in history.
    fn mark_outside_history(&mut self, key: &ResourceKey, entry: i64) {
        if let Some(dirty) = self.backlog.records.get_mut(key) {
            dirty.last_outside_history = entry;
        }
    }

    /// Marks the jobs of a resource's lane dirty that match `filter`.
    fn mark_jobs_dirty(&mut self, key: &ResourceKey, entry: i64, filter: fn(&Job) -> bool) {
        let Some(record) = self.ledger.world().records.get(key) else { return };
        let jobs = record.lane().iter().filter(|job| filter(job));
        self.backlog.jobs.extend(jobs.map(|job| (job.id, entry)));
    }

    fn mark_all_sessions_dirty(&mut self, entry: i64) {
        let sessions = self.ledger.world().sessions.iter();
        self.backlog.sessions.extend(sessions.map(|session| (session.id, entry)));
    }

    /// Marks sessions dirty that were ended without a journal entry. They count as changed by the
    /// next entry.
    pub(super) fn mark_ended(&mut self, sessions: &[SessionId]) {
        let next = self.position.id + 1;
        self.backlog.sessions.extend(sessions.iter().map(|id| (*id, next)));
    }

    /// Returns a finished job from the backlog.
    pub(super) fn finished_job(&self, id: JobId) -> Option<(ResourceKey, Box<Job>)> {
        let (_, finished) = self.backlog.finished_jobs.get(&id)?;
        Some((finished.key.clone(), finished.job.clone()))
    }

    /// Returns the size of the backlog in rows, including a share for empty entries.
    pub(super) fn backlog_len(&self) -> usize {
        let Backlog { records, sessions, events, logs, flushed, .. } = &self.backlog;
        let entries = usize::try_from(self.position.id - flushed).unwrap_or(0);
        let flushed_events = events.front().map_or(self.position.lines, |events| events.first - 1);
        let events = usize::try_from(self.position.lines - flushed_events).unwrap_or(0);
        records.len() + sessions.len() + events + logs.len() + entries / EMPTY_ENTRIES_PER_ROW
    }

    /// Returns a snapshot of the backlog, or `None` if the projection is up to date.
    pub(super) fn snapshot_backlog(&self) -> Option<BacklogSnapshot> {
        if self.position.id == self.backlog.flushed {
            return None;
        }
        let world = self.ledger.world();
        let backlog = &self.backlog;
        let records = backlog.records.iter().filter_map(|(key, dirty)| {
            let record = world.records.get(key)?;
            (**record != Record::new(key)).then(|| backlog.row(key, record, *dirty))
        });
        let sessions = backlog.sessions.iter();
        let sessions = sessions.map(|(id, entry)| (*entry, *id, world.sessions.get(*id).cloned()));
        let live_jobs = backlog.jobs.iter().filter_map(|(id, entry)| {
            let key = world.job_index.get(id)?;
            let job = world.records.get(key)?.job(*id)?;
            Some((*entry, key.clone(), Box::new(job.clone())))
        });
        // The last entry stays: a starting server needs it.
        let truncate = backlog.expired.min(self.position.id - 1);
        let truncate = truncate.min(backlog.truncated + TRUNCATE_ENTRIES_MAX);
        Some(BacklogSnapshot {
            position: self.position,
            records: records.collect(),
            sessions: sessions.collect(),
            live_jobs: live_jobs.collect(),
            finished_jobs: backlog.finished_jobs.values().cloned().collect(),
            new_jobs: backlog.new_jobs.clone(),
            events: backlog.events.iter().cloned().collect(),
            logs: backlog.logs.iter().cloned().collect(),
            forgotten: backlog.forgotten.iter().map(|(key, entry)| (*entry, key.clone())).collect(),
            floors: world.floors.clone(),
            truncate: (backlog.truncated, truncate),
            flushed_at_least: backlog.flushed_at_least,
            replica_nonce: self.nonce,
        })
    }

    /// Marks a snapshot as flushed by this process.
    pub(super) fn mark_written(&mut self, snapshot: &BacklogSnapshot) {
        self.mark_flushed(snapshot.position.id);
        self.backlog.truncated = self.backlog.truncated.max(snapshot.truncate.1);
        let whole = snapshot.records.iter().filter(|row| row.record.is_some());
        self.backlog.written_events.extend(whole.map(|row| (row.key.clone(), row.n)));
    }

    /// Marks the projection as flushed up to an entry, by this process or another.
    pub(super) fn mark_flushed(&mut self, entry: i64) {
        let backlog = &mut self.backlog;
        if entry <= backlog.flushed {
            return;
        }
        backlog.flushed = entry;
        backlog.records.retain(|_, dirty| dirty.last > entry);
        backlog.sessions.retain(|_, last| *last > entry);
        backlog.forgotten.retain(|_, last| *last > entry);
        backlog.jobs.retain(|_, last| *last > entry);
        backlog.new_jobs.retain(|_, submitted| *submitted > entry);
        backlog.finished_jobs.retain(|_, (last, _)| *last > entry);
        while backlog.events.front().is_some_and(|events| events.entry <= entry) {
            backlog.events.pop_front();
        }
        while backlog.logs.front().is_some_and(|log| log.entry <= entry) {
            backlog.logs.pop_front();
        }
    }

    /// Evicts clean records without holders, waiters or jobs if there are many of them. Must not be
    /// called while a batch relies on the records in memory.
    pub(super) fn evict_idle(&mut self) {
        let world = self.ledger.world();
        if world.records.len() < self.ledger.live_count() + IDLE_RECORDS_MAX {
            return;
        }
        let idle = |key: &&ResourceKey| {
            !self.ledger.is_live(key)
                && !self.backlog.records.contains_key(*key)
                && !self.backlog.forgotten.contains_key(*key)
        };
        let idle: Vec<ResourceKey> = world.records.keys().filter(idle).cloned().collect();
        for key in &idle {
            self.ledger.evict(key);
            self.backlog.written_events.remove(key);
        }
    }
}

impl Backlog {
    /// Returns the row of a dirty record. It includes the record if history lacks some of the
    /// changes, or if readers would have to replay more events than the record remembers requests.
    fn row(&self, key: &ResourceKey, record: &Record, dirty: DirtyRecord) -> ResourceRow {
        let resource = record.resource.as_deref();
        let requests = record.recent.len() + resource.map_or(0, |r| r.recent_submits.len());
        let lag_max = u64::try_from(requests.min(RECORD_LAG_MAX)).unwrap_or(0);
        let written = self.written_events.get(key);
        let is_behind = written.is_none_or(|n| record.chain.n.saturating_sub(*n) >= lag_max);
        let whole = is_behind || dirty.last_outside_history > self.flushed;
        ResourceRow {
            entry: dirty.last,
            key: key.clone(),
            n: record.chain.n,
            token: record.token,
            state: resource.map(|resource| resource.state.clone()),
            running: resource.map_or(0, Resource::running_count),
            live: record.is_live(),
            tenures: record.tenures.clone(),
            queue: record.queue.clone(),
            record: whole.then(|| Box::new(record.clone())),
        }
    }

    fn add_finished(&mut self, entry: i64, job: FinishedJob) {
        self.finished_jobs.insert(job.job.id, (entry, Arc::new(job)));
    }

    fn append(
        &mut self,
        before: Position,
        after: Position,
        mut text: String,
        spans: Vec<EventSpan>,
        logs: Vec<LogChunk>,
    ) {
        let entry = after.id;
        if let Some(last) = spans.last() {
            text.truncate(last.range.end);
            text.shrink_to_fit();
            let first = before.lines + 1;
            self.events.push_back(Arc::new(UnflushedEvents { entry, first, text, spans }));
        }
        let logs = (before.logs + 1..).zip(logs);
        let log = |(position, piece)| UnflushedLog { entry, position, piece };
        self.logs.extend(logs.map(log).map(Arc::new));
        self.recent_entries.push_back((entry, after.at));
        while let Some((id, at)) = self.recent_entries.front().copied()
            && after.at.since(at) > JOURNAL_RETENTION_MS
        {
            self.expired = id;
            self.recent_entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
