//! One batch, one transaction: whoever has the turn catches up with the journal, steps the commands
//! in memory, and appends one entry.
//!
//! One writer at a time has the turn, by an advisory lock of the transaction. A transaction whose
//! connection broke is tried again: the journal tells whether it had been committed.

use std::time::Duration;

use tenure_core::{Command, LockAction, MetricEvent, Millis, Outcome, Refusal};

use super::conn::Conn;
use super::failure::Failure;
use super::journal::{Change, Entry};
use super::link::Link;
use super::replica::Replica;
use super::rows::parse_job;
use super::{Shared, life};
use crate::clock::stopwatch;
use crate::ledger::{Batch, STALL_MS};
use crate::store::{Result, StoreError, Swept};

/// How long a transaction that failed is tried again.
const RETRY_MAX: Duration = Duration::from_secs(4);
/// The first pause between two tries; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// A sweep that changes nothing says that somebody has looked, if nobody has for so long.
const LOOKED_MS: u64 = STALL_MS / 4;

/// The writing side of the store.
pub(super) struct Writer {
    pub(super) link: Link,
    /// Whose turn it is in this process, and what it has.
    pub(super) state: tokio::sync::Mutex<State>,
}

impl Writer {
    pub(super) fn new(link: Link) -> Self {
        Self { link, state: tokio::sync::Mutex::default() }
    }
}

/// What the writer has.
#[derive(Default)]
pub(super) struct State {
    replica: Option<Replica>,
    /// What was sent when the connection broke: then the replica has it, and the journal may.
    sent: Option<Sent>,
}

impl State {
    /// What this process has, although the journal may not have all of it.
    pub(super) fn any(&mut self) -> Option<&mut Replica> {
        self.replica.as_mut()
    }

    /// What this process has, if the journal has it, too.
    pub(super) fn settled(&mut self) -> Option<&mut Replica> {
        self.replica.as_mut().filter(|_| self.sent.is_none())
    }
}

struct Sent {
    entry: Entry,
    done: Done,
    /// Whoever sent it waits for no answer any more.
    abandoned: bool,
}

/// What is to be done in a transaction.
pub(super) enum Work {
    Apply(Vec<Command>),
    Sweep,
    /// Nothing but to catch up with others.
    Follow,
}

/// What a transaction did.
#[derive(Default)]
pub(super) struct Done {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) swept: Swept,
    batch: Batch,
}

impl Shared {
    /// Does something when it is our turn, and tells everybody what came of it.
    pub(super) async fn change(&self, work: Work) -> Result<Done> {
        self.to_the_end(&self.writing, |me| async move { me.change_now(work).await }).await
    }

    async fn change_now(&self, work: Work) -> Result<Done> {
        self.room().await;
        let mut state = self.writer.state.lock().await;
        if let Some(sent) = &mut state.sent {
            sent.abandoned = true;
        } else if let Some(replica) = &mut state.replica {
            // Now, because from the first look on a batch relies on what is at hand.
            replica.evict();
        }
        let mut done = self.try_hard(&mut state, &work).await?;
        let behind = state.replica.as_ref().is_some_and(|replica| replica.to_tell() > 0);
        drop(state);
        self.publish(std::mem::take(&mut done.batch));
        if behind {
            self.flush_wanted.notify_one();
        }
        Ok(done)
    }

