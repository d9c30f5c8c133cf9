//! Registry of requests that wait for the end of a job.
//!
//! One task receives the hints of the store for all waiters; with one subscription per request,
//! every hint would wake every waiter. Hints can be lost, so waiters also poll.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::JobId;
use tenure_store::store::Hint;
use tokio::sync::{broadcast, watch};

/// Waiters by job.
#[derive(Default)]
pub struct JobWaits(Mutex<HashMap<JobId, watch::Sender<()>>>);

impl JobWaits {
    /// Registers a waiter for the end of `job`. Register first, then read the job: an end in
    /// between wakes the waiter.
    #[must_use]
    pub fn register(self: &Arc<Self>, job: JobId) -> JobWait {
        let ended = self.map().entry(job).or_default().subscribe();
        JobWait { job, ended, waits: Arc::clone(self) }
    }

    /// Wakes waiters until the store closes its hints.
    pub async fn listen(self: Arc<Self>, mut hints: broadcast::Receiver<Hint>) {
        loop {
            match hints.recv().await {
                Ok(Hint::JobsEnded(jobs)) => {
                    let waits = self.map();
                    for sender in jobs.iter().filter_map(|job| waits.get(job)) {
                        sender.send_replace(());
                    }
                }
                Ok(Hint::Lagged) => {
                    for sender in self.map().values() {
                        sender.send_replace(());
                    }
                }
                Ok(Hint::Granted(_) | Hint::Ready(_) | Hint::Notified(_)) => {}
                // Waiters poll, so a missed hint costs latency only.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<JobId, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered waiter, removed on drop.
pub struct JobWait {
    job: JobId,
    ended: watch::Receiver<()>,
    waits: Arc<JobWaits>,
}

impl JobWait {
    /// Completes when the job may have ended.
    pub async fn ended(&mut self) {
        if self.ended.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for JobWait {
    fn drop(&mut self) {
        let mut map = self.waits.map();
        // The receiver of this waiter still counts.
        if map.get(&self.job).is_some_and(|sender| sender.receiver_count() <= 1) {
            map.remove(&self.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_waiter_of_a_job_is_woken_and_then_removed() {
        let waits = Arc::new(JobWaits::default());
        let (hints, listener) = broadcast::channel(4);
        let listening = tokio::spawn(Arc::clone(&waits).listen(listener));
        let (mut first, mut second) = (waits.register(JobId(1)), waits.register(JobId(1)));
        let other = waits.register(JobId(2));
        hints.send(Hint::JobsEnded([JobId(3), JobId(1)].into())).unwrap();
        first.ended().await;
        second.ended().await;
        drop((first, second, other));
        assert!(waits.map().is_empty());
        drop(hints);
        listening.await.unwrap();
    }
}
