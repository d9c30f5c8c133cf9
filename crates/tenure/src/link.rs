//! The way to a store: in this process, or over HTTP. Commands go in, outcomes come out.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{Command, LockAction, Outcome};
use tenure_store::Committer;

use crate::error::Error;

/// A way to a store.
#[async_trait]
pub trait Link: Send + Sync + 'static {
    /// Sends one command. An acquire that waits may be held back for up to `patience`; its answer
    /// is then `Waiting`, and sending it again goes on waiting. So may a claim, while nothing is
    /// ready; it then gets no job.
    async fn send(&self, command: Command, patience: Duration) -> Result<Outcome, Error>;

    /// Returns a link that acts for another tenant; `None` if this one acts for all tenants, because
    /// commands name theirs.
    fn for_tenant(&self, _tenant: &str) -> Result<Option<Arc<dyn Link>>, Error> {
        Ok(None)
    }

    /// A second way that shares nothing with this one, for the heartbeat.
    fn twin(&self) -> Result<Box<dyn Link>, Error>;
}

#[async_trait]
impl Link for Committer {
    async fn send(&self, command: Command, patience: Duration) -> Result<Outcome, Error> {
        Ok(match &command {
            Command::Lock { key, action: LockAction::Acquire(acquire) } if acquire.wait_ms > 0 => {
                self.acquire(key, acquire, patience).await?
            }
            Command::Claim(claim) => self.claim(claim, patience).await?,
            _ => self.submit(command).await?,
        })
    }

    fn twin(&self) -> Result<Box<dyn Link>, Error> {
        Ok(Box::new(self.clone()))
    }
}
