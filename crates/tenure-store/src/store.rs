//! The [`Store`] trait and the types of its queries and results.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::history::Hash;
use tenure_core::ready::GroupCounts;
use tenure_core::record::Waiter;
use tenure_core::resource::Resource;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::why::EngineContext;
use tenure_core::{
    Command, Incarnation, Job, JobId, Kinds, Millis, Outcome, Record, ResourceKey, Session,
    SessionId, TenureView, Text,
};
use tokio::sync::broadcast;

use crate::audit::SharedAudit;
use crate::census::Census;
pub use crate::filters::{JobQuery, ResourceQuery, TenureQuery};
pub(crate) use crate::filters::{key_range, matches_filter, matches_group};
use crate::keys::KeyRing;
use crate::observer::Observer;

/// Maximum number of commands in one batch.
pub const BATCH_MAX: usize = 4_096;
/// Maximum number of rows in one page.
pub const PAGE_MAX: usize = tenure_core::limits::PAGE_MAX;
/// Capacity of the hint channel. A receiver that lags further loses hints and relies on polling.
pub const HINTS_MAX: usize = 4_096;

/// Error returned by a store. The outcome of the request is unknown: it may have been applied.
#[derive(Clone, Debug)]
pub enum StoreError {
    /// The store cannot be used now. Retry later; nothing starts in the meantime.
    Unavailable(ErrorDetail),
    /// Stored data cannot be read back. A retry does not help.
    Corrupt(ErrorDetail),
}

/// Message and cause of a [`StoreError`].
#[derive(Clone, Debug)]
pub struct ErrorDetail {
    message: String,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// Creates an error for a store that cannot be used now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable(ErrorDetail { message: message.into(), cause: None })
    }

    /// Creates an error for stored data that cannot be read back.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::Corrupt(ErrorDetail { message: message.into(), cause: None })
    }

    /// Sets the cause, which [`Error::source`] returns.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        let (Self::Unavailable(detail) | Self::Corrupt(detail)) = &mut self;
        detail.cause = Some(Arc::new(cause));
        self
    }

    /// Returns whether the request may succeed if it is repeated later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(detail) => f.write_str(&detail.message),
            Self::Corrupt(detail) => write!(f, "the store is damaged: {}", detail.message),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let (Self::Unavailable(detail) | Self::Corrupt(detail)) = self;
        detail.cause.as_deref().map(|cause| cause as _)
    }
}

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Durable storage of Tenure's rows. All methods may be called concurrently.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Applies up to [`BATCH_MAX`] commands in order, atomically per resource. The outcomes are
    /// durable when this returns.
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>>;

    /// Ends expired sessions and expired waits, settles what they held, and processes resources
    /// with something due (timers, backoffs, deadlines).
    async fn sweep(&self) -> Result<Swept>;

    /// Deletes rows that are past their retention, up to a bounded number per call.
    async fn prune(&self, retention: Retention) -> Result<Pruned>;

    /// Replaces the declared kinds.
    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()>;

    /// Subscribes to wake-up hints. Hints are an optimization: any of them may be lost.
    fn watch(&self) -> broadcast::Receiver<Hint>;

    /// Registers an observer of this store. The store keeps a weak reference.
    fn observe(&self, observer: &Arc<dyn Observer>);

    /// Returns the identity and health of the store.
    async fn status(&self) -> Result<Status>;

    /// Returns the read-only queries.
    fn reads(&self) -> &dyn Reads;

    /// Returns the API keys.
    fn key_ring(&self) -> &dyn KeyRing;

    /// Returns the audit log that all servers share; `None` if only one server can use the store.
    fn shared_audit(&self) -> Option<&dyn SharedAudit> {
        None
    }
}

/// Read-only queries of a store. No decision is based on their results.
#[async_trait]
pub trait Reads: Send + Sync {
    /// Lists the current tenures, ordered by resource key.
    async fn tenures(&self, query: TenureQuery) -> Result<Page<TenureView>>;

    /// Returns one resource, or `None` if no command ever changed it.
    async fn show(&self, key: &ResourceKey) -> Result<Option<ResourceDetail>>;

    /// Lists the keys of all resources that were ever changed, in order.
    async fn keys(&self, after: Option<ResourceKey>, limit: usize) -> Result<Vec<ResourceKey>>;

    /// Lists history.
    async fn history(&self, query: HistoryQuery) -> Result<Vec<HistoryRow>>;

    /// Lists the checkpoints that replace pruned history, ordered by resource key.
    async fn checkpoints(
        &self,
        after: Option<ResourceKey>,
        limit: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>>;

    /// Returns the checkpoint that replaces the pruned history of a resource, if any was pruned.
    async fn checkpoint(&self, key: &ResourceKey) -> Result<Option<ChainCheckpoint>>;

    /// Returns one job, live or finished.
    async fn job(&self, id: JobId) -> Result<Option<JobView>>;

    /// Lists jobs, newest first.
    async fn jobs(&self, query: JobQuery) -> Result<JobPage>;

    /// Lists resources that have a state, ordered by key.
    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceView>>;

    /// Counts the unfinished jobs of a group of a grouped kind. The cost does not depend on other
    /// groups.
    async fn group(&self, tenant: Text, kind: Text, group: Text) -> Result<GroupCounts>;

    /// Lists log chunks of a job, oldest first.
    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>>;

    /// Lists the sessions that claim jobs.
    async fn workers(&self) -> Result<Vec<WorkerView>>;

    /// Counts the current locks, waiters and jobs.
    async fn census(&self) -> Result<Census>;
}

/// Wake-up for a waiting request. It is sent after the change is durable; a waiter that misses it
/// finds the change by polling.
#[derive(Clone, Debug)]
pub enum Hint {
    /// A queued request was granted its locks. The view can be returned as the answer.
    Granted(Arc<TenureView>),
    /// This resource has a job that can be claimed.
    Ready(ResourceKey),
    /// The next heartbeat of this session carries a notification.
    Notified(SessionId),
    /// These jobs ended.
    JobsEnded(Arc<[JobId]>),
    /// Hints may have been lost: every waiter must poll.
    Lagged,
}

/// Result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of expired sessions that were ended.
    pub sessions: usize,
    /// Number of tenures that ended.
    pub tenures: usize,
    /// Number of resources with something due.
    pub due: usize,
}

