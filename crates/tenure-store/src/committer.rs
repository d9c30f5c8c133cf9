//! Group commit: collects single commands into batches.
//!
//! There is no timer: a batch consists of the commands that arrived while the previous one was
//! being applied. The committer has its own thread and runtime, so work that blocks the caller's
//! runtime starves neither heartbeats nor the sweep.
//!
//! There are two bounded queues. Commands of holders, which keep or release what they have, take
//! precedence over new work: under overload no holder loses a lock, and locks are released. New
//! work that would exceed [`QUEUE_WAIT_MAX`], estimated from the last batches, is rejected with
//! `unavailable`.

mod grant_waiters;
mod group;
mod queues;
mod reply;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Acquire, Assignment, Claim, Claimant, Command, Finish, JobAction, LockAction, Outcome, Refusal,
    ResourceKey,
};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use grant_waiters::{GrantWaiters, wake_on_hints};
pub use group::CommandGroup;
use queues::{CommandReceiver, CommandSender, QueuedCommand};
pub use queues::{QUEUE_MAX, QUEUE_WAIT_MAX};
use reply::{PendingCall, ReplyTo};

use crate::clock::stopwatch;
use crate::store::{BATCH_MAX, Hint, Result, Store, StoreError};

/// Interval of the sweep, which bounds how late an expired tenure is detected.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which a waiting request polls if no hint arrives.
pub const POLL_INTERVAL: Duration = Duration::from_millis(1_000);
/// Time for which a command is retried while its resource is fenced by another transaction.
pub const BUSY_RETRY_MAX: Duration = Duration::from_millis(1_000);
/// Initial backoff of such a retry; it doubles up to [`BUSY_BACKOFF_MAX`].
const BUSY_BACKOFF_INITIAL: Duration = Duration::from_millis(2);
const BUSY_BACKOFF_MAX: Duration = Duration::from_millis(50);

/// Handle of the committer thread; cheap to clone. The thread exits with the last handle.
#[derive(Clone)]
pub struct Committer {
    queues: CommandSender,
    store: Arc<dyn Store>,
    grant_waiters: Arc<GrantWaiters>,
}

/// Which component sweeps the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// The committer.
    Internal,
    /// Another component, such as the janitor of a server.
    External,
}

impl Committer {
    /// Starts the thread, which also sweeps the store.
    #[must_use]
    pub fn start(store: Arc<dyn Store>) -> Self {
        Self::start_with(store, Sweep::Internal)
    }

    /// Starts the thread.
    #[must_use]
    pub fn start_with(store: Arc<dyn Store>, sweep: Sweep) -> Self {
        let (queues, receiver) = queues::new();
        let grant_waiters = Arc::new(GrantWaiters::default());
        let (thread_store, thread_waiters) = (Arc::clone(&store), Arc::clone(&grant_waiters));
        std::thread::Builder::new()
            .name("tenure-committer".to_owned())
            .spawn(move || run(&thread_store, receiver, &thread_waiters, sweep))
            .expect("a thread can be started");
        Self { queues, store, grant_waiters }
    }

    /// Returns the store, for reading.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Sends one command with the next batch and waits for its outcome. Retries with backoff while
    /// the resource is busy.
    pub async fn submit(&self, command: Command) -> Result<Outcome> {
        let mut waited = Duration::ZERO;
        let mut backoff = BUSY_BACKOFF_INITIAL;
        // Where others have transactions of their own, a resource may be busy for one command and
        // no longer for the next.
        let in_order = self.store.shared_audit().is_none();
        group::wait_for_turn(queues::is_new_work(&command), in_order).await;
        loop {
            let outcome = self.send(command.clone(), false)?;
            let outcome = outcome.await.map_err(|_| shutting_down())??;
            if outcome != Outcome::Refused(Refusal::Busy) || waited > BUSY_RETRY_MAX {
                return Ok(outcome);
            }
            // The command had no effect, and other commands are not delayed.
            tokio::time::sleep(backoff).await;
            waited += backoff;
            backoff = BUSY_BACKOFF_MAX.min(backoff * 2);
        }
    }

