//! What this process has of the store: all that lives, as the journal tells it, and what the tables
//! have not been told yet.
//!
//! A record that is not here is in its row, and the row is up to date: a record that changed stays
//! here until its row has been written.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use tenure_core::history::SealedEntry;
use tenure_core::map::Map;
use tenure_core::record::{Tenure, Waiter};
use tenure_core::resource::Resource;
use tenure_core::world::LogChunk;
use tenure_core::{
    Incarnation, Job, JobId, JobState, Millis, Record, ResourceKey, Session, SessionId, Text, Token,
};

use super::corrupt;
use super::journal::{Change, Entry, Position, Told, note};
use super::pages::{PendingLines, PlacedLine};
use crate::ledger::{Batch, Ledger};
use crate::random;
use crate::store::Result;

/// Most records in memory that nobody holds or wants anything of; when there are more, all go.
const IDLE_MAX: usize = 65_536;

/// How many entries that tell nothing are let be.
const LOOKS_MAX: usize = 128;

/// How long an entry is kept for servers that are behind.
const KEEP_MS: u64 = 60_000;
/// Most entries that are dropped at once.
const DROP_MAX: i64 = 20_000;

/// Most lines of history that the record in a row may be behind its resource.
const LAG_MAX: usize = 128;

/// What this process has of the store.
pub(super) struct Replica {
    pub(super) ledger: Ledger,
    /// Where in the journal it is.
    pub(super) position: Position,
    pub(super) pending: Pending,
    /// Whether others were writing, too, when it last looked.
    pub(super) crowded: bool,
    told: Told,
    /// Tells this one from those that were read before and after it.
    pub(super) nonce: i64,
}

/// What the tables have not been told yet, with the last entry that changed it.
#[derive(Default)]
pub(super) struct Pending {
    /// Up to which entry they have.
    pub(super) flushed: i64,
    /// Up to which entry rows were found to tell, before it was known that all do. If the tables
    /// are behind it they have gone back, and what is here must not be written to them.
    pub(super) seen: i64,
    records: Map<ResourceKey, Touched>,
    /// How many lines of history the records tell that this process wrote into their rows.
    written: Map<ResourceKey, u64>,
    sessions: Map<SessionId, i64>,
    jobs: Map<JobId, i64>,
    /// Jobs of which they know nothing at all, with the entries that they came with.
    new: Map<JobId, i64>,
    over: Map<JobId, (i64, Arc<Over>)>,
    lines: VecDeque<Arc<PendingLines>>,
    logs: VecDeque<Arc<PendingLog>>,
    /// Entries that servers may need that are behind, with their instants.
    entries: VecDeque<(i64, Millis)>,
    /// Up to which entry nobody needs the journal, and up to which it was dropped.
    stale: i64,
    dropped: i64,
}

/// A record that the tables do not tell yet.
#[derive(Clone, Copy)]
struct Touched {
    /// The last entry that changed it.
    last: i64,
    /// The last one that changed something that history does not tell.
    untold: i64,
}

/// A job that is over.
pub(super) struct Over {
    pub(super) key: ResourceKey,
    pub(super) job: Box<Job>,
}

/// A piece of a log that the tables do not have yet.
pub(super) struct PendingLog {
    pub(super) entry: i64,
    pub(super) position: i64,
    pub(super) piece: LogChunk,
}

/// What the tables have to be told to get from one entry to another; what changed is there once,
/// with the entry that changed it last.
pub(super) struct Snapshot {
    pub(super) upto: Position,
    pub(super) records: Vec<ResourceRow>,
    pub(super) sessions: Vec<(i64, SessionId, Option<Session>)>,
    pub(super) live: Vec<(i64, ResourceKey, Box<Job>)>,
    pub(super) over: Vec<(i64, Arc<Over>)>,
    /// Those of the jobs that the tables know nothing of, with the entries that they came with.
    pub(super) new: Map<JobId, i64>,
    pub(super) lines: Vec<Arc<PendingLines>>,
    pub(super) logs: Vec<Arc<PendingLog>>,
    /// From which to which entry nobody needs the journal any more.
    pub(super) stale: (i64, i64),
    /// Up to which entry rows of the tables were found to tell.
    pub(super) seen: i64,
    /// Which replica it is of.
    pub(super) of: i64,
}

