//! The store `postgres://…`: any number of servers on any number of hosts share one truth.
//!
//! Every server has all that lives in memory, and the database has the journal of what happened. A
//! batch is one transaction: whoever has the turn catches up with the journal, the same `step` as
//! everywhere decides in memory, and one row is appended. The tables that people read follow within
//! a second. No rule of the model is in SQL. Nothing depends on the state of a connection, so a
//! pooler in transaction mode may stand between.
//!
//! `batch` is the transaction, `look` what it finds, `journal` what it appends, `failure` why it
//! did not; `replica` is what is in memory, `load` how it gets there, `flush` how it gets to the
//! tables, `pages` how history is kept there; `prune` drops what is old; `read` has the lists,
//! `listen` the wake-ups between servers, `life` the incarnation; `conn`, `link`, `tls` and
//! `settings` are the connections, `guest` those of others, `rows` and `columns` the values;
//! `migrate` has the versions of the tables, `doctor` says what a deployment is worth.

mod batch;
mod columns;
mod conn;
mod doctor;
mod failure;
mod flush;
mod guest;
mod journal;
mod keys;
mod life;
mod link;
mod listen;
mod load;
mod look;
mod migrate;
mod pages;
mod prune;
mod read;
mod replica;
mod rows;
mod settings;
mod tls;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{Command, Kinds, Millis, Outcome};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::broadcast;
use tokio_postgres::config::SslMode;

use crate::clock::Clock;
use crate::keys::KeyRing;
use crate::ledger::Batch;
use crate::observer::{Observer, Observers};
use crate::random;
use crate::store::{
    HINTS_MAX, Hint, Pruned, Reads, Result, Retention, Status, Store, StoreError, Swept,
};
use batch::{Work, Writer};
use life::Life;
use link::{Link, Pool, Ways};
use replica::Replica;
use settings::Settings;

pub use doctor::{Finding, ROLES, Verdict, examine, remedy};
pub use guest::{check_address, client};
pub use migrate::{Plan, migrate, plan};
pub use tokio_postgres::Client;

/// How long a transaction of ours may do nothing before the database ends it: a process that was
/// stopped in the middle of one must not keep others from the resources it had at hand.
const IDLE_MAX_MS: u64 = 2_000;
/// How much longer than a statement may take its answer may be on the way.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// How long a transaction waits for its turn: longer than one that was stopped keeps it.
const TURN_MAX_MS: u64 = IDLE_MAX_MS + 1_000;

/// The store `postgres://…`.
pub struct Postgres {
    shared: Arc<Shared>,
    /// What runs everything.
    runtimes: Option<[Runtime; 2]>,
}

/// What the store and its tasks share.
struct Shared {
    /// Itself, for tasks that outlive whoever asks.
    me: Weak<Self>,
    /// Runs the batches, and moves the bytes of their connection.
    writing: Handle,
    /// Runs everything else.
    beside: Handle,
    writer: Writer,
    /// Reads, beside it.
    reader: Pool,
    /// Where the journal was when a reader last asked.
    head: tokio::sync::Mutex<Option<read::Head>>,
    /// Brings the tables up to the journal, beside both.
    flusher: Link,
    /// Whose turn it is to do that.
    flushing: tokio::sync::Mutex<()>,
    /// Whether the last try failed: then a batch waits for one that is under way, and for no other.
    flush_fails: AtomicBool,
    /// Whether there is something to tell the tables.
    flush_wanted: Arc<tokio::sync::Notify>,
    hints: broadcast::Sender<Hint>,
    observers: Observers,
    kinds: RwLock<Arc<Kinds>>,
    /// What was seen of the database.
    life: Mutex<Life>,
    /// Tells other servers whom to wake, and is told.
    notifier: listen::Notifier,
    /// Another clock than the database's, for tests.
    clock: Option<Arc<dyn Clock>>,
}

