//! Client for a Tenure server or an embedded store.
//!
//! A client opens sessions that hold locks, submits jobs, and addresses jobs and resources. Jobs
//! are executed by a `Worker` (feature `worker`). All decisions are made by the store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::session::ALL_TENANTS;
use tenure_core::{JobId, LockPath, ResourceKey, Text};

use crate::batch::Batch;
use crate::election::Election;
use crate::error::Error;
use crate::job::{BY_DEFAULT, JobHandle};
use crate::resource::ResourceHandle;
use crate::session::Session;
use crate::session_options::SessionOptions;
use crate::submit::Submission;
use crate::transport::Transport;
use crate::wire::{GroupInfo, StatusResponse};

/// Tenant used when none is given.
pub const DEFAULT_TENANT: &str = "default";
/// Tenant of the resources that Tenure keeps for itself.
pub const SYSTEM_TENANT: &str = "tenure";

/// Returns the option that makes a command look at a tenant, or nothing for the default tenant.
#[must_use]
pub fn tenant_option(tenant: &str) -> String {
    match tenant {
        DEFAULT_TENANT => String::new(),
        ALL_TENANTS => " --tenant '*'".to_owned(),
        _ => format!(" --tenant {tenant}"),
    }
}

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
}

impl Client {
    /// Connects to the server at `url` and verifies that it accepts the API key.
    ///
    /// The client acts for the tenant that the key is bound to, otherwise for the tenant
    /// `default`: see [`Client::for_tenant`].
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Unavailable`] if the server cannot be reached, [`Error::Denied`] if it
    /// refuses the key, and [`Error::Protocol`] if the URL is not that of a Tenure server.
    #[cfg(feature = "http")]
    pub async fn connect(url: &str, key: &str) -> Result<Self, Error> {
        let tenant = tenant_of_key(key).unwrap_or(DEFAULT_TENANT);
        let transport = crate::http::HttpTransport::new(url, key, tenant)?;
        transport.verify().await?;
        Ok(Self::with_transport(Arc::new(transport), tenant))
    }

    /// Creates a client over a custom [`Transport`].
    #[must_use]
    pub fn with_transport(transport: Arc<dyn Transport>, tenant: &str) -> Self {
        Self { transport, tenant: tenant.into() }
    }

    /// Returns a client that acts for another tenant. Over HTTP the key must not be bound to a
    /// tenant.
    pub fn for_tenant(&self, tenant: &str) -> Result<Self, Error> {
        let other = self.transport.for_tenant(tenant)?;
        let transport = other.unwrap_or_else(|| Arc::clone(&self.transport));
        Ok(Self::with_transport(transport, tenant))
    }

    /// Opens a session that expires after `ttl` without a heartbeat, and starts its heartbeat
    /// thread.
    pub async fn session(&self, name: &str, ttl: Duration) -> Result<Session, Error> {
        self.open_session(&SessionOptions::new(name, ttl)).await
    }

    /// Opens a session like [`Client::session`], with further options.
    pub async fn open_session(&self, options: &SessionOptions) -> Result<Session, Error> {
        Session::open(&self.transport, &self.tenant, options, false).await
    }

    /// Takes part in the election `kind/name`, or `kind/name#lock`; or observes it.
    pub fn election(&self, election: &str) -> Result<Election, Error> {
        let path: LockPath = election.parse()?;
        Election::new(self, &self.tenant, path)
    }

