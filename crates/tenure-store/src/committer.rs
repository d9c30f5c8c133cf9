//! Turns single commands into batches.
//!
//! There is no timer: a batch is what arrived while the previous one was on its way. The committer
//! has its own thread and runtime, so work that blocks the caller's runtime starves neither
//! heartbeats nor the sweep.
//!
//! There are two queues, both bounded. What holders need, to keep what they have or to give it
//! back, goes before what would begin something new: under a load that cannot be carried nobody
//! loses a lock, and locks get free. Whatever would wait longer than [`WAIT_MAX`] to begin
//! something, going by the last batches, is told "unavailable" at once.

mod answer;
mod queues;
mod sleepers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Acquire, Assignment, Claim, Claimant, Command, Finish, JobAction, LockAction, Outcome, Refusal,
    ResourceKey, Text,
};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use answer::{Answer, Call};
use queues::{Entry, Item, Waiting};
pub use queues::{QUEUE_MAX, WAIT_MAX};
use sleepers::{Sleepers, wake_on_hints};

use crate::clock::stopwatch;
use crate::store::{BATCH_MAX, Hint, Result, Store, StoreError};

/// How often the sweep runs. Expired tenures are noticed this soon without anybody asking.
pub const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// How often a waiting request asks again although nobody woke it: the poll floor.
pub const POLL_FLOOR: Duration = Duration::from_millis(1_000);
/// How long a command waits for a resource that another transaction of the database is at.
pub const BUSY_MAX: Duration = Duration::from_millis(1_000);
/// The first pause before it is sent again; each is twice the one before, up to the longest.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(50);

/// A handle on the batching thread; cheap to clone. The thread ends with the last handle.
#[derive(Clone)]
pub struct Committer {
    queues: Entry,
    store: Arc<dyn Store>,
    sleepers: Arc<Sleepers>,
}

/// Who sweeps the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// This committer.
    Here,
    /// A janitor.
    Elsewhere,
}

impl Committer {
    /// Starts the thread; it sweeps the store, too.
    #[must_use]
    pub fn start(store: Arc<dyn Store>) -> Self {
        Self::start_with(store, Sweep::Here)
    }

    /// Starts the thread, and says who sweeps.
    #[must_use]
    pub fn start_with(store: Arc<dyn Store>, sweep: Sweep) -> Self {
        let (queues, waiting) = queues::new();
        let sleepers = Arc::new(Sleepers::default());
        let (thread_store, thread_sleepers) = (Arc::clone(&store), Arc::clone(&sleepers));
        std::thread::Builder::new()
            .name("tenure-committer".to_owned())
            .spawn(move || run(&thread_store, waiting, &thread_sleepers, sweep))
            .expect("the system has a thread to spare at start");
        Self { queues, store, sleepers }
    }

    /// The store behind it, for reading.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Sends one command with the next batch and waits for its outcome; sends it again for a while
    /// when another transaction is at its resource.
    pub async fn submit(&self, command: Command) -> Result<Outcome> {
        let mut waited = Duration::ZERO;
        let mut pause = BUSY_PAUSE;
        loop {
            let outcome = self.send(command.clone(), false)?;
            let gone = |_| StoreError::Unavailable("it is shutting down".to_owned());
            let outcome = outcome.await.map_err(gone)??;
            if outcome != Outcome::Refused(Refusal::Busy) || waited > BUSY_MAX {
                return Ok(outcome);
            }
            // Nothing has happened. Others go on meanwhile.
            tokio::time::sleep(pause).await;
            waited += pause;
            pause = BUSY_PAUSE_MAX.min(pause * 2);
        }
    }

    /// Sends many commands in one call and waits until all are answered; each has an answer of its
    /// own, in the order of the commands. They go along in as few batches as have room for them.
    /// Not for claims: what is claimed for somebody who goes away would not go back.
    pub async fn submit_all(&self, commands: Vec<Command>) -> Vec<Result<Outcome>> {
        let (call, answers) = Call::of(commands.len());
        for (place, command) in commands.iter().enumerate() {
            let answer = Answer::Among(Arc::clone(&call), place);
            let item = Item { command: command.clone(), answer, waits: false };
            if let Err(error) = self.queues.push(item) {
                call.answer(place, Err(error));
            }
        }
        drop(call);
        let gone = || Err(StoreError::Unavailable("it is shutting down".to_owned()));
        let mut answers =
            answers.await.unwrap_or_else(|_| commands.iter().map(|_| gone()).collect());
        for (answer, command) in answers.iter_mut().zip(commands) {
            if matches!(answer, Ok(Outcome::Refused(Refusal::Busy))) {
                *answer = self.submit(command).await;
            }
        }
        answers
    }