/// How to open a store on PostgreSQL.
#[derive(Default)]
pub struct Options {
    /// Another clock than the database's: a test moves it by hand.
    pub clock: Option<Arc<dyn Clock>>,
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
        // A batch and its connection have one thread, so that no answer waits until another wakes.
        let runtimes = [threads("tenure-writer", 1)?, threads("tenure-postgres", 2)?];
        let [writing, beside] = runtimes.each_ref().map(|runtime| runtime.handle().clone());
        let ways = Ways {
            config: settings.config.clone(),
            tls: tls.clone(),
            runtime: beside.clone(),
            settings: Arc::new(transaction_settings(settings.statement_ms)),
            patience: Duration::from_millis(settings.statement_ms) + ON_THE_WAY,
            pooled: Arc::new(AtomicBool::new(settings.listen.is_some())),
        };
        let link = || Link::new(&ways);
        let (hints, _) = broadcast::channel(HINTS_MAX);
        let id = random::request_id().to_string();
        let ears = listen::Ears { settings: settings.clone(), tls: tls.clone() };
        let notifier = listen::Notifier::start(&beside, &id, link(), ears, hints.clone());
        let flush_wanted = Arc::new(tokio::sync::Notify::new());
        let shared = Arc::new_cyclic(|me| Shared {
            me: Weak::clone(me),
            writing: writing.clone(),
            beside: beside.clone(),
            writer: Writer::new(Link::new(&Ways { runtime: writing, ..ways.clone() })),
            reader: Pool::new((0..settings.pool).map(|_| link()).collect()),
            head: tokio::sync::Mutex::default(),
            flusher: link(),
            flushing: tokio::sync::Mutex::default(),
            flush_fails: AtomicBool::new(false),
            flush_wanted: Arc::clone(&flush_wanted),
            hints,
            observers: Observers::default(),
            kinds: RwLock::default(),
            life: Mutex::default(),
            notifier,
            clock: options.clock,
        });
        beside.spawn(flush::run(Arc::downgrade(&shared), flush_wanted));
        let store = Self { shared, runtimes: Some(runtimes) };
        migrate::up(&*store.shared.writer.link.client().await?, url).await?;
        // So that all that lives is at hand.
        store.shared.change(Work::Follow).await?;
        Ok(store)
    }
}

impl Shared {
    /// Does something in a task of its own: when whoever asks goes away in the middle of it, no
    /// transaction is left open, and nothing that was taken is lost.
    async fn to_the_end<T, F>(&self, on: &Handle, work: impl FnOnce(Arc<Self>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let closing = || StoreError::Unavailable("the store is closing".to_owned());
        let me = self.me.upgrade().ok_or_else(closing)?;
        on.spawn(work(me)).await.map_err(|_| closing())?
    }

    fn kinds(&self) -> Arc<Kinds> {
        Arc::clone(&self.kinds.read().expect("nothing panics while it is locked"))
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().expect("nothing panics while it is locked")
    }

    /// Sends the wake-ups of a batch that is durable.
    fn publish(&self, batch: Batch) {
        self.observers.tell(&batch.facts);
        for hint in batch.into_hints() {
            self.notifier.tell(&hint);
            // Nobody listening is fine: a hint is a hint.
            self.hints.send(hint).ok();
        }
    }

    async fn declare(&self, kinds: Arc<Kinds>) {
        *self.kinds.write().expect("nothing panics while it is locked") = Arc::clone(&kinds);
        let mut state = self.writer.state.lock().await;
        let Some(replica) = state.any() else { return };
        let ready = replica.ledger.declare(kinds, replica.position.at);
        drop(state);
        self.publish(Batch { ready, ..Batch::default() });
    }

    async fn status(&self) -> Result<Status> {
        let safety = doctor::safety(self.reader.link()).await?;
        let wakeups = Some(self.notifier.is_up());
        let look = |replica: &mut Replica, now: Millis| Status {
            store: "postgres",
            safety,
            incarnation: replica.ledger.world().incarnation,
            now,
            sessions: replica.ledger.world().sessions.len(),
            live: replica.ledger.live(),
            wakeups,
        };
        self.up_to_date(look).await
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        for runtime in self.runtimes.take().into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

#[async_trait]
impl Store for Postgres {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        Ok(self.shared.change(Work::Apply(commands)).await?.outcomes)
    }

    async fn sweep(&self) -> Result<Swept> {
        Ok(self.shared.change(Work::Sweep).await?.swept)
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.shared.prune_once(keep).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.shared.declare(kinds).await;
        Ok(())
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.shared.hints.subscribe()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.shared.observers.add(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.shared.status().await
    }

    fn reads(&self) -> &dyn Reads {
        &*self.shared
    }

    fn key_ring(&self) -> &dyn KeyRing {
        &*self.shared
    }
}

/// Threads to run something on.
fn threads(name: &str, count: usize) -> Result<Runtime> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(count).thread_name(name).enable_all();
    runtime.build().map_err(|error| StoreError::Unavailable(format!("no thread: {error}")))
}

/// The settings of our transactions. Every statement finds its rows by an index, and most are
/// planned when the tables are empty: the planner must not think that reading all is cheap.
fn transaction_settings(statement_ms: u64) -> Vec<(&'static str, String)> {
    let off = |name| (name, "off".to_owned());
    vec![
        ("idle_in_transaction_session_timeout", IDLE_MAX_MS.to_string()),
        ("lock_timeout", TURN_MAX_MS.to_string()),
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
    counter(at.0)
}

/// A number as the database keeps it.
fn counter(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A row that does not read back.
fn corrupt(what: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Corrupt(format!("{what}: {error}"))
}
