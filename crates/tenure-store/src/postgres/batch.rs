//! The write transaction: take the writer lock, catch up with the journal, run the commands against
//! the replica, append one entry.
//!
//! The writer lock is an advisory lock of the transaction, so one server writes at a time. A commit
//! whose connection breaks is in doubt; the retry reads the journal to find out whether it
//! happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::limits::STALL_MS;
use tenure_core::{Command, Millis, Outcome, Refusal};

use super::client::PgClient;
use super::connection::Connection;
use super::failure::Failure;
use super::journal::{DecodedEntry, Entry};
use super::replica::Replica;
use super::rows::parse_job;
use super::{Shared, incarnation};
use crate::clock::stopwatch;
use crate::ledger::Batch;
use crate::store::{Result, StoreError, Swept};

/// Time after which a failing transaction is no longer retried.
const RETRY_TIMEOUT: Duration = Duration::from_secs(4);
/// Backoff before the first retry. It doubles with every retry.
const RETRY_BACKOFF_MIN: Duration = Duration::from_millis(1);
const RETRY_BACKOFF_MAX: Duration = Duration::from_millis(100);
/// Age of the last entry after which a sweep without changes appends an empty one, which tells
/// other servers that the store has been swept.
const EMPTY_ENTRY_INTERVAL_MS: u64 = STALL_MS / 4;

/// The writing side of the store.
pub(super) struct Writer {
    pub(super) connection: Connection,
    /// Locked for the duration of a write transaction.
    pub(super) state: tokio::sync::Mutex<WriterState>,
}

impl Writer {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, state: tokio::sync::Mutex::default() }
    }
}

/// The replica, and the commit whose outcome is unknown.
#[derive(Default)]
pub(super) struct WriterState {
    replica: Option<Replica>,
    /// The commit during which the connection broke. The replica's ledger includes it; the journal
    /// may not.
    in_doubt: Option<PendingCommit>,
}

impl WriterState {
    /// Returns the replica, which may include a commit that is in doubt.
    pub(super) fn replica(&mut self) -> Option<&mut Replica> {
        self.replica.as_mut()
    }

    /// Returns the replica unless a commit is in doubt.
    pub(super) fn settled_replica(&mut self) -> Option<&mut Replica> {
        self.replica.as_mut().filter(|_| self.in_doubt.is_none())
    }
}

/// An entry to commit, and the result to return once it is committed.
struct PendingCommit {
    entry: Entry,
    result: BatchResult,
    /// The caller has already received an error.
    abandoned: bool,
}

/// The work of one write transaction.
pub(super) enum Work {
    Apply(Vec<Command>),
    Sweep,
    /// Only catches up with the journal.
    CatchUp,
}

/// The result of one write transaction.
#[derive(Default)]
pub(super) struct BatchResult {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) swept: Swept,
    batch: Batch,
}

