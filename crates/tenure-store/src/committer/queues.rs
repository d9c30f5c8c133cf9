//! Queues of the committer: commands of holders take precedence over new work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Command, JobAction, LockAction, ResourceAction};
use tokio::sync::mpsc;

use super::reply::ReplyTo;
use crate::store::{BATCH_MAX, Result, StoreError};

/// Capacity of each of the two queues.
pub const QUEUE_MAX: usize = 16_384;
/// Estimated queueing time above which new work is rejected.
pub const QUEUE_WAIT_MAX: Duration = Duration::from_millis(1_000);
/// Estimated duration of a batch above which no more new work is added to it.
const BATCH_TIME_MAX: Duration = Duration::from_millis(250);
/// Number of commands below which durations are not estimated: the samples are too noisy.
const ESTIMATE_MIN: usize = 32;
/// Duration from which a batch counts as slow, whatever its size.
const SLOW_BATCH_MIN: Duration = Duration::from_millis(125);

/// Command with its reply channel.
pub(super) struct QueuedCommand {
    pub(super) command: Command,
    pub(super) reply: ReplyTo,
    /// Whether this is a claim that waits if no job is ready.
    pub(super) waits: bool,
}

impl QueuedCommand {
    /// Returns whether the command goes to the queue of new work.
    pub(super) fn is_new_work(&self) -> bool {
        is_new_work(&self.command)
    }
}

/// Sending side of the queues.
#[derive(Clone)]
pub(super) struct CommandSender {
    holders: mpsc::Sender<Numbered>,
    new_work: mpsc::Sender<Numbered>,
    arrivals: Arc<AtomicU64>,
    load: Arc<LoadEstimate>,
    /// Held while many commands are enqueued, which then are in the same batch.
    enqueuing: Arc<Mutex<()>>,
}

/// Command that is not enqueued, and why.
type Rejected = (QueuedCommand, StoreError);

/// Command with its arrival number.
type Numbered = (u64, QueuedCommand);

/// Receiving side of the queues.
pub(super) struct CommandReceiver {
    holders: mpsc::Receiver<Numbered>,
    new_work: mpsc::Receiver<Numbered>,
    load: Arc<LoadEstimate>,
    enqueuing: Arc<Mutex<()>>,
    taken: Vec<Numbered>,
}

pub(super) fn new() -> (CommandSender, CommandReceiver) {
    let (holders, holders_out) = mpsc::channel(QUEUE_MAX);
    let (new_work, new_work_out) = mpsc::channel(QUEUE_MAX);
    let load = Arc::new(LoadEstimate::default());
    let enqueuing = Arc::<Mutex<()>>::default();
    let receiver = CommandReceiver {
        holders: holders_out,
        new_work: new_work_out,
        load: Arc::clone(&load),
        enqueuing: Arc::clone(&enqueuing),
        taken: Vec::new(),
    };
    (CommandSender { holders, new_work, arrivals: Arc::default(), load, enqueuing }, receiver)
}

impl CommandSender {
    /// Enqueues a command, or rejects it if the estimated wait is too long or the queue is full.
    pub(super) fn push(&self, queued: QueuedCommand) -> Result<()> {
        self.try_push(queued).map_err(|(_, error)| error)
    }

    /// Enqueues many commands, so that they share as few batches as possible. A rejection is the
    /// reply to its command.
    pub(super) fn push_all(&self, commands: impl Iterator<Item = QueuedCommand>) {
        let _enqueuing = self.enqueuing.lock().unwrap_or_else(PoisonError::into_inner);
        for queued in commands {
            if let Err((queued, error)) = self.try_push(queued) {
                // The caller may be gone.
                queued.reply.send(Err(error)).ok();
            }
        }
    }

    fn try_push(&self, queued: QueuedCommand) -> std::result::Result<(), Rejected> {
        let queue = if queued.is_new_work() {
            let len = |queue: &mpsc::Sender<_>| queue.max_capacity() - queue.capacity();
            let ahead = len(&self.holders) + len(&self.new_work);
            if ahead > ESTIMATE_MIN && self.load.estimate_by_median(ahead) > QUEUE_WAIT_MAX {
                let message = format!("overloaded: {ahead} commands are queued; retry later");
                return Err((queued, StoreError::unavailable(message)));
            }
            &self.new_work
        } else {
            &self.holders
        };
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        queue.try_send((arrival, queued)).map_err(|error| match error {
            mpsc::error::TrySendError::Full((_, queued)) => {
                let message =
                    format!("overloaded: the queue is full ({QUEUE_MAX} commands); retry later");
                (queued, StoreError::unavailable(message))
            }
            mpsc::error::TrySendError::Closed((_, queued)) => (queued, super::shutting_down()),
        })
    }
}