    /// Sends many commands and waits until all are answered. Returns one result per command, in
    /// order. The commands share as few batches as possible.
    ///
    /// Not for claims: jobs claimed for a caller that is gone would not be handed back.
    pub async fn submit_all(&self, commands: Vec<Command>) -> Vec<Result<Outcome>> {
        let (call, replies) = PendingCall::new(commands.len());
        for (index, command) in commands.iter().enumerate() {
            let reply = ReplyTo::Call(Arc::clone(&call), index);
            let queued = QueuedCommand { command: command.clone(), reply, waits: false };
            if let Err(error) = self.queues.push(queued) {
                call.reply(index, Err(error));
            }
        }
        drop(call);
        let mut replies = replies
            .await
            .unwrap_or_else(|_| commands.iter().map(|_| Err(shutting_down())).collect());
        for (reply, command) in replies.iter_mut().zip(commands) {
            if matches!(reply, Ok(Outcome::Refused(Refusal::Busy))) {
                *reply = self.submit(command).await;
            }
        }
        replies
    }

    fn send(&self, command: Command, waits: bool) -> Result<oneshot::Receiver<Result<Outcome>>> {
        let (reply, outcome) = oneshot::channel();
        let queued = QueuedCommand { command, reply: ReplyTo::Single(reply), waits };
        group::push(&self.queues, queued)?;
        Ok(outcome)
    }

    /// Sends an acquire. While the request is queued, delays the reply for up to `poll_timeout`.
    ///
    /// Returns `Waiting` if `poll_timeout` elapses first; repeating the same request continues the
    /// wait. When the wait of the request itself ends, withdraws it and returns `Held`.
    pub async fn acquire(
        &self,
        key: &ResourceKey,
        acquire: &Acquire,
        poll_timeout: Duration,
    ) -> Result<Outcome> {
        let mut waiter = self.grant_waiters.register(acquire.request);
        let interval = poll_interval(acquire);
        let wait = Duration::from_millis(acquire.wait_ms);
        let timeout = tokio::time::sleep(wait.min(poll_timeout));
        tokio::pin!(timeout);
        loop {
            let action = LockAction::Acquire(acquire.clone());
            let outcome = self.submit(Command::Lock { key: key.clone(), action }).await?;
            if !matches!(outcome, Outcome::Waiting { .. }) {
                return Ok(outcome);
            }
            tokio::select! {
                tenure = waiter.granted() => {
                    // A request of another resource may have the same id: then keep polling.
                    if tenure.key == *key {
                        return Ok(Outcome::Granted((*tenure).clone()));
                    }
                    tokio::time::sleep(interval).await;
                }
                () = tokio::time::sleep(interval) => {}
                () = &mut timeout => {
                    return if poll_timeout < wait {
                        Ok(outcome)
                    } else {
                        self.withdraw(key, acquire, outcome).await
                    };
                }
            }
        }
    }

    /// Sends a claim. While no job is ready, delays the reply for up to `poll_timeout`; the reply
    /// is then empty, and repeating the same claim continues the wait.
    ///
    /// A waiting claim joins the batch that makes a resource ready, so a job starts with the flush
    /// that submits it, and the next job of a lane with the flush that ends the previous one.
    pub async fn claim(&self, claim: &Claim, poll_timeout: Duration) -> Result<Outcome> {
        let waits = !poll_timeout.is_zero();
        let reply = self.send(Command::Claim(claim.clone()), waits)?;
        let mut pending = PendingClaim { reply, queues: self.queues.clone() };
        let closed = |_| shutting_down();
        if !waits {
            return (&mut pending.reply).await.map_err(closed)?;
        }
        tokio::select! {
            biased;
            outcome = &mut pending.reply => return outcome.map_err(closed)?,
            () = tokio::time::sleep(poll_timeout) => {}
        }
        // Accept a reply that has arrived by now; jobs of a later one are handed back.
        pending.reply.close();
        pending.reply.try_recv().unwrap_or_else(|_| Ok(Outcome::Claimed(Vec::new())))
    }

    async fn withdraw(
        &self,
        key: &ResourceKey,
        acquire: &Acquire,
        last: Outcome,
    ) -> Result<Outcome> {
        let action = LockAction::Withdraw { request: acquire.request };
        self.submit(Command::Lock { key: key.clone(), action }).await?;
        Ok(last.after_withdrawal())
    }
}