    fn send(&self, command: Command, waits: bool) -> Result<oneshot::Receiver<Result<Outcome>>> {
        let (answer, outcome) = oneshot::channel();
        self.queues.push(Item { command, answer: Answer::Alone(answer), waits })?;
        Ok(outcome)
    }

    /// Sends an acquire, and while it waits in the queue holds the answer back for up to
    /// `patience`.
    ///
    /// The answer is `Waiting` when patience ends first; sending the same request again goes on
    /// waiting. When the wait itself is over the request is withdrawn and the answer is `Held`.
    pub async fn acquire(
        &self,
        key: &ResourceKey,
        acquire: &Acquire,
        patience: Duration,
    ) -> Result<Outcome> {
        let mut sleeper = self.sleepers.register(acquire.request);
        let floor = poll_floor(acquire);
        let wait = Duration::from_millis(acquire.wait_ms);
        let given_up = tokio::time::sleep(wait.min(patience));
        tokio::pin!(given_up);
        loop {
            let action = LockAction::Acquire(acquire.clone());
            let outcome = self.submit(Command::Lock { key: key.clone(), action }).await?;
            if !matches!(outcome, Outcome::Waiting { .. }) {
                return Ok(outcome);
            }
            tokio::select! {
                tenure = sleeper.told() => {
                    // Another resource may have a request with the same id: then only ask again.
                    if tenure.key == *key {
                        return Ok(Outcome::Granted((*tenure).clone()));
                    }
                    tokio::time::sleep(floor).await;
                }
                () = tokio::time::sleep(floor) => {}
                () = &mut given_up => {
                    return if patience < wait {
                        Ok(outcome)
                    } else {
                        self.give_up(key, acquire, outcome).await
                    };
                }
            }
        }
    }

    /// Sends a claim, and while nothing is ready holds the answer back for up to `patience`. The
    /// answer is then empty, and sending the same claim again goes on waiting.
    ///
    /// A claim that waits goes along with the very batch that makes something ready, so a job
    /// starts with the flush that submits it, and the next of a lane with the flush that ends the
    /// one before.
    pub async fn claim(&self, claim: &Claim, patience: Duration) -> Result<Outcome> {
        let waits = !patience.is_zero();
        let answer = self.send(Command::Claim(claim.clone()), waits)?;
        let mut awaited = Awaited { answer, queues: self.queues.clone() };
        let gone = |_| StoreError::Unavailable("it is shutting down".to_owned());
        if !waits {
            return (&mut awaited.answer).await.map_err(gone)?;
        }
        tokio::select! {
            biased;
            outcome = &mut awaited.answer => return outcome.map_err(gone)?,
            () = tokio::time::sleep(patience) => {}
        }
        // What came until now counts; what comes later goes back.
        awaited.answer.close();
        awaited.answer.try_recv().unwrap_or_else(|_| Ok(Outcome::Claimed(Vec::new())))
    }

    async fn give_up(&self, key: &ResourceKey, ask: &Acquire, last: Outcome) -> Result<Outcome> {
        let action = LockAction::Withdraw { request: ask.request };
        self.submit(Command::Lock { key: key.clone(), action }).await?;
        let Outcome::Waiting { queue_length, held_by, .. } = last else { return Ok(last) };
        let queue_length = queue_length.saturating_sub(1);
        Ok(Outcome::Refused(Refusal::Held { by: held_by, queue_length }))
    }
}

/// A waiter with a session of its own lives by asking again.
fn poll_floor(acquire: &Acquire) -> Duration {
    match acquire.claimant {
        Claimant::Solo { ttl_ms, .. } => POLL_FLOOR.min(Duration::from_millis(ttl_ms / 3)),
        Claimant::Session(_) => POLL_FLOOR,
    }
}

fn run(store: &Arc<dyn Store>, queues: Waiting, sleepers: &Arc<Sleepers>, sweep: Sweep) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without I/O needs nothing that can fail");
    runtime.block_on(async {
        let hints = tokio::spawn(wake_on_hints(store.watch(), Arc::clone(sleepers)));
        commit(&**store, queues, sweep).await;
        hints.abort();
    });
}

async fn commit(store: &dyn Store, mut queues: Waiting, who: Sweep) {
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut floor = tokio::time::interval(POLL_FLOOR);
    floor.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut hints = store.watch();
    let mut line = Line::default();
    let mut batch = Vec::new();
    loop {
        // Whatever is ready gets its turn, also while commands keep coming.
        tokio::select! {
            _ = sweep.tick(), if who == Sweep::Here => {
                if let Err(error) = store.sweep().await {
                    tracing::warn!(%error, "cannot sweep");
                }
            }
            open = queues.fill(&mut batch) => {
                if !open {
                    return;
                }
                let (work, began) = (queues::work(batch.iter()), stopwatch());
                line.send(store, &mut batch).await;
                queues.note(work, began.elapsed());
            }
            hint = hints.recv() => {
                match hint {
                    Ok(Hint::Ready(kind)) => line.wake(&kind, &mut batch),
                    Ok(Hint::Missed) => line.wake_all(&mut batch),
                    Ok(_) => {}
                    // What was missed is found by asking again.
                    Err(_) => line.wake_all(&mut batch),
                }
                line.send(store, &mut batch).await;
            }
            _ = floor.tick() => {
                line.wake_all(&mut batch);
                line.send(store, &mut batch).await;
            }
        }
    }
}

