//! Receives messages and wakes the workers of this process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::worker::{Wakeup as WorkerWakeup, Wakeups};
use tokio::sync::{Mutex, OnceCell, mpsc, oneshot, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::Wakeup;
use crate::aws::AwsError;
use crate::aws::sqs::{Message, Queue};
use crate::settings::{Settings, SqsSettings};

/// Pause after a request that failed.
const PAUSE: Duration = Duration::from_secs(5);

/// Wakes workers by messages, and at an interval.
pub(super) struct SqsWakeups {
    settings: Settings,
    sqs: SqsSettings,
    /// Started with the first wait, within a runtime.
    started: OnceCell<Started>,
}

struct Started {
    inbox: Mutex<Inbox>,
    /// Number of waits. Messages are received only while it is positive: one that waits for a free
    /// slot here would be received again by others.
    waiting: Arc<watch::Sender<usize>>,
}

struct Inbox {
    messages: mpsc::Receiver<WorkerWakeup>,
    claim: Interval,
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
        let (sender, messages) = mpsc::channel(1);
        let waiting = Arc::new(watch::Sender::new(0));
        let receiver = Receiver { settings: self.settings.clone(), sqs: self.sqs.clone(), sender };
        tokio::spawn(receiver.run(waiting.subscribe()));
        let mut claim = interval(Duration::from_millis(self.sqs.claim_interval_ms));
        claim.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Started { inbox: Mutex::new(Inbox { messages, claim }), waiting }
    }
}

#[async_trait]
impl Wakeups for SqsWakeups {
    async fn next(&self) -> WorkerWakeup {
        let started = self.started.get_or_init(|| self.start()).await;
        let _waiting = Waiting::new(&started.waiting);
        let mut inbox = started.inbox.lock().await;
        let Inbox { messages, claim } = &mut *inbox;
        tokio::select! {
            biased;
            _ = claim.tick() => WorkerWakeup::default(),
            Some(message) = messages.recv() => message,
        }
    }
}

/// Receives messages, one at a time.
struct Receiver {
    settings: Settings,
    sqs: SqsSettings,
    sender: mpsc::Sender<WorkerWakeup>,
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
        let wait = Duration::from_millis(self.sqs.wait_ms);
        for message in queue.receive(1, wait).await? {
            self.wake(queue, &message).await?;
        }
        Ok(())
    }

    /// Wakes the worker, and deletes the message when the store has answered its claim.
    async fn wake(&self, queue: &Queue, message: &Message) -> Result<(), AwsError> {
        let key = match Wakeup::parse(&message.body) {
            Ok(key) => key,
            Err(why) => {
                // Left to SQS, which moves it to the dead-letter queue after some receives.
                tracing::warn!(
                    message = message.id,
                    receives = message.receives,
                    why,
                    "a message on the queue of clusters cannot be read"
                );
                return Ok(());
            }
        };
        let (claimed, answered) = oneshot::channel();
        let wakeup = WorkerWakeup { resource: Some(key), claimed: Some(claimed) };
        // Without a worker the message becomes visible again.
        if self.sender.send(wakeup).await.is_err() || answered.await.is_err() {
            return Ok(());
        }
        queue.delete(&message.receipt).await
    }
}