impl Shared {
    /// Executes a write transaction and publishes its wake-ups. Fails when the breaker opens; the
    /// transaction is then given up, unless its commit was sent already and may still happen.
    pub(super) async fn execute(&self, work: Work) -> Result<BatchResult> {
        match work {
            // Requests must not wait for sweeps that fail.
            Work::Sweep => self.breaker.check_now()?,
            Work::Apply(_) | Work::CatchUp => self.breaker.check().await?,
        }
        let given_up = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&given_up);
        let execute = |shared: Arc<Self>| async move { shared.execute_now(work, &flag).await };
        let result = self.breaker.watch(self.run_detached(&self.writer_runtime, execute)).await;
        given_up.store(result.is_err(), Ordering::Release);
        result
    }

    /// Executes a transaction, unless it is `given_up` meanwhile: the callers have got an error,
    /// and what it would grant or claim is for no one.
    async fn execute_now(&self, work: Work, given_up: &AtomicBool) -> Result<BatchResult> {
        self.wait_for_backlog_capacity().await;
        let mut state = self.writer.state.lock().await;
        if given_up.load(Ordering::Acquire) {
            return Err(StoreError::unavailable("the database could not be reached"));
        }
        if let Some(pending) = &mut state.in_doubt {
            pending.abandoned = true;
        } else if let Some(replica) = &mut state.replica {
            // Evict now: from the first read on, the batch relies on the records in memory.
            replica.evict_idle();
        }
        let mut result = self.execute_with_retries(&mut state, &work, given_up).await?;
        let needs_flush = state.replica.as_ref().is_some_and(|replica| replica.backlog_len() > 0);
        drop(state);
        self.publish(std::mem::take(&mut result.batch));
        if needs_flush {
            self.flush_requested.notify_one();
        }
        Ok(result)
    }

    /// Retries the transaction until its outcome is known.
    async fn execute_with_retries(
        &self,
        state: &mut WriterState,
        work: &Work,
        given_up: &AtomicBool,
    ) -> Result<BatchResult> {
        let started = stopwatch();
        let mut backoff = RETRY_BACKOFF_MIN;
        loop {
            let failure = match Box::pin(self.try_execute(state, work)).await {
                Ok(result) => return Ok(result),
                Err(failure) => failure,
            };
            let error = self.prepare_retry(failure).await?;
            if started.elapsed() > RETRY_TIMEOUT || given_up.load(Ordering::Acquire) {
                return Err(error);
            }
            tokio::time::sleep(backoff).await;
            backoff = RETRY_BACKOFF_MAX.min(backoff * 2);
        }
    }

    /// Prepares the connection for a retry, or fails if a retry cannot help. Discarding the
    /// connection rolls its transaction back.
    async fn prepare_retry(&self, failure: Failure) -> Result<StoreError> {
        let connection = &self.writer.connection;
        match failure {
            Failure::Behind => {}
            Failure::Pooled(_) => connection.mark_pooled().await,
            _ => connection.discard().await,
        }
        match failure {
            Failure::Store(error) => return Err(error),
            Failure::IdentityChanged => {
                let client = connection.client().await?;
                let seen = self.identity().incarnation;
                let incarnation = incarnation::ensure_current(&client, seen, false).await?.0;
                tracing::warn!(
                    incarnation,
                    "database was restored or failed over; new incarnation started"
                );
            }
            _ => {}
        }
        Ok(failure.into_store())
    }

    async fn try_execute(
        &self,
        state: &mut WriterState,
        work: &Work,
    ) -> std::result::Result<BatchResult, Failure> {
        let connection = &self.writer.connection;
        let client = connection.client().await.map_err(Failure::Broken)?;
        if state.replica.is_none() {
            state.in_doubt = None;
            state.replica = Some(self.load(&client).await?);
        }
        let replica = state.replica.as_mut().expect("loaded above");
        if replica.has_concurrent_writers && state.in_doubt.is_none() && matches!(work, Work::Sweep)
        {
            let catch_up = Box::pin(self.catch_up_unlocked(&client, replica));
            let caught_up = connection.with_timeout(catch_up).await.map_err(Failure::Broken)?;
            if let Err(failure @ Failure::Store(_)) = caught_up {
                // An entry may have been applied in part.
                state.replica = None;
                return Err(failure);
            }
            caught_up?;
        }
        let read = Box::pin(self.lock_and_read_tail(&client, replica, work));
        let tail = connection.with_timeout(read).await.map_err(Failure::Broken)??;
        // Put back only once it is known to match the journal.
        let mut replica = state.replica.take().expect("loaded above");
        let (now, mut entries) = self.decode_tail(&client, &mut replica, &tail)?;
        if let Some(pending) = state.in_doubt.take() {
            match resolve_in_doubt(&mut replica, pending, &mut entries) {
                Resolution::Committed(result) => {
                    // This is the answer, whether or not the replica can be caught up.
                    let applied = self.apply_tail(&client, &mut replica, &tail, entries).await;
                    if applied.is_ok() && client.batch_execute("ROLLBACK").await.is_ok() {
                        state.replica = Some(replica);
                    } else {
                        connection.discard().await;
                    }
                    return Ok(result);
                }
                Resolution::CommittedAbandoned(result) => self.publish(result.batch),
                Resolution::Resend(pending) => {
                    return self.commit(state, &client, replica, pending).await;
                }
                Resolution::NotCommitted => return Err(Failure::Stale),
            }
        }
        self.apply_tail(&client, &mut replica, &tail, entries).await?;
        if tail.may_have_more() {
            client.batch_execute("ROLLBACK").await?;
            state.replica = Some(replica);
            return Err(Failure::Behind);
        }
        for row in &tail.finished_jobs {
            let (key, job) = parse_job(row)?;
            replica.ledger.insert_finished_job(key, job);
        }
        let (result, entry) = run_work(&mut replica, work, now)?;
        let Some(entry) = entry else {
            client.batch_execute("ROLLBACK").await?;
            state.replica = Some(replica);
            return Ok(result);
        };
        let pending = PendingCommit { entry, result, abandoned: false };
        self.commit(state, &client, replica, pending).await
    }

    /// Appends an entry and commits.
    async fn commit(
        &self,
        state: &mut WriterState,
        client: &PgClient,
        mut replica: Replica,
        mut pending: PendingCommit,
    ) -> std::result::Result<BatchResult, Failure> {
        let write = async {
            let (appended, committed) = tokio::join!(
                biased;
                pending.entry.append(client),
                client.batch_execute("COMMIT"),
            );
            appended?;
            committed?;
            Ok(())
        };
        let written = self.writer.connection.with_timeout(write).await;
        match written.unwrap_or_else(|error| Err(Failure::Broken(error))) {
            Ok(()) => {}
            Err(Failure::Broken(error)) => {
                (state.replica, state.in_doubt) = (Some(replica), Some(pending));
                return Err(Failure::Broken(error));
            }
            Err(failure) => return Err(failure),
        }
        replica.advance(pending.entry, &mut pending.result.batch);
        self.identity().last_seen = replica.position;
        state.replica = Some(replica);
        client.prepare_recent().await.ok();
        Ok(pending.result)
    }
}