    /// Builds a job submission: `operation` on the resource `kind/name`.
    ///
    /// ```
    /// # use tenure::{Kind, Kinds, Operation};
    /// use tenure::{Client, Verdict};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> anyhow::Result<()> {
    /// # let database = Kind::new("database").operation(Operation::new("create"));
    /// # let client = Client::in_memory(Kinds::new([database])?).await?;
    /// let args = serde_json::json!({ "size_gb": 20 });
    /// let submission = client.submit("database/orders", "create").args(&args).priority(5);
    /// let submitted = submission.send().await?;
    /// assert_eq!(submitted.verdict, Verdict::Started);
    /// submitted.job.cancel("not needed any more").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&self, resource: &str, operation: &str) -> Submission {
        Submission::new(
            Arc::clone(&self.transport),
            self.key(resource),
            operation,
            BY_DEFAULT.into(),
        )
    }

    /// Addresses a job by its id.
    ///
    /// A client of a store in this process finds the jobs of all tenants; one of a server finds
    /// those that its key permits.
    #[must_use]
    pub fn job(&self, id: JobId) -> JobHandle {
        JobHandle::new(Arc::clone(&self.transport), id, BY_DEFAULT.into())
    }

    /// Addresses the resource `kind/name`, whether it exists or not.
    ///
    /// ```
    /// # use tenure::{Client, Kind, Kinds, Operation};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> anyhow::Result<()> {
    /// # let database = Kind::new("database").operation(Operation::new("create"));
    /// # let client = Client::in_memory(Kinds::new([database])?).await?;
    /// let orders = client.resource("database/orders")?;
    /// assert!(orders.get().await?.is_none());
    /// orders.put(&serde_json::json!({ "size_gb": 20 })).await?;
    /// let job = orders.submit("create").send().await?.job;
    /// assert_eq!(orders.why().await?.why, "no_worker");
    /// # job.cancel("end of the example").await?;
    ///
    /// let mut history = orders.history();
    /// while let Some(entry) = history.next().await {
    ///     println!("{}", entry?.line);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn resource(&self, resource: &str) -> Result<ResourceHandle, Error> {
        Ok(ResourceHandle::new(Arc::clone(&self.transport), self.key(resource)?))
    }

    /// Builds a batch: many requests that share a round trip and few writes of the store. Each is
    /// applied and answered on its own; those on one resource are applied in order.
    ///
    /// ```
    /// # use tenure::{Kind, Kinds, Operation};
    /// use tenure::{BatchResult, Client};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> anyhow::Result<()> {
    /// # let test = Kind::new("test").operation(Operation::new("run"));
    /// # let client = Client::in_memory(Kinds::new([test])?).await?;
    /// let mut batch = client.batch();
    /// for n in 0..100 {
    ///     let test = format!("test/{n:06}");
    ///     batch.put(&test, &serde_json::json!({ "case": n })).submit(&test, "run");
    /// }
    /// let results = batch.send().await;
    /// assert_eq!(results.len(), 200);
    /// assert!(matches!(results[1], Ok(BatchResult::Submitted(_))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(&self.transport), self.tenant.clone())
    }

    /// Returns the status of the deployment: the counts of locks, jobs and workers of the client's
    /// tenant, and what needs attention.
    ///
    /// ```
    /// # use tenure::{Client, Kind, Kinds, Operation};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> anyhow::Result<()> {
    /// # let database = Kind::new("database").operation(Operation::new("create"));
    /// # let client = Client::in_memory(Kinds::new([database])?).await?;
    /// client.submit("database/orders", "create").send().await?;
    /// let status = client.status().await?;
    /// assert_eq!((status.jobs.queued, status.workers.sessions), (1, 0));
    /// assert_eq!(status.attention[0].code, "no_worker");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn status(&self) -> Result<StatusResponse, Error> {
        self.transport.queries().status(&self.tenant).await
    }

    /// Counts the unfinished jobs of the group `kind/group` of a grouped kind, whose names have the
    /// form `GROUP:REST`. The cost does not depend on other groups.
    ///
    /// ```
    /// # use tenure::{Client, Kind, Kinds, Operation};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> anyhow::Result<()> {
    /// # let test = Kind::new("test").operation(Operation::new("run")).grouped();
    /// # let client = Client::in_memory(Kinds::new([test])?).await?;
    /// client.submit("test/build-7:unit", "run").send().await?;
    /// client.submit("test/build-7:lint", "run").send().await?;
    /// client.submit("test/build-8:unit", "run").send().await?;
    /// let counts = client.group("test/build-7").await?;
    /// assert_eq!((counts.running, counts.waiting, counts.ready), (0, 2, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn group(&self, group: &str) -> Result<GroupInfo, Error> {
        self.transport.queries().group(&self.key(group)?).await
    }

    fn key(&self, resource: &str) -> Result<ResourceKey, Error> {
        let (kind, name) = resource.split_once('/').unwrap_or((resource, ""));
        Ok(ResourceKey::new(&self.tenant, kind, name)?)
    }

    /// Opens a session that checks for notices between heartbeats if the transport supports it.
    #[cfg(feature = "worker")]
    pub(crate) async fn session_with_notices(
        &self,
        options: &SessionOptions,
    ) -> Result<Session, Error> {
        Session::open(&self.transport, &self.tenant, options, true).await
    }

    #[cfg(feature = "worker")]
    pub(crate) fn tenant(&self) -> &Text {
        &self.tenant
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}
