//! Transports: how commands reach a store, in this process or over HTTP.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{Command, LockAction, Outcome};
use tenure_store::Committer;

use crate::error::Error;

/// Sends commands to a store and returns their outcomes.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends one command.
    ///
    /// An acquire that waits may block for up to `max_wait`; its outcome is then `Waiting`, and
    /// sending it again continues the wait. A claim may block likewise while no job is ready; it
    /// then returns none.
    async fn send(&self, command: Command, max_wait: Duration) -> Result<Outcome, Error>;

    /// Returns a transport that acts for another tenant; `None` if this one serves all tenants,
    /// because commands name theirs.
    fn for_tenant(&self, _tenant: &str) -> Result<Option<Arc<dyn Transport>>, Error> {
        Ok(None)
    }

    /// Opens a transport that shares no connection with this one, for the heartbeat.
    fn open_dedicated(&self) -> Result<Box<dyn Transport>, Error>;
}

#[async_trait]
impl Transport for Committer {
    async fn send(&self, command: Command, max_wait: Duration) -> Result<Outcome, Error> {
        Ok(match &command {
            Command::Lock { key, action: LockAction::Acquire(acquire) } if acquire.wait_ms > 0 => {
                self.acquire(key, acquire, max_wait).await?
            }
            Command::Claim(claim) => self.claim(claim, max_wait).await?,
            _ => self.submit(command).await?,
        })
    }

    fn open_dedicated(&self) -> Result<Box<dyn Transport>, Error> {
        Ok(Box::new(self.clone()))
    }
}