impl CommandReceiver {
    /// Fills an empty batch. Precedence decides which commands are in the batch; within it they are
    /// in order of arrival. Returns `false` if all senders are gone.
    pub(super) async fn fill(&mut self, batch: &mut Vec<QueuedCommand>) -> bool {
        let first = tokio::select! {
            biased;
            first = self.holders.recv() => first,
            first = self.new_work.recv() => first,
        };
        let Some(first) = first else { return false };
        drop(self.enqueuing.lock().unwrap_or_else(PoisonError::into_inner));
        self.taken.push(first);
        // Reserve capacity for new work, so that holders can delay but not starve it.
        while self.taken.len() < BATCH_MAX - ESTIMATE_MIN
            && let Ok(numbered) = self.holders.try_recv()
        {
            self.taken.push(numbered);
        }
        // Holders that arrive from now on wait for this batch: keep it short.
        let count = self.taken.len();
        let work = count_work(self.taken.iter().map(|(_, queued)| queued));
        let mut added = 0;
        while count + added < BATCH_MAX
            && (added < ESTIMATE_MIN || self.load.estimate_by_last(work + added) < BATCH_TIME_MAX)
            && let Ok(numbered) = self.new_work.try_recv()
        {
            self.taken.push(numbered);
            added += 1;
        }
        self.taken.sort_by_key(|(arrival, _)| *arrival);
        batch.extend(self.taken.drain(..).map(|(_, queued)| queued));
        true
    }

    /// Records the duration of a batch with `work` commands, as counted by [`count_work`].
    pub(super) fn record_batch(&self, work: usize, took: Duration) {
        self.load.record(work, took);
    }
}

/// Counts the commands that are load. Heartbeats are excluded: they are numerous and cheap, and
/// would make a slow store look fast.
pub(super) fn count_work<'a>(commands: impl Iterator<Item = &'a QueuedCommand>) -> usize {
    commands.filter(|queued| !matches!(queued.command, Command::Heartbeat { .. })).count()
}

/// Time per command in recent batches, in nanoseconds.
///
/// One slow batch suffices to limit the size of the next, because holders wait for it. It does not
/// suffice to reject commands: it may be a hiccup, after which all its callers return at once.
#[derive(Default)]
struct LoadEstimate {
    /// Last batch.
    last: AtomicU64,
    /// Last three batches, newest first; zero for a batch that was not slow.
    recent: [AtomicU64; 3],
}

impl LoadEstimate {
    fn record(&self, commands: usize, took: Duration) {
        // In a small batch the fixed cost dominates the time per command.
        if commands < ESTIMATE_MIN {
            return;
        }
        let each = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / commands as u64;
        self.last.store(each, Ordering::Relaxed);
        let mut slow = if took < SLOW_BATCH_MIN { 0 } else { each };
        for batch in &self.recent {
            slow = batch.swap(slow, Ordering::Relaxed);
        }
    }

    /// Estimates the duration of `commands` from the last batch.
    fn estimate_by_last(&self, commands: usize) -> Duration {
        multiply(self.last.load(Ordering::Relaxed), commands)
    }

    /// Estimates the duration of `commands` from the median of the last three batches.
    fn estimate_by_median(&self, commands: usize) -> Duration {
        let mut recent = self.recent.each_ref().map(|each| each.load(Ordering::Relaxed));
        recent.sort_unstable();
        multiply(recent[1], commands)
    }
}

fn multiply(nanos: u64, commands: usize) -> Duration {
    Duration::from_nanos(nanos.saturating_mul(commands as u64))
}