/// A resource as the tables have it.
pub(super) struct ResourceRow {
    /// The last entry that changed it.
    pub(super) at: i64,
    pub(super) key: ResourceKey,
    /// How many lines of history it has.
    pub(super) n: u64,
    pub(super) token: Token,
    pub(super) state: Option<Text>,
    pub(super) running: usize,
    pub(super) live: bool,
    pub(super) tenures: Vec<Tenure>,
    pub(super) queue: VecDeque<Waiter>,
    /// The record as a whole. Where it is missing the row keeps the one that it has, and history
    /// tells the rest.
    pub(super) record: Option<Box<Record>>,
}

impl Replica {
    /// What the tables tell, which are at a position of the journal.
    pub(super) fn new(
        incarnation: Incarnation,
        sessions: Vec<Session>,
        position: Position,
    ) -> Self {
        let mut told = Told::default();
        for session in &sessions {
            note(session, &mut told);
        }
        let ledger = Ledger::resume(incarnation, sessions, position.at);
        let pending = Pending { flushed: position.id, ..Pending::default() };
        Self { ledger, position, pending, crowded: false, told, nonce: random::nonce() }
    }

    /// The entry that a batch makes.
    pub(super) fn entry(&mut self, batch: &Batch, now: Millis) -> Entry {
        Entry::of(self.ledger.world(), batch, self.position, now, &mut self.told)
    }

    /// Goes on to where the journal is after a batch of our own. Takes what only the tables want.
    pub(super) fn advance(&mut self, entry: Entry, batch: &mut Batch) {
        let after = entry.after;
        let before = std::mem::replace(&mut self.position, after);
        let (text, places) = entry.into_lines();
        let lines = batch.history.drain(..).zip(places);
        let lines =
            lines.map(|((key, SealedEntry { n, hash, .. }), at)| PlacedLine { key, n, hash, at });
        let logs = std::mem::take(&mut batch.logs);
        self.pending.append(before, after, text, lines.collect(), logs);
        for (key, job) in batch.finished.drain(..) {
            self.pending.over.insert(job.id, (after.id, Arc::new(Over { key, job })));
        }
        self.pending.jobs.extend(batch.jobs.iter().map(|id| (*id, after.id)));
        self.pending.new.extend(batch.submitted.iter().map(|id| (*id, after.id)));
        for key in batch.records.iter().chain(&batch.moved) {
            self.changed(key, after.id);
        }
        for key in batch.untold.iter().chain(&batch.moved) {
            self.untold(key, after.id);
            self.jobs_of(key, after.id, |job| job.state != JobState::Queued);
        }
        for key in &batch.lanes {
            self.jobs_of(key, after.id, |_| true);
        }
        let sessions = batch.sessions.iter().chain(&batch.beats);
        self.pending.sessions.extend(sessions.map(|id| (*id, after.id)));
        if batch.grace {
            self.all_sessions(after.id);
        }
    }

