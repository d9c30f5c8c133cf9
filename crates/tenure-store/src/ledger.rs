//! The live rows of a store in memory, with the indexes that the sweep needs.
//!
//! Every store is built on this ledger: `memory` alone, `embedded` with SQLite, `postgres` with the
//! journal; the simulator runs the same code. It applies commands, seals history, and settles what
//! ended sessions leave behind within the same batch. It performs no I/O and reads no clock.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use tenure_core::engine::process_due;
use tenure_core::history::SealedEntry;
use tenure_core::map::Map;
use tenure_core::world::LogChunk;
use tenure_core::{
    Changes, Command, Incarnation, Job, JobId, Kinds, MetricEvent, Millis, Outcome, Record,
    ResourceKey, Session, SessionId, TenureView, Token, TokenFloors, World, step,
};

use crate::fences::Fences;
use crate::store::{Hint, Swept};

/// Maximum number of resources settled per batch for ended sessions; the next sweep continues.
pub const SETTLE_MAX: usize = 1_024;

/// The live rows and their indexes.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(crate) world: World,
    /// Earliest possible expiry of sessions. An entry may be stale; it is then rescheduled when it
    /// is popped.
    expiries: BinaryHeap<Reverse<(Millis, SessionId)>>,
    /// Valid entry of each session in `expiries`.
    expiry_of: Map<SessionId, Millis>,
    /// Earliest possible end of waits; entries may be stale, too.
    wait_deadlines: BinaryHeap<Reverse<(Millis, ResourceKey)>>,
    /// Valid entry of each resource in `wait_deadlines`.
    wait_deadline_of: Map<ResourceKey, Millis>,
    /// Ended sessions that may still hold tenures or waits.
    ended_sessions: VecDeque<SessionId>,
    /// Live resources (held, waited for, or with live jobs), in order.
    pub(crate) live: BTreeSet<ResourceKey>,
    /// Time of the last batch or sweep.
    last_active: Option<Millis>,
    /// Whether this batch renewed every session after a stall.
    grace_granted: bool,
    /// Resources that must not change now.
    pub(crate) fences: Fences,
}

/// Changes of one batch: the rows to write and the hints to send.
///
/// Fields marked *shared* are used only by stores that several servers share.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Changed records, without duplicates.
    pub records: Vec<ResourceKey>,
    /// Changed records that cannot be rebuilt by replaying history and must be written.
    pub unreplayable: BTreeSet<ResourceKey>,
    /// Records of which only the progress of an attempt changed (*shared*).
    pub progressed: Vec<ResourceKey>,
    /// Jobs with new history (*shared*).
    pub jobs: Vec<JobId>,
    /// Jobs that were submitted (*shared*).
    pub submitted: Vec<JobId>,
    /// Resources with new history that concerns all jobs of their lane (*shared*).
    pub lanes: Vec<ResourceKey>,
    /// Sessions to write, or to delete if they no longer exist, without duplicates.
    pub sessions: Vec<SessionId>,
    /// Sessions that only sent a heartbeat or a claim (*shared*).
    pub heartbeats: Vec<SessionId>,
    /// Whether every session was renewed after a stall (*shared*).
    pub grace: bool,
    /// History to append, in order.
    pub history: Vec<(ResourceKey, SealedEntry)>,
    /// Resources to delete with all that is stored of them, before anything else is written, with
    /// their last tokens. The token floors have changed.
    pub forgotten: Vec<(ResourceKey, Token)>,
    /// Finished jobs to write: jobs that ended, and finished jobs that were retried or discarded.
    pub finished: Vec<(ResourceKey, Box<Job>)>,
    /// Ids of the jobs in `finished`.
    pub finished_ids: Vec<JobId>,
    /// Log chunks to append.
    pub logs: Vec<LogChunk>,
    /// Grants to queued requests, for hints.
    pub granted: Vec<TenureView>,
    /// Resources that became and still are ready, for hints to workers.
    pub ready: Vec<ResourceKey>,
    /// Sessions whose next heartbeat carries a notification.
    pub notified: Vec<SessionId>,
    /// Facts for the observers.
    pub facts: Vec<MetricEvent>,
}

