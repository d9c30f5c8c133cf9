//! What waits to be sent to the store: what holders need before what would begin something new.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::{Command, LockAction, Outcome, ResourceAction};
use tokio::sync::{mpsc, oneshot};

use crate::store::{BATCH_MAX, Result, StoreError};

/// Most commands of holders, and of others, that wait to be sent to the store.
pub const QUEUE_MAX: usize = 16_384;
/// The longest that something new may have to wait before it is sent to the store.
pub const WAIT_MAX: Duration = Duration::from_millis(1_000);
/// The longest that a batch may take because of something new.
const BATCH_TIME_MAX: Duration = Duration::from_millis(250);
/// So many never wait too long: how long they take is not known well enough.
const FEW: usize = 32;

/// A command on its way.
pub(super) struct Item {
    pub(super) command: Command,
    pub(super) answer: oneshot::Sender<Result<Outcome>>,
    /// A claim that would rather wait than get nothing.
    pub(super) waits: bool,
}

/// Where commands come in.
#[derive(Clone)]
pub(super) struct Entry {
    first: mpsc::Sender<Item>,
    then: mpsc::Sender<Item>,
    pace: Arc<Pace>,
}

/// Where they come out.
pub(super) struct Waiting {
    first: mpsc::Receiver<Item>,
    then: mpsc::Receiver<Item>,
    pace: Arc<Pace>,
}

pub(super) fn new() -> (Entry, Waiting) {
    let (first, first_out) = mpsc::channel(QUEUE_MAX);
    let (then, then_out) = mpsc::channel(QUEUE_MAX);
    let pace = Arc::new(Pace::default());
    let waiting = Waiting { first: first_out, then: then_out, pace: Arc::clone(&pace) };
    (Entry { first, then, pace }, waiting)
}

impl Entry {
    /// Puts a command in line, unless it would have to wait for too long.
    pub(super) fn push(&self, item: Item) -> Result<()> {
        let queue = if begins_something(&item.command) {
            let ahead = self.then.max_capacity() - self.then.capacity();
            if ahead > FEW && self.pace.of(ahead) > WAIT_MAX {
                let why = format!("it is overloaded: {ahead} commands wait already");
                return Err(StoreError::Unavailable(why));
            }
            &self.then
        } else {
            &self.first
        };
        queue.try_send(item).map_err(|error| {
            StoreError::Unavailable(match error {
                mpsc::error::TrySendError::Full(_) => format!("{QUEUE_MAX} commands wait already"),
                mpsc::error::TrySendError::Closed(_) => "it is shutting down".to_owned(),
            })
        })
    }
}

impl Waiting {
    /// Fills an empty batch. Says whether anybody can still ask.
    pub(super) async fn fill(&mut self, batch: &mut Vec<Item>) -> bool {
        let item = tokio::select! {
            biased;
            item = self.first.recv() => item,
            item = self.then.recv() => item,
        };
        let Some(item) = item else { return false };
        batch.push(item);
        while batch.len() < BATCH_MAX
            && let Ok(item) = self.first.try_recv()
        {
            batch.push(item);
        }
        // Holders that come meanwhile wait for this batch.
        while batch.len() < BATCH_MAX
            && (batch.len() < FEW || self.pace.of(batch.len()) < BATCH_TIME_MAX)
            && let Ok(item) = self.then.try_recv()
        {
            batch.push(item);
        }
        true
    }

    /// Notes how long a batch took.
    pub(super) fn note(&self, commands: usize, took: Duration) {
        self.pace.note(commands, took);
    }
}

/// How long a command takes among many, as a moving average.
#[derive(Default)]
struct Pace(AtomicU64);

impl Pace {
    fn note(&self, commands: usize, took: Duration) {
        // Of a few, each takes nearly as long as many would.
        if commands < FEW {
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let each = nanos / commands as u64;
        let before = self.0.load(Ordering::Relaxed);
        let now = if before == 0 { each } else { before - before / 4 + each / 4 };
        self.0.store(now, Ordering::Relaxed);
    }

    /// How long so many take.
    fn of(&self, commands: usize) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed).saturating_mul(commands as u64))
    }
}

/// Whether a command would begin something new: nobody loses what they have when it has to wait.
fn begins_something(command: &Command) -> bool {
    match command {
        Command::Open { .. } | Command::Claim(_) => true,
        Command::Lock { action, .. } => matches!(action, LockAction::Acquire(_)),
        Command::Resource { action, .. } => {
            matches!(action, ResourceAction::Submit(_) | ResourceAction::Put { .. })
        }
        Command::Beat { .. }
        | Command::Close { .. }
        | Command::Lapse { .. }
        | Command::Forget { .. }
        | Command::Job { .. } => false,
    }
}
