//! The heartbeat thread: keeps a session alive and delivers its cleanup commands.
//!
//! It has its own runtime and connection. It must never wait for the work, never outlive the
//! session, and never close a session that was abandoned.
//!
//! See `session.rs` for the handles, and `lease.rs` for when the next heartbeat is due.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Command;
use tokio::sync::mpsc;

use crate::clock::{BootInstant, SLEEP_MAX};
use crate::error::Error;
use crate::session::{CLOSE_TIMEOUT, CleanupCommand, Shared, expect_alive};
use crate::transport::{Notices, Transport};

/// Delay between two attempts to deliver a cleanup command.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// State of the heartbeat thread.
pub(crate) struct Heartbeat {
    pub(crate) shared: Arc<Shared>,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) cleanup_queue: mpsc::UnboundedReceiver<CleanupCommand>,
    /// Notices that arrive between heartbeats.
    pub(crate) notices: Option<Notices>,
    /// Dropped when the thread exits.
    pub(crate) exit_signal: std::sync::mpsc::Sender<()>,
}

impl Heartbeat {
    pub(crate) fn run(self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.run_until_closed()),
            Err(error) => {
                tracing::error!(%error, "cannot start the heartbeat runtime");
                self.shared.lease().mark_lost();
                self.shared.publish_state();
            }
        }
    }

    async fn run_until_closed(mut self) {
        loop {
            let next = self.shared.lease().next_heartbeat();
            tokio::select! {
                biased;
                () = sleep_towards(next) => {}
                cleanup = self.cleanup_queue.recv() => match cleanup {
                    Some(cleanup) => self.deliver(cleanup).await,
                    None => break,
                },
            }
            if next.has_passed() || self.has_notice() {
                self.send_heartbeat().await;
            }
            self.shared.publish_state();
            if self.shared.is_lost() {
                // The store has ended the session or will expire it: there is nothing to close.
                return;
            }
        }
        self.close_session().await;
        drop(self.exit_signal);
    }

    /// Returns whether the store may have a notice for this session. Polled whenever the thread is
    /// awake, which is several times a second; waking on each hint would be far more often.
    fn has_notice(&mut self) -> bool {
        self.notices.as_mut().is_some_and(|notices| notices())
    }

    async fn send_heartbeat(&self) {
        let sent = BootInstant::now();
        let timeout = self.shared.lease().heartbeat_timeout(sent);
        let seen = self.shared.tenures().last_notice;
        let command = Command::Heartbeat { session: self.shared.id, seen, tenant: None };
        let response = tokio::time::timeout(timeout, self.transport.send(command, timeout)).await;
        match response.map(|response| response.and_then(expect_alive)) {
            Ok(Ok(revoked)) => {
                self.shared.lease().confirm(sent, BootInstant::now());
                self.shared.apply_notices(revoked);
            }
            Ok(Err(Error::Refused(_))) => self.shared.lease().mark_lost(),
            Ok(Err(error)) => {
                tracing::debug!(%error, "heartbeat failed");
                self.shared.lease().record_failure(sent);
            }
            Err(_) => self.shared.lease().record_failure(sent),
        }
    }

    /// Retries a cleanup command until it is confirmed, sending heartbeats in between.
    async fn deliver(&mut self, CleanupCommand(command): CleanupCommand) {
        loop {
            let timeout = self.shared.lease().heartbeat_timeout(BootInstant::now());
            let send = self.transport.send(command.clone(), timeout);
            match tokio::time::timeout(timeout, send).await {
                Ok(Ok(_) | Err(Error::Refused(_) | Error::Denied(_) | Error::NotFound(_))) => {
                    return;
                }
                Ok(Err(_)) | Err(_) => {
                    let until_heartbeat = self.shared.lease().next_heartbeat().remaining();
                    tokio::time::sleep(RETRY_DELAY.min(until_heartbeat)).await;
                }
            }
            if self.shared.lease().next_heartbeat().has_passed() {
                self.send_heartbeat().await;
                self.shared.publish_state();
            }
            if self.shared.is_lost() {
                return;
            }
        }
    }

    async fn close_session(&mut self) {
        while let Ok(cleanup) = self.cleanup_queue.try_recv() {
            self.deliver(cleanup).await;
        }
        // An abandoned session must expire and not be closed.
        if self.shared.is_lost() {
            return;
        }
        let close = Command::Close { session: self.shared.id, tenant: None };
        if let Err(error) = self.transport.send(close, CLOSE_TIMEOUT).await {
            tracing::debug!(%error, "cannot close the session; it will expire");
        }
    }
}

/// Sleeps until `at`, but at most [`SLEEP_MAX`]: the runtime's timers stand still during suspend.
async fn sleep_towards(at: BootInstant) {
    tokio::time::sleep(at.remaining().min(SLEEP_MAX)).await;
}
