//! Those who wait here for a job to be over.
//!
//! One listener reads the hints of the store for all of them: with a subscription each, every hint
//! would wake everybody. A hint may be lost, so whoever waits also asks again by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::JobId;
use tenure_store::store::Hint;
use tokio::sync::{broadcast, watch};

/// Who waits for which job.
#[derive(Default)]
pub(crate) struct Waits(Mutex<HashMap<JobId, watch::Sender<()>>>);

impl Waits {
    /// A place among those who wait for a job. Take it first, then look whether the job is over.
    pub(crate) fn enter(self: &Arc<Self>, job: JobId) -> Wait {
        let told = self.map().entry(job).or_default().subscribe();
        Wait { job, told, waits: Arc::clone(self) }
    }

    /// Tells those who wait, for as long as the store lasts.
    pub(crate) async fn listen(self: Arc<Self>, mut hints: broadcast::Receiver<Hint>) {
        loop {
            match hints.recv().await {
                Ok(Hint::Over(jobs)) => {
                    let waits = self.map();
                    for sender in jobs.iter().filter_map(|job| waits.get(job)) {
                        sender.send_replace(());
                    }
                }
                Ok(Hint::Missed) => {
                    for sender in self.map().values() {
                        sender.send_replace(());
                    }
                }
                Ok(Hint::Granted(_) | Hint::Ready(_) | Hint::Notified(_)) => {}
                // What was missed is found by asking again.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<JobId, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those who wait, given up on drop.
pub(crate) struct Wait {
    job: JobId,
    told: watch::Receiver<()>,
    waits: Arc<Waits>,
}

impl Wait {
    /// Completes when the job may be over.
    pub(crate) async fn told(&mut self) {
        if self.told.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut map = self.waits.map();
        // Its own receiver still counts.
        if map.get(&self.job).is_some_and(|sender| sender.receiver_count() <= 1) {
            map.remove(&self.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_who_waits_for_a_job_is_told_and_nothing_is_left_behind() {
        let waits = Arc::new(Waits::default());
        let (hints, listener) = broadcast::channel(4);
        let listening = tokio::spawn(Arc::clone(&waits).listen(listener));
        let (mut first, mut second) = (waits.enter(JobId(1)), waits.enter(JobId(1)));
        let other = waits.enter(JobId(2));
        hints.send(Hint::Over([JobId(3), JobId(1)].into())).unwrap();
        first.told().await;
        second.told().await;
        drop((first, second, other));
        assert!(waits.map().is_empty());
        drop(hints);
        listening.await.unwrap();
    }
}
