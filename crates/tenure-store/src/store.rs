//! The `Store` trait: what every place that keeps Tenure's rows can do.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::history::Hash;
use tenure_core::record::Waiter;
use tenure_core::resource::Resource;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::why::EngineContext;
use tenure_core::{
    Command, Incarnation, Job, JobId, JobState, Kinds, Millis, Outcome, Record, ResourceKey,
    Session, SessionId, TenureView, Text,
};
use tokio::sync::broadcast;

use crate::census::Census;
use crate::keys::KeyRing;
use crate::observer::Observer;

/// Most commands that a store takes in one batch.
pub const BATCH_MAX: usize = 4_096;
/// Most rows that one page has.
pub const PAGE_MAX: usize = tenure_core::limits::PAGE_MAX;
/// Wake-ups that a slow listener may be behind; more are dropped, and its poll floor finds out.
pub const HINTS_MAX: usize = 4_096;

/// Why a store could not answer. What was asked may or may not have happened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Try again later; until then nothing starts.
    #[error("{0}")]
    Unavailable(String),
    /// What is stored is not what this program wrote.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
}

/// The result of asking a store.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Keeps rows. All methods may be called at once from anywhere.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Steps commands in order, atomically for each resource; what it answers is durable. At most
    /// [`BATCH_MAX`] commands.
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>>;

    /// Ends sessions that have lapsed and waits that have run out, and settles what they held; sees
    /// to what has come due.
    async fn sweep(&self) -> Result<Swept>;

    /// Drops some of what is older than it has to be kept.
    async fn prune(&self, keep: Retention) -> Result<Pruned>;

    /// Says what resources can be and what can be done to them, from now on.
    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()>;

    /// Wake-ups. Hints only; all may be lost.
    fn watch(&self) -> broadcast::Receiver<Hint>;

    /// Tells an observer what happens by way of this store, for as long as somebody keeps it.
    fn observe(&self, observer: &Arc<dyn Observer>);

    /// What this store is and how it is.
    async fn status(&self) -> Result<Status>;

    /// The reading side.
    fn reads(&self) -> &dyn Reads;

    /// Who may ask.
    fn key_ring(&self) -> &dyn KeyRing;
}

/// What can be read from a store. Nothing is decided by what is read here.
#[async_trait]
pub trait Reads: Send + Sync {
    /// The tenures of the present, in the order of their keys.
    async fn list(&self, query: ListQuery) -> Result<Page<TenureView>>;

    /// One resource, if anything ever happened to it.
    async fn show(&self, key: &ResourceKey) -> Result<Option<Shown>>;

    /// Resources that anything ever happened to, in the order of their keys.
    async fn keys(&self, after: Option<ResourceKey>, limit: usize) -> Result<Vec<ResourceKey>>;

    /// Lines of history.
    async fn history(&self, query: HistoryQuery) -> Result<Vec<Line>>;

    /// What stands in place of pruned history, in the order of keys.
    async fn bases(
        &self,
        after: Option<ResourceKey>,
        limit: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>>;

    /// One job, over or not.
    async fn job(&self, id: JobId) -> Result<Option<JobShown>>;

    /// Jobs, newest first.
    async fn jobs(&self, query: JobQuery) -> Result<JobPage>;

    /// Resources that were put or worked, in the order of their keys.
    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceShown>>;

    /// Pieces of the log of a job, oldest first.
    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>>;

    /// The tenant of a session; nothing when none of this id is known any more.
    async fn session(&self, id: SessionId) -> Result<Option<Text>>;

    /// The sessions that ask for jobs.
    async fn workers(&self) -> Result<Vec<WorkerShown>>;

    /// How much of everything there is, and how old it is.
    async fn census(&self) -> Result<Census>;
}

/// Something that somebody waits for. It is sent after it is durable; whoever misses it finds out
/// by asking again.
#[derive(Clone, Debug)]
pub enum Hint {
    /// A request got its locks while it waited: this may be taken for the answer.
    Granted(Arc<TenureView>),
    /// A resource of this kind became ready to be worked.
    Ready(Text),
    /// The next heartbeat of this session has something to tell.
    Notified(SessionId),
    /// These jobs are over.
    Over(Arc<[JobId]>),
    /// Some may have been missed: whoever waits asks again.
    Missed,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Sessions that were ended because they had lapsed.
    pub sessions: usize,
    /// Tenures that ended with them.
    pub tenures: usize,
    /// Resources on which something came due.
    pub due: usize,
}

/// Which tenures to list.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Only of this tenant.
    pub tenant: Option<Text>,
    /// Only of this kind.
    pub kind: Option<Text>,
    /// Only resources of this name.
    pub name: Option<Text>,
    /// Only of holders with this name.
    pub holder: Option<Text>,
    /// Only after this resource.
    pub after: Option<ResourceKey>,
    /// At most so many resources' tenures.
    pub limit: usize,
}

