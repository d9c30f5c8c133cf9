//! The rows of a store that keeps its live ones in memory, with the indexes that the sweep needs.
//!
//! `memory` and `embedded` are this ledger with nothing or with SQLite behind it, and the simulator
//! crashes this very code. It steps, seals history, and settles what ended sessions leave behind
//! within the same batch. It must never do I/O or read a clock.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use tenure_core::canary::{Canary, planted};
use tenure_core::engine::process_due;
use tenure_core::history::SealedEntry;
use tenure_core::map::Map;
use tenure_core::world::LogChunk;
use tenure_core::{
    Changes, Command, Incarnation, Job, JobId, Kinds, LockAction, MetricEvent, Millis, Outcome,
    Record, ResourceKey, Session, SessionId, TenureView, World, step,
};

use crate::fences::Fences;
use crate::store::{Hint, Swept};

/// A store that was not looking for longer than this gives every session a full time to live:
/// nobody may lose a lock because the *store* was stopped, starved or suspended.
pub const STALL_MS: u64 = 2_000;
/// Most resources that one batch settles for ended sessions; the rest follow in the next sweep.
pub const SETTLE_MAX: usize = 1_024;

/// The live rows and their indexes.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(crate) world: World,
    /// When sessions may lapse. An entry may be out of date; it is put back when it comes up.
    lapses: BinaryHeap<Reverse<(Millis, SessionId)>>,
    /// The one entry of each session among `lapses` that counts.
    lapse_of: Map<SessionId, Millis>,
    /// When waits may run out; likewise.
    waits: BinaryHeap<Reverse<(Millis, ResourceKey)>>,
    /// The earliest entry of each resource among `waits`.
    wait_of: Map<ResourceKey, Millis>,
    /// Sessions that are over and may have left something behind.
    over: VecDeque<SessionId>,
    /// Resources that somebody holds or waits for, in order.
    pub(crate) live: BTreeSet<ResourceKey>,
    /// When the ledger last looked.
    looked: Option<Millis>,
    /// Whether everybody got a full time to live in this batch.
    graced: bool,
    /// Resources that have to stay as they are for now.
    pub(crate) fences: Fences,
}

/// What one batch changed: the rows to write and the wake-ups to send.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Records that changed, each once.
    pub records: Vec<ResourceKey>,
    /// Those of them that cannot be made up for from the history.
    pub untold: BTreeSet<ResourceKey>,
    /// Records of which only how far an attempt has come changed: for a store that is not alone.
    pub moved: Vec<ResourceKey>,
    /// Jobs that history tells something of: likewise.
    pub jobs: Vec<JobId>,
    /// Those of them that are new: likewise.
    pub submitted: Vec<JobId>,
    /// Resources of which history tells something that is for all their jobs: likewise.
    pub lanes: Vec<ResourceKey>,
    /// Sessions to write, or to delete when they are gone, each once.
    pub sessions: Vec<SessionId>,
    /// Sessions of which only the time to live was renewed, or that asked for jobs: likewise.
    pub beats: Vec<SessionId>,
    /// Whether everybody got a full time to live: likewise.
    pub grace: bool,
    /// History to append, in order.
    pub history: Vec<(ResourceKey, SealedEntry)>,
    /// Jobs that are over, or that somebody dealt with after they were: to be kept.
    pub finished: Vec<(ResourceKey, Box<Job>)>,
    /// Their ids.
    pub over: Vec<JobId>,
    /// Pieces of logs to append.
    pub logs: Vec<LogChunk>,
    /// What was granted to requests while they waited: their clients should be told.
    pub granted: Vec<TenureView>,
    /// Resources that became ready and still are: their workers should ask again.
    pub ready: Vec<ResourceKey>,
    /// Sessions that a heartbeat would tell something.
    pub notified: Vec<SessionId>,
    /// What to count, now that it is durable.
    pub facts: Vec<MetricEvent>,
}