impl Batch {
    /// Returns whether nothing has to be written.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.records.is_empty()
            && self.sessions.is_empty()
            && self.logs.is_empty()
            && self.forgotten.is_empty()
    }

    /// Converts the batch into the hints to send once it is durable.
    pub fn into_hints(self) -> impl Iterator<Item = Hint> {
        let granted = self.granted.into_iter().map(|tenure| Hint::Granted(Arc::new(tenure)));
        let ready = self.ready.into_iter().map(Hint::Ready);
        let notified = self.notified.into_iter().map(Hint::Notified);
        let finished = self.finished_ids;
        let ended = (!finished.is_empty()).then(|| Hint::JobsEnded(finished.into()));
        granted.chain(ready).chain(notified).chain(ended)
    }
}

impl Ledger {
    /// Creates a ledger from stored sessions after a restart. Every session is renewed at `now`.
    #[must_use]
    pub fn load(
        incarnation: Incarnation,
        sessions: impl IntoIterator<Item = Session>,
        now: Millis,
    ) -> Self {
        let renew = |mut session: Session| {
            session.renew_after_restart(now);
            session
        };
        Self::resume(incarnation, sessions.into_iter().map(renew), now)
    }

    /// Creates a ledger from stored sessions while other servers may be active: sessions keep their
    /// expiry. `last_active` is the time of the last batch of any server.
    #[must_use]
    pub fn resume(
        incarnation: Incarnation,
        sessions: impl IntoIterator<Item = Session>,
        last_active: Millis,
    ) -> Self {
        let mut ledger = Self::default();
        ledger.world.incarnation = incarnation;
        for session in sessions {
            ledger.insert_session(session);
        }
        ledger.last_active = Some(last_active);
        ledger
    }

    /// Inserts a record that was loaded from storage or changed by another server. Returns whether
    /// the resource became ready.
    pub fn insert_record(&mut self, key: &ResourceKey, record: Box<Record>, now: Millis) -> bool {
        for session in record.sessions() {
            if self.world.sessions.get(session).is_none() {
                self.ended_sessions.push_back(session);
            }
        }
        let ready = self.world.insert_record(key, record, now);
        self.index_record(key);
        ready
    }

    /// Removes a record in order to apply the changes of another server and insert it again.
    pub fn take_record(&mut self, key: &ResourceKey) -> Box<Record> {
        self.world.remove_record(key).unwrap_or_else(|| self.world.floors.new_record(key))
    }

    /// Removes a resource that another server has forgotten.
    #[cfg(feature = "postgres")]
    pub(crate) fn forget(&mut self, key: &ResourceKey, token: Token) {
        self.world.forget(key, token);
        self.live.remove(key);
    }

    /// Replaces the token floors by stored ones.
    pub fn set_floors(&mut self, floors: TokenFloors) {
        self.world.floors = floors;
    }

    /// Inserts a session that was loaded from storage or changed by another server.
    pub fn insert_session(&mut self, session: Session) {
        let id = session.id;
        self.world.sessions.insert(session);
        self.index_session(id);
    }

    /// Removes a session that another server deleted.
    pub fn remove_session(&mut self, id: SessionId) {
        self.world.sessions.remove(id);
        self.index_session(id);
    }

    /// Records that another server was active at `at`.
    pub fn note_activity(&mut self, at: Millis) {
        self.last_active = self.last_active.max(Some(at));
    }

    /// Inserts a finished job that a command of the next batch refers to.
    pub fn insert_finished_job(&mut self, key: ResourceKey, job: Box<Job>) {
        self.world.finished_jobs.insert(job.id, (key, job));
    }

    /// Returns whether a live job is in memory.
    #[must_use]
    pub fn has_live_job(&self, id: JobId) -> bool {
        self.world.job_index.contains_key(&id)
    }

    /// Replaces the declared kinds. Returns the resources that became ready.
    pub fn declare(&mut self, kinds: Arc<Kinds>, now: Millis) -> Vec<ResourceKey> {
        self.world.declare(kinds, now);
        std::mem::take(&mut self.world.changes.ready)
    }

    /// Removes an idle record from memory; returns whether it was idle. It must be in storage.
    pub fn evict(&mut self, key: &ResourceKey) -> bool {
        let idle = self.world.records.get(key).is_some_and(|record| !record.is_live());
        if idle {
            self.world.records.remove(key);
        }
        idle
    }

    /// Returns whether a resource is live.
    #[must_use]
    pub fn is_live(&self, key: &ResourceKey) -> bool {
        self.live.contains(key)
    }

    /// Returns whether the record of a resource is in memory.
    #[must_use]
    pub fn has_record(&self, key: &ResourceKey) -> bool {
        self.world.records.contains_key(key)
    }