enum Resolution {
    /// Committed; the caller waits for this result.
    Committed(BatchResult),
    /// Committed, but the caller has already received an error.
    CommittedAbandoned(BatchResult),
    /// Not committed, and no other server has written since: resend as is.
    Resend(PendingCommit),
    /// Not committed.
    NotCommitted,
}

/// Decides from the journal what became of the commit that is in doubt.
fn resolve_in_doubt(
    replica: &mut Replica,
    mut pending: PendingCommit,
    entries: &mut Vec<DecodedEntry>,
) -> Resolution {
    let next = entries.first().map(|entry| entry.position);
    if next == Some(pending.entry.position) {
        entries.remove(0);
        replica.advance(pending.entry, &mut pending.result.batch);
        return if pending.abandoned {
            Resolution::CommittedAbandoned(pending.result)
        } else {
            Resolution::Committed(pending.result)
        };
    }
    // A user transaction may have fenced a resource of the batch in the meantime.
    let fenced = pending.result.batch.records.iter().any(|key| replica.ledger.is_fenced(key));
    if next.is_none() && !pending.abandoned && !fenced {
        Resolution::Resend(pending)
    } else {
        Resolution::NotCommitted
    }
}

/// Runs the work against the replica. Returns the entry to append, if there is one.
fn run_work(
    replica: &mut Replica,
    work: &Work,
    now: Millis,
) -> std::result::Result<(BatchResult, Option<Entry>), Failure> {
    replica.ledger.suspend_fenced();
    let result = step_commands(replica, work, now);
    replica.ledger.resume_fenced(now);
    if result.batch.records.iter().any(|key| replica.ledger.is_fenced(key)) {
        // A side effect of a command, not the command itself, reached a fenced resource.
        let why = "a user transaction relies on a lock that has to end".to_owned();
        return Err(Failure::Contended(StoreError::unavailable(why)));
    }
    let entry = replica.build_entry(&result.batch, now);
    let is_recent = now.since(replica.position.at) < EMPTY_ENTRY_INTERVAL_MS;
    let skip = entry.is_empty() && (is_recent || !matches!(work, Work::Sweep));
    Ok((result, (!skip).then_some(entry)))
}

fn step_commands(replica: &mut Replica, work: &Work, now: Millis) -> BatchResult {
    let commands = match work {
        Work::Apply(commands) => commands,
        Work::Sweep => {
            let (swept, batch) = replica.ledger.sweep(now);
            return BatchResult { swept, batch, ..BatchResult::default() };
        }
        Work::CatchUp => return BatchResult::default(),
    };
    for id in commands.iter().filter_map(Command::job) {
        if !replica.ledger.has_live_job(id)
            && let Some((key, job)) = replica.finished_job(id)
        {
            replica.ledger.insert_finished_job(key, job);
        }
    }
    if replica.ledger.fences.is_empty() {
        let (outcomes, batch) = replica.ledger.apply(commands, now);
        return BatchResult { outcomes, batch, ..BatchResult::default() };
    }
    // Commands on resources that a user transaction has fenced are refused as busy.
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
    let mut applied = outcomes.into_iter().peekable();
    let mut outcomes = Vec::with_capacity(commands.len());
    for (command, busy) in commands.iter().zip(busy) {
        if let Some(outcome) = applied.next_if(|_| !busy) {
            outcomes.push(outcome);
        } else {
            let (outcome, event) = Refusal::busy(command);
            outcomes.push(outcome);
            batch.facts.extend(event);
        }
    }
    BatchResult { outcomes, batch, ..BatchResult::default() }
}
