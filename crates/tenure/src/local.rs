//! Clients of a store in the same process.
//!
//! [`Client::open`] opens an embedded store, [`Client::in_memory`] one for tests; [`Client::local`]
//! takes any [`Store`]. The process that opens the store sweeps expired sessions. It does not
//! prune: a program that runs for long opens the store itself, keeps it beside the client, and
//! calls [`Store::prune`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tenure_core::{Command, JobId, Kinds, LockAction, Outcome, Refusal, ResourceKey, SessionId};
use tenure_store::committer::CommandGroup;
use tenure_store::store::{Hint, HistoryQuery, JobView, LogLine, LogQuery, PAGE_MAX};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use crate::client::{Client, DEFAULT_TENANT};
use crate::error::Error;
use crate::status::summarize;
use crate::transport::{Notices, Queries, Transport};
use crate::wire::{
    GroupInfo, HistoryEntry, JobInfo, ListResponse, LogChunkInfo, LogResponse, ResourceInfo,
    ResourceLocksResponse, StatusResponse, WhyResponse,
};

pub use tenure_store::store::{Pruned, Retention};
pub use tenure_store::{Committer, Embedded, Memory, Reads, Store, StoreError, embedded};

/// Interval at which a waiting query polls in case a hint was lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a waiting query polls for log text: the store has no hints for logs.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Client {
    /// Opens the embedded store in the file `path`, declares its kinds, and returns a client for
    /// the default tenant. A file can be open in one process at a time.
    pub async fn open(path: impl AsRef<Path>, kinds: Kinds) -> Result<Self, Error> {
        Self::declare(Arc::new(Embedded::open(path.as_ref())?), kinds).await
    }

    /// Creates a client of a new store that lives in memory, for tests.
    pub async fn in_memory(kinds: Kinds) -> Result<Self, Error> {
        Self::declare(Arc::new(Memory::new()), kinds).await
    }

    /// Creates a client of a store in this process, for the default tenant.
    #[must_use]
    pub fn local(store: Arc<dyn Store>) -> Self {
        Self::with_committer(Committer::start(store), DEFAULT_TENANT)
    }

    /// Creates a client of a [`Committer`] that runs in this process.
    ///
    /// The tenant `*` is for workers that serve all tenants.
    #[must_use]
    pub fn with_committer(committer: Committer, tenant: &str) -> Self {
        Self::with_transport(Arc::new(committer), tenant)
    }

    async fn declare(store: Arc<dyn Store>, kinds: Kinds) -> Result<Self, Error> {
        store.declare(Arc::new(kinds)).await?;
        Ok(Self::local(store))
    }
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

    async fn send_all(&self, commands: Vec<Command>) -> Vec<Result<Outcome, Error>> {
        let mut group = CommandGroup::new(self, commands.len());
        let calls: Vec<_> = commands
            .into_iter()
            .map(|command| {
                let lane = command.key().map(ToString::to_string);
                group.call(lane.as_deref(), false, self.submit(command))
            })
            .collect();
        join_all(calls).await.into_iter().map(|outcome| Ok(outcome?)).collect()
    }

    fn queries(&self) -> &dyn Queries {
        self
    }

    fn open_dedicated(&self) -> Result<Box<dyn Transport>, Error> {
        Ok(Box::new(self.clone()))
    }

    fn notices(&self, id: SessionId) -> Option<Notices> {
        let mut hints = self.store().watch();
        Some(Box::new(move || {
            let mut notified = false;
            loop {
                match hints.try_recv() {
                    Ok(Hint::Notified(session)) => notified |= session == id,
                    Ok(Hint::Granted(_) | Hint::Ready(_) | Hint::JobsEnded(_)) => {}
                    // The dropped hints may include one for this session.
                    Ok(Hint::Lagged) | Err(TryRecvError::Lagged(_)) => notified = true,
                    Err(TryRecvError::Empty | TryRecvError::Closed) => return notified,
                }
            }
        }))
    }
}

#[async_trait]
impl Queries for Committer {
    async fn job(&self, id: JobId, max_wait: Duration) -> Result<JobInfo, Error> {
        // Subscribed before reading: an end in between leaves a hint.
        let mut hints = self.store().watch();
        let timed_out = tokio::time::sleep(max_wait);
        tokio::pin!(timed_out);
        loop {
            let view = find_job(self, id).await?;
            if view.job.state.is_finished() || timed_out.is_elapsed() || max_wait.is_zero() {
                let detail = self.store().reads().show(&view.key).await?;
                let kind = detail.and_then(|detail| detail.context.kind);
                let info = JobInfo::new(&view.key, &view.job);
                return Ok(info.with_attempts_max(kind.as_deref(), &view.key));
            }
            tokio::select! {
                () = may_have_ended(&mut hints, id) => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = &mut timed_out => {}
            }
        }
    }