    /// Follows an entry of somebody else. The records that it changes are here, if there are any.
    pub(super) fn follow(&mut self, change: Change) -> Result<()> {
        let before = std::mem::replace(&mut self.position, change.after);
        let (id, at) = (change.after.id, change.after.at);
        self.ledger.looked_elsewhere(at);
        if change.grace {
            self.ledger.grace(at);
            self.all_sessions(id);
        }
        for session in change.sessions {
            note(&session, &mut self.told);
            self.pending.sessions.insert(session.id, id);
            self.ledger.put_session(session);
        }
        let mut told: Map<ResourceKey, Box<Record>> = Map::default();
        let mut lines = Vec::with_capacity(change.lines.len());
        let mut lanes = Vec::new();
        for (key, entry, place) in change.lines {
            if entry.event.affects_lane() {
                lanes.push(key.clone());
            }
            self.pending.jobs.extend(entry.event.job().map(|job| (job, id)));
            self.pending.new.extend(entry.event.submitted_job().map(|job| (job, id)));
            let record = told.entry(key.clone()).or_insert_with(|| self.ledger.take(&key));
            let (n, next) = (entry.n, record.chain.after(&change.body[place.clone()]));
            let hash = next.head;
            match n.cmp(&next.n) {
                // It is from tables that have the line: nobody writes it again, nor its hash.
                Ordering::Less => self.pending.seen = self.pending.seen.max(id),
                Ordering::Greater => {
                    let gap = format!("line {n} comes after line {}", record.chain.n);
                    return Err(corrupt(&format!("the history of {key}"), &gap));
                }
                Ordering::Equal if change.whole.contains_key(&key) => record.chain = next,
                Ordering::Equal => {
                    if let Some(job) = record.replay(&entry, hash) {
                        let over = Over { key: key.clone(), job };
                        self.pending.over.insert(over.job.id, (id, Arc::new(over)));
                    }
                }
            }
            lines.push(PlacedLine { key, n, hash, at: place });
        }
        let whole: Vec<ResourceKey> = change.whole.keys().cloned().collect();
        told.retain(|key, _| !change.whole.contains_key(key));
        for (key, record) in told.into_iter().chain(change.whole) {
            self.ledger.admit(&key, record, at);
            self.changed(&key, id);
        }
        for key in whole {
            self.untold(&key, id);
            self.jobs_of(&key, id, |job| job.state != JobState::Queued);
        }
        for key in lanes {
            self.jobs_of(&key, id, |_| true);
        }
        for session in change.gone {
            self.told.remove(&session);
            self.pending.sessions.insert(session, id);
            self.ledger.drop_session(session);
        }
        for over in change.over {
            self.pending.over.insert(over.job.id, (id, Arc::new(over)));
        }
        self.pending.append(before, change.after, change.body, lines, change.logs);
        Ok(())
    }

    fn changed(&mut self, key: &ResourceKey, id: i64) {
        match self.pending.records.get_mut(key) {
            Some(touched) => touched.last = id,
            None => {
                let touched = Touched { last: id, untold: 0 };
                self.pending.records.insert(key.clone(), touched);
            }
        }
    }

    /// Notes that something changed that history does not tell. The record is among those that
    /// changed.
    fn untold(&mut self, key: &ResourceKey, id: i64) {
        if let Some(touched) = self.pending.records.get_mut(key) {
            touched.untold = id;
        }
    }

    /// Notes that jobs of a resource may have changed.
    fn jobs_of(&mut self, key: &ResourceKey, id: i64, which: fn(&Job) -> bool) {
        let Some(record) = self.ledger.world().records.get(key) else { return };
        let jobs = record.lane().iter().filter(|job| which(job));
        self.pending.jobs.extend(jobs.map(|job| (job.id, id)));
    }

    fn all_sessions(&mut self, id: i64) {
        let sessions = self.ledger.world().sessions.iter();
        self.pending.sessions.extend(sessions.map(|session| (session.id, id)));
    }

    /// Notes that sessions were ended without an entry that says so: the next one comes with it.
    pub(super) fn ended(&mut self, sessions: &[SessionId]) {
        let next = self.position.id + 1;
        self.pending.sessions.extend(sessions.iter().map(|id| (*id, next)));
    }

    /// A job that is over and that the tables may not know of yet.
    pub(super) fn finished(&self, id: JobId) -> Option<(ResourceKey, Box<Job>)> {
        self.pending.over.get(&id).map(|(_, over)| (over.key.clone(), over.job.clone()))
    }

