//! The store `postgres://…`: any number of servers on any number of hosts share one truth.
//!
//! A batch is one transaction: the rows of its resources and sessions are locked; the same `step`
//! as everywhere decides; what changed is written from arrays; one commit. No rule of the model is
//! in SQL. Nothing depends on the state of a connection, so a pooler in transaction mode may stand
//! between.
//!
//! `batch` is the transaction, `load`, `ready` and `write` its parts, `cache` what it knows from
//! the last one, `lane` what goes on at the same time; `sweep` sees to what has lapsed or come due
//! and `prune` to what is old; `read` has the lists, `listen` the wake-ups between servers, `life`
//! the incarnation; `conn`, `link`, `tls` and `settings` are the connections, `rows` and `columns`
//! the values; `migrate` has the versions of the tables, `doctor` says what a deployment is worth.

mod batch;
mod cache;
mod columns;
mod conn;
mod doctor;
mod lane;
mod life;
mod link;
mod listen;
mod load;
mod migrate;
mod prune;
mod read;
mod ready;
mod rows;
mod settings;
mod sweep;
mod tls;
mod write;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::ready::Served;
use tenure_core::{Command, Incarnation, Kinds, Millis, Outcome, Text};
use tokio::runtime::Runtime;
use tokio::sync::broadcast;
use tokio_postgres::config::SslMode;

use crate::clock::Clock;
use crate::ledger::Batch;
use crate::random;
use crate::store::{
    HINTS_MAX, Hint, Pruned, Reads, Result, Retention, Status, Store, StoreError, Swept,
};
use lane::{LANES, Lane, Points};
use life::Life;
use link::{Link, Pool, Ways};
use settings::Settings;

pub use doctor::{Finding, ROLES, Verdict, examine, remedy};
pub use migrate::{Plan, migrate, plan};

/// How long a transaction of ours may do nothing before the database ends it: a process that was
/// stopped in the middle of one must not keep others from the resources it had at hand.
const IDLE_MAX_MS: u64 = 2_000;
/// How much longer than a statement may take its answer may be on the way.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// How long to wait before asking again for something that another transaction had.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// The store `postgres://…`.
pub struct Postgres {
    /// Write, one transaction at a time each.
    lanes: [Lane; LANES],
    /// Which lane commands go to.
    points: Points,
    /// Reads, beside it.
    reader: Pool,
    /// Up to which position all of history is settled.
    horizon: AtomicI64,
    hints: broadcast::Sender<Hint>,
    kinds: RwLock<Arc<Kinds>>,
    /// Records that were seen last.
    cache: cache::Cache,
    /// Which tenants were served last.
    served: Mutex<Served>,
    /// The tenant after which claims of a kind go on, where there are very many.
    cursors: Mutex<HashMap<Text, Text>>,
    /// What was seen of the database.
    life: Mutex<Life>,
    /// Tells other servers whom to wake, and is told.
    notifier: listen::Notifier,
    /// Another clock than the database's, for tests.
    clock: Option<Arc<dyn Clock>>,
    /// How long the row of an ended session is kept.
    forget_ms: u64,
    /// Moves the bytes.
    runtime: Option<Runtime>,
}

/// How to open a store on PostgreSQL.
pub struct Options {
    /// Another clock than the database's: a test moves it by hand.
    pub clock: Option<Arc<dyn Clock>>,
    /// How long the row of an ended session is kept: longer than any transaction that saw it alive
    /// and grants it something yet.
    pub forget_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: None, forget_ms: 30_000 }
    }
}