/// Some rows, and where to go on.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Ask for what comes after this; nothing when this is all.
    pub next: Option<ResourceKey>,
}

/// One resource with all that is known of it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its record.
    pub record: Record,
    /// Its present tenures, one for each grant.
    pub tenures: Vec<TenureView>,
    /// Who waits, in order, with the sessions' names.
    pub queue: Vec<(Waiter, Text)>,
    /// Its tenures, workers and the like, for those who ask why.
    pub around: EngineContext,
}

/// One job with its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobShown {
    /// The resource.
    pub key: ResourceKey,
    /// The job.
    pub job: Box<Job>,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    /// Only of this tenant.
    pub tenant: Option<Text>,
    /// Only of this kind.
    pub kind: Option<Text>,
    /// Only of resources of this name.
    pub name: Option<Text>,
    /// Only of this verb.
    pub operation: Option<Text>,
    /// Only in this state.
    pub state: Option<JobState>,
    /// Only after this one in the list, which the last page ended with.
    pub after: Option<JobId>,
    /// At most so many.
    pub limit: usize,
}

impl JobQuery {
    /// Whether a job is wanted, wherever the page begins.
    #[must_use]
    pub fn wants(&self, key: &ResourceKey, job: &Job) -> bool {
        is(&self.tenant, key.tenant())
            && is(&self.kind, key.kind())
            && is(&self.name, key.name())
            && is(&self.operation, &job.operation)
            && self.state.is_none_or(|state| state == job.state)
    }

    /// The one resource that it is about, if it is about one.
    #[must_use]
    pub fn resource(&self) -> Option<ResourceKey> {
        let (tenant, kind, name) =
            (self.tenant.as_ref()?, self.kind.as_ref()?, self.name.as_ref()?);
        ResourceKey::new(tenant, kind, name).ok()
    }
}

/// Some jobs, and where to go on.
#[derive(Clone, Debug, Default)]
pub struct JobPage {
    /// The jobs.
    pub items: Vec<JobShown>,
    /// Ask for what comes after this; nothing when this is all.
    pub next: Option<JobId>,
}

/// One resource with its state and its jobs that are not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceShown {
    /// The resource.
    pub key: ResourceKey,
    /// Its state and its jobs.
    pub resource: Box<Resource>,
}

/// Which resources to list.
#[derive(Clone, Debug, Default)]
pub struct ResourceQuery {
    /// Only of this tenant.
    pub tenant: Option<Text>,
    /// Only of this kind.
    pub kind: Option<Text>,
    /// Only in this state.
    pub state: Option<Text>,
    /// Only after this resource.
    pub after: Option<ResourceKey>,
    /// At most so many; a page may have fewer and still not be the last.
    pub limit: usize,
}

impl ResourceQuery {
    /// Whether a resource is wanted, wherever the page begins.
    #[must_use]
    pub fn wants(&self, key: &ResourceKey, resource: &Resource) -> bool {
        is(&self.tenant, key.tenant())
            && is(&self.kind, key.kind())
            && is(&self.state, &resource.state)
    }
}