    /// Returns the rows.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Applies commands in order. Stored records they refer to must have been inserted before.
    pub fn apply(&mut self, commands: &[Command], now: Millis) -> (Vec<Outcome>, Batch) {
        self.detect_stall(now);
        let outcomes = commands.iter().map(|command| step(&mut self.world, command, now)).collect();
        let (batch, _) = self.finish_batch(now);
        self.world.finished_jobs.clear();
        (outcomes, batch)
    }

    /// Ends expired sessions and waits, processes what is due, and settles what they held.
    pub fn sweep(&mut self, now: Millis) -> (Swept, Batch) {
        self.detect_stall(now);
        let mut swept = Swept::default();
        for session in self.pop_expired_sessions(now) {
            if step(&mut self.world, &Command::Expire { session }, now) == Outcome::Closed {
                swept.sessions += 1;
            }
        }
        (swept.due, swept.tenures) = process_due(&mut self.world, now);
        for key in self.pop_expired_waits(now) {
            swept.tenures += self.settle(key.clone(), now);
            // Other waits of the resource may end later.
            self.schedule_wait(&key);
        }
        let (batch, tenures) = self.finish_batch(now);
        swept.tenures += tenures;
        (swept, batch)
    }

    /// Renews every session if the store has stalled.
    fn detect_stall(&mut self, now: Millis) {
        self.grace_granted |= self.world.renew_after_stall(self.last_active, now);
        self.last_active = Some(now);
    }

    /// Renews every live session at `now`.
    pub fn grant_grace(&mut self, now: Millis) {
        self.world.sessions.grant_grace(now);
        self.last_active = Some(now);
    }

    /// Removes the expired sessions from the heap and returns them in order of expiry, which stale
    /// heap entries may not have.
    fn pop_expired_sessions(&mut self, now: Millis) -> Vec<SessionId> {
        let mut expired: Vec<_> = std::iter::from_fn(|| self.pop_expired_session(now)).collect();
        expired
            .sort_unstable_by_key(|id| (self.world.sessions.get(*id).map(|s| s.expires_at), *id));
        expired.dedup();
        expired
    }

    fn pop_expired_session(&mut self, now: Millis) -> Option<SessionId> {
        loop {
            let Reverse((at, id)) = *self.expiries.peek()?;
            if at > now {
                return None;
            }
            self.expiries.pop();
            if self.expiry_of.get(&id) != Some(&at) {
                continue;
            }
            self.expiry_of.remove(&id);
            match self.world.sessions.get(id) {
                // Deleted, or already queued in `ended_sessions`.
                None => {}
                Some(session) if session.ended.is_some() => {}
                Some(session) if session.expires_at > now => {
                    self.schedule_expiry(id, session.expires_at);
                }
                Some(_) => return Some(id),
            }
        }
    }

    /// Schedules the next expiry check of a session, unless an earlier one is scheduled.
    fn schedule_expiry(&mut self, id: SessionId, at: Millis) {
        if self.expiry_of.get(&id).is_none_or(|before| at < *before) {
            self.expiry_of.insert(id, at);
            self.expiries.push(Reverse((at, id)));
        }
    }

    fn pop_expired_waits(&mut self, now: Millis) -> BTreeSet<ResourceKey> {
        let mut keys = BTreeSet::new();
        while let Some(Reverse((at, _))) = self.wait_deadlines.peek()
            && *at <= now
            && let Some(Reverse((at, key))) = self.wait_deadlines.pop()
        {
            if self.wait_deadline_of.get(&key) != Some(&at) {
                continue;
            }
            self.wait_deadline_of.remove(&key);
            let queue = self.world.records.get(&key).map(|record| &record.queue);
            if queue.into_iter().flatten().any(|waiter| waiter.until <= now) {
                keys.insert(key);
            } else {
                // The waiter left the queue or extended its wait.
                self.schedule_wait(&key);
            }
        }
        keys
    }

    /// Schedules the check of a resource at the deadline of its first wait.
    fn schedule_wait(&mut self, key: &ResourceKey) {
        let Some(record) = self.world.records.get(key) else { return };
        let Some(until) = record.queue.iter().map(|waiter| waiter.until).min() else { return };
        if self.wait_deadline_of.get(key).is_none_or(|at| until < *at) {
            self.wait_deadline_of.insert(key.clone(), until);
            self.wait_deadlines.push(Reverse((until, key.clone())));
        }
    }

