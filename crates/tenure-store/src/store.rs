//! The `Store` trait: what every place that keeps Tenure's rows can do.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::history::Hash;
use tenure_core::record::Waiter;
use tenure_core::{Command, Incarnation, Millis, Outcome, Record, ResourceKey, Session};
use tenure_core::{TenureView, Text};
use tokio::sync::broadcast;

/// Most commands that a store takes in one batch.
pub const BATCH_MAX: usize = 4_096;
/// Most rows that one page has.
pub const PAGE_MAX: usize = 1_000;
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

    /// Ends sessions that have lapsed and waits that have run out, and settles what they held.
    async fn sweep(&self) -> Result<Swept>;

    /// The tenures of the present, in the order of their keys.
    async fn list(&self, query: ListQuery) -> Result<Page<TenureView>>;

    /// One resource, if anything ever happened to it.
    async fn show(&self, key: &ResourceKey) -> Result<Option<Shown>>;

    /// Resources that anything ever happened to, in the order of their keys.
    async fn keys(&self, after: Option<ResourceKey>, limit: usize) -> Result<Vec<ResourceKey>>;

    /// Lines of history.
    async fn history(&self, query: HistoryQuery) -> Result<Vec<Line>>;

    /// Wake-ups: what was granted to requests while they waited. Hints only; all may be lost.
    fn watch(&self) -> broadcast::Receiver<Hint>;

    /// What this store is and how it is.
    async fn status(&self) -> Result<Status>;
}

/// Something that a waiting request wants to know. It is sent after the grant is durable, so it
/// may be taken for the answer; whoever misses it finds out by asking again.
#[derive(Clone, Debug)]
pub struct Hint(pub Arc<TenureView>);

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Sessions that were ended because they had lapsed.
    pub sessions: usize,
    /// Tenures that ended with them.
    pub tenures: usize,
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
    /// Store time when it was read.
    pub now: Millis,
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
}

/// The row of a session. Its end is written too, but means nothing: loading grants full grace.
pub(crate) fn durable(session: &Session) -> String {
    serde_json::to_string(session).expect("a session has no map with odd keys")
}
