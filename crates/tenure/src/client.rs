//! A client: the door to a server or to a store in this process.
//!
//! What it can do is small: open sessions for those who lock things, submit jobs and cancel them.
//! Working jobs is [`crate::worker`]. Nothing here decides anything.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Command, JobAction, JobId, JobState, Outcome, Text};
use tenure_store::store::Hint;
use tenure_store::{Committer, Store};
use tokio::sync::broadcast;

use crate::error::Error;
use crate::link::Link;
use crate::session::Session;
use crate::submit::Submission;

/// The tenant of those who name none.
pub const DEFAULT_TENANT: &str = "default";

/// The tenant that a key is bound to, as the key itself says: `tenure_TENANT_ID_SECRET`. None for
/// one that may act for any, and for what is no key.
#[must_use]
pub fn tenant_of_key(key: &str) -> Option<&str> {
    let (rest, _secret) = key.trim().strip_prefix("tenure_")?.rsplit_once('_')?;
    Some(rest.rsplit_once('_')?.0)
}

/// A door to a server or to a store in this process; cheap to clone.
#[derive(Clone)]
pub struct Client {
    link: Arc<dyn Link>,
    tenant: Text,
    /// The way to the store's hints, when it is in this process.
    local: Option<Committer>,
}

impl Client {
    /// A client of the server at `url`, with an API key.
    #[cfg(feature = "http")]
    pub fn connect(url: &str, key: &str) -> Result<Self, Error> {
        let tenant = tenant_of_key(key).unwrap_or(DEFAULT_TENANT);
        let link = crate::http::HttpLink::new(url, key, tenant)?;
        Ok(Self::over(Arc::new(link), tenant))
    }

    /// A client of a store in this process.
    #[must_use]
    pub fn local(store: Arc<dyn Store>) -> Self {
        Self::within(Committer::start(store), DEFAULT_TENANT)
    }

    /// A client of a committer in this process, for those who have one. The tenant `*` is for
    /// workers of all tenants.
    #[must_use]
    pub fn within(committer: Committer, tenant: &str) -> Self {
        let link = Arc::new(committer.clone());
        Self { link, tenant: tenant.into(), local: Some(committer) }
    }

    /// A client over a link of your own.
    #[must_use]
    pub fn over(link: Arc<dyn Link>, tenant: &str) -> Self {
        Self { link, tenant: tenant.into(), local: None }
    }

    /// Returns a client that acts for another tenant over the same connection. Over HTTP the key must
    /// not be bound to a tenant.
    pub fn for_tenant(&self, tenant: &str) -> Result<Self, Error> {
        let link = self.link.for_tenant(tenant)?.unwrap_or_else(|| Arc::clone(&self.link));
        Ok(Self { link, tenant: tenant.into(), local: self.local.clone() })
    }

    /// Opens a session that lives for `ttl` without a heartbeat, and starts its heartbeat.
    pub async fn session(&self, name: &str, ttl: Duration) -> Result<Session, Error> {
        Session::open(&self.link, &self.tenant, name, ttl, None).await
    }

    /// Begins to ask for an operation on a resource, `kind/name`.
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
    /// let asked = client.submit("database/orders", "create").args(&args).priority(5);
    /// let submitted = asked.by("ann").send().await?;
    /// assert_eq!(submitted.verdict, Verdict::Started);
    /// client.cancel(submitted.job, "ann", "not needed any more").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&self, resource: &str, operation: &str) -> Submission {
        Submission::new(Arc::clone(&self.link), &self.tenant, resource, operation)
    }

    /// Ends a job that waits, or asks one that runs to stop. Says which state it is in then.
    pub async fn cancel(&self, job: JobId, by: &str, reason: &str) -> Result<JobState, Error> {
        let action = JobAction::Cancel { by: by.into(), reason: reason.into() };
        match self.link.send(Command::Job { id: job, action }, Duration::ZERO).await? {
            Outcome::Cancelled { state } => Ok(state),
            Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
            other => Err(Error::Protocol(format!("{other:?} answers no cancel"))),
        }
    }

    /// A session that hears between two heartbeats when it is told something, if the store is in
    /// this process.
    pub(crate) async fn alert_session(&self, name: &str, ttl: Duration) -> Result<Session, Error> {
        Session::open(&self.link, &self.tenant, name, ttl, self.hints()).await
    }

    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        self.local.as_ref().map(|committer| committer.store().watch())
    }

    pub(crate) fn link(&self) -> &Arc<dyn Link> {
        &self.link
    }
}