impl Batch {
    /// Whether nothing has to be written.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.records.is_empty() && self.sessions.is_empty() && self.logs.is_empty()
    }

    /// The wake-ups to send, now that it is durable.
    pub fn into_hints(self) -> impl Iterator<Item = Hint> {
        let granted = self.granted.into_iter().map(|tenure| Hint::Granted(Arc::new(tenure)));
        let ready = self.ready.into_iter().map(|key| Hint::Ready(key.kind().into()));
        let notified = self.notified.into_iter().map(Hint::Notified);
        let over = (!self.over.is_empty()).then(|| Hint::Over(self.over.into()));
        granted.chain(ready).chain(notified).chain(over)
    }
}

impl Ledger {
    /// A ledger with the rows that a store has kept. Every session gets its full time from `now`.
    #[must_use]
    pub fn load(
        incarnation: Incarnation,
        sessions: impl IntoIterator<Item = Session>,
        now: Millis,
    ) -> Self {
        let grace = |mut session: Session| {
            if !planted(Canary::NoGraceAfterRestart) && session.ended.is_none() {
                // Neither less nor more: what was written before a wall clock was set back lies far
                // ahead, and would keep the locks of a dead process for as long.
                session.expires_at = now.plus(session.ttl_ms);
            }
            session
        };
        Self::resume(incarnation, sessions.into_iter().map(grace), now)
    }

    /// The same for a store that others have looked after meanwhile: nobody gets more time.
    #[must_use]
    pub fn resume(
        incarnation: Incarnation,
        sessions: impl IntoIterator<Item = Session>,
        looked: Millis,
    ) -> Self {
        let mut ledger = Self::default();
        ledger.world.incarnation = incarnation;
        for session in sessions {
            ledger.put_session(session);
        }
        ledger.looked = Some(looked);
        ledger
    }

    /// Puts in the record of a resource that was kept or changed elsewhere. Says whether the
    /// resource became ready by that.
    pub fn admit(&mut self, key: &ResourceKey, record: Box<Record>, now: Millis) -> bool {
        for session in record.sessions() {
            if self.world.sessions.get(session).is_none() {
                self.over.push_back(session);
            }
        }
        let ready = self.world.insert_record(key, record, now);
        self.note_record(key);
        ready
    }

    /// Takes out the record of a resource, to be put in again as it was changed elsewhere.
    pub fn take(&mut self, key: &ResourceKey) -> Box<Record> {
        self.world.remove_record(key).unwrap_or_else(|| Box::new(Record::new(key)))
    }

    /// Puts in a session that was kept or changed elsewhere.
    pub fn put_session(&mut self, session: Session) {
        let id = session.id;
        self.world.sessions.insert(session);
        self.note_session(id);
    }

    /// Takes out a session that somebody else has forgotten.
    pub fn drop_session(&mut self, id: SessionId) {
        self.world.sessions.remove(id);
        self.note_session(id);
    }

    /// Notes that somebody else has looked.
    pub fn looked_elsewhere(&mut self, at: Millis) {
        self.looked = self.looked.max(Some(at));
    }

    /// Puts in a job that is over, because a command of the next batch names it.
    pub fn recall(&mut self, key: ResourceKey, job: Box<Job>) {
        self.world.finished_jobs.insert(job.id, (key, job));
    }

    /// Whether a job that is not over is at hand.
    #[must_use]
    pub fn has_job(&self, id: JobId) -> bool {
        self.world.job_index.contains_key(&id)
    }

    /// Says what resources can be from now on. Gives the resources that became ready.
    pub fn declare(&mut self, kinds: Arc<Kinds>, now: Millis) -> Vec<ResourceKey> {
        self.world.declare(kinds, now);
        std::mem::take(&mut self.world.changes.ready)
    }

    /// Drops the record of a resource that nobody holds or waits for. It must be kept elsewhere.
    pub fn evict(&mut self, key: &ResourceKey) -> bool {
        let idle = self.world.records.get(key).is_some_and(|record| !record.is_live());
        if idle {
            self.world.records.remove(key);
        }
        idle
    }

    /// Whether somebody holds or waits for a resource.
    #[must_use]
    pub fn is_live(&self, key: &ResourceKey) -> bool {
        self.live.contains(key)
    }

    /// Whether the record of a resource is at hand.
    #[must_use]
    pub fn has(&self, key: &ResourceKey) -> bool {
        self.world.records.contains_key(key)
    }