/// Claims that wait for something to become ready, in the order in which they came.
#[derive(Default)]
struct Line(VecDeque<Item>);

impl Line {
    /// Sends a batch, and with it as many waiting claims as it may make resources ready.
    async fn send(&mut self, store: &dyn Store, batch: &mut Vec<Item>) {
        // Whoever has gone away takes nothing, so that what is handed back below is never what the
        // same claim, sent again, has just got.
        let gone = |item: &Item| is_claim(&item.command) && item.answer.is_closed();
        self.0.retain(|claim| !gone(claim));
        batch.retain(|item| !gone(item));
        let may_start = batch.iter().filter(|item| may_start_something(&item.command)).count();
        let room = BATCH_MAX.saturating_sub(batch.len());
        batch.extend(self.0.drain(..may_start.min(room).min(self.0.len())));
        let mut orphans = self.apply(store, batch).await;
        while !orphans.is_empty() {
            let mut back: Vec<Item> = orphans.iter().map(hand_back).collect();
            orphans = self.apply(store, &mut back).await;
        }
    }

    /// Sends a batch and answers it. Gives back the jobs that were claimed for nobody.
    async fn apply(&mut self, store: &dyn Store, batch: &mut Vec<Item>) -> Vec<Assignment> {
        let mut orphans = Vec::new();
        if batch.is_empty() {
            return orphans;
        }
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        for Item { command, answer, waits } in batch.drain(..) {
            answers.push((answer, waits.then(|| command.clone())));
            commands.push(command);
        }
        let outcomes = match store.apply(commands).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                tracing::warn!(%error, commands = answers.len(), "cannot apply a batch");
                for (answer, _) in answers {
                    answer.send(Err(error.clone())).ok();
                }
                return orphans;
            }
        };
        debug_assert_eq!(outcomes.len(), answers.len());
        for ((answer, again), outcome) in answers.into_iter().zip(outcomes) {
            let nothing = matches!(&outcome, Outcome::Claimed(jobs) if jobs.is_empty());
            if let Some(command) = again.filter(|_| nothing) {
                self.0.push_back(Item { command, answer, waits: true });
            } else if let Err(Ok(Outcome::Claimed(jobs))) = answer.send(Ok(outcome)) {
                // Anybody else who has gone away will ask again: request ids make that harmless.
                orphans.extend(jobs);
            }
        }
        orphans
    }

    /// The first claim that wants this kind asks again. The wake-up is not wasted on one whose
    /// client has gone.
    fn wake(&mut self, kind: &Text, batch: &mut Vec<Item>) {
        let wants = |item: &Item| match &item.command {
            Command::Claim(claim) => !item.answer.is_closed() && claim.kinds.contains(kind),
            _ => false,
        };
        let first = self.0.iter().position(wants);
        batch.extend(first.and_then(|at| self.0.remove(at)));
    }

    fn wake_all(&mut self, batch: &mut Vec<Item>) {
        batch.extend(self.0.drain(..self.0.len().min(BATCH_MAX)));
    }
}

/// Whether a command may make a resource ready to be worked.
fn may_start_something(command: &Command) -> bool {
    match command {
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

/// The answer to a claim, on its way. What it brings to somebody who has gone away goes back.
struct Awaited {
    answer: oneshot::Receiver<Result<Outcome>>,
    queues: Entry,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        // After this the committer notices that nobody is there; what came before is seen to here.
        self.answer.close();
        let Ok(Ok(Outcome::Claimed(jobs))) = self.answer.try_recv() else { return };
        for job in &jobs {
            if let Err(error) = self.queues.push(hand_back(job)) {
                tracing::warn!(%error, "cannot hand back a job; it is lost with its session");
            }
        }
    }
}

/// What was claimed for somebody who has gone away goes back, as if it had never been started.
fn hand_back(job: &Assignment) -> Item {
    let action = JobAction::Finish { token: job.tenure.token, finish: Finish::HandBack };
    let command = Command::Job { id: job.job.id, action };
    let (answer, _) = oneshot::channel();
    Item { command, answer: Answer::Alone(answer), waits: false }
}
