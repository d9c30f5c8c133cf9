//! Client for a Tenure server or an embedded store.
//!
//! A client opens sessions that hold locks, and submits and cancels jobs. Jobs are executed by
//! [`crate::worker`]. All decisions are made by the store.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Command, JobAction, JobId, JobState, Outcome, Text};
use tenure_store::store::Hint;
use tenure_store::{Committer, Store};
use tokio::sync::broadcast;

use crate::error::Error;
use crate::session::Session;
use crate::submit::Submission;
use crate::transport::Transport;

/// Tenant used when none is given.
pub const DEFAULT_TENANT: &str = "default";

/// Returns the tenant encoded in an API key of the form `tenure_TENANT_ID_SECRET`.
///
/// Returns `None` for a key that is not bound to a tenant, and for text that is not a key.
#[must_use]
pub fn tenant_of_key(key: &str) -> Option<&str> {
    let (rest, _secret) = key.trim().strip_prefix("tenure_")?.rsplit_once('_')?;
    Some(rest.rsplit_once('_')?.0)
}

/// Client for a Tenure server or an embedded store.
///
/// Cloning is cheap: clones share one transport.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    tenant: Text,
    /// Source of store hints; `None` unless the store is embedded.
    committer: Option<Committer>,
}

impl Client {
    /// Creates a client of the server at `url` that authenticates with an API key.
    #[cfg(feature = "http")]
    pub fn connect(url: &str, key: &str) -> Result<Self, Error> {
        let tenant = tenant_of_key(key).unwrap_or(DEFAULT_TENANT);
        let transport = crate::http::HttpTransport::new(url, key, tenant)?;
        Ok(Self::with_transport(Arc::new(transport), tenant))
    }

    /// Creates a client of an embedded store, for the default tenant.
    #[must_use]
    pub fn local(store: Arc<dyn Store>) -> Self {
        Self::with_committer(Committer::start(store), DEFAULT_TENANT)
    }

    /// Creates a client of a [`Committer`] that runs in this process.
    ///
    /// The tenant `*` is for workers that serve all tenants.
    #[must_use]
    pub fn with_committer(committer: Committer, tenant: &str) -> Self {
        let transport = Arc::new(committer.clone());
        Self { transport, tenant: tenant.into(), committer: Some(committer) }
    }

    /// Creates a client over a custom [`Transport`].
    #[must_use]
    pub fn with_transport(transport: Arc<dyn Transport>, tenant: &str) -> Self {
        Self { transport, tenant: tenant.into(), committer: None }
    }

    /// Returns a client that acts for another tenant. Over HTTP the key must not be bound to a
    /// tenant.
    pub fn for_tenant(&self, tenant: &str) -> Result<Self, Error> {
        let other = self.transport.for_tenant(tenant)?;
        let transport = other.unwrap_or_else(|| Arc::clone(&self.transport));
        Ok(Self { transport, tenant: tenant.into(), committer: self.committer.clone() })
    }

    /// Opens a session that expires after `ttl` without a heartbeat, and starts its heartbeat
    /// thread.
    pub async fn session(&self, name: &str, ttl: Duration) -> Result<Session, Error> {
        Session::open(&self.transport, &self.tenant, name, ttl, None).await
    }

    /// Builds a job submission: `operation` on the resource `kind/name`.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure_core::{Kind, Kinds, Operation, Verdict};
    /// # use tenure_store::{Memory, Store};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> anyhow::Result<()> {
    /// # let store = Arc::new(Memory::new());
    /// # let database = Kind::new("database").operation(Operation::new("create"));
    /// # store.declare(Arc::new(Kinds::new([database])?)).await?;
    /// let client = tenure::Client::local(store);
    /// let args = serde_json::json!({ "size_gb": 20 });
    /// let submission = client.submit("database/orders", "create").args(&args).priority(5);
    /// let submitted = submission.by("ann").send().await?;
    /// assert_eq!(submitted.verdict, Verdict::Started);
    /// client.cancel(submitted.job, "ann", "not needed any more").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&self, resource: &str, operation: &str) -> Submission {
        Submission::new(Arc::clone(&self.transport), &self.tenant, resource, operation)
    }

    /// Cancels a job and returns its new state.
    ///
    /// A job that is waiting ends at once. A running job moves to `cancelling`, and its handler is
    /// asked to stop.
    pub async fn cancel(&self, job: JobId, by: &str, reason: &str) -> Result<JobState, Error> {
        let action = JobAction::Cancel { by: by.into(), reason: reason.into() };
        match self.transport.send(Command::Job { id: job, action }, Duration::ZERO).await? {
            Outcome::Cancelled { state } => Ok(state),
            Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
            other => Err(Error::Protocol(format!("cancel returned {other:?}"))),
        }
    }

    /// Opens a session that checks for notices between heartbeats when the embedded store sends
    /// hints.
    pub(crate) async fn session_with_hints(
        &self,
        name: &str,
        ttl: Duration,
    ) -> Result<Session, Error> {
        Session::open(&self.transport, &self.tenant, name, ttl, self.hints()).await
    }

    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        self.committer.as_ref().map(|committer| committer.store().watch())
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }
}