fn shutting_down() -> StoreError {
    StoreError::unavailable("the store is shutting down")
}

/// Returns the poll interval of a queued request. Polling also renews a solo claimant.
fn poll_interval(acquire: &Acquire) -> Duration {
    match acquire.claimant {
        Claimant::Solo { ttl_ms, .. } => POLL_INTERVAL.min(Duration::from_millis(ttl_ms / 3)),
        Claimant::Session(_) => POLL_INTERVAL,
    }
}

fn run(
    store: &Arc<dyn Store>,
    queues: CommandReceiver,
    grant_waiters: &Arc<GrantWaiters>,
    sweep: Sweep,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without I/O can be built");
    runtime.block_on(async {
        let hints = tokio::spawn(wake_on_hints(store.watch(), Arc::clone(grant_waiters)));
        commit(&**store, queues, sweep).await;
        hints.abort();
    });
}

async fn commit(store: &dyn Store, mut queues: CommandReceiver, sweep: Sweep) {
    let mut sweep_timer = tokio::time::interval(SWEEP_INTERVAL);
    sweep_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut poll_timer = tokio::time::interval(POLL_INTERVAL);
    poll_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut hints = store.watch();
    let mut claims = WaitingClaims::default();
    let mut batch = Vec::new();
    loop {
        // Unbiased, so that no branch starves while commands keep arriving.
        tokio::select! {
            _ = sweep_timer.tick(), if sweep == Sweep::Internal => {
                if let Err(error) = store.sweep().await {
                    tracing::warn!(%error, "sweep failed");
                }
            }
            open = queues.fill(&mut batch) => {
                if !open {
                    return;
                }
                let (work, started) = (queues::count_work(batch.iter()), stopwatch());
                claims.send(store, &mut batch).await;
                queues.record_batch(work, started.elapsed());
            }
            hint = hints.recv() => {
                match hint {
                    Ok(Hint::Ready(key)) => claims.wake(&key, &mut batch),
                    Ok(Hint::Lagged) => claims.wake_all(&mut batch),
                    Ok(_) => {}
                    Err(_) => claims.wake_all(&mut batch),
                }
                claims.send(store, &mut batch).await;
            }
            _ = poll_timer.tick() => {
                claims.wake_all(&mut batch);
                claims.send(store, &mut batch).await;
            }
        }
    }
}

/// Claims that wait for a ready resource, in order of arrival.
#[derive(Default)]
struct WaitingClaims(VecDeque<QueuedCommand>);

impl WaitingClaims {
    /// Applies a batch together with as many waiting claims as commands that may make a resource
    /// ready.
    async fn send(&mut self, store: &dyn Store, batch: &mut Vec<QueuedCommand>) {
        // Drop claims of callers that are gone before they are applied: otherwise the hand-back
        // below could return jobs that a repetition of the same claim has just received.
        let is_abandoned =
            |queued: &QueuedCommand| is_claim(&queued.command) && queued.reply.is_closed();
        self.0.retain(|claim| !is_abandoned(claim));
        batch.retain(|queued| !is_abandoned(queued));
        self.join(batch);
        let mut undelivered = self.apply(store, batch).await;
        while !undelivered.is_empty() {
            let mut returned: Vec<QueuedCommand> = undelivered.iter().map(hand_back).collect();
            undelivered = self.apply(store, &mut returned).await;
        }
    }

    /// Moves as many waiting claims into the batch as it has commands that may make a resource
    /// ready. A restricted claim joins only for a resource in its scope.
    fn join(&mut self, batch: &mut Vec<QueuedCommand>) {
        let capacity = BATCH_MAX.saturating_sub(batch.len());
        let may_start = batch.iter().map(|queued| &queued.command).filter(|c| may_make_ready(c));
        if !self.0.iter().any(is_restricted) {
            let count = may_start.count().min(capacity).min(self.0.len());
            batch.extend(self.0.drain(..count));
            return;
        }
        let mut joining = Vec::new();
        for command in may_start.take(capacity) {
            let first = match command.key() {
                Some(key) => self.0.iter().position(|queued| covers(queued, key)),
                // The resource of a job is not known here.
                None => self.0.iter().position(|queued| !is_restricted(queued)),
            };
            joining.extend(first.and_then(|at| self.0.remove(at)));
        }
        batch.append(&mut joining);
    }

