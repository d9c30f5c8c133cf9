//! One batch, one transaction: lock, load, step, write, commit.
//!
//! Commands on resources that another transaction is at are answered `Busy`, and nothing happened.
//! A transaction whose connection broke is tried again: if it had been committed, the number of the
//! batch says so.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use tenure_core::engine::wake;
use tenure_core::{
    Changes, Command, JobId, Outcome, Refusal, RequestId, ResourceKey, SessionId, World, step,
};
use tokio_postgres::error::SqlState;

use super::cache::{Known, Seen};
use super::conn::says_pooler;
use super::lane::Lane;
use super::link::unavailable;
use super::load::{Loaded, Stored};
use super::{Postgres, write};
use crate::clock::stopwatch;
use crate::ledger::Batch;
use crate::store::{Result, StoreError};

/// How long a transaction that failed is tried again.
const RETRY_MAX: Duration = Duration::from_secs(3);
/// The first pause between two tries; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The jobs that a batch changed, with their resources.
pub(super) type Touched = BTreeSet<(ResourceKey, JobId)>;

/// Why a try failed.
pub(super) enum Failure {
    /// Another transaction won: trying again helps.
    Contended(StoreError),
    /// The connection broke: nobody knows whether it was committed.
    Broken(StoreError),
    /// A pooler stands between.
    Pooled(StoreError),
    /// A session changed whose row is not locked: it has to be locked first.
    Unlocked(BTreeSet<SessionId>),
    /// The database is another one than before.
    Reborn,
    /// Trying again does not help.
    Store(StoreError),
}