    fn settle(&mut self, key: ResourceKey, now: Millis) -> usize {
        if self.is_fenced(&key) {
            return 0;
        }
        self.world.settle_resource(key, now)
    }

    /// Replaces the fences, given as advisory lock ids.
    #[cfg(feature = "postgres")]
    pub(crate) fn set_fences(&mut self, lock_ids: Vec<i64>) {
        self.fences.set(lock_ids, &self.live);
    }

    /// Excludes fenced resources from scheduling: nothing on them becomes due or is started.
    #[cfg(feature = "postgres")]
    pub(crate) fn suspend_fenced(&mut self) {
        for key in self.fences.live_keys() {
            self.world.exclude_from_claims(&key);
        }
    }

    /// Reverts [`Self::suspend_fenced`] after the batch.
    #[cfg(feature = "postgres")]
    pub(crate) fn resume_fenced(&mut self, now: Millis) {
        for key in self.fences.live_keys() {
            self.world.include_in_claims(&key, now);
        }
    }

    /// Returns whether a resource is fenced.
    pub(crate) fn is_fenced(&self, key: &ResourceKey) -> bool {
        self.fences.contains(key)
    }

    /// Settles what ended sessions held, seals history and collects the changes. Also returns the
    /// number of tenures that ended.
    fn finish_batch(&mut self, now: Millis) -> (Batch, usize) {
        let mut batch =
            Batch { grace: std::mem::take(&mut self.grace_granted), ..Batch::default() };
        self.collect_changes(&mut batch);
        let mut tenures = 0;
        let mut settled = 0;
        let mut unfinished = VecDeque::new();
        while settled < SETTLE_MAX
            && let Some(session) = self.ended_sessions.pop_front()
        {
            let fences = &self.fences;
            let settlement =
                self.world.settle_session(session, SETTLE_MAX, now, |key| fences.contains(key));
            // `None`: a record referred to the session before the session was inserted.
            let Some(settlement) = settlement else { continue };
            settled += settlement.resources.max(1);
            tenures += settlement.tenures;
            if !settlement.done {
                unfinished.push_back(session);
            }
            self.collect_changes(&mut batch);
        }
        self.ended_sessions.append(&mut unfinished);
        batch.ready.retain(|key| self.world.ready.is_ready(key));
        batch.records.sort_unstable();
        batch.records.dedup();
        batch.sessions.sort_unstable();
        batch.sessions.dedup();
        (batch, tenures)
    }

    /// Moves the changes of the last steps into the indexes and the batch.
    fn collect_changes(&mut self, batch: &mut Batch) {
        let changes = self.world.take_changes();
        let Changes { records, sessions, events, granted, finished, .. } = changes;
        for (key, _, event) in &events {
            batch.jobs.extend(event.job());
            batch.submitted.extend(event.submitted_job());
            if event.affects_lane() {
                batch.lanes.push(key.clone());
            }
        }
        batch.history.extend(self.world.seal(events));
        for id in &sessions {
            self.index_session(*id);
        }
        for key in &records {
            self.index_record(key);
        }
        batch.records.extend(records);
        batch.unreplayable.extend(changes.unlogged);
        batch.progressed.extend(changes.progressed);
        batch.sessions.extend(sessions);
        batch.heartbeats.extend(changes.heartbeats);
        batch.granted.extend(granted);
        batch.finished_ids.extend(finished.iter().map(|(_, job)| job.id));
        batch.finished.extend(finished);
        batch.logs.extend(changes.logs);
        batch.forgotten.extend(changes.forgotten);
        batch.ready.extend(changes.ready);
        batch.notified.extend(changes.notified);
        batch.facts.extend(changes.metric_events);
    }

    fn index_session(&mut self, id: SessionId) {
        match self.world.sessions.get(id) {
            Some(session) if session.ended.is_some() => self.ended_sessions.push_back(id),
            Some(session) => self.schedule_expiry(id, session.expires_at),
            None => {
                self.expiry_of.remove(&id);
            }
        }
    }

    fn index_record(&mut self, key: &ResourceKey) {
        let Some(record) = self.world.records.get(key) else { return };
        if record.is_live() {
            if self.live.insert(key.clone()) {
                self.fences.insert_live(key);
            }
        } else if self.live.remove(key) {
            self.fences.remove_live(key);
        }
        self.schedule_wait(key);
    }
}
