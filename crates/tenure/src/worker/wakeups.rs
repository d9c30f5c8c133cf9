//! Wake-ups: a worker that claims jobs when another system says so, for example a message queue.
//!
//! A wake-up is a hint. What a worker may run is decided by the claim, so a wake-up that comes
//! twice, late or for nothing changes nothing, and a source also has to wake the worker from time
//! to time by itself, so that a lost one costs latency only.

use async_trait::async_trait;
use tenure_core::ResourceKey;
use tokio::sync::oneshot;

/// Source of wake-ups.
#[async_trait]
pub trait Wakeups: Send + Sync + 'static {
    /// Completes when the worker should claim jobs. Called while the worker has a free slot; the
    /// future may be dropped at any time without losing a wake-up.
    async fn next(&self) -> Wakeup;
}

/// A reason to claim jobs.
#[derive(Debug, Default)]
pub struct Wakeup {
    /// Resource whose jobs are claimed; `None` for all.
    pub resource: Option<ResourceKey>,
    /// Completed when the store has answered the claim, with or without a job, or if the worker
    /// does not serve the resource. Dropped if the session was lost before.
    pub claimed: Option<oneshot::Sender<()>>,
}

impl Wakeup {
    /// Reports that the wake-up is not needed any more.
    pub(super) fn finish(self) {
        if let Some(claimed) = self.claimed {
            // The source may have stopped waiting.
            claimed.send(()).ok();
        }
    }
}