    async fn why_job(&self, id: JobId) -> Result<WhyResponse, Error> {
        let why = self.store().reads().explain_job(find_job(self, id).await?).await?;
        Ok(WhyResponse::new(Some(id), &why))
    }

    async fn job_log(
        &self,
        id: JobId,
        attempt: Option<u32>,
        after: u64,
        max_wait: Duration,
    ) -> Result<LogResponse, Error> {
        let timed_out = tokio::time::sleep(max_wait);
        tokio::pin!(timed_out);
        let mut query = LogQuery { job: id, after, limit: PAGE_MAX };
        loop {
            // Read before the log, which then includes everything up to the end of the job.
            let finished = find_job(self, id).await?.job.state.is_finished();
            let page = self.store().reads().log_page(query, attempt).await?;
            query.after = page.next;
            let waited = timed_out.is_elapsed() || max_wait.is_zero();
            if !page.chunks.is_empty() || finished || waited {
                let chunk = |line: &LogLine| {
                    LogChunkInfo::new(line.position, line.attempt, line.at, &line.text)
                };
                let items = page.chunks.iter().map(chunk).collect();
                return Ok(LogResponse { items, next: page.next });
            }
            tokio::select! {
                () = tokio::time::sleep(LOG_POLL_INTERVAL) => {}
                () = &mut timed_out => {}
            }
        }
    }

    async fn resource(&self, key: &ResourceKey) -> Result<ResourceInfo, Error> {
        let detail = self.store().reads().show(key).await?;
        let resource = detail.and_then(|detail| detail.record.resource);
        let resource = resource.ok_or(Error::Refused(Refusal::NoSuchResource))?;
        Ok(ResourceInfo::new(key, &resource, ResourceInfo::QUEUE_SHOWN))
    }

    async fn locks(&self, key: &ResourceKey) -> Result<Option<ResourceLocksResponse>, Error> {
        let shown = self.store().reads().show(key).await?;
        Ok(shown.map(|shown| {
            let (record, queue) = (&shown.record, &shown.queue);
            ResourceLocksResponse::new(key, record.token, &shown.tenures, queue, shown.context.now)
        }))
    }

    async fn group(&self, key: &ResourceKey) -> Result<GroupInfo, Error> {
        let (tenant, kind, group) = (key.tenant(), key.kind(), key.name());
        let counts = self.store().reads().group(tenant.into(), kind.into(), group.into()).await?;
        Ok(GroupInfo::new(tenant, kind, group, counts))
    }

    async fn why_resource(&self, key: &ResourceKey) -> Result<WhyResponse, Error> {
        let explained = self.store().reads().explain_resource(key).await?;
        let (job, why) = explained.ok_or(Error::Refused(Refusal::NoSuchResource))?;
        Ok(WhyResponse::new(job, &why))
    }

    async fn history(
        &self,
        key: &ResourceKey,
        cursor: Option<String>,
    ) -> Result<ListResponse<HistoryEntry>, Error> {
        let parsed = cursor.map(|cursor| cursor.parse()).transpose();
        let before =
            parsed.map_err(|error| Error::Refused(Refusal::Invalid(format!("cursor: {error}"))))?;
        let query = HistoryQuery::Of { key: key.clone(), before, limit: PAGE_MAX };
        let rows = self.store().reads().history(query).await?;
        let is_full = rows.len() == PAGE_MAX;
        let entry = |row: tenure_store::store::HistoryRow| {
            HistoryEntry::new(row.position, row.key, row.text, row.hash.to_string())
        };
        let items = rows.into_iter().map(entry).collect::<Result<Vec<_>, _>>();
        let items = items.map_err(|error| Error::Corrupt(format!("history of {key}: {error}")))?;
        let next = items.last().filter(|_| is_full).map(|entry| entry.position.to_string());
        Ok(ListResponse { items, next })
    }

    async fn status(&self, tenant: &str) -> Result<StatusResponse, Error> {
        let (status, reads) = (self.store().status().await?, self.store().reads());
        let (census, workers) = (reads.census().await?, reads.workers().await?);
        Ok(summarize(tenant, &status, &census, &workers))
    }
}

/// Completes when the job has ended, or when a hint that says so may have been lost.
async fn may_have_ended(hints: &mut broadcast::Receiver<Hint>, id: JobId) {
    loop {
        match hints.recv().await {
            Ok(Hint::JobsEnded(ids)) if ids.contains(&id) => return,
            Ok(Hint::Lagged) | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

async fn find_job(committer: &Committer, id: JobId) -> Result<JobView, Error> {
    let view = committer.store().reads().job(id).await?;
    view.ok_or(Error::Refused(Refusal::NoSuchJob))
}
