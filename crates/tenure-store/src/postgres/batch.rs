//! One batch, one transaction: lock, load, step, write, commit.
//!
//! Commands on resources that another transaction is at are tried again by themselves, for a
//! little while. A transaction whose connection broke is tried again, too: if it had been committed,
//! the number of the batch says so.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use tenure_core::engine::wake;
use tenure_core::{
    Changes, Command, JobId, Millis, Outcome, Refusal, RequestId, ResourceKey, World, step,
};
use tokio_postgres::error::SqlState;

use super::link::unavailable;
use super::load::Loaded;
use super::{Postgres, write};
use crate::ledger::Batch;
use crate::store::{Result, StoreError};

/// How long commands wait for a resource that another transaction is at.
const BUSY_MAX: Duration = Duration::from_millis(250);
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
    /// The database is another one than before.
    Reborn,
    /// Trying again does not help.
    Store(StoreError),
}

impl Failure {
    pub(super) fn into_store(self) -> StoreError {
        match self {
            Self::Contended(error) | Self::Broken(error) | Self::Store(error) => error,
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
}

impl Postgres {
    /// Steps commands, and tells everybody what came of it.
    pub(super) async fn transact(&self, commands: &[Command]) -> Result<Vec<Outcome>> {
        let _turn = self.turn.lock().await;
        let started = Instant::now();
        let mut outcomes: Vec<Option<Outcome>> = vec![None; commands.len()];
        let mut pause = PAUSE;
        let mut ended = Vec::new();
        loop {
            let waiting: Vec<usize> =
                (0..commands.len()).filter(|at| outcomes[*at].is_none()).collect();
            let now: Vec<Command> = waiting.iter().map(|at| commands[*at].clone()).collect();
            let done = self.try_hard(&now).await?;
            self.publish(done.batch);
            ended.extend(done.ended);
            let late = started.elapsed() > BUSY_MAX;
            for (at, outcome) in waiting.into_iter().zip(done.outcomes) {
                outcomes[at] = outcome.or(late.then_some(Outcome::Refused(Refusal::Busy)));
            }
            if outcomes.iter().all(Option::is_some) {
                self.settle_ended(ended).await;
                return Ok(outcomes.into_iter().flatten().collect());
            }
            rest(&mut pause).await;
        }
    }

    /// Makes one transaction of commands, again and again until it is known what became of it.
    pub(super) async fn try_hard(&self, commands: &[Command]) -> Result<Done> {
        let started = Instant::now();
        let mut pause = PAUSE;
        let mut before = Before::default();
        loop {
            let failure = match self.try_once(commands, &mut before).await {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            let error = match failure {
                Failure::Store(error) => {
                    self.writer.discard().await;
                    return Err(error);
                }
                Failure::Reborn => {
                    let client = self.writer.client().await?;
                    client.batch_execute("ROLLBACK").await.map_err(|e| unavailable(&e))?;
                    self.begin_life(&client).await?;
                    continue;
                }
                Failure::Contended(error) => {
                    // It may hold what others wait for.
                    if let Ok(client) = self.writer.client().await
                        && client.batch_execute("ROLLBACK").await.is_err()
                    {
                        self.writer.discard().await;
                    }
                    error
                }
                Failure::Broken(error) => {
                    self.writer.discard().await;
                    error
                }
            };
            if started.elapsed() > RETRY_MAX {
                return Err(error);
            }
            rest(&mut pause).await;
        }
    }

    async fn try_once(
        &self,
        commands: &[Command],
        before: &mut Before,
    ) -> std::result::Result<Done, Failure> {
        let client = self.writer.client().await.map_err(Failure::Broken)?;
        let mut loaded = self.load(&client, commands).await?;
        let number = self.batch_number();
        if let Some(done) = before.unknown.take()
            && loaded.batch == number
        {
            client.batch_execute("ROLLBACK").await?;
            self.next_batch();
            return Ok(done);
        }
        if before.is_overtaken(commands, &loaded) {
            let why = "a claim came twice at once".to_owned();
            return Err(Failure::Contended(StoreError::Unavailable(why)));
        }
        let (done, touched) = step_all(&mut loaded, commands);
        self.remember(&loaded);
        let again = std::mem::take(&mut loaded.found.again);
        let written = write::all(&client, &loaded, &done.batch, &touched, (&self.id, number)).await;
        match written {
            Ok(true) => self.next_batch(),
            Ok(false) => {}
            Err(Failure::Broken(error)) => {
                before.unknown = Some(done);
                return Err(Failure::Broken(error));
            }
            Err(failure) => return Err(failure),
        }
        let nothing = |o: &Option<Outcome>| matches!(o, Some(Outcome::Claimed(j)) if j.is_empty());
        if done.outcomes.iter().any(nothing) {
            self.ask_again(again);
        }
        Ok(done)
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

async fn rest(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = PAUSE_MAX.min(*pause * 2);
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
    let ended = forget(&mut loaded.world, now);
    let (batch, touched) = conclude(&mut loaded.world);
    (Done { outcomes, batch, ended }, touched)
}

/// Forgets sessions of one acquire that are over and have nothing. Gives the others that ended:
/// what they have may be on resources that are not at hand.
fn forget(world: &mut World, now: Millis) -> Vec<String> {
    let mut ids = world.changes.sessions.clone();
    ids.sort_unstable();
    ids.dedup();
    let mut ended = Vec::new();
    for id in ids {
        let Some(session) = world.sessions.get(id).filter(|s| s.over.is_some()) else { continue };
        if session.solo && !world.bonds.any(id) {
            step(world, &Command::Forget { session: id }, now);
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
    records.extend(moved);
    let mut batch = Batch {
        records,
        untold: untold.into_iter().collect(),
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
