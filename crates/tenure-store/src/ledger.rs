//! The rows of a store that keeps its live ones in memory, with the indexes that the sweep needs.
//!
//! `memory` and `embedded` are this ledger with nothing or with SQLite behind it, and the simulator
//! crashes this very code. It steps, seals history, and settles what ended sessions leave behind
//! within the same batch. It must never do I/O or read a clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::ops::Bound;

use tenure_core::canary::{Canary, planted};
use tenure_core::history::Sealed;
use tenure_core::{
    Changes, Command, Incarnation, LockAction, Millis, Outcome, Record, ResourceKey, Session,
    SessionId, TenureView, World, step,
};

use crate::store::{ListQuery, Page, Shown, Swept};

/// A store that was not looking for longer than this gives every session a full time to live:
/// nobody may lose a lock because the *store* was stopped, starved or suspended.
pub const STALL_MS: u64 = 2_000;
/// Most resources that one batch settles for ended sessions; the rest follow in the next sweep.
pub const SETTLE_MAX: usize = 1_024;

/// The live rows and their indexes.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    world: World,
    /// What each session holds or wants, and how often; in order, so that a run can be replayed.
    bonds: HashMap<SessionId, BTreeMap<ResourceKey, u32>>,
    /// When sessions may lapse. An entry may be out of date; it is put back when it comes up.
    lapses: BinaryHeap<Reverse<(Millis, SessionId)>>,
    /// When waits may run out; likewise.
    waits: BinaryHeap<Reverse<(Millis, ResourceKey)>>,
    /// The earliest entry of each resource among `waits`.
    wait_of: HashMap<ResourceKey, Millis>,
    /// Sessions that are over and may have left something behind.
    over: VecDeque<SessionId>,
    /// Resources that somebody holds or waits for, in order.
    live: BTreeSet<ResourceKey>,
    /// When the ledger last looked.
    looked: Option<Millis>,
}

/// What one batch changed: the rows to write and the wake-ups to send.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Records that changed, each once.
    pub records: Vec<ResourceKey>,
    /// Those of them that cannot be made up for from the history.
    pub untold: BTreeSet<ResourceKey>,
    /// Sessions to write, or to delete when they are gone, each once.
    pub sessions: Vec<SessionId>,
    /// History to append, in order.
    pub history: Vec<(ResourceKey, Sealed)>,
    /// What was granted to requests while they waited: their clients should be told.
    pub granted: Vec<TenureView>,
}