/// Returns whether a command starts something new, so that delaying it takes nothing from a holder.
pub(super) fn is_new_work(command: &Command) -> bool {
    match command.inner() {
        Command::Open { .. } | Command::Claim(_) => true,
        Command::Lock { action, .. } => matches!(action, LockAction::Acquire(_)),
        Command::Resource { action, .. } => {
            matches!(action, ResourceAction::Submit(_) | ResourceAction::Put(_))
        }
        Command::Heartbeat { .. }
        | Command::Close { .. }
        | Command::Expire { .. }
        | Command::Forget { .. }
        | Command::Once { .. } => false,
        Command::Job { action, .. } => {
            matches!(action, JobAction::Retry { .. } | JobAction::Log { .. })
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{Claim, RequestId, SessionId};
    use tokio::sync::oneshot;

    use super::*;

    fn queued(command: Command) -> QueuedCommand {
        let (reply, _) = oneshot::channel();
        QueuedCommand { command, reply: ReplyTo::Single(reply), waits: false }
    }

    fn claim() -> QueuedCommand {
        let (session, request) = (SessionId(1), RequestId(1));
        queued(Command::Claim(Claim {
            session,
            request,
            kinds: Vec::new(),
            max: 1,
            tenant: None,
            only: None,
        }))
    }

    fn heartbeat() -> QueuedCommand {
        queued(Command::Heartbeat { session: SessionId(1), seen: 0, tenant: None })
    }

    fn are_heartbeats(batch: &[QueuedCommand]) -> Vec<bool> {
        batch.iter().map(|queued| matches!(queued.command, Command::Heartbeat { .. })).collect()
    }

    #[tokio::test]
    async fn a_batch_is_in_order_of_arrival() {
        let (sender, mut receiver) = new();
        for command in [claim(), heartbeat(), claim(), heartbeat()] {
            sender.push(command).expect("there is capacity");
        }
        let mut batch = Vec::new();
        assert!(receiver.fill(&mut batch).await);
        assert_eq!(are_heartbeats(&batch), [false, true, false, true]);
    }

    /// Records two batches of this duration, so that the median is slow.
    fn record_slow(receiver: &CommandReceiver, took: Duration) {
        receiver.record_batch(ESTIMATE_MIN, took);
        receiver.record_batch(ESTIMATE_MIN, took);
    }

    #[tokio::test]
    async fn one_slow_batch_limits_the_next_one_but_rejects_nothing() {
        let (sender, mut receiver) = new();
        receiver.record_batch(ESTIMATE_MIN, QUEUE_WAIT_MAX);
        for _ in 0..BATCH_MAX {
            sender.push(claim()).expect("one slow batch is no overload");
        }
        let mut batch = Vec::new();
        assert!(receiver.fill(&mut batch).await);
        assert_eq!(batch.len(), ESTIMATE_MIN + 1, "holders wait for this batch");
        receiver.record_batch(ESTIMATE_MIN, SLOW_BATCH_MIN / 2);
        sender.push(claim()).expect("a fast batch is no sign of overload");
        receiver.record_batch(ESTIMATE_MIN, QUEUE_WAIT_MAX);
        assert!(sender.push(claim()).is_err(), "two of three batches were slow");
    }

    #[tokio::test]
    async fn heartbeats_do_not_hide_a_slow_store() {
        let (sender, mut receiver) = new();
        for _ in 0..BATCH_MAX {
            sender.push(heartbeat()).expect("there is capacity");
            sender.push(claim()).expect("there is capacity");
        }
        let mut batch = Vec::new();
        assert!(receiver.fill(&mut batch).await);
        assert!(batch.len() > 10 * ESTIMATE_MIN, "{}", batch.len());
        receiver.record_batch(count_work(batch.iter()), QUEUE_WAIT_MAX);
        batch.clear();
        assert!(receiver.fill(&mut batch).await);
        let work = count_work(batch.iter());
        assert!((1..=ESTIMATE_MIN + 1).contains(&work), "{work} commands delay holders");
    }

    #[tokio::test]
    async fn overload_rejects_new_work_but_not_holders() {
        let (sender, mut receiver) = new();
        record_slow(&receiver, QUEUE_WAIT_MAX * 2);
        let accepted = (0..10 * ESTIMATE_MIN).filter(|_| sender.push(claim()).is_ok()).count();
        assert_eq!(accepted, ESTIMATE_MIN + 1, "more would wait for too long");
        sender.push(heartbeat()).expect("a holder is not rejected");
        let mut batch = Vec::new();
        assert!(receiver.fill(&mut batch).await);
        assert_eq!(are_heartbeats(&batch).iter().filter(|heartbeat| **heartbeat).count(), 1);
        assert!(batch.len() <= ESTIMATE_MIN + 2, "the batch stays short: {}", batch.len());
    }

    #[tokio::test]
    async fn holders_do_not_starve_new_work() {
        let (sender, mut receiver) = new();
        record_slow(&receiver, BATCH_TIME_MAX * 2);
        sender.push(claim()).expect("there is capacity");
        for _ in 0..2 * BATCH_MAX {
            sender.push(heartbeat()).expect("there is capacity");
        }
        let mut batch = Vec::new();
        assert!(receiver.fill(&mut batch).await);
        assert!(are_heartbeats(&batch).contains(&false), "the first command is in the batch");
    }
}
