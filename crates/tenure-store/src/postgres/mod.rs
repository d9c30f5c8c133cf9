//! The store `postgres://…`: any number of servers share one PostgreSQL database.
//!
//! The journal table is the source of truth. Every server keeps a replica of the live state in
//! memory. A batch is one transaction: take the writer lock, catch up with the journal, run the
//! commands through the same `step` function as every other store, append one journal entry. The
//! other tables are a projection of the journal and lag it by less than a second. No rule of the
//! model is implemented in SQL. Nothing depends on connection state, so a pooler in transaction
//! mode works.
//!
//! | module | content |
//! |---|---|
//! | `batch` | the write transaction, its retries and in-doubt commits |
//! | `catch_up` | reading the journal tail and applying it to the replica |
//! | `journal` | encoding and decoding of journal entries |
//! | `replica`, `load` | the in-memory state; building it from the tables and the journal |
//! | `projection`, `pages`, `prune` | flushing to the SQL tables; history pages; retention |
//! | `read` | lists and lookups |
//! | `notifier` | wake-ups between servers (`LISTEN`/`NOTIFY`) |
//! | `incarnation` | detection of restores and fail-overs |
//! | `connection`, `client`, `failure`, `tls`, `settings` | connections and their errors |
//! | `breaker` | prompt errors while the database cannot be reached |
//! | `user_connections` | connections that users' SQL runs on |
//! | `rows`, `columns` | conversion of values from and to SQL |
//! | `migrate`, `doctor` | schema migrations; deployment checks |

mod audit;
mod batch;
mod breaker;
mod catch_up;
mod client;
mod columns;
mod connection;
mod doctor;
mod failure;
mod forget;
mod incarnation;
mod journal;
mod keys;
mod load;
mod migrate;
mod notifier;
mod pages;
mod projection;
mod prune;
mod read;
mod replica;
mod rows;
mod settings;
mod tls;
mod user_connections;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{Command, Kinds, Millis, Outcome};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::broadcast;
use tokio_postgres::config::SslMode;

use crate::audit::SharedAudit;
use crate::clock::Clock;
use crate::keys::KeyRing;
use crate::ledger::Batch;
use crate::observer::{Observer, Observers};
use crate::random;
use crate::store::{
    HINTS_MAX, Hint, Pruned, Reads, Result, Retention, Status, Store, StoreError, Swept,
};
use batch::{Work, Writer};
use breaker::Breaker;
use connection::{Connection, Connector, Pool};
use incarnation::{Identity, IdentityFile};
use replica::Replica;
use settings::Settings;

pub use doctor::{Finding, ROLES, Verdict, examine, remedy};
pub use migrate::{Plan, migrate, plan};
pub use tokio_postgres::Client;
pub use user_connections::{connect, connect_directly, validate_url};

/// Time after which the database ends an idle transaction of this store, so that a process stopped
/// in the middle of one cannot keep the writer lock.
const IDLE_IN_TRANSACTION_TIMEOUT_MS: u64 = 2_000;
/// Time that the client waits for a response beyond the statement timeout.
const NETWORK_ALLOWANCE: Duration = Duration::from_secs(1);
/// Time that a transaction waits for a database lock. It exceeds the time that a stopped process
/// can hold one.
const LOCK_TIMEOUT_MS: u64 = IDLE_IN_TRANSACTION_TIMEOUT_MS + 1_000;

/// The store `postgres://…`.
pub struct Postgres {
    shared: Arc<Shared>,
    /// The runtimes of all tasks of the store. Taken on drop.
    runtimes: Option<[Runtime; 2]>,
}

