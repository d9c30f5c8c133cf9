//! Services shared by the HTTP handlers of the server and of apps: the committer, the live
//! configuration, and waiting for jobs.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tenure_core::{Command, JobId, Outcome, Refusal, RequestId, ResourceKey, Text};
use tenure_store::store::JobView;
use tenure_store::{Committer, Store};
use tenure_wire::{JobInfo, SubmitResponse};
use tokio_util::sync::CancellationToken;

use crate::bodies::BodyReader;
use crate::caller::Caller;
use crate::job_cache::JobCache;
use crate::job_waits::JobWaits;
use crate::live::Live;
use crate::problem::Problem;

/// Maximum time that a response is held back; a client that wants to wait longer repeats the
/// request.
const WAIT_MS_MAX: u64 = 60_000;
/// Interval at which a waiting request polls in case a hint was lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of an `Idempotency-Key`.
const IDEMPOTENCY_KEY_MAX: usize = 256;

/// Services shared by handlers; cheap to clone.
#[derive(Clone)]
pub struct Services(Arc<Inner>);

/// The fields of [`Services`].
pub struct Inner {
    /// Committer of the store.
    pub committer: Committer,
    /// The live configuration.
    pub live: Live,
    /// Requests that wait for the end of a job.
    pub job_waits: Arc<JobWaits>,
    /// Cancelled when the server shuts down: requests that wait are answered.
    pub closing: CancellationToken,
    /// Reads request bodies.
    pub bodies: BodyReader,
    /// Secret shared by all servers of a store.
    secret: String,
    job_resources: JobCache<ResourceKey>,
}

impl Deref for Services {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Services {
    /// Creates the services of a server. `secret` is shared by all servers of the store.
    #[must_use]
    pub fn new(committer: Committer, live: Live, secret: String, bodies: BodyReader) -> Self {
        Self(Arc::new(Inner {
            committer,
            live,
            job_waits: Arc::default(),
            closing: CancellationToken::new(),
            bodies,
            secret,
            job_resources: JobCache::default(),
        }))
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        self.committer.store()
    }

    /// Returns the secret shared by all servers of the store.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Submits a command and converts a refusal to a problem.
    pub async fn submit(&self, command: Command) -> Result<Outcome, Problem> {
        match self.committer.submit(command).await? {
            Outcome::Refused(refusal) => Err(refusal.into()),
            outcome => Ok(outcome),
        }
    }

    /// Submits a job, or retries one, on behalf of the caller. Returns the job that executes the
    /// operation: a new one, or the one attached to. The job is read only if the outcome does not
    /// contain it, or if its resource is not known because the command names another job.
    pub async fn submit_job(
        &self,
        caller: &Caller,
        command: Command,
    ) -> Result<SubmitResponse, Problem> {
        let key = command.key().cloned();
        if let Some(key) = &key
            && !caller.sees(key.tenant())
        {
            return Err(Refusal::NoSuchResource.into());
        }
        if let Some(id) = command.job() {
            self.check_job(caller, id).await?;
        }
        match self.submit(command).await? {
            Outcome::Submitted { verdict, job: id, snapshot } => {
                crate::trace::record_job(id);
                let shown = match key.zip(snapshot) {
                    Some((key, job)) => JobView { key, job },
                    None => self.find_job(caller, id).await?,
                };
                Ok(SubmitResponse { verdict, job: JobInfo::new(&shown.key, &shown.job) })
            }
            other => Err(Problem::unexpected(&other)),
        }
    }

    /// Finds a job that the caller may see.
    pub async fn find_job(&self, caller: &Caller, id: JobId) -> Result<JobView, Problem> {
        let view = self.store().reads().job(id).await?;
        let visible = view.filter(|view| caller.sees(view.key.tenant()));
        visible.ok_or_else(|| Refusal::NoSuchJob.into())
    }

    /// Returns the job when it has ended, or as it is when `timeout` passes or the server shuts
    /// down.
    pub async fn wait_for_job(
        &self,
        caller: &Caller,
        id: JobId,
        timeout: Duration,
    ) -> Result<JobView, Problem> {
        let timed_out = tokio::time::sleep(timeout);
        tokio::pin!(timed_out);
        loop {
            // Register before reading: an end in between wakes this request.
            let mut wait = self.job_waits.register(id);
            let view = self.find_job(caller, id).await?;
            if view.job.state.is_finished() || timeout.is_zero() {
                return Ok(view);
            }
            tokio::select! {
                () = wait.ended() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = &mut timed_out => return Ok(view),
                () = self.closing.cancelled() => return Ok(view),
            }
        }
    }

    /// Refuses a job that the caller may not see.
    pub async fn check_job(&self, caller: &Caller, id: JobId) -> Result<(), Problem> {
        if caller.only_tenant().is_none() {
            return Ok(());
        }
        match self.resource_of_job(id).await? {
            Some(key) if caller.sees(key.tenant()) => Ok(()),
            _ => Err(Refusal::NoSuchJob.into()),
        }
    }

    /// Remembers the resource of a job, so that [`Services::resource_of_job`] need not read it.
    pub fn remember_resource_of_job(&self, id: JobId, key: ResourceKey) {
        self.job_resources.insert(id, key);
    }

    /// Returns the resource of a job, of any tenant. It never changes, so it is cached.
    pub async fn resource_of_job(&self, id: JobId) -> Result<Option<ResourceKey>, Problem> {
        if let Some(key) = self.job_resources.get(id) {
            return Ok(Some(key));
        }
        let view = self.store().reads().job(id).await?;
        let key = view.map(|view| view.key);
        Ok(key.inspect(|key| self.job_resources.insert(id, key.clone())))
    }

