//! The heartbeat: the thread that keeps a session alive and runs its errands.
//!
//! It has its own runtime and connection. It must never wait for the work, never outlive the
//! session, and never say goodbye for one that was let go of.
//!
//! Next: `session.rs`, whose other half it is, and `lease.rs` for when the next beat is due.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Command;
use tenure_store::store::Hint;
use tokio::sync::{broadcast, mpsc};

use crate::clock::{BootInstant, SLEEP_MAX};
use crate::error::Error;
use crate::link::Link;
use crate::session::{Errand, GOODBYE, Shared, alive};

/// Pause between two tries of an errand that could not be delivered.
const ERRAND_PAUSE: Duration = Duration::from_millis(200);

/// The thread that keeps a session alive.
pub(crate) struct Heartbeat {
    pub(crate) shared: Arc<Shared>,
    pub(crate) link: Box<dyn Link>,
    pub(crate) inbox: mpsc::UnboundedReceiver<Errand>,
    /// What the store says between heartbeats, when it is in this process.
    pub(crate) hints: Option<broadcast::Receiver<Hint>>,
    /// Dropped when the thread ends.
    pub(crate) ending: std::sync::mpsc::Sender<()>,
}

impl Heartbeat {
    pub(crate) fn run(self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.beat_on()),
            Err(error) => {
                tracing::error!(%error, "cannot start the heartbeat");
                self.shared.lease().refused();
                self.shared.announce();
            }
        }
    }

    async fn beat_on(mut self) {
        loop {
            let next = self.shared.lease().next_beat();
            tokio::select! {
                biased;
                () = sleep_at_most(next) => {}
                errand = self.inbox.recv() => match errand {
                    Some(errand) => self.run_errand(errand).await,
                    None => break,
                },
            }
            if next.has_passed() || self.is_wanted() {
                self.beat().await;
            }
            self.shared.announce();
            if self.shared.is_lost() {
                // What was held is gone; there is nobody to say goodbye to.
                return;
            }
        }
        self.goodbye().await;
        drop(self.ending);
    }

    /// Whether the store has something to tell. Looked at whenever the thread is awake anyway,
    /// which is several times a second; each hint would wake it much more often.
    fn is_wanted(&mut self) -> bool {
        let Some(hints) = &mut self.hints else { return false };
        let mut wanted = false;
        loop {
            match hints.try_recv() {
                Ok(Hint::Notified(session)) => wanted |= session == self.shared.id,
                Ok(Hint::Granted(_) | Hint::Ready(_) | Hint::Over(_)) => {}
                // It may have been among those that were missed.
                Ok(Hint::Missed) | Err(broadcast::error::TryRecvError::Lagged(_)) => wanted = true,
                Err(broadcast::error::TryRecvError::Empty) => return wanted,
                Err(broadcast::error::TryRecvError::Closed) => {
                    self.hints = None;
                    return wanted;
                }
            }
        }
    }

    async fn beat(&self) {
        let sent = BootInstant::now();
        let patience = self.shared.lease().patience(sent);
        let seen = self.shared.tenures().seen;
        let command = Command::Beat { session: self.shared.id, seen };
        let answer = tokio::time::timeout(patience, self.link.send(command, patience)).await;
        match answer.map(|answer| answer.and_then(alive)) {
            Ok(Ok(revoked)) => {
                self.shared.lease().answered(sent, BootInstant::now());
                self.shared.revoke(revoked);
            }
            Ok(Err(Error::Refused(_))) => self.shared.lease().refused(),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a heartbeat failed");
                self.shared.lease().failed(sent);
            }
            Err(_) => self.shared.lease().failed(sent),
        }
    }

    /// Tries an errand until it is confirmed, with heartbeats in between.
    async fn run_errand(&mut self, Errand(command): Errand) {
        loop {
            let patience = self.shared.lease().patience(BootInstant::now());
            let send = self.link.send(command.clone(), patience);
            match tokio::time::timeout(patience, send).await {
                Ok(Ok(_) | Err(Error::Refused(_) | Error::Denied(_) | Error::NotFound(_))) => {
                    return;
                }
                Ok(Err(_)) | Err(_) => {
                    let until_beat = self.shared.lease().next_beat().remaining();
                    tokio::time::sleep(ERRAND_PAUSE.min(until_beat)).await;
                }
            }
            if self.shared.lease().next_beat().has_passed() {
                self.beat().await;
                self.shared.announce();
            }
            if self.shared.is_lost() {
                return;
            }
        }
    }

    async fn goodbye(&mut self) {
        while let Ok(errand) = self.inbox.try_recv() {
            self.run_errand(errand).await;
        }
        // What was let go of must lapse, not end.
        if self.shared.is_lost() {
            return;
        }
        let close = Command::Close { session: self.shared.id };
        if let Err(error) = self.link.send(close, GOODBYE).await {
            tracing::debug!(%error, "cannot close the session; it will lapse");
        }
    }
}

/// Sleeps towards `at`, but not longer than the runtime's timers can be trusted across a suspend.
async fn sleep_at_most(at: BootInstant) {
    tokio::time::sleep(at.remaining().min(SLEEP_MAX)).await;
}
