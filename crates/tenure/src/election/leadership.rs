//! Leaderships: one term of one leader.
//!
//! A transfer is one step of the store: the term ends and the next one begins with the candidate
//! that was named. While it is undecided the leader must not act, and if the answer is lost it must
//! not act again.

use std::fmt;

use tenure_core::record::EndKind;
use tenure_core::{Outcome, Refusal, Token};
use tokio::sync::watch;

use crate::clock::BootInstant;
use crate::error::Error;
use crate::session::Session;
use crate::tenure::{Lost, Tenure};
use crate::transport::RETRY_DELAY;

/// Progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// None was requested, or it was refused.
    None,
    /// Its outcome is unknown.
    Pending,
    /// It was done, or may have been done.
    Done,
}

/// One term of a leader.
///
/// Dropping it resigns in the background; [`Leadership::resign`] waits for the confirmation. Either
/// also closes the candidate's session.
#[must_use = "dropping the leadership resigns"]
pub struct Leadership {
    tenure: Tenure,
    transfer: watch::Sender<Transfer>,
}

/// Leaves a transfer as done, unless it was refused: its request may still arrive.
struct PendingTransfer<'a>(&'a watch::Sender<Transfer>, Transfer);

impl Drop for PendingTransfer<'_> {
    fn drop(&mut self) {
        self.0.send_replace(self.1);
    }
}

impl Leadership {
    pub(crate) fn new(tenure: Tenure) -> Self {
        Self { tenure, transfer: watch::Sender::new(Transfer::None) }
    }

    /// Returns the term: the fencing token of the leadership. Pass it to every system that is
    /// written to by the leader.
    #[must_use]
    pub fn term(&self) -> Token {
        self.tenure.token()
    }

    /// Returns the tenure of the election's lock.
    #[must_use]
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Returns the session of the candidate.
    #[must_use]
    pub fn session(&self) -> &Session {
        self.tenure.session()
    }

    /// Returns the instant by which the leader must have stopped, unless a heartbeat succeeds
    /// before.
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        self.tenure.deadline()
    }

    /// Returns an error if this candidate no longer leads, or a transfer is undecided.
    ///
    /// Call it right before each effect that is not protected by the term.
    pub fn check(&self) -> Result<(), Lost> {
        match *self.transfer.borrow() {
            Transfer::None => self.tenure.check(),
            Transfer::Pending | Transfer::Done => Err(Lost::Transferred),
        }
    }

    /// Completes when this candidate no longer leads, never before.
    pub async fn lost(&self) -> Lost {
        let mut transfer = self.transfer.subscribe();
        let transferred = async { transfer.wait_for(|now| *now == Transfer::Done).await.is_ok() };
        tokio::select! {
            lost = self.tenure.lost() => lost,
            // The sender lives as long as this leadership.
            _ = transferred => Lost::Transferred,
        }
    }

    /// Ends the term, and waits until the store confirms it. The next candidate leads at once.
    pub async fn resign(self) -> Result<(), Error> {
        let session = self.session().clone();
        let released = match self.check() {
            Ok(()) => self.tenure.release().await,
            // The term is over, or the transfer that may have ended it is repeated as a release.
            Err(_) => {
                drop(self);
                Ok(())
            }
        };
        session.close().await;
        released
    }

    /// Ends the term and begins the next one with the waiting candidate of this name, or with this
    /// session id, in one step: nobody else leads between them.
    ///
    /// The work of the leader must have stopped before. While the transfer is undecided,
    /// [`Leadership::check`] fails.
    ///
    /// # Errors
    ///
    /// Fails with [`Refusal::NotWaiting`] if no such candidate waits; this one then stays the
    /// leader. If a response was lost, an earlier copy of the request may still arrive: whatever
    /// the answer is, the leadership counts as lost, and dropping it resigns.
    pub async fn transfer_to(&self, candidate: &str) -> Result<(), Error> {
        let begin = |now: &mut Transfer| {
            let is_new = *now == Transfer::None;
            *now = if is_new { Transfer::Pending } else { *now };
            is_new
        };
        if !self.transfer.send_if_modified(begin) {
            let (token, how) = (self.term(), Some(EndKind::Released));
            return Err(Error::Refused(Refusal::Lost { token, how, current: None }));
        }
        let mut pending = PendingTransfer(&self.transfer, Transfer::Done);
        let mut is_response_lost = false;
        loop {
            match self.tenure.send_release(Some(candidate)).await {
                Ok(Outcome::Released { .. }) => return Ok(()),
                Ok(Outcome::Refused(refusal)) => {
                    if matches!(refusal, Refusal::NotWaiting { .. }) && !is_response_lost {
                        pending.1 = Transfer::None;
                    }
                    return Err(Error::Refused(refusal));
                }
                Ok(other) => return Err(Error::from_outcome("transfer", other)),
                Err(error) if error.is_unavailable() && self.tenure.check().is_ok() => {
                    is_response_lost = true;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("tenure", &self.tenure).finish_non_exhaustive()
    }
}