    /// Returns the request id of an `Idempotency-Key` within a scope: a keyed hash of both, so that
    /// clients cannot guess the ids of others. A key that is an id is used as it is, unless the
    /// caller is bound to a tenant: the ids of all tenants share one space, and a conflict with the
    /// id of another tenant would tell that it exists.
    pub fn request_id(
        &self,
        caller: &Caller,
        key: &str,
        scope: &str,
    ) -> Result<RequestId, Problem> {
        if key.is_empty() || key.len() > IDEMPOTENCY_KEY_MAX {
            let detail =
                format!("an Idempotency-Key must have 1 to {IDEMPOTENCY_KEY_MAX} characters");
            return Err(Problem::invalid(&detail));
        }
        match (key.parse::<RequestId>(), caller.bound_tenant()) {
            (Ok(id), None) => Ok(id),
            (Ok(id), Some(tenant)) => Ok(self.derive_request_id(&format!("{tenant}\n{id}"))),
            (Err(_), _) => Ok(self.derive_request_id(&format!("{scope}\n{key}"))),
        }
    }

    /// Derives a request id from a text by a keyed hash.
    #[must_use]
    pub fn derive_request_id(&self, text: &str) -> RequestId {
        let hash = self.mac("request", text);
        RequestId(hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }

    /// Computes a MAC with the servers' secret; `usage` separates the uses of it.
    #[must_use]
    pub fn mac(&self, usage: &str, text: &str) -> [u8; 32] {
        mac(&self.secret, usage, text)
    }
}

/// Computes a MAC with a secret; `usage` separates the uses of it.
#[must_use]
pub fn mac(secret: &str, usage: &str, text: &str) -> [u8; 32] {
    let key = format!("{usage}\n{secret}");
    let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes());
    let mac = mac.expect("HMAC takes keys of any length").chain_update(text);
    mac.finalize().into_bytes().into()
}

/// Returns the time that a response may be held back for a requested `wait_ms`.
#[must_use]
pub fn wait_timeout(wait_ms: Option<u64>) -> Duration {
    Duration::from_millis(wait_ms.unwrap_or(0).min(WAIT_MS_MAX))
}

/// Returns the page size for a `limit`, which must be within bounds.
pub fn page_size(limit: Option<usize>) -> Result<usize, Problem> {
    match limit.unwrap_or(100) {
        limit @ 1..=tenure_core::limits::PAGE_MAX => Ok(limit),
        limit => {
            let max = tenure_core::limits::PAGE_MAX;
            Err(Problem::invalid(&format!("limit is {limit}; it must be between 1 and {max}")))
        }
    }
}

/// Returns the group of a list, which requires a kind: groups are part of the names of one kind.
pub fn group_filter(group: Option<String>, kind: &Option<String>) -> Result<Option<Text>, Problem> {
    if group.is_some() && kind.is_none() {
        return Err(Problem::invalid(&"group requires kind: give both"));
    }
    Ok(group.map(Into::into))
}

/// Parses the cursor of a list of jobs.
pub fn job_cursor(cursor: Option<String>) -> Result<Option<JobId>, Problem> {
    let cursor = cursor.map(|cursor| cursor.parse()).transpose();
    cursor.map_err(|error| Problem::invalid(&format!("cursor: {error}")))
}

#[cfg(test)]
mod tests {
    use tenure_core::{JobAction, Kind, Kinds, Operation, ResourceAction, Role, Submit};
    use tenure_store::Memory;

    use super::*;
    use crate::live::LiveConfig;

    fn caller(tenant: &str) -> Caller {
        Caller {
            tenant: tenant.into(),
            role: Role::Worker,
            name: "ann".into(),
            key: None,
            key_tenant: tenant.into(),
            address: None,
            audit: Arc::default(),
        }
    }

    fn submit(tenant: &str, request: u128) -> Command {
        let submit = Submit::new(RequestId(request), "work", "ann".into());
        let key = ResourceKey::new(tenant, "job", "a").expect("a valid name");
        Command::Resource { key, action: ResourceAction::Submit(submit) }
    }

    #[tokio::test]
    async fn a_caller_submits_and_retries_only_jobs_of_its_tenant() {
        let store = Arc::new(Memory::new());
        let kind = Kind::new("job").operation(Operation::new("work"));
        store.declare(Arc::new(Kinds::new([kind]).unwrap())).await.unwrap();
        let live = Live::fixed(LiveConfig::default());
        let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
        let bodies = BodyReader::new(Duration::from_secs(1), 0);
        let services = Services::new(committer, live, "secret".into(), bodies);

        let (acme, other) = (caller("acme"), caller("other"));
        let job = services.submit_job(&acme, submit("acme", 1)).await.unwrap().job.id;
        assert!(services.submit_job(&other, submit("acme", 2)).await.is_err());
        let (request, by) = (RequestId(3), "bob".into());
        let action = JobAction::Retry { request, by, reason: "again".into() };
        let cancel = JobAction::Cancel { by: "ann".into(), reason: "enough".into() };
        services.submit(Command::Job { id: job, action: cancel }).await.unwrap();
        let retry = Command::Job { id: job, action };
        assert!(services.submit_job(&other, retry.clone()).await.is_err());
        let jobs =
            store.reads().jobs(tenure_store::store::JobQuery { limit: 10, ..Default::default() });
        assert_eq!(jobs.await.unwrap().items.len(), 1, "nothing was submitted or retried");
        let retried = services.submit_job(&acme, retry).await.unwrap();
        assert_eq!(retried.job.retry_of, Some(job));
    }
}