/// State shared by the store and its tasks.
struct Shared {
    /// For tasks that must outlive the request that spawned them.
    weak_self: Weak<Self>,
    /// Runs the write transactions and drives the writer's connection.
    writer_runtime: Handle,
    /// Runs everything else.
    background_runtime: Handle,
    writer: Writer,
    reader: Pool,
    /// The journal head that was last read on behalf of a reader.
    head: tokio::sync::Mutex<Option<read::Head>>,
    flush_connection: Connection,
    /// How far pruning has examined resources and jobs of ephemeral kinds.
    examined: Mutex<forget::Examined>,
    /// Serializes flushes and pruning in this process.
    flush_lock: tokio::sync::Mutex<()>,
    /// Whether the last flush failed. Writers then wait only for a flush that is already running.
    flush_failing: AtomicBool,
    /// Wakes the projector when the replica is ahead of the projection.
    flush_requested: Arc<tokio::sync::Notify>,
    hints: broadcast::Sender<Hint>,
    observers: Observers,
    kinds: RwLock<Arc<Kinds>>,
    /// The last observed identity of the database.
    identity: Mutex<Identity>,
    identity_file: IdentityFile,
    notifier: notifier::Notifier,
    breaker: Arc<Breaker>,
    /// Replaces the database clock in tests.
    clock: Option<Arc<dyn Clock>>,
}

/// Options for opening a store on PostgreSQL.
#[derive(Default)]
pub struct Options {
    /// Replaces the database clock, for tests that advance time by hand.
    pub clock: Option<Arc<dyn Clock>>,
    /// File that keeps the identity of the database, to recognize an old primary after a restart.
    pub identity_file: Option<PathBuf>,
}

impl Postgres {
    /// Connects and applies pending migrations.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, Options::default()).await
    }

    /// Like [`Postgres::open`], with options.
    pub async fn open_with(url: &str, options: Options) -> Result<Self> {
        let settings = Settings::parse(url)?;
        let identity_file = IdentityFile(options.identity_file);
        let tls_enabled = settings.config.get_ssl_mode() != SslMode::Disable;
        let tls = tls::connector(&settings.trust, tls_enabled)?;
        // One thread for the writer and its connection: no response waits for another thread to
        // wake up.
        let runtimes = [build_runtime("tenure-writer", 1)?, build_runtime("tenure-postgres", 2)?];
        let [writer_runtime, background_runtime] =
            runtimes.each_ref().map(|runtime| runtime.handle().clone());
        let connector = Connector {
            config: settings.config.clone(),
            tls: tls.clone(),
            runtime: background_runtime.clone(),
            settings: Arc::new(transaction_settings(settings.statement_ms)),
            response_timeout: Duration::from_millis(settings.statement_ms) + NETWORK_ALLOWANCE,
            pooled: Arc::new(AtomicBool::new(settings.listen.is_some())),
            breaker: Arc::default(),
        };
        let connection = || Connection::new(&connector);
        let (hints, _) = broadcast::channel(HINTS_MAX);
        let id = random::request_id().to_string();
        let listener = notifier::Listener { settings: settings.clone(), tls: tls.clone() };
        let notifier = notifier::Notifier::start(
            &background_runtime,
            &id,
            connection(),
            listener,
            hints.clone(),
        );
        let flush_requested = Arc::new(tokio::sync::Notify::new());
        let shared = Arc::new_cyclic(|weak_self| Shared {
            weak_self: Weak::clone(weak_self),
            writer_runtime: writer_runtime.clone(),
            background_runtime: background_runtime.clone(),
            writer: Writer::new(Connection::new(&Connector {
                runtime: writer_runtime,
                ..connector.clone()
            })),
            reader: Pool::new((0..settings.pool).map(|_| connection()).collect()),
            head: tokio::sync::Mutex::default(),
            flush_connection: connection(),
            examined: Mutex::default(),
            flush_lock: tokio::sync::Mutex::default(),
            flush_failing: AtomicBool::new(false),
            flush_requested: Arc::clone(&flush_requested),
            hints,
            observers: Observers::default(),
            kinds: RwLock::default(),
            identity: Mutex::new(identity_file.read()),
            identity_file,
            notifier,
            breaker: Arc::clone(&connector.breaker),
            clock: options.clock,
        });
        background_runtime.spawn(breaker::monitor(connector.clone()));
        background_runtime
            .spawn(projection::run_projector(Arc::downgrade(&shared), flush_requested));
        let store = Self { shared, runtimes: Some(runtimes) };
        let seen = store.shared.identity().incarnation;
        let client = store.shared.writer.connection.client().await?;
        migrate::migrate_on_start(&client, url, seen).await?;
        // Loads the replica.
        store.shared.execute(Work::CatchUp).await?;
        Ok(store)
    }
}