    /// Applies a batch and sends the replies. Returns the jobs whose claimant is gone.
    async fn apply(
        &mut self,
        store: &dyn Store,
        batch: &mut Vec<QueuedCommand>,
    ) -> Vec<Assignment> {
        let mut undelivered = Vec::new();
        if batch.is_empty() {
            return undelivered;
        }
        let (mut commands, mut replies) = (Vec::new(), Vec::new());
        for QueuedCommand { command, reply, waits } in batch.drain(..) {
            replies.push((reply, waits.then(|| command.clone())));
            commands.push(command);
        }
        let outcomes = match store.apply(commands).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                tracing::warn!(%error, commands = replies.len(), "batch failed");
                for (reply, _) in replies {
                    reply.send(Err(error.clone())).ok();
                }
                return undelivered;
            }
        };
        debug_assert_eq!(outcomes.len(), replies.len());
        for ((reply, waiting_claim), outcome) in replies.into_iter().zip(outcomes) {
            let is_empty = matches!(&outcome, Outcome::Claimed(jobs) if jobs.is_empty());
            if let Some(command) = waiting_claim.filter(|_| is_empty) {
                self.0.push_back(QueuedCommand { command, reply, waits: true });
            } else if let Err(Ok(Outcome::Claimed(jobs))) = reply.send(Ok(outcome)) {
                // Callers of other commands retry with the same request id, which is harmless.
                undelivered.extend(jobs);
            }
        }
        undelivered
    }

    /// Moves the first claim that may take a job of this resource, and whose caller is still
    /// present, into the batch.
    fn wake(&mut self, key: &ResourceKey, batch: &mut Vec<QueuedCommand>) {
        let can_take = |queued: &QueuedCommand| !queued.reply.is_closed() && covers(queued, key);
        let first = self.0.iter().position(can_take);
        batch.extend(first.and_then(|at| self.0.remove(at)));
    }

    fn wake_all(&mut self, batch: &mut Vec<QueuedCommand>) {
        batch.extend(self.0.drain(..self.0.len().min(BATCH_MAX)));
    }
}

/// Returns whether a waiting claim may take a job of a resource, as far as its scope says.
fn covers(queued: &QueuedCommand, key: &ResourceKey) -> bool {
    matches!(&queued.command, Command::Claim(claim) if claim.covers(key))
}

/// Returns whether a claim is restricted to a group or a resource.
fn is_restricted(queued: &QueuedCommand) -> bool {
    matches!(&queued.command, Command::Claim(claim) if claim.only.is_some())
}

/// Returns whether a command may make a resource ready to be claimed.
fn may_make_ready(command: &Command) -> bool {
    match command.inner() {
        Command::Resource { .. } | Command::Job { .. } => true,
        Command::Lock { action, .. } => {
            matches!(action, LockAction::Release { .. } | LockAction::Break { .. })
        }
        _ => false,
    }
}

fn is_claim(command: &Command) -> bool {
    matches!(command, Command::Claim(_))
}

/// Claim that awaits its reply. Jobs of a reply that the caller did not read are handed back.
struct PendingClaim {
    reply: oneshot::Receiver<Result<Outcome>>,
    queues: CommandSender,
}

impl Drop for PendingClaim {
    fn drop(&mut self) {
        // From here on the committer sees a closed channel; handle a reply that was sent before.
        self.reply.close();
        let Ok(Ok(Outcome::Claimed(jobs))) = self.reply.try_recv() else { return };
        for job in &jobs {
            if let Err(error) = self.queues.push(hand_back(job)) {
                // It ends when the session of its claimant expires.
                tracing::warn!(%error, job = %job.job.id, "cannot hand back job");
            }
        }
    }
}

/// Builds the command that hands back a job whose claimant is gone, without counting the attempt.
fn hand_back(job: &Assignment) -> QueuedCommand {
    let action =
        JobAction::Finish { token: job.tenure.token, finish: Finish::HandBack, update: None };
    let command = Command::Job { id: job.job.id, action };
    let (reply, _) = oneshot::channel();
    QueuedCommand { command, reply: ReplyTo::Single(reply), waits: false }
}
