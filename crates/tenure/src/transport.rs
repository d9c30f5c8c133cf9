//! Transports: how commands and queries reach a store, in this process or over HTTP.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{JobId, ResourceKey, SessionId};

use crate::clock::BootInstant;
use crate::error::Error;
use crate::wire::{
    GroupInfo, HistoryEntry, JobInfo, ListResponse, LogResponse, ResourceInfo,
    ResourceLocksResponse, StatusResponse, WhyResponse,
};

pub use tenure_core::{Command, Outcome};

/// Delay before a request that got no response is sent again.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Time after which an unanswered command is no longer retried.
pub(crate) const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns whether the store may have a notice for a session since the last call.
pub type Notices = Box<dyn FnMut() -> bool + Send>;

/// Sends commands to a store and returns their outcomes.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends one command.
    ///
    /// An acquire that waits may block for up to `max_wait`; its outcome is then `Waiting`, and
    /// sending it again continues the wait. A claim may block likewise while no job is ready; it
    /// then returns none.
    async fn send(&self, command: Command, max_wait: Duration) -> Result<Outcome, Error>;

    /// Sends commands on resources, none of which waits. Those on one resource are applied in
    /// order. Returns one outcome per command.
    async fn send_all(&self, commands: Vec<Command>) -> Vec<Result<Outcome, Error>> {
        let mut outcomes = Vec::with_capacity(commands.len());
        for command in commands {
            outcomes.push(self.send(command, Duration::ZERO).await);
        }
        outcomes
    }

    /// Returns the read-only queries.
    fn queries(&self) -> &dyn Queries;

    /// Returns a transport that acts for another tenant; `None` if this one serves all tenants,
    /// because commands name theirs.
    fn for_tenant(&self, _tenant: &str) -> Result<Option<Arc<dyn Transport>>, Error> {
        Ok(None)
    }

    /// Opens a transport that shares no connection with this one, for the heartbeat.
    fn open_dedicated(&self) -> Result<Box<dyn Transport>, Error>;

    /// Watches for notices to a session; `None` if they arrive only with heartbeats.
    fn notices(&self, _session: SessionId) -> Option<Notices> {
        None
    }
}

/// Read-only queries. Nothing is decided by their results.
#[async_trait]
pub trait Queries: Send + Sync {
    /// Returns a job as soon as it has finished, or as it is after `max_wait`.
    async fn job(&self, id: JobId, max_wait: Duration) -> Result<JobInfo, Error>;

    /// Explains what a job waits for.
    async fn why_job(&self, id: JobId) -> Result<WhyResponse, Error>;

    /// Returns the part of a job's log after a position, of one attempt or of all; waits up to
    /// `max_wait` for text, or until the job has finished.
    async fn job_log(
        &self,
        id: JobId,
        attempt: Option<u32>,
        after: u64,
        max_wait: Duration,
    ) -> Result<LogResponse, Error>;

    /// Returns a resource.
    async fn resource(&self, key: &ResourceKey) -> Result<ResourceInfo, Error>;

    /// Returns the holders and waiters of a resource's locks; `None` if it was never locked.
    async fn locks(&self, key: &ResourceKey) -> Result<Option<ResourceLocksResponse>, Error>;

    /// Counts the unfinished jobs of a group; the name of `key` is the group.
    async fn group(&self, key: &ResourceKey) -> Result<GroupInfo, Error>;

    /// Explains what a resource waits for.
    async fn why_resource(&self, key: &ResourceKey) -> Result<WhyResponse, Error>;

    /// Returns a page of a resource's history, newest first; `cursor` is `next` of the page before.
    async fn history(
        &self,
        key: &ResourceKey,
        cursor: Option<String>,
    ) -> Result<ListResponse<HistoryEntry>, Error>;

    /// Returns the status of the deployment, with the counts of `tenant`.
    async fn status(&self, tenant: &str) -> Result<StatusResponse, Error>;
}

/// Sends a command that carries a request id, again while the server is unavailable: a repeated
/// request id gets the response of the first.
pub(crate) async fn send_with_retries(
    transport: &dyn Transport,
    command: &Command,
) -> Result<Outcome, Error> {
    let retry_until = BootInstant::now() + RETRY_TIMEOUT;
    loop {
        match transport.send(command.clone(), Duration::ZERO).await {
            Err(error) if error.is_unavailable() && !retry_until.has_passed() => {
                tokio::time::sleep(RETRY_DELAY).await;
            }
            result => return result,
        }
    }
}

/// Repeats a query while the server is unavailable, for example while it restarts.
pub(crate) async fn query_with_retries<T, F: Future<Output = Result<T, Error>>>(
    mut query: impl FnMut() -> F,
) -> Result<T, Error> {
    loop {
        match query().await {
            Err(error) if error.is_unavailable() => {
                tracing::debug!(%error, "query failed; retrying");
                tokio::time::sleep(RETRY_DELAY).await;
            }
            result => return result,
        }
    }
}
