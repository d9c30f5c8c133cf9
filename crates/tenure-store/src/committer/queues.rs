//! What waits to be sent to the store: what holders need before what would begin something new.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::{Command, JobAction, LockAction, ResourceAction};
use tokio::sync::mpsc;

use super::answer::Answer;
use crate::store::{BATCH_MAX, Result, StoreError};

/// Most commands of holders, and of others, that wait to be sent to the store.
pub const QUEUE_MAX: usize = 16_384;
/// The longest that something new may have to wait before it is sent to the store.
pub const WAIT_MAX: Duration = Duration::from_millis(1_000);
/// The longest that a batch may take because of something new.
const BATCH_TIME_MAX: Duration = Duration::from_millis(250);
/// So many never wait too long: how long they take is not known well enough.
const FEW: usize = 32;
/// A batch that is over as soon as this is a quick one, however little was in it.
const QUICK: Duration = Duration::from_millis(125);

/// A command on its way.
pub(super) struct Item {
    pub(super) command: Command,
    pub(super) answer: Answer,
    /// A claim that would rather wait than get nothing.
    pub(super) waits: bool,
}

/// Where commands come in.
#[derive(Clone)]
pub(super) struct Entry {
    first: mpsc::Sender<Numbered>,
    then: mpsc::Sender<Numbered>,
    arrivals: Arc<AtomicU64>,
    pace: Arc<Pace>,
}

/// A command with its place among all that came.
type Numbered = (u64, Item);

/// Where they come out.
pub(super) struct Waiting {
    first: mpsc::Receiver<Numbered>,
    then: mpsc::Receiver<Numbered>,
    pace: Arc<Pace>,
    taken: Vec<Numbered>,
}

pub(super) fn new() -> (Entry, Waiting) {
    let (first, first_out) = mpsc::channel(QUEUE_MAX);
    let (then, then_out) = mpsc::channel(QUEUE_MAX);
    let pace = Arc::new(Pace::default());
    let (taken, arrivals) = (Vec::new(), Arc::default());
    let waiting = Waiting { first: first_out, then: then_out, pace: Arc::clone(&pace), taken };
    (Entry { first, then, arrivals, pace }, waiting)
}

impl Entry {
    /// Puts a command in line, unless it would have to wait for too long.
    pub(super) fn push(&self, item: Item) -> Result<()> {
        let queue = if begins_something(&item.command) {
            let waiting = |queue: &mpsc::Sender<_>| queue.max_capacity() - queue.capacity();
            let ahead = waiting(&self.first) + waiting(&self.then);
            if ahead > FEW && self.pace.mostly(ahead) > WAIT_MAX {
                let why = format!("it is overloaded: {ahead} commands wait already");
                return Err(StoreError::Unavailable(why));
            }
            &self.then
        } else {
            &self.first
        };
        let place = self.arrivals.fetch_add(1, Ordering::Relaxed);
        queue.try_send((place, item)).map_err(|error| {
            StoreError::Unavailable(match error {
                mpsc::error::TrySendError::Full(_) => format!("{QUEUE_MAX} commands wait already"),
                mpsc::error::TrySendError::Closed(_) => "it is shutting down".to_owned(),
            })
        })
    }
}

impl Waiting {
    /// Fills an empty batch, which is stepped in the order of arrival: who goes first decides who
    /// goes along, and nothing else. Says whether anybody can still ask.
    pub(super) async fn fill(&mut self, batch: &mut Vec<Item>) -> bool {
        let item = tokio::select! {
            biased;
            item = self.first.recv() => item,
            item = self.then.recv() => item,
        };
        let Some(item) = item else { return false };
        self.taken.push(item);
        // Some places are always left for others, so that they only come later.
        while self.taken.len() < BATCH_MAX - FEW
            && let Ok(item) = self.first.try_recv()
        {
            self.taken.push(item);
        }
        // Holders that come meanwhile wait for this batch.
        let (holders, theirs) = (self.taken.len(), work(self.taken.iter().map(|(_, item)| item)));
        let mut new = 0;
        while holders + new < BATCH_MAX
            && (new < FEW || self.pace.lately(theirs + new) < BATCH_TIME_MAX)
            && let Ok(item) = self.then.try_recv()
        {
            self.taken.push(item);
            new += 1;
        }
        self.taken.sort_by_key(|(place, _)| *place);
        batch.extend(self.taken.drain(..).map(|(_, item)| item));
        true
    }

    /// Notes how long a batch with so much [`work`] took.
    pub(super) fn note(&self, work: usize, took: Duration) {
        self.pace.note(work, took);
    }
}

/// How many of these are work. Beats come by the thousand and cost next to nothing: counted, they
/// would make a slow store look quick.
pub(super) fn work<'a>(items: impl Iterator<Item = &'a Item>) -> usize {
    items.filter(|item| !matches!(item.command, Command::Heartbeat { .. })).count()
}

/// How long a command takes among many, in nanoseconds.
///
/// One slow batch is enough to keep the next one short, because holders wait for it. It is not
/// enough to refuse anybody: it may have been held up for a moment, and all whom it has just
/// answered come back at once.
#[derive(Default)]
struct Pace {
    /// In the last batch.
    last: AtomicU64,
    /// In the last three, the newest first; zero for one that was quick.
    slow: [AtomicU64; 3],
}