    /// The rows.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Steps commands in order. Records that were kept elsewhere must have been admitted.
    pub fn apply(&mut self, commands: &[Command], now: Millis) -> (Vec<Outcome>, Batch) {
        self.look(now);
        let outcomes = commands.iter().map(|command| step(&mut self.world, command, now)).collect();
        let (batch, _) = self.conclude(now);
        self.world.finished_jobs.clear();
        (outcomes, batch)
    }

    /// Ends what has lapsed and settles it.
    pub fn sweep(&mut self, now: Millis) -> (Swept, Batch) {
        self.look(now);
        let mut swept = Swept::default();
        for session in self.lapsed(now) {
            if step(&mut self.world, &Command::Expire { session }, now) == Outcome::Closed {
                swept.sessions += 1;
            }
        }
        (swept.due, swept.tenures) = process_due(&mut self.world, now);
        for key in self.waits_run_out(now) {
            swept.tenures += self.settle(key.clone(), now);
            // A wait may have been prolonged meanwhile: then it is still there, with a later end.
            self.schedule_wait(&key);
        }
        let (batch, tenures) = self.conclude(now);
        swept.tenures += tenures;
        (swept, batch)
    }

    /// Notices that the store was not looking for a while.
    fn look(&mut self, now: Millis) {
        let stalled = self.looked.is_some_and(|looked| now.since(looked) > STALL_MS);
        if stalled {
            self.grace(now);
            self.graced = true;
        }
        self.looked = Some(now);
    }

    /// Gives every living session its full time to live from `now`.
    pub fn grace(&mut self, now: Millis) {
        self.world.sessions.grant_grace(now);
        self.looked = Some(now);
    }

    /// Sessions that have lapsed, in the order in which they did: entries that are out of date may
    /// have brought them up in another one.
    fn lapsed(&mut self, now: Millis) -> Vec<SessionId> {
        let mut lapsed: Vec<_> = std::iter::from_fn(|| self.next_lapsed(now)).collect();
        lapsed.sort_unstable_by_key(|id| (self.world.sessions.get(*id).map(|s| s.expires_at), *id));
        lapsed.dedup();
        lapsed
    }

    fn next_lapsed(&mut self, now: Millis) -> Option<SessionId> {
        loop {
            let Reverse((at, id)) = *self.lapses.peek()?;
            if at > now {
                return None;
            }
            self.lapses.pop();
            if self.lapse_of.get(&id) != Some(&at) {
                continue;
            }
            self.lapse_of.remove(&id);
            match self.world.sessions.get(id) {
                // It is gone, or it is among those that are settled anyway.
                None => {}
                Some(session) if session.ended.is_some() => {}
                Some(session) if session.expires_at > now => {
                    self.schedule_lapse(id, session.expires_at);
                }
                Some(_) => return Some(id),
            }
        }
    }

    /// Sees to it that the sweep looks at a session when it may lapse, and not more than once.
    fn schedule_lapse(&mut self, id: SessionId, at: Millis) {
        if self.lapse_of.get(&id).is_none_or(|before| at < *before) {
            self.lapse_of.insert(id, at);
            self.lapses.push(Reverse((at, id)));
        }
    }

    fn waits_run_out(&mut self, now: Millis) -> BTreeSet<ResourceKey> {
        let mut keys = BTreeSet::new();
        while let Some(Reverse((at, _))) = self.waits.peek()
            && *at <= now
            && let Some(Reverse((at, key))) = self.waits.pop()
        {
            if self.wait_of.get(&key) != Some(&at) {
                continue;
            }
            self.wait_of.remove(&key);
            let queue = self.world.records.get(&key).map(|record| &record.queue);
            if queue.into_iter().flatten().any(|waiter| waiter.until <= now) {
                keys.insert(key);
            } else {
                // Who waited has gone, or waits longer.
                self.schedule_wait(&key);
            }
        }
        keys
    }

    /// Sees to it that the sweep looks at a resource when its first wait runs out.
    fn schedule_wait(&mut self, key: &ResourceKey) {
        let Some(record) = self.world.records.get(key) else { return };
        let Some(until) = record.queue.iter().map(|waiter| waiter.until).min() else { return };
        if self.wait_of.get(key).is_none_or(|at| until < *at) {
            self.wait_of.insert(key.clone(), until);
            self.waits.push(Reverse((until, key.clone())));
        }
    }

