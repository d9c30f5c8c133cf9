//! Receives messages and wakes the workers of this process.
//!
//! A message is received only while a worker waits, and released again if none takes it: it may be
//! for a cluster that another process has the time for. It stays hidden from others while the store
//! does not answer. No message goes to the dead-letter queue because workers were busy.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tenure::clock::{BootInstant, sleep_until};
use tenure::worker::{Wakeup as WorkerWakeup, Wakeups};
use tokio::sync::{Notify, OnceCell, oneshot, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::Wakeup;
use crate::aws::AwsError;
use crate::aws::sqs::{Message, Queue};
use crate::settings::{Settings, SqsSettings};

/// Pause after a request that failed.
const PAUSE: Duration = Duration::from_secs(5);
/// Minimum interval between two receives that return nothing.
const EMPTY_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a message that no worker has taken is released.
const OFFER_TIMEOUT: Duration = Duration::from_secs(2);

/// Wakes workers by messages, and at an interval.
pub(super) struct SqsWakeups {
    settings: Settings,
    sqs: SqsSettings,
    /// Started with the first wait, within a runtime.
    started: OnceCell<Started>,
}

struct Started {
    claim: tokio::sync::Mutex<Interval>,
    offer: Arc<Offer>,
    /// Number of waits.
    waiting: watch::Sender<usize>,
}

/// The message that waits for a worker.
#[derive(Default)]
struct Offer {
    wakeup: Mutex<Option<WorkerWakeup>>,
    made: Notify,
}

impl Offer {
    fn lock(&self) -> MutexGuard<'_, Option<WorkerWakeup>> {
        self.wakeup.lock().expect("nothing panics while it is locked")
    }

    fn make(&self, wakeup: WorkerWakeup) {
        *self.lock() = Some(wakeup);
        self.made.notify_one();
    }

    /// Waits for an offer and takes it; no offer is lost if this is dropped.
    async fn take(&self) -> WorkerWakeup {
        loop {
            if let Some(wakeup) = self.lock().take() {
                return wakeup;
            }
            self.made.notified().await;
        }
    }

    /// Returns whether the offer had not been taken.
    fn withdraw(&self) -> bool {
        self.lock().take().is_some()
    }
}

/// Counts a wait.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl SqsWakeups {
    pub(super) fn new(settings: Settings, sqs: SqsSettings) -> Self {
        Self { settings, sqs, started: OnceCell::new() }
    }

    async fn start(&self) -> Started {
        let (offer, waiting) = (Arc::<Offer>::default(), watch::Sender::new(0));
        let (settings, sqs) = (self.settings.clone(), self.sqs.clone());
        let receiver = Receiver { settings, sqs, offer: Arc::clone(&offer) };
        tokio::spawn(receiver.run(waiting.subscribe()));
        let mut claim = interval(Duration::from_millis(self.sqs.claim_interval_ms));
        claim.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Started { claim: tokio::sync::Mutex::new(claim), offer, waiting }
    }
}

#[async_trait]
impl Wakeups for SqsWakeups {
    async fn next(&self) -> WorkerWakeup {
        let started = self.started.get_or_init(|| self.start()).await;
        let _waiting = Waiting::new(&started.waiting);
        let mut claim = started.claim.lock().await;
        tokio::select! {
            biased;
            _ = claim.tick() => WorkerWakeup::default(),
            message = started.offer.take() => message,
        }
    }
}

/// Receives messages, one at a time.
struct Receiver {
    settings: Settings,
    sqs: SqsSettings,
    offer: Arc<Offer>,
}

impl Receiver {
    /// Runs until the worker is gone.
    async fn run(self, mut waiting: watch::Receiver<usize>) {
        let mut queue = None;
        while waiting.wait_for(|count| *count > 0).await.is_ok() {
            if let Err(error) = self.receive(&mut queue).await {
                queue = None;
                let name = &self.sqs.queue;
                tracing::warn!(queue = name, %error,
                    "cannot receive wake-ups from SQS; claiming jobs at an interval");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Waits for one message and hands it to the worker.
    async fn receive(&self, queue: &mut Option<Queue>) -> Result<(), AwsError> {
        let queue = match queue {
            Some(queue) => queue,
            None => queue.insert(super::open(&self.settings, &self.sqs).await?),
        };
        let started = BootInstant::now();
        let messages = queue.receive(1, Duration::from_millis(self.sqs.wait_ms)).await?;
        if messages.is_empty() {
            sleep_until(started + EMPTY_INTERVAL).await;
        }
        for message in &messages {
            self.wake(queue, message).await;
        }
        Ok(())
    }

    /// Wakes the worker, and deletes the message when the store has answered its claim.
    async fn wake(&self, queue: &Queue, message: &Message) {
        let key = match Wakeup::parse(&message.body) {
            Ok(key) => key,
            Err(why) => {
                // Left to SQS, which moves it to the dead-letter queue after some receives.
                tracing::warn!(
                    id = message.id,
                    receives = message.receives,
                    why,
                    "a message on the queue of clusters cannot be read"
                );
                return;
            }
        };
        let (claimed, answered) = oneshot::channel();
        self.offer.make(WorkerWakeup { resource: Some(key), claimed: Some(claimed) });
        if self.is_answered(queue, message, answered).await {
            delete(queue, message).await;
        } else {
            self.release(queue, message).await;
        }
    }

    /// Returns whether the store has answered, keeping the message hidden until then.
    async fn is_answered(
        &self,
        queue: &Queue,
        message: &Message,
        mut answered: oneshot::Receiver<()>,
    ) -> bool {
        let visibility = Duration::from_millis(self.sqs.visibility_ms);
        let mut next = OFFER_TIMEOUT.min(visibility / 2);
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return answer.is_ok(),
                () = tokio::time::sleep(next) => {}
            }
            if self.offer.withdraw() {
                return false;
            }
            if let Err(error) = queue.change_visibility(&message.receipt, visibility).await {
                tracing::debug!(id = message.id, %error, "cannot keep a wake-up hidden");
            }
            next = visibility / 2;
        }
    }

    /// Makes a message visible to others at once. One that would go to the dead-letter queue with
    /// the next receive is deleted: it can be read, and workers also claim at an interval.
    async fn release(&self, queue: &Queue, message: &Message) {
        if message.receives >= self.sqs.receives {
            return delete(queue, message).await;
        }
        if let Err(error) = queue.change_visibility(&message.receipt, Duration::ZERO).await {
            tracing::debug!(id = message.id, %error, "cannot release a wake-up");
        }
    }
}

/// Deletes a message. If that fails, for example because it took too long, the message comes again,
/// which changes nothing.
async fn delete(queue: &Queue, message: &Message) {
    if let Err(error) = queue.delete(&message.receipt).await {
        tracing::info!(id = message.id, %error, "cannot delete a wake-up; it will come again");
    }
}