/// Page of rows ordered by resource key.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// Rows.
    pub items: Vec<T>,
    /// Value of `after` for the next page; `None` on the last page.
    pub next: Option<ResourceKey>,
}

/// One resource with its tenures and its queue.
#[derive(Clone, Debug)]
pub struct ResourceDetail {
    /// Record of the resource.
    pub record: Record,
    /// Current tenures, one per grant.
    pub tenures: Vec<TenureView>,
    /// Queued requests in order, each with the name of its session.
    pub queue: Vec<(Waiter, Text)>,
    /// Context that explains why a job is not running.
    pub context: EngineContext,
}

/// One job with its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// Resource.
    pub key: ResourceKey,
    /// Job.
    pub job: Box<Job>,
}

/// Page of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobPage {
    /// Jobs.
    pub items: Vec<JobView>,
    /// Value of `after` for the next page; `None` on the last page.
    pub next: Option<JobId>,
}

/// One resource with its state and its live jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceView {
    /// Resource.
    pub key: ResourceKey,
    /// State and lane.
    pub resource: Box<Resource>,
}

/// Filter of a list of log chunks.
#[derive(Clone, Copy, Debug)]
pub struct LogQuery {
    /// Job.
    pub job: JobId,
    /// Exclusive start position.
    pub after: u64,
    /// Maximum number of chunks.
    pub limit: usize,
}

/// Log chunk with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Position among all log chunks of the store.
    pub position: u64,
    /// Attempt number.
    pub attempt: u32,
    /// Time of the append.
    pub at: Millis,
    /// One or more whole lines.
    pub text: Text,
}

/// Session that claims jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// Session.
    pub session: SessionId,
    /// Tenant; `*` for a worker of all tenants.
    pub tenant: Text,
    /// Display name.
    pub name: Text,
    /// Kinds that it claims.
    pub kinds: Vec<Text>,
    /// Age of the session.
    pub age_ms: u64,
    /// Time since its last claim.
    pub asked_ms: u64,
    /// Time until the session expires without a heartbeat.
    pub expires_in_ms: u64,
    /// Running jobs, with their resources.
    pub jobs: Vec<(ResourceKey, JobId)>,
}

/// Retention periods, counted from the end of a job or from the time of an event.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Finished jobs and their logs.
    pub jobs_ms: u64,
    /// Dead letters.
    pub dead_ms: u64,
    /// History.
    pub history_ms: u64,
    /// Maximum number of jobs, of history lines, and of resources deleted per call.
    pub rows_max: usize,
}

/// Number of deleted rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Jobs.
    pub jobs: usize,
    /// History lines.
    pub lines: usize,
    /// Resources of which nothing remains.
    pub resources: usize,
}

/// Selection of history lines.
#[derive(Clone, Debug)]
pub enum HistoryQuery {
    /// Lines of one resource, newest first.
    Of {
        /// Resource.
        key: ResourceKey,
        /// Exclusive upper bound of the position.
        before: Option<u64>,
        /// Maximum number of lines.
        limit: usize,
    },
    /// Lines of all resources, newest first.
    Newest {
        /// Tenant.
        tenant: Option<Text>,
        /// Exclusive upper bound of the position.
        before: Option<u64>,
        /// Maximum number of lines.
        limit: usize,
    },
    /// Lines of all resources, oldest first.
    Scan {
        /// Exclusive lower bound of the position.
        after: u64,
        /// Maximum number of lines.
        limit: usize,
    },
}

/// One line of history with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRow {
    /// Position among all history lines of the store.
    pub position: u64,
    /// Resource.
    pub key: ResourceKey,
    /// Event in the text format of the history.
    pub text: String,
    /// Chain hash.
    pub hash: Hash,
}

/// Safety guarantee of the locks of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SafetyClass {
    /// A restart may lose a grant.
    BestEffort,
    /// Exclusive as long as clock drift stays within the margin.
    ExclusiveIfClocksRunSanely,
    /// Exclusive, with the guard in the same transaction.
    Exclusive,
}

impl SafetyClass {
    /// Returns the class in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BestEffort => "best effort",
            Self::ExclusiveIfClocksRunSanely => "exclusive if clocks run sanely",
            Self::Exclusive => "exclusive",
        }
    }
}

/// Identity and health of a store.
#[derive(Clone, Debug)]
pub struct Status {
    /// Name of the implementation: `memory`, `embedded` or `postgres`.
    pub store: &'static str,
    /// Safety guarantee of its locks.
    pub safety: SafetyClass,
    /// Incarnation, which increases with every restore or fail-over.
    pub incarnation: Incarnation,
    /// Store time.
    pub now: Millis,
    /// Number of sessions.
    pub sessions: usize,
    /// Number of live resources: held, waited for, or with live jobs.
    pub live: usize,
    /// Whether notifications from other servers arrive; `None` for a store with one server. Without
    /// them waiting requests poll.
    pub wakeups: Option<bool>,
}

/// Serializes a session for its row.
pub(crate) fn session_json(session: &Session) -> String {
    serde_json::to_string(session).expect("a session serializes to JSON")
}