impl Postgres {
    /// Connects, and brings the tables up to date.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, Options::default()).await
    }

    /// The same, with options.
    pub async fn open_with(url: &str, options: Options) -> Result<Self> {
        let settings = Settings::parse(url)?;
        let wanted = settings.config.get_ssl_mode() != SslMode::Disable;
        let tls = tls::connector(&settings.trust, wanted)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tenure-postgres")
            .enable_all()
            .build();
        let runtime =
            runtime.map_err(|error| StoreError::Unavailable(format!("no thread: {error}")))?;
        let handle = runtime.handle();
        let ways = Ways {
            config: settings.config.clone(),
            tls: tls.clone(),
            runtime: handle.clone(),
            settings: Arc::new(transaction_settings(settings.statement_ms)),
            patience: Duration::from_millis(settings.statement_ms) + ON_THE_WAY,
            pooled: Arc::new(AtomicBool::new(settings.listen.is_some())),
        };
        let link = || Link::new(&ways);
        let (hints, _) = broadcast::channel(HINTS_MAX);
        let id = random::request_id().to_string();
        let ears = listen::Ears { settings: settings.clone(), tls: tls.clone() };
        let notifier = listen::Notifier::start(handle, &id, link(), ears, hints.clone());
        let store = Self {
            lanes: std::array::from_fn(|n| Lane::new(format!("{id}-{n}"), link())),
            points: Points::default(),
            reader: Pool::new((0..settings.pool).map(|_| link()).collect()),
            horizon: AtomicI64::new(0),
            hints,
            kinds: RwLock::default(),
            cache: cache::Cache::default(),
            served: Mutex::default(),
            cursors: Mutex::default(),
            life: Mutex::default(),
            notifier,
            clock: options.clock,
            forget_ms: options.forget_ms,
            runtime: Some(runtime),
        };
        migrate::run(&*store.lanes[0].link.client().await?).await?;
        store.look_first().await?;
        Ok(store)
    }

    fn kinds(&self) -> Arc<Kinds> {
        Arc::clone(&self.kinds.read().expect("nothing panics while it is locked"))
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().expect("nothing panics while it is locked")
    }

    /// Sends the wake-ups of a batch that is durable.
    fn publish(&self, batch: Batch) {
        for hint in batch.into_hints() {
            self.notifier.tell(&hint);
            // Nobody listening is fine: a hint is a hint.
            self.hints.send(hint).ok();
        }
    }

    /// Lets claims of these kinds ask again in a moment.
    fn ask_again(&self, kinds: impl IntoIterator<Item = Text>) {
        for kind in kinds {
            let hints = self.hints.clone();
            if let Some(runtime) = &self.runtime {
                runtime.spawn(async move {
                    tokio::time::sleep(ASK_AGAIN).await;
                    hints.send(Hint::Ready(kind)).ok();
                });
            }
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[async_trait]
impl Store for Postgres {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        Ok(self.transact(&commands).await?.0)
    }

    async fn sweep(&self) -> Result<Swept> {
        self.sweep_once().await
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.prune_once(keep).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        *self.kinds.write().expect("nothing panics while it is locked") = kinds;
        self.look_again().await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn status(&self) -> Result<Status> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, \
                   (SELECT count(*) FROM tenure.sessions WHERE over IS NULL), \
                   (SELECT count(DISTINCT key) FROM tenure.locks), \
                   (SELECT value::bigint FROM tenure.meta WHERE key = 'incarnation')";
        let row = self.reader.one(sql, &[]).await?;
        let count = |at: usize| usize::try_from(row.get::<_, i64>(at)).unwrap_or(0);
        let incarnation = u32::try_from(row.get::<_, Option<i64>>(3).unwrap_or(0)).unwrap_or(0);
        Ok(Status {
            store: "postgres",
            safety: doctor::safety(self.reader.link()).await?,
            incarnation: Incarnation(incarnation),
            now: self.time(row.get(0)),
            sessions: count(1),
            live: count(2),
            wakeups: Some(self.notifier.is_up()),
        })
    }

    fn reads(&self) -> &dyn Reads {
        self
    }
}

/// The settings of our transactions. Every statement finds its rows by an index, and most are
/// planned when the tables are empty: the planner must not think that reading all is cheap.
fn transaction_settings(statement_ms: u64) -> Vec<(&'static str, String)> {
    let off = |name| (name, "off".to_owned());
    vec![
        ("idle_in_transaction_session_timeout", IDLE_MAX_MS.to_string()),
        ("lock_timeout", IDLE_MAX_MS.to_string()),
        ("statement_timeout", statement_ms.to_string()),
        off("enable_seqscan"),
        off("enable_hashjoin"),
        off("enable_mergejoin"),
        off("jit"),
        ("plan_cache_mode", "force_generic_plan".to_owned()),
    ]
}

/// An instant of the database.
fn millis(ms: i64) -> Millis {
    Millis(u64::try_from(ms).unwrap_or(0))
}

/// An instant as the database keeps it.
fn bigint(at: Millis) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

/// A row that does not read back.
fn corrupt(what: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Corrupt(format!("{what}: {error}"))
}