    fn settle(&mut self, key: ResourceKey, now: Millis) -> usize {
        if self.is_fenced(&key) {
            return 0;
        }
        let command = Command::Lock { key, action: LockAction::Settle };
        match step(&mut self.world, &command, now) {
            Outcome::Settled { ended } => ended,
            _ => 0,
        }
    }

    /// Says by their numbers which resources have to stay as they are for now.
    pub(crate) fn fence(&mut self, numbers: Vec<i64>) {
        self.fences.set(numbers, &self.live);
    }

    /// Keeps what has to stay as it is from coming due or being started by itself.
    pub(crate) fn hide_fenced(&mut self) {
        for key in self.fences.keys() {
            self.world.exclude_from_claims(&key);
        }
    }

    /// The opposite, after the batch.
    pub(crate) fn show_fenced(&mut self, now: Millis) {
        for key in self.fences.keys() {
            self.world.include_in_claims(&key, now);
        }
    }

    /// Whether a resource has to stay as it is for now.
    pub(crate) fn is_fenced(&self, key: &ResourceKey) -> bool {
        self.fences.has(key)
    }

    /// Settles what ended sessions left, seals history and notes what changed.
    fn conclude(&mut self, now: Millis) -> (Batch, usize) {
        let mut batch = Batch { grace: std::mem::take(&mut self.graced), ..Batch::default() };
        self.note(&mut batch);
        let mut tenures = 0;
        let mut settled = 0;
        let mut again = VecDeque::new();
        while settled < SETTLE_MAX
            && let Some(session) = self.over.pop_front()
        {
            if self.world.sessions.get(session).is_some_and(|session| session.ended.is_none()) {
                // A record named it before it was known.
                continue;
            }
            let keys: Vec<_> =
                self.world.session_index.resources_of(session).take(SETTLE_MAX).cloned().collect();
            settled += keys.len().max(1);
            for key in keys {
                tenures += self.settle(key, now);
            }
            self.note(&mut batch);
            if self.world.session_index.contains(session) {
                again.push_back(session);
            } else {
                step(&mut self.world, &Command::Forget { session }, now);
            }
            self.note(&mut batch);
        }
        self.over.append(&mut again);
        batch.ready.retain(|key| self.world.ready.is_ready(key));
        batch.records.sort_unstable();
        batch.records.dedup();
        batch.sessions.sort_unstable();
        batch.sessions.dedup();
        (batch, tenures)
    }

    /// Takes the changes of the last steps into the indexes and the batch.
    fn note(&mut self, batch: &mut Batch) {
        let changes = self.world.take_changes();
        let Changes { records, unlogged: untold, sessions, events, granted, finished, .. } =
            changes;
        for (key, _, event) in &events {
            batch.jobs.extend(event.job());
            batch.submitted.extend(event.submitted_job());
            if event.affects_lane() {
                batch.lanes.push(key.clone());
            }
        }
        batch.history.extend(self.world.seal(events));
        for id in &sessions {
            self.note_session(*id);
        }
        for key in &records {
            self.note_record(key);
        }
        batch.records.extend(records);
        batch.untold.extend(untold);
        batch.moved.extend(changes.progressed);
        batch.sessions.extend(sessions);
        batch.beats.extend(changes.heartbeats);
        batch.granted.extend(granted);
        batch.over.extend(finished.iter().map(|(_, job)| job.id));
        batch.finished.extend(finished);
        batch.logs.extend(changes.logs);
        batch.ready.extend(changes.ready);
        batch.notified.extend(changes.notified);
        batch.facts.extend(changes.metric_events);
    }

    fn note_session(&mut self, id: SessionId) {
        match self.world.sessions.get(id) {
            Some(session) if session.ended.is_some() => self.over.push_back(id),
            Some(session) => self.schedule_lapse(id, session.expires_at),
            None => {
                self.lapse_of.remove(&id);
            }
        }
    }

    fn note_record(&mut self, key: &ResourceKey) {
        let Some(record) = self.world.records.get(key) else { return };
        if record.is_live() {
            if self.live.insert(key.clone()) {
                self.fences.came(key);
            }
        } else if self.live.remove(key) {
            self.fences.went(key);
        }
        self.schedule_wait(key);
    }
}