    /// Makes one transaction, again and again until it is known what became of it.
    async fn try_hard(&self, state: &mut State, work: &Work) -> Result<Done> {
        let started = stopwatch();
        let mut pause = PAUSE;
        loop {
            let failure = match Box::pin(self.try_once(state, work)).await {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            let error = self.recover(failure).await?;
            if started.elapsed() > RETRY_MAX {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
        }
    }

    /// Makes the connection fit for the next try, if there is to be one. What a transaction has is
    /// given up with its connection.
    async fn recover(&self, failure: Failure) -> Result<StoreError> {
        let link = &self.writer.link;
        match failure {
            Failure::Behind => {}
            Failure::Pooled(_) => link.is_pooled().await,
            _ => link.discard().await,
        }
        match failure {
            Failure::Store(error) => return Err(error),
            Failure::Reborn => {
                let incarnation = life::begin(&*link.client().await?, false).await?.0;
                tracing::warn!(incarnation, "the database was restored or failed over: a new life");
            }
            _ => {}
        }
        Ok(failure.into_store())
    }

    async fn try_once(&self, state: &mut State, work: &Work) -> std::result::Result<Done, Failure> {
        let link = &self.writer.link;
        let client = link.client().await.map_err(Failure::Broken)?;
        if state.replica.is_none() {
            state.sent = None;
            state.replica = Some(self.load(&client).await?);
        }
        let replica = state.replica.as_mut().expect("it was loaded above");
        if replica.crowded && state.sent.is_none() && matches!(work, Work::Sweep) {
            let follow = Box::pin(self.follow_aside(&client, replica));
            let followed = link.in_time(follow).await.map_err(Failure::Broken)?;
            if let Err(failure @ Failure::Store(_)) = followed {
                // It may have followed an entry in part.
                state.replica = None;
                return Err(failure);
            }
            followed?;
        }
        let look = Box::pin(self.look(&client, replica, work));
        let looked = link.in_time(look).await.map_err(Failure::Broken)??;
        // Until it is known that what is in memory is true, nothing is.
        let mut replica = state.replica.take().expect("it was loaded above");
        let (now, mut changes) = self.catch_up(&client, &mut replica, &looked)?;
        if let Some(sent) = state.sent.take() {
            match settle(&mut replica, sent, &mut changes) {
                Settled::Committed(done) => {
                    // Whatever becomes of the rest, this is the answer.
                    let follow = self.follow_all(&client, &mut replica, &looked, changes).await;
                    if follow.is_ok() && client.batch_execute("ROLLBACK").await.is_ok() {
                        state.replica = Some(replica);
                    } else {
                        link.discard().await;
                    }
                    return Ok(done);
                }
                Settled::Late(done) => self.publish(done.batch),
                Settled::Again(sent) => return self.commit(state, &client, replica, sent).await,
                Settled::Lost => return Err(Failure::Stale),
            }
        }
        self.follow_all(&client, &mut replica, &looked, changes).await?;
        if looked.is_behind() {
            client.batch_execute("ROLLBACK").await?;
            state.replica = Some(replica);
            return Err(Failure::Behind);
        }
        for row in &looked.past {
            let (key, job) = parse_job(row)?;
            replica.ledger.recall(key, job);
        }
        replica.ledger.hide_fenced();
        let done = step_all(&mut replica, work, now);
        replica.ledger.show_fenced(now);
        if done.batch.records.iter().any(|key| replica.ledger.is_fenced(key)) {
            // Something else than a command wanted to change it.
            let why = "a transaction relies on a lock that has to end".to_owned();
            return Err(Failure::Contended(StoreError::Unavailable(why)));
        }
        let entry = replica.entry(&done.batch, now);
        let looked_lately = now.since(replica.position.at) < LOOKED_MS;
        if entry.is_empty() && (looked_lately || !matches!(work, Work::Sweep)) {
            client.batch_execute("ROLLBACK").await?;
            state.replica = Some(replica);
            return Ok(done);
        }
        self.commit(state, &client, replica, Sent { entry, done, abandoned: false }).await
    }

    /// Appends an entry and commits.
    async fn commit(
        &self,
        state: &mut State,
        client: &Conn,
        mut replica: Replica,
        mut sent: Sent,
    ) -> std::result::Result<Done, Failure> {
        let write = async {
            let (appended, committed) = tokio::join!(
                biased;
                sent.entry.append(client),
                client.batch_execute("COMMIT"),
            );
            appended?;
            committed?;
            Ok(())
        };
        let written = self.writer.link.in_time(write).await;
        match written.unwrap_or_else(|error| Err(Failure::Broken(error))) {
            Ok(()) => {}
            Err(Failure::Broken(error)) => {
                (state.replica, state.sent) = (Some(replica), Some(sent));
                return Err(Failure::Broken(error));
            }
            Err(failure) => return Err(failure),
        }
        replica.advance(sent.entry, &mut sent.done.batch);
        self.life().mark = replica.position;
        state.replica = Some(replica);
        client.prepare().await.ok();
        Ok(sent.done)
    }
}

enum Settled {
    /// It was committed: this is the answer.
    Committed(Done),
    /// It was committed, and nobody waits for the answer.
    Late(Done),
    /// It was not, and nobody else has written: it can be sent again as it is.
    Again(Sent),
    /// It was not.
    Lost,
}

/// Finds out what became of what was sent when the connection broke.
fn settle(replica: &mut Replica, mut sent: Sent, changes: &mut Vec<Change>) -> Settled {
    let next = changes.first().map(|change| change.after);
    if next == Some(sent.entry.after) {
        changes.remove(0);
        replica.advance(sent.entry, &mut sent.done.batch);
        return if sent.abandoned {
            Settled::Late(sent.done)
        } else {
            Settled::Committed(sent.done)
        };
    }
    // Somebody may have come to rely on what it changes.
    let fenced = sent.done.batch.records.iter().any(|key| replica.ledger.is_fenced(key));
    if next.is_none() && !sent.abandoned && !fenced { Settled::Again(sent) } else { Settled::Lost }
}

fn step_all(replica: &mut Replica, work: &Work, now: Millis) -> Done {
    let commands = match work {
        Work::Apply(commands) => commands,
        Work::Sweep => {
            let (swept, batch) = replica.ledger.sweep(now);
            return Done { swept, batch, ..Done::default() };
        }
        Work::Follow => return Done::default(),
    };
    for id in commands.iter().filter_map(Command::job) {
        if !replica.ledger.has_job(id)
            && let Some((key, job)) = replica.finished(id)
        {
            replica.ledger.recall(key, job);
        }
    }
    if replica.ledger.fences.is_empty() {
        let (outcomes, batch) = replica.ledger.apply(commands, now);
        return Done { outcomes, batch, ..Done::default() };
    }
    // What a transaction of somebody else relies on stays as it is, and nothing happens to it.
    let world = replica.ledger.world();
    let past = |id| world.finished_jobs.get(&id).map(|(key, _)| key);
    let key = |command: &Command| match command.job() {
        Some(id) => world.job_index.get(&id).or_else(|| past(id)).cloned(),
        None => command.key().cloned(),
    };
    let busy = |command: &Command| key(command).is_some_and(|key| replica.ledger.is_fenced(&key));
    let busy: Vec<bool> = commands.iter().map(busy).collect();
    let free = commands.iter().zip(&busy).filter(|(_, busy)| !**busy);
    let free: Vec<Command> = free.map(|(command, _)| command.clone()).collect();
    let (outcomes, mut batch) = replica.ledger.apply(&free, now);
    let refused = commands.iter().zip(&busy).filter(|(_, busy)| **busy);
    batch.facts.extend(refused.filter_map(|(command, _)| failed(command)));
    let mut outcomes = outcomes.into_iter();
    let answer = |busy: bool| if busy { None } else { outcomes.next() };
    let refused = Outcome::Refused(Refusal::Busy);
    let outcomes = busy.into_iter().map(answer).map(|o| o.unwrap_or(refused.clone())).collect();
    Done { outcomes, batch, ..Done::default() }
}

/// That a request for locks found its resource busy.
fn failed(command: &Command) -> Option<MetricEvent> {
    match command {
        Command::Lock { key, action: LockAction::Acquire(_) } => Some(Refusal::Busy.failure(key)),
        _ => None,
    }
}
