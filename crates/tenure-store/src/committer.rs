//! Turns single commands into batches.
//!
//! There is no timer: a batch is what arrived while the previous one was on its way. The committer
//! has its own thread and runtime, so work that blocks the caller's runtime starves neither
//! heartbeats nor the sweep. Its queue is bounded: when it is full the answer is "unavailable" at
//! once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::{
    Acquire, Claimant, Command, LockAction, Outcome, Refusal, RequestId, ResourceKey, TenureView,
};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;

use crate::store::{BATCH_MAX, Hint, Result, Store, StoreError};

/// Most commands that wait to be sent to the store.
pub const QUEUE_MAX: usize = 16_384;
/// How often the sweep runs. Expired tenures are noticed this soon without anybody asking.
pub const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// How often a waiting request asks again although nobody woke it: the poll floor.
pub const POLL_FLOOR: Duration = Duration::from_millis(1_000);

struct Item {
    command: Command,
    answer: oneshot::Sender<Result<Outcome>>,
}

/// A handle on the batching thread; cheap to clone. The thread ends with the last handle.
#[derive(Clone)]
pub struct Committer {
    queue: mpsc::Sender<Item>,
    store: Arc<dyn Store>,
    sleepers: Arc<Sleepers>,
}

impl Committer {
    /// Starts the thread.
    #[must_use]
    pub fn start(store: Arc<dyn Store>) -> Self {
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let sleepers = Arc::new(Sleepers::default());
        let (thread_store, thread_sleepers) = (Arc::clone(&store), Arc::clone(&sleepers));
        std::thread::Builder::new()
            .name("tenure-committer".to_owned())
            .spawn(move || run(&thread_store, items, &thread_sleepers))
            .expect("the system has a thread to spare at start");
        Self { queue, store, sleepers }
    }

    /// The store behind it, for reading.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Sends one command with the next batch and waits for its outcome.
    pub async fn submit(&self, command: Command) -> Result<Outcome> {
        let (answer, outcome) = oneshot::channel();
        self.queue.try_send(Item { command, answer }).map_err(|error| {
            StoreError::Unavailable(match error {
                mpsc::error::TrySendError::Full(_) => format!("{QUEUE_MAX} commands wait already"),
                mpsc::error::TrySendError::Closed(_) => "it is shutting down".to_owned(),
            })
        })?;
        let gone = |_| StoreError::Unavailable("it is shutting down".to_owned());
        outcome.await.map_err(gone)?
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

fn run(store: &Arc<dyn Store>, items: mpsc::Receiver<Item>, sleepers: &Arc<Sleepers>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without I/O needs nothing that can fail");
    runtime.block_on(async {
        let hints = tokio::spawn(wake_on_hints(store.watch(), Arc::clone(sleepers)));
        commit(&**store, items).await;
        hints.abort();
    });
}

async fn commit(store: &dyn Store, mut items: mpsc::Receiver<Item>) {
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            biased;
            _ = sweep.tick() => {
                if let Err(error) = store.sweep().await {
                    tracing::warn!(%error, "cannot sweep");
                }
            }
            count = items.recv_many(&mut batch, BATCH_MAX) => {
                if count == 0 {
                    return;
                }
                send(store, &mut batch).await;
            }
        }
    }
}

async fn send(store: &dyn Store, batch: &mut Vec<Item>) {
    let (commands, answers): (Vec<_>, Vec<_>) =
        batch.drain(..).map(|item| (item.command, item.answer)).unzip();
    match store.apply(commands).await {
        Ok(outcomes) => {
            debug_assert_eq!(outcomes.len(), answers.len());
            for (answer, outcome) in answers.into_iter().zip(outcomes) {
                // Whoever asked may have gone away; request ids make that harmless.
                answer.send(Ok(outcome)).ok();
            }
        }
        Err(error) => {
            tracing::warn!(%error, commands = answers.len(), "cannot apply a batch");
            for answer in answers {
                answer.send(Err(error.clone())).ok();
            }
        }
    }
}

async fn wake_on_hints(mut hints: broadcast::Receiver<Hint>, sleepers: Arc<Sleepers>) {
    loop {
        match hints.recv().await {
            Ok(Hint(tenure)) => sleepers.tell(&tenure),
            // What was missed is found by asking again.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// Requests that wait here for a hint.
#[derive(Default)]
struct Sleepers(Mutex<HashMap<RequestId, watch::Sender<Option<Arc<TenureView>>>>>);

impl Sleepers {
    fn register(self: &Arc<Self>, request: RequestId) -> Sleeper {
        let told = self.map().entry(request).or_default().subscribe();
        Sleeper { request, told, sleepers: Arc::clone(self) }
    }

    fn tell(&self, tenure: &Arc<TenureView>) {
        if let Some(sender) = self.map().get(&tenure.request) {
            sender.send_replace(Some(Arc::clone(tenure)));
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<RequestId, watch::Sender<Option<Arc<TenureView>>>>> {
        self.0.lock().expect("nothing panics while the map is locked")
    }
}

/// A place among the sleepers, given up on drop.
struct Sleeper {
    request: RequestId,
    told: watch::Receiver<Option<Arc<TenureView>>>,
    sleepers: Arc<Sleepers>,
}

impl Sleeper {
    /// Completes when the request is granted, if a hint says so.
    async fn told(&mut self) -> Arc<TenureView> {
        let told = self.told.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
        match told {
            Some(tenure) => tenure,
            // Another waiter of the same request has gone and taken the sender with it.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.sleepers.map().remove(&self.request);
    }
}