impl Pace {
    fn note(&self, commands: usize, took: Duration) {
        // Of a few, each takes nearly as long as many would.
        if commands < FEW {
            return;
        }
        let each = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / commands as u64;
        self.last.store(each, Ordering::Relaxed);
        let mut slow = if took < QUICK { 0 } else { each };
        for batch in &self.slow {
            slow = batch.swap(slow, Ordering::Relaxed);
        }
    }

    /// How long so many take, going by the last batch.
    fn lately(&self, commands: usize) -> Duration {
        times(self.last.load(Ordering::Relaxed), commands)
    }

    /// How long so many take, going by the middle one of the last three batches.
    fn mostly(&self, commands: usize) -> Duration {
        let mut slow = self.slow.each_ref().map(|each| each.load(Ordering::Relaxed));
        slow.sort_unstable();
        times(slow[1], commands)
    }
}

fn times(each: u64, commands: usize) -> Duration {
    Duration::from_nanos(each.saturating_mul(commands as u64))
}

/// Whether a command would begin something new: nobody loses what they have when it has to wait.
fn begins_something(command: &Command) -> bool {
    match command {
        Command::Open { .. } | Command::Claim(_) => true,
        Command::Lock { action, .. } => matches!(action, LockAction::Acquire(_)),
        Command::Resource { action, .. } => {
            matches!(action, ResourceAction::Submit(_) | ResourceAction::Put { .. })
        }
        Command::Heartbeat { .. }
        | Command::Close { .. }
        | Command::Expire { .. }
        | Command::Forget { .. } => false,
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

    fn item(command: Command) -> Item {
        let (answer, _) = oneshot::channel();
        Item { command, answer: Answer::Alone(answer), waits: false }
    }

    fn claim() -> Item {
        let (session, request) = (SessionId(1), RequestId(1));
        item(Command::Claim(Claim { session, request, kinds: Vec::new(), max: 1 }))
    }

    fn beat() -> Item {
        item(Command::Heartbeat { session: SessionId(1), seen: 0 })
    }

    fn beats(batch: &[Item]) -> Vec<bool> {
        batch.iter().map(|item| matches!(item.command, Command::Heartbeat { .. })).collect()
    }

    #[tokio::test]
    async fn what_fits_in_a_batch_is_in_the_order_of_arrival() {
        let (entry, mut waiting) = new();
        for item in [claim(), beat(), claim(), beat()] {
            entry.push(item).expect("there is room");
        }
        let mut batch = Vec::new();
        assert!(waiting.fill(&mut batch).await);
        assert_eq!(beats(&batch), [false, true, false, true]);
    }

    /// Two batches of a few that took so long.
    fn slow(waiting: &Waiting, took: Duration) {
        waiting.note(FEW, took);
        waiting.note(FEW, took);
    }

    #[tokio::test]
    async fn a_batch_that_was_held_up_has_nobody_refused_but_the_next_one_is_short() {
        let (entry, mut waiting) = new();
        waiting.note(FEW, WAIT_MAX);
        for _ in 0..BATCH_MAX {
            entry.push(claim()).expect("it is not known to be slow");
        }
        let mut batch = Vec::new();
        assert!(waiting.fill(&mut batch).await);
        assert_eq!(batch.len(), FEW + 1, "holders that come meanwhile wait for it");
        waiting.note(FEW, QUICK / 2);
        entry.push(claim()).expect("short batches say nothing about long ones");
        waiting.note(FEW, WAIT_MAX);
        assert!(entry.push(claim()).is_err(), "now most were slow");
    }

    #[tokio::test]
    async fn beats_do_not_make_a_slow_store_look_quick() {
        let (entry, mut waiting) = new();
        for _ in 0..BATCH_MAX {
            entry.push(beat()).expect("there is room");
            entry.push(claim()).expect("there is room");
        }
        let mut batch = Vec::new();
        assert!(waiting.fill(&mut batch).await);
        assert!(batch.len() > 10 * FEW, "{}", batch.len());
        waiting.note(work(batch.iter()), WAIT_MAX);
        batch.clear();
        assert!(waiting.fill(&mut batch).await);
        let new = work(batch.iter());
        assert!((1..=FEW + 1).contains(&new), "{new} keep holders waiting");
    }

    #[tokio::test]
    async fn when_not_all_fits_holders_go_along_and_too_much_is_refused() {
        let (entry, mut waiting) = new();
        slow(&waiting, WAIT_MAX * 2);
        let taken = (0..10 * FEW).filter(|_| entry.push(claim()).is_ok()).count();
        assert_eq!(taken, FEW + 1, "more would wait for too long");
        entry.push(beat()).expect("a holder is not refused");
        let mut batch = Vec::new();
        assert!(waiting.fill(&mut batch).await);
        assert_eq!(beats(&batch).iter().filter(|beat| **beat).count(), 1);
        assert!(batch.len() <= FEW + 2, "the batch stays short: {}", batch.len());
    }

    #[tokio::test]
    async fn holders_never_keep_others_out_of_every_batch() {
        let (entry, mut waiting) = new();
        slow(&waiting, BATCH_TIME_MAX * 2);
        entry.push(claim()).expect("there is room");
        for _ in 0..2 * BATCH_MAX {
            entry.push(beat()).expect("there is room");
        }
        let mut batch = Vec::new();
        assert!(waiting.fill(&mut batch).await);
        assert!(beats(&batch).contains(&false), "the one that came first is in it");
    }
}