    /// How much there is to tell the tables: what changed, and entries that tell nothing but that
    /// somebody looked.
    pub(super) fn to_tell(&self) -> usize {
        let Pending { records, sessions, lines, logs, flushed, .. } = &self.pending;
        let entries = usize::try_from(self.position.id - flushed).unwrap_or(0) / LOOKS_MAX;
        let told = lines.front().map_or(self.position.lines, |lines| lines.first - 1);
        let lines = usize::try_from(self.position.lines - told).unwrap_or(0);
        records.len() + sessions.len() + lines + logs.len() + entries
    }

    /// What the tables have to be told to be where the journal is; nothing if they are.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        if self.position.id == self.pending.flushed {
            return None;
        }
        let world = self.ledger.world();
        let pending = &self.pending;
        let records = pending.records.iter().filter_map(|(key, touched)| {
            let record = world.records.get(key)?;
            (**record != Record::new(key)).then(|| pending.row(key, record, *touched))
        });
        let sessions = pending.sessions.iter();
        let sessions = sessions.map(|(id, at)| (*at, *id, world.sessions.get(*id).cloned()));
        let live = pending.jobs.iter().filter_map(|(id, at)| {
            let key = world.job_index.get(id)?;
            let job = world.records.get(key)?.job(*id)?;
            Some((*at, key.clone(), Box::new(job.clone())))
        });
        // The last one stays, for whoever starts; and not too many go at once.
        let stale = pending.stale.min(self.position.id - 1).min(pending.dropped + DROP_MAX);
        Some(Snapshot {
            upto: self.position,
            records: records.collect(),
            sessions: sessions.collect(),
            live: live.collect(),
            over: pending.over.values().cloned().collect(),
            new: pending.new.clone(),
            lines: pending.lines.iter().cloned().collect(),
            logs: pending.logs.iter().cloned().collect(),
            stale: (pending.dropped, stale),
            seen: pending.seen,
            of: self.nonce,
        })
    }

    /// Notes what was written.
    pub(super) fn wrote(&mut self, snapshot: &Snapshot) {
        self.flushed(snapshot.upto.id);
        self.pending.dropped = self.pending.dropped.max(snapshot.stale.1);
        let whole = snapshot.records.iter().filter(|row| row.record.is_some());
        self.pending.written.extend(whole.map(|row| (row.key.clone(), row.n)));
    }

    /// Notes up to which entry the tables have been told.
    pub(super) fn flushed(&mut self, upto: i64) {
        let pending = &mut self.pending;
        if upto <= pending.flushed {
            return;
        }
        pending.flushed = upto;
        pending.records.retain(|_, touched| touched.last > upto);
        pending.sessions.retain(|_, last| *last > upto);
        pending.jobs.retain(|_, last| *last > upto);
        pending.new.retain(|_, with| *with > upto);
        pending.over.retain(|_, (last, _)| *last > upto);
        while pending.lines.front().is_some_and(|line| line.entry <= upto) {
            pending.lines.pop_front();
        }
        while pending.logs.front().is_some_and(|log| log.entry <= upto) {
            pending.logs.pop_front();
        }
    }

    /// Lets go of records that nobody holds or wants anything of, if there are many: they are in
    /// their rows. Not while a batch relies on what is at hand.
    pub(super) fn evict(&mut self) {
        let world = self.ledger.world();
        if world.records.len() < self.ledger.live() + IDLE_MAX {
            return;
        }
        let idle = |key: &&ResourceKey| {
            !self.ledger.is_live(key) && !self.pending.records.contains_key(*key)
        };
        let idle: Vec<ResourceKey> = world.records.keys().filter(idle).cloned().collect();
        for key in &idle {
            self.ledger.evict(key);
            self.pending.written.remove(key);
        }
    }
}