impl Shared {
    /// Runs `work` to completion in its own task. If the caller is cancelled, no transaction stays
    /// open and no state taken out of a mutex is lost.
    async fn run_detached<T, F>(&self, on: &Handle, work: impl FnOnce(Arc<Self>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let closing = || StoreError::unavailable("the store is closing");
        let shared = self.weak_self.upgrade().ok_or_else(closing)?;
        on.spawn(work(shared)).await.map_err(|_| closing())?
    }

    fn kinds(&self) -> Arc<Kinds> {
        Arc::clone(&self.kinds.read().expect("lock is never poisoned"))
    }

    fn identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().expect("lock is never poisoned")
    }

    /// Sends the wake-ups of a committed batch.
    fn publish(&self, batch: Batch) {
        self.observers.notify(&batch.facts);
        for hint in batch.into_hints() {
            self.notifier.send(&hint);
            // Fails if there are no receivers, which is fine: hints are best effort.
            self.hints.send(hint).ok();
        }
    }

    async fn declare(&self, kinds: Arc<Kinds>) {
        *self.kinds.write().expect("lock is never poisoned") = Arc::clone(&kinds);
        let mut state = self.writer.state.lock().await;
        let Some(replica) = state.replica() else { return };
        let ready = replica.ledger.declare(kinds, replica.position.at);
        drop(state);
        self.publish(Batch { ready, ..Batch::default() });
    }

    async fn status(&self) -> Result<Status> {
        let safety = doctor::safety(self.reader.connection()).await?;
        let wakeups = Some(self.notifier.is_receiving());
        let status = |replica: &mut Replica, now: Millis| Status {
            store: "postgres",
            safety,
            incarnation: replica.ledger.world().incarnation,
            now,
            sessions: replica.ledger.world().sessions.len(),
            live: replica.ledger.live_count(),
            wakeups,
        };
        self.read_replica(status).await
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
        Ok(self.shared.execute(Work::Apply(commands)).await?.outcomes)
    }

    async fn sweep(&self) -> Result<Swept> {
        Ok(self.shared.execute(Work::Sweep).await?.swept)
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.shared.prune(keep).await
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

    fn shared_audit(&self) -> Option<&dyn SharedAudit> {
        Some(&*self.shared)
    }
}

/// Builds a multi-thread runtime.
fn build_runtime(name: &str, count: usize) -> Result<Runtime> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(count).thread_name(name).enable_all();
    runtime
        .build()
        .map_err(|error| StoreError::unavailable(format!("cannot start a runtime: {error}")))
}

/// Returns the settings of every transaction. All statements use an index, and most are planned
/// while the tables are empty, so sequential scans and hash or merge joins are disabled.
fn transaction_settings(statement_ms: u64) -> Vec<(&'static str, String)> {
    let off = |name| (name, "off".to_owned());
    vec![
        ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT_MS.to_string()),
        ("lock_timeout", LOCK_TIMEOUT_MS.to_string()),
        ("statement_timeout", statement_ms.to_string()),
        off("enable_seqscan"),
        off("enable_hashjoin"),
        off("enable_mergejoin"),
        off("jit"),
        ("plan_cache_mode", "force_generic_plan".to_owned()),
    ]
}

/// Converts a SQL instant.
fn millis(ms: i64) -> Millis {
    Millis(u64::try_from(ms).unwrap_or(0))
}

/// Converts an instant to SQL.
fn bigint(at: Millis) -> i64 {
    counter(at.0)
}

/// Converts a counter to SQL.
fn counter(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Returns the error for stored data that cannot be decoded.
fn corrupt(what: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::corrupt(format!("{what}: {error}"))
}
