//! A store whose reads are counted or fail, and that can be exchanged for another, as by a restore.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tenure_core::ready::GroupCounts;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{Command, Incarnation, JobId, Kinds, Outcome, ResourceKey, TenureView, Text};
use tenure_store::census::Census;
use tenure_store::observer::Observer;
use tenure_store::store::{
    Hint, HistoryQuery, HistoryRow, JobPage, JobQuery, JobView, LogLine, LogQuery, Page, Pruned,
    ResourceDetail, ResourceQuery, ResourceView, Result, Retention, Status, Swept, TenureQuery,
    WorkerView,
};
use tenure_store::{KeyRing, Reads, Store, StoreError};
use tokio::sync::broadcast;

pub(crate) struct SwitchedStore {
    inner: Mutex<(Arc<dyn Store>, Incarnation)>,
    /// Rows read by scans.
    rows_read: AtomicU64,
    /// Pages read of single resources.
    chains_read: AtomicU64,
    /// Number of reads until one fails; 0 if none does.
    failing_in: AtomicU64,
    /// What happens before a read, and the number of reads until then.
    interference: Mutex<Option<(u64, Interference)>>,
}

/// What others do to the store between two reads.
#[derive(Clone)]
pub(crate) enum Interference {
    Prune(Retention),
    Restore(Arc<dyn Store>, Incarnation),
}

impl SwitchedStore {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner: Mutex::new((inner, Incarnation(0))),
            rows_read: AtomicU64::new(0),
            chains_read: AtomicU64::new(0),
            failing_in: AtomicU64::new(0),
            interference: Mutex::default(),
        }
    }

    /// Interferes before the read with this number, counted from now.
    pub(crate) fn interfere_before_read(&self, number: u64, interference: Interference) {
        *self.interference.lock().expect("not poisoned") = Some((number, interference));
    }

    /// Returns whether the interference has happened.
    pub(crate) fn has_interfered(&self) -> bool {
        self.interference.lock().expect("not poisoned").is_none()
    }

    fn due_interference(&self) -> Option<Interference> {
        let mut interference = self.interference.lock().expect("not poisoned");
        let (number, _) = interference.as_mut()?;
        *number -= 1;
        (*number == 0).then(|| interference.take().map(|(_, due)| due)).flatten()
    }

    /// Replaces the store.
    pub(crate) fn restore(&self, inner: Arc<dyn Store>, incarnation: Incarnation) {
        *self.inner.lock().expect("not poisoned") = (inner, incarnation);
    }

    /// Lets the read with this number fail, counted from now.
    pub(crate) fn fail_read(&self, number: u64) {
        self.failing_in.store(number, Ordering::SeqCst);
    }

    pub(crate) fn take_rows_read(&self) -> u64 {
        self.rows_read.swap(0, Ordering::SeqCst)
    }

    pub(crate) fn take_chains_read(&self) -> u64 {
        self.chains_read.swap(0, Ordering::SeqCst)
    }

    fn inner(&self) -> Arc<dyn Store> {
        Arc::clone(&self.inner.lock().expect("not poisoned").0)
    }

    /// Returns the store for one read, which may fail.
    async fn read(&self) -> Result<Arc<dyn Store>> {
        match self.due_interference() {
            Some(Interference::Prune(retention)) => drop(self.inner().prune(retention).await?),
            Some(Interference::Restore(store, incarnation)) => self.restore(store, incarnation),
            None => {}
        }
        if self.failing_in.load(Ordering::SeqCst) > 0
            && self.failing_in.fetch_sub(1, Ordering::SeqCst) == 1
        {
            return Err(StoreError::unavailable("the read fails"));
        }
        Ok(self.inner())
    }
}

#[async_trait]
impl Store for SwitchedStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.inner().apply(commands).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.inner().sweep().await
    }

    async fn prune(&self, retention: Retention) -> Result<Pruned> {
        self.inner().prune(retention).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.inner().declare(kinds).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.inner().watch()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.inner().observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        let incarnation = self.inner.lock().expect("not poisoned").1;
        Ok(Status { incarnation, ..self.inner().status().await? })
    }

    fn reads(&self) -> &dyn Reads {
        self
    }

    fn key_ring(&self) -> &dyn KeyRing {
        unreachable!("verification uses no keys")
    }
}

#[async_trait]
impl Reads for SwitchedStore {
    async fn tenures(&self, query: TenureQuery) -> Result<Page<TenureView>> {
        self.inner().reads().tenures(query).await
    }

    async fn show(&self, key: &ResourceKey) -> Result<Option<ResourceDetail>> {
        self.read().await?.reads().show(key).await
    }

    async fn keys(&self, after: Option<ResourceKey>, limit: usize) -> Result<Vec<ResourceKey>> {
        self.read().await?.reads().keys(after, limit).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<HistoryRow>> {
        let is_scan = matches!(query, HistoryQuery::Scan { .. });
        let is_chain = matches!(query, HistoryQuery::Of { .. });
        let rows = self.read().await?.reads().history(query).await?;
        if is_scan {
            self.rows_read.fetch_add(rows.len() as u64, Ordering::SeqCst);
        }
        self.chains_read.fetch_add(u64::from(is_chain), Ordering::SeqCst);
        Ok(rows)
    }

    async fn checkpoints(
        &self,
        after: Option<ResourceKey>,
        limit: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
        self.read().await?.reads().checkpoints(after, limit).await
    }

    async fn checkpoint(&self, key: &ResourceKey) -> Result<Option<ChainCheckpoint>> {
        self.read().await?.reads().checkpoint(key).await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>> {
        self.inner().reads().job(id).await
    }

    async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        self.inner().reads().jobs(query).await
    }

    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceView>> {
        self.inner().reads().resources(query).await
    }

    async fn group(&self, tenant: Text, kind: Text, group: Text) -> Result<GroupCounts> {
        self.inner().reads().group(tenant, kind, group).await
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        self.inner().reads().logs(query).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        self.inner().reads().workers().await
    }

    async fn census(&self) -> Result<Census> {
        self.inner().reads().census().await
    }
}