impl Pending {
    /// What the tables have to be told of a record: all of it, if history does not tell what
    /// changed, or if readers would need more lines beside the old record than it remembers
    /// requests.
    fn row(&self, key: &ResourceKey, record: &Record, touched: Touched) -> ResourceRow {
        let resource = record.resource.as_deref();
        let requests = record.recent.len() + resource.map_or(0, |r| r.recent_submits.len());
        let lag_max = u64::try_from(requests.min(LAG_MAX)).unwrap_or(0);
        let told = self.written.get(key);
        let behind = told.is_none_or(|told| record.chain.n.saturating_sub(*told) >= lag_max);
        let whole = behind || touched.untold > self.flushed;
        ResourceRow {
            at: touched.last,
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

    fn append(
        &mut self,
        before: Position,
        after: Position,
        mut text: String,
        lines: Vec<PlacedLine>,
        logs: Vec<LogChunk>,
    ) {
        let entry = after.id;
        if let Some(last) = lines.last() {
            text.truncate(last.at.end);
            text.shrink_to_fit();
            let first = before.lines + 1;
            self.lines.push_back(Arc::new(PendingLines { entry, first, text, lines }));
        }
        let logs = (before.logs + 1..).zip(logs);
        let log = |(position, piece)| PendingLog { entry, position, piece };
        self.logs.extend(logs.map(log).map(Arc::new));
        self.entries.push_back((entry, after.at));
        while let Some((id, at)) = self.entries.front().copied()
            && after.at.since(at) > KEEP_MS
        {
            self.stale = id;
            self.entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::history::{self, Chain};

    use super::*;

    #[test]
    fn records_are_let_go_only_when_asked_and_only_if_their_rows_are_written() {
        let mut replica = Replica::new(Incarnation::default(), Vec::new(), Position::default());
        let key = |n: usize| format!("t/k/r{n}").parse::<ResourceKey>().expect("a good name");
        for n in 0..=IDLE_MAX {
            replica.ledger.admit(&key(n), Box::new(Record::new(&key(n))), Millis(0));
        }
        replica.changed(&key(0), 2);
        replica.changed(&key(1), 1);
        replica.flushed(1);
        assert_eq!(replica.ledger.world().records.len(), IDLE_MAX + 1, "a batch may need them");
        replica.evict();
        let left: Vec<_> = replica.ledger.world().records.keys().collect();
        assert_eq!(left, [&key(0)], "its row is not written yet");
    }

    /// An entry with one line of history.
    fn told(id: i64, key: &ResourceKey, SealedEntry { n, line, .. }: &SealedEntry) -> Change {
        let entry = history::Entry::parse(line).expect("it was sealed");
        assert_eq!(entry.n, *n);
        let after = Position { id, ..Position::default() };
        let lines = vec![(key.clone(), entry, 0..line.len())];
        Change { after, body: line.clone(), lines, ..Change::default() }
    }

    #[test]
    fn hashes_follow_from_the_lines_before_and_a_gap_is_noticed() {
        let mut replica = Replica::new(Incarnation::default(), Vec::new(), Position::default());
        let key = "t/k/r".parse::<ResourceKey>().expect("a good name");
        let (mut chain, mut room) = (Chain::genesis(&key), Vec::new());
        let fenced = history::Event::Fenced { token: Token(1), verb: "renew".into() };
        let mut seal = || chain.seal(Millis(1), fenced.clone(), &mut room);
        let lines: Vec<SealedEntry> = (0..4).map(|_| seal()).collect();
        for (id, line) in (1..).zip(&lines[..2]) {
            replica.follow(told(id, &key, line)).expect("it goes on");
        }
        let hashes: Vec<_> = replica.pending.lines.iter().map(|all| all.lines[0].hash).collect();
        assert_eq!(hashes, [lines[0].hash, lines[1].hash]);
        assert_eq!(replica.pending.seen, 0);
        // The record was read from a row that knows the line already.
        replica.follow(told(3, &key, &lines[1])).expect("it is known");
        assert_eq!(replica.pending.seen, 3);
        let gap = replica.follow(told(4, &key, &lines[3])).expect_err("a line is missing");
        assert!(gap.to_string().contains("line 4 comes after line 2"), "{gap}");
    }
}