/// Which pieces of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogQuery {
    /// Of this job.
    pub job: JobId,
    /// Only after this position.
    pub after: u64,
    /// At most so many.
    pub limit: usize,
}

/// A piece of a log with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The position among all pieces of the store.
    pub position: u64,
    /// The number of the attempt.
    pub attempt: u32,
    /// When it was written.
    pub at: Millis,
    /// Whole lines.
    pub text: Text,
}

/// A session that asks for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerShown {
    /// The session.
    pub session: SessionId,
    /// Whose it is; `*` for one that works for all tenants.
    pub tenant: Text,
    /// What people call it.
    pub name: Text,
    /// The kinds it works.
    pub kinds: Vec<Text>,
    /// How long ago it asked for jobs.
    pub asked_ms: u64,
    /// How long it lives without a heartbeat.
    pub expires_in_ms: u64,
    /// The jobs it has, with their resources.
    pub jobs: Vec<(ResourceKey, JobId)>,
}

/// How long things are kept after they are over.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Jobs and their logs.
    pub jobs_ms: u64,
    /// Jobs in quarantine.
    pub dead_ms: u64,
    /// History.
    pub history_ms: u64,
    /// At most so many rows of each at once.
    pub rows_max: usize,
}

/// What was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Jobs.
    pub jobs: usize,
    /// Lines of history.
    pub lines: usize,
}

/// Whether a wish is met, if there is one.
pub(crate) fn is(wish: &Option<Text>, have: &str) -> bool {
    wish.as_ref().is_none_or(|wish| **wish == *have)
}

/// Which lines of history.
#[derive(Clone, Debug)]
pub enum HistoryQuery {
    /// The newest lines of one resource, newest first, before a position.
    Of {
        /// The resource.
        key: ResourceKey,
        /// Only before this position.
        before: Option<u64>,
        /// At most so many.
        limit: usize,
    },
    /// The newest lines of all, newest first, before a position.
    Newest {
        /// Only of this tenant.
        tenant: Option<Text>,
        /// Only before this position.
        before: Option<u64>,
        /// At most so many.
        limit: usize,
    },
    /// All lines, oldest first, after a position.
    Scan {
        /// Only after this position.
        after: u64,
        /// At most so many.
        limit: usize,
    },
}

/// A line of history with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The position among all lines of the store.
    pub position: u64,
    /// The resource.
    pub key: ResourceKey,
    /// The line.
    pub text: String,
    /// Its hash.
    pub hash: Hash,
}

/// What a lock of a deployment is truly worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SafetyClass {
    /// Can lose a grant when it restarts.
    BestEffort,
    /// Exclusive as long as clocks run at the same speed within the drift margin.
    ExclusiveIfClocksRunSanely,
    /// Exclusive, with the guard in the same transaction.
    Exclusive,
}

impl SafetyClass {
    /// The class in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BestEffort => "best effort",
            Self::ExclusiveIfClocksRunSanely => "exclusive if clocks run sanely",
            Self::Exclusive => "exclusive",
        }
    }
}

/// What a store is and how it is.
#[derive(Clone, Debug)]
pub struct Status {
    /// `memory`, `embedded`, ….
    pub store: &'static str,
    /// What its locks are worth.
    pub safety: SafetyClass,
    /// Its life between two restores.
    pub incarnation: Incarnation,
    /// Store time.
    pub now: Millis,
    /// How many sessions there are.
    pub sessions: usize,
    /// How many resources are held or waited for.
    pub live: usize,
    /// Whether wake-ups from other servers come through; nothing where there are no others. Without
    /// them waiting requests poll.
    pub wakeups: Option<bool>,
}

/// The row of a session.
pub(crate) fn durable(session: &Session) -> String {
    serde_json::to_string(session).expect("a session has no map with odd keys")
}