impl Batch {
    /// Whether nothing has to be written.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.records.is_empty() && self.sessions.is_empty()
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
        let mut ledger = Self::default();
        ledger.world.incarnation = incarnation;
        for mut session in sessions {
            if !planted(Canary::NoGraceAfterRestart) && session.over.is_none() {
                // Neither less nor more: what was written before a wall clock was set back lies far
                // ahead, and would keep the locks of a dead process for as long.
                session.expires_at = now.plus(session.ttl_ms);
            }
            match session.over {
                Some(_) => ledger.over.push_back(session.id),
                None => ledger.lapses.push(Reverse((session.expires_at, session.id))),
            }
            ledger.world.sessions.insert(session);
        }
        ledger.looked = Some(now);
        ledger
    }

    /// Puts in the record of a resource that was kept elsewhere.
    pub fn admit(&mut self, key: &ResourceKey, record: Record) {
        let holders = record.tenures.iter().map(|tenure| (tenure.session, tenure.token));
        let mut holders: Vec<_> = holders.collect();
        holders.sort_unstable();
        holders.dedup();
        for (session, _) in holders {
            self.bond(session, key.clone());
        }
        for waiter in &record.queue {
            self.bond(waiter.session, key.clone());
        }
        self.world.records.insert(key.clone(), Box::new(record));
        self.note_record(key);
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
        (outcomes, batch)
    }

    /// Ends what has lapsed and settles it.
    pub fn sweep(&mut self, now: Millis) -> (Swept, Batch) {
        self.look(now);
        let mut swept = Swept::default();
        for session in self.lapsed(now) {
            if step(&mut self.world, &Command::Lapse { session }, now) == Outcome::Closed {
                swept.sessions += 1;
            }
        }
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
        }
        self.looked = Some(now);
    }

    /// Gives every living session its full time to live from `now`.
    pub fn grace(&mut self, now: Millis) {
        self.world.sessions.grace(now);
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
            match self.world.sessions.get(id) {
                // It is gone, or it is among those that are settled anyway.
                None => {}
                Some(session) if session.over.is_some() => {}
                Some(session) if session.expires_at > now => {
                    self.lapses.push(Reverse((session.expires_at, id)));
                }
                Some(_) => return Some(id),
            }
        }
    }

    fn waits_run_out(&mut self, now: Millis) -> BTreeSet<ResourceKey> {
        let mut keys = BTreeSet::new();
        while let Some(Reverse((at, _))) = self.waits.peek()
            && *at <= now
            && let Some(Reverse((at, key))) = self.waits.pop()
        {
            if self.wait_of.get(&key) == Some(&at) {
                self.wait_of.remove(&key);
                keys.insert(key);
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
        let command = Command::Lock { key, action: LockAction::Settle };
        match step(&mut self.world, &command, now) {
            Outcome::Settled { ended } => ended,
            _ => 0,
        }
    }

    /// Settles what ended sessions left, seals history and notes what changed.
    fn conclude(&mut self, now: Millis) -> (Batch, usize) {
        let mut batch = Batch::default();
        self.note(&mut batch);
        let mut tenures = 0;
        let mut settled = 0;
        while settled < SETTLE_MAX
            && let Some(session) = self.over.pop_front()
        {
            let keys: Vec<_> = self.bonds.get(&session).into_iter().flatten().collect();
            let keys: Vec<_> =
                keys.into_iter().take(SETTLE_MAX).map(|(key, _)| key.clone()).collect();
            settled += keys.len().max(1);
            for key in keys {
                tenures += self.settle(key, now);
            }
            self.note(&mut batch);
            self.forget(session, now);
            self.note(&mut batch);
        }
        batch.records.sort_unstable();
        batch.records.dedup();
        batch.sessions.sort_unstable();
        batch.sessions.dedup();
        (batch, tenures)
    }

    /// Drops the row of an ended session, or comes back to it when it still has something.
    fn forget(&mut self, session: SessionId, now: Millis) {
        if self.bonds.contains_key(&session) {
            self.over.push_back(session);
        } else {
            step(&mut self.world, &Command::Forget { session }, now);
        }
    }

    /// Takes the changes of the last steps into the indexes and the batch.
    fn note(&mut self, batch: &mut Batch) {
        let Changes { records, untold, sessions, events, granted, bonds, .. } =
            self.world.take_changes();
        batch.history.extend(self.world.seal(events));
        for (session, key, holds) in bonds {
            if holds { self.bond(session, key) } else { self.unbond(session, &key) }
        }
        for id in &sessions {
            self.note_session(*id);
        }
        for key in &records {
            self.note_record(key);
        }
        batch.records.extend(records);
        batch.untold.extend(untold);
        batch.sessions.extend(sessions);
        batch.granted.extend(granted);
    }

    fn note_session(&mut self, id: SessionId) {
        match self.world.sessions.get(id) {
            Some(session) if session.over.is_some() => self.over.push_back(id),
            Some(session) => self.lapses.push(Reverse((session.expires_at, id))),
            None => {}
        }
    }

    fn note_record(&mut self, key: &ResourceKey) {
        let Some(record) = self.world.records.get(key) else { return };
        if record.is_live() {
            self.live.insert(key.clone());
        } else {
            self.live.remove(key);
        }
        self.schedule_wait(key);
    }

    fn bond(&mut self, session: SessionId, key: ResourceKey) {
        *self.bonds.entry(session).or_default().entry(key).or_default() += 1;
    }

    fn unbond(&mut self, session: SessionId, key: &ResourceKey) {
        let Some(keys) = self.bonds.get_mut(&session) else { return };
        if let Some(count) = keys.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                keys.remove(key);
            }
        }
        if keys.is_empty() {
            self.bonds.remove(&session);
        }
    }

    // ----- reading -----

    /// How many resources somebody holds or waits for.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// The tenures of the present.
    #[must_use]
    pub fn list(&self, query: &ListQuery, now: Millis) -> Page<TenureView> {
        let from = match &query.after {
            Some(key) => Bound::Excluded(key.clone()),
            None => Bound::Unbounded,
        };
        let mut page = Page { items: Vec::new(), next: None };
        let mut resources = 0;
        for key in self.live.range((from, Bound::Unbounded)) {
            let views = self.views(key, now);
            let wanted: Vec<_> = views.into_iter().filter(|view| query.wants(view)).collect();
            if wanted.is_empty() {
                continue;
            }
            if resources == query.limit {
                page.next = page.items.last().map(|view: &TenureView| view.key.clone());
                break;
            }
            resources += 1;
            page.items.extend(wanted);
        }
        page
    }

    fn views(&self, key: &ResourceKey, now: Millis) -> Vec<TenureView> {
        let Some(record) = self.world.records.get(key) else { return Vec::new() };
        let mut tokens: Vec<_> = record.tenures.iter().map(|tenure| tenure.token).collect();
        tokens.dedup();
        let view = |token| record.view(key, token, &self.world.sessions, now);
        tokens.into_iter().filter_map(view).collect()
    }

    /// One resource.
    #[must_use]
    pub fn show(&self, key: &ResourceKey, now: Millis) -> Option<Shown> {
        let record = self.world.records.get(key)?;
        let name = |id| self.world.sessions.get(id).map_or("unknown".into(), |s| s.name.clone());
        let queue = record.queue.iter().map(|waiter| (waiter.clone(), name(waiter.session)));
        Some(Shown {
            record: (**record).clone(),
            tenures: self.views(key, now),
            queue: queue.collect(),
            now,
        })
    }
}

impl ListQuery {
    fn wants(&self, view: &TenureView) -> bool {
        let is = |wish: &Option<_>, have: &str| {
            wish.as_ref().is_none_or(|wish: &tenure_core::Text| **wish == *have)
        };
        is(&self.tenant, view.key.tenant())
            && is(&self.kind, view.key.kind())
            && is(&self.name, view.key.name())
            && is(&self.holder, &view.holder)
    }
}