impl Failure {
    pub(super) fn into_store(self) -> StoreError {
        match self {
            Self::Contended(error)
            | Self::Broken(error)
            | Self::Pooled(error)
            | Self::Store(error) => error,
            Self::Unlocked(_) => StoreError::Unavailable("a session changed meanwhile".to_owned()),
            Self::Reborn => StoreError::Unavailable("the database is another one".to_owned()),
        }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let contended = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        let store = unavailable(&error);
        if says_pooler(&error) {
            return Self::Pooled(store);
        }
        match error.code() {
            Some(code) if contended.contains(code) => Self::Contended(store),
            // It is shutting down or starting, or somebody ended our connection.
            Some(code) if code.code().starts_with("57") || code.code().starts_with("08") => {
                Self::Broken(store)
            }
            Some(_) => Self::Store(store),
            None => Self::Broken(store),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What a transaction did.
pub(super) struct Done {
    /// An outcome for each command but those that have to wait.
    pub(super) outcomes: Vec<Option<Outcome>>,
    pub(super) batch: Batch,
    /// Sessions that ended and may have left something.
    ended: Vec<String>,
}

/// What is known from earlier tries of the same transaction.
#[derive(Default)]
struct Before {
    /// What the last one had come to, if its connection broke at the commit.
    unknown: Option<Done>,
    /// Claims that have looked again for what an earlier sending has got.
    looked_again: HashSet<RequestId>,
    /// Sessions that turned out to change.
    lock: BTreeSet<SessionId>,
}

impl Postgres {
    /// Steps commands, and tells everybody what came of it. Says how many tenures ended with the
    /// sessions that they ended.
    pub(super) async fn transact(&self, commands: &[Command]) -> Result<(Vec<Outcome>, usize)> {
        let points = self.points.split(commands);
        let [first, second] = &self.lanes;
        let (left, right) = tokio::join!(
            self.transact_in(first, commands, &points, 0),
            self.transact_in(second, commands, &points, 1)
        );
        let ((left, some), (right, more)) = (left?, right?);
        let mut halves = [left.into_iter(), right.into_iter()];
        let outcomes = points.iter().filter_map(|lane| halves[*lane].next());
        let outcomes: Vec<Outcome> = outcomes.collect();
        self.points.note(commands, &outcomes);
        Ok((outcomes, some + more))
    }

    /// Steps those of the commands that go to a lane.
    async fn transact_in(
        &self,
        lane: &Lane,
        commands: &[Command],
        points: &[usize],
        which: usize,
    ) -> Result<(Vec<Outcome>, usize)> {
        let mine = commands.iter().zip(points).filter(|(_, point)| **point == which);
        let mine: Vec<Command> = mine.map(|(command, _)| command.clone()).collect();
        if mine.is_empty() {
            return Ok((Vec::new(), 0));
        }
        let _turn = lane.turn.lock().await;
        let done = self.try_hard(lane, &mine).await?;
        self.publish(done.batch);
        let tenures = self.settle_ended(lane, done.ended).await;
        let busy = Outcome::Refused(Refusal::Busy);
        let outcomes = done.outcomes.into_iter().map(|outcome| outcome.unwrap_or(busy.clone()));
        Ok((outcomes.collect(), tenures))
    }

    /// Makes one transaction of commands, again and again until it is known what became of it.
    pub(super) async fn try_hard(&self, lane: &Lane, commands: &[Command]) -> Result<Done> {
        let number = lane.next_batch();
        let started = stopwatch();
        let mut pause = PAUSE;
        let mut before = Before::default();
        loop {
            let failure = match Box::pin(self.try_once(lane, commands, number, &mut before)).await {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            let error = match failure {
                Failure::Store(error) => {
                    lane.link.discard().await;
                    return Err(error);
                }
                Failure::Unlocked(ids) => {
                    before.lock.extend(ids);
                    let client = lane.link.client().await?;
                    client.batch_execute("ROLLBACK").await.map_err(|e| unavailable(&e))?;
                    continue;
                }
                Failure::Pooled(error) => {
                    lane.link.is_pooled().await;
                    error
                }
                Failure::Reborn => {
                    let client = lane.link.client().await?;
                    client.batch_execute("ROLLBACK").await.map_err(|e| unavailable(&e))?;
                    self.begin_life(&client).await?;
                    continue;
                }
                Failure::Contended(error) => {
                    // It may hold what others wait for.
                    if let Ok(client) = lane.link.client().await
                        && client.batch_execute("ROLLBACK").await.is_err()
                    {
                        lane.link.discard().await;
                    }
                    error
                }
                Failure::Broken(error) => {
                    lane.link.discard().await;
                    error
                }
            };
            if started.elapsed() > RETRY_MAX {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
        }
    }

    async fn try_once(
        &self,
        lane: &Lane,
        commands: &[Command],
        number: i64,
        before: &mut Before,
    ) -> std::result::Result<Done, Failure> {
        let client = lane.link.client().await.map_err(Failure::Broken)?;
        let load = Box::pin(self.load(lane, &client, commands, &before.lock));
        let mut loaded = lane.link.in_time(load).await.map_err(Failure::Broken)??;
        if loaded.batch == number
            && let Some(done) = before.unknown.take()
        {
            client.batch_execute("ROLLBACK").await?;
            return Ok(done);
        }
        if before.unknown.is_some() && !loaded.busy.is_empty() {
            // What was cut off may be at them yet, and be committed: wait for its end.
            let why = "the connection broke, and it is not known whether it was committed";
            return Err(Failure::Contended(StoreError::Unavailable(why.to_owned())));
        }
        before.unknown = None;
        if before.is_overtaken(commands, &loaded) {
            let why = "a claim came twice at once".to_owned();
            return Err(Failure::Contended(StoreError::Unavailable(why)));
        }
        let (done, touched) = step_all(&mut loaded, commands);
        let unlocked = unlocked(&loaded, &done.batch);
        if !unlocked.is_empty() {
            return Err(Failure::Unlocked(unlocked));
        }
        self.remember(&loaded);
        let again = std::mem::take(&mut loaded.found.again);
        let mark = (&lane.id, number);
        let write = Box::pin(write::all(&client, &mut loaded, &done.batch, &touched, mark));
        let written = lane.link.in_time(write).await.unwrap_or_else(|e| Err(Failure::Broken(e)));
        match written {
            Ok(true) => {
                lane.mark
                    .lock()
                    .expect("nothing panics while it is locked")
                    .note(number, loaded.now);
            }
            Ok(false) => {}
            Err(Failure::Broken(error)) => {
                before.unknown = Some(done);
                return Err(Failure::Broken(error));
            }
            Err(failure) => return Err(failure),
        }
        self.keep(loaded);
        client.prepare().await.ok();
        let nothing = |o: &Option<Outcome>| matches!(o, Some(Outcome::Claimed(j)) if j.is_empty());
        if done.outcomes.iter().any(nothing) {
            self.ask_again(again);
        }
        Ok(done)
    }

    /// Keeps the records of a transaction that is over for the next one.
    fn keep(&self, loaded: Loaded) {
        let Loaded { mut world, stored, .. } = loaded;
        let keep = stored.into_iter().filter_map(|(key, stored)| {
            let record = world.records.remove(&key)?;
            let Stored { version, body_n, .. } = stored;
            let (incarnation, known) = (world.incarnation, Known { body_n, record });
            (version > 0).then_some((key, Seen { incarnation, version, known }))
        });
        self.cache.put(keep);
    }

    /// Remembers whose turn it was.
    fn remember(&self, loaded: &Loaded) {
        let mut served = self.served.lock().expect("nothing panics while it is locked");
        loaded.world.ready.leave(&mut served);
    }
}

impl Before {
    /// Whether an earlier sending of a claim was committed while this one waited for its session:
    /// then it has to look again for what that one has got.
    fn is_overtaken(&mut self, commands: &[Command], loaded: &Loaded) -> bool {
        let tenures = || loaded.stored.values().flat_map(|stored| &stored.tenures);
        commands.iter().any(|command| {
            let Command::Claim(claim) = command else { return false };
            let session = loaded.sessions.get(&claim.session);
            let worker = session.and_then(|session| session.worker.as_ref());
            worker.is_some_and(|worker| worker.claims.contains(&claim.request))
                && !tenures().any(|t| t.session == claim.session && t.request == claim.request)
                && self.looked_again.insert(claim.request)
        })
    }
}

/// The sessions that a batch changed without having locked their rows.
fn unlocked(loaded: &Loaded, batch: &Batch) -> BTreeSet<SessionId> {
    let free = batch.sessions.iter().filter(|id| !loaded.locked.contains(id));
    let changed = |id: &&SessionId| {
        let (before, after) = (loaded.sessions.get(id), loaded.world.sessions.get(**id));
        // A new one is nobody else's.
        before.is_some() && before != after
    };
    free.filter(changed).copied().collect()
}

fn step_all(loaded: &mut Loaded, commands: &[Command]) -> (Done, Touched) {
    let now = loaded.now;
    wake(&mut loaded.world, now);
    let mut outcomes = Vec::with_capacity(commands.len());
    for command in commands {
        let key = command.key().or_else(|| loaded.job_keys.get(&command.job()?));
        let busy = key.is_some_and(|key| loaded.busy.contains(key));
        outcomes.push((!busy).then(|| step(&mut loaded.world, command, now)));
    }
    let ended = forget(loaded);
    let (batch, touched) = conclude(&mut loaded.world);
    (Done { outcomes, batch, ended }, touched)
}

/// Forgets sessions of one acquire that are over and have nothing: it was on the resource at hand.
/// Gives the others that ended: what they have may be on resources that are not at hand.
fn forget(loaded: &mut Loaded) -> Vec<String> {
    let mut ids = loaded.world.changes.sessions.clone();
    ids.sort_unstable();
    ids.dedup();
    let mut ended = Vec::new();
    for id in ids {
        let world = &mut loaded.world;
        let Some(session) = world.sessions.get(id).filter(|s| s.over.is_some()) else { continue };
        let here = |stored: &Stored| {
            stored.tenures.iter().any(|tenure| tenure.session == id)
                || stored.waiters.iter().any(|waiter| waiter.session == id)
        };
        let known = !loaded.sessions.contains_key(&id) || loaded.stored.values().any(here);
        if session.solo && known && !world.bonds.any(id) {
            step(world, &Command::Forget { session: id }, loaded.now);
        } else {
            ended.push(id.to_string());
        }
    }
    ended
}

/// What a batch changed. What ended sessions leave behind elsewhere is for the sweep.
fn conclude(world: &mut World) -> (Batch, Touched) {
    let changes = world.take_changes();
    let Changes { mut records, untold, moved, sessions, beats, events, .. } = changes;
    let job = |(key, _, event): &(ResourceKey, _, tenure_core::history::Event)| {
        Some((key.clone(), event.job()?))
    };
    let mut touched: Touched = events.iter().filter_map(job).collect();
    for key in untold.iter().chain(&moved) {
        let lane = world.records.get(key).map(|record| record.lane());
        touched.extend(lane.into_iter().flatten().map(|job| (key.clone(), job.id)));
    }
    records.extend(moved.iter().cloned());
    let mut batch = Batch {
        records,
        untold: untold.into_iter().chain(moved).collect(),
        sessions: sessions.into_iter().chain(beats).collect(),
        history: world.seal(events),
        finished: changes.finished,
        logs: changes.logs,
        granted: changes.granted,
        ready: changes.ready,
        notified: changes.notified,
    };
    batch.ready.retain(|key| world.ready.has(key));
    batch.records.sort_unstable();
    batch.records.dedup();
    batch.sessions.sort_unstable();
    batch.sessions.dedup();
    (batch, touched)
}
