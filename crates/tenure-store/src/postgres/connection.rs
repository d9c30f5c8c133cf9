//! Connections that open on demand and reconnect after a failure.
//!
//! The tasks that drive the connections run on a runtime of the store, so callers may use any other
//! runtime.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio_postgres::{Client, Config, Row};

use super::breaker::Breaker;
use super::client::{Param, PgClient, indicates_pooler};
use super::tls::Tls;
use crate::clock::stopwatch;
use crate::store::{Result, StoreError};

/// Response timeout of diagnostic connections.
const DIAGNOSTIC_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for connecting, including the startup handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a connection is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Opens connections with the settings that all connections of a store share.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) config: Config,
    pub(super) tls: Tls,
    pub(super) runtime: Handle,
    /// Names and values of the settings of every transaction.
    pub(super) settings: Arc<Vec<(&'static str, String)>>,
    /// Maximum time to wait for a response.
    pub(super) response_timeout: Duration,
    /// Whether a pooler sits in between. Session settings and prepared statements are unusable
    /// then.
    pub(super) pooled: Arc<AtomicBool>,
    /// Breaker of the store.
    pub(super) breaker: Arc<Breaker>,
}

impl Connector {
    /// Returns a connector without transaction settings, for diagnostics.
    pub(super) fn diagnostic(config: Config, tls: Tls, runtime: Handle) -> Self {
        let (settings, pooled) = (Arc::default(), Arc::new(AtomicBool::new(true)));
        let (response_timeout, breaker) = (DIAGNOSTIC_TIMEOUT, Arc::default());
        Self { config, tls, runtime, settings, response_timeout, pooled, breaker }
    }

    async fn connect(&self) -> Result<Arc<PgClient>> {
        self.breaker.check().await?;
        loop {
            let pooled = self.pooled.load(Ordering::Relaxed);
            let mut config = self.config.clone();
            if !pooled {
                let option = |(name, value): &(&str, String)| format!(" -c {name}={value}");
                let options: String = self.settings.iter().map(option).collect();
                config.options(format!("{}{options}", config.get_options().unwrap_or("")));
            }
            let started = stopwatch();
            let opened = tokio::select! {
                opened = self.open(config) => opened?,
                error = self.breaker.opened() => return Err(error),
            };
            match opened {
                Ok((client, driver)) => {
                    self.breaker.record_connect(started.elapsed());
                    let client = Arc::new(PgClient::new(client, self.begin_sql(pooled), !pooled));
                    let weak = Arc::downgrade(&client);
                    let (timeout, breaker) = (self.response_timeout, Arc::clone(&self.breaker));
                    self.runtime.spawn(async move {
                        tokio::select! {
                            () = until_unresponsive(weak, timeout) => {}
                            _ = breaker.opened() => {}
                        }
                        driver.abort();
                    });
                    return Ok(client);
                }
                Err(error) if !pooled && indicates_pooler(&error) => self.mark_pooled(),
                Err(error) => return Err(unavailable(error)),
            }
        }
    }

    /// Opens a connection. Returns the client and a handle of the task that drives the connection.
    pub(super) async fn open(&self, config: Config) -> Result<Opened> {
        let tls = self.tls.clone();
        let mut connecting = JoinSet::new();
        let connect = async move {
            let (client, connection) = config.connect(tls).await?;
            let driver = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "database connection closed");
                }
            });
            Ok((client, driver.abort_handle()))
        };
        // Aborted when the set is dropped.
        connecting.spawn_on(connect, &self.runtime);
        let Ok(opened) = tokio::time::timeout(CONNECT_TIMEOUT, connecting.join_next()).await else {
            let why = format!("the database did not answer within {CONNECT_TIMEOUT:?}");
            return Err(StoreError::unavailable(why));
        };
        let closing = || StoreError::unavailable("the store is closing");
        opened.and_then(std::result::Result::ok).ok_or_else(closing)
    }

    /// Returns the SQL that begins a transaction. Behind a pooler it includes the settings.
    fn begin_sql(&self, pooled: bool) -> String {
        let set = |(name, value): &(&str, String)| format!("; SET LOCAL {name} = {value}");
        let settings: String = self.settings.iter().filter(|_| pooled).map(set).collect();
        format!("BEGIN{settings}")
    }

    fn mark_pooled(&self) {
        if !self.pooled.swap(true, Ordering::Relaxed) {
            tracing::info!("pooler detected in front of the database; not preparing statements");
        }
    }
}

/// A client and the handle of its driver task, or why connecting failed.
pub(super) type Opened = std::result::Result<(Client, AbortHandle), tokio_postgres::Error>;

/// Pings a connection until it stops responding or is dropped. Aborting its driver then fails all
/// of its pending requests. A peer that silently drops packets causes no error by itself.
async fn until_unresponsive(client: Weak<PgClient>, timeout: Duration) {
    loop {
        tokio::time::sleep(PING_INTERVAL).await;
        let Some(client) = client.upgrade() else { return };
        if tokio::time::timeout(timeout, client.ping()).await.is_err() {
            tracing::warn!(?timeout, "database did not answer; reconnecting");
            return;
        }
    }
}

/// A connection that opens on demand and reconnects when it is broken.
pub(super) struct Connection {
    connector: Connector,
    client: Mutex<Option<Arc<PgClient>>>,
}

impl Connection {
    pub(super) fn new(connector: &Connector) -> Self {
        Self { connector: connector.clone(), client: Mutex::new(None) }
    }

    /// Returns the client. Connects if there is none or if it is closed.
    pub(super) async fn client(&self) -> Result<Arc<PgClient>> {
        let mut slot = self.client.lock().await;
        if let Some(client) = slot.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        let client = self.connector.connect().await?;
        *slot = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Awaits `work` for at most the response timeout.
    pub(super) async fn with_timeout<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let timeout = self.connector.response_timeout;
        tokio::time::timeout(timeout, work).await.map_err(|_| {
            StoreError::unavailable(format!("the database did not answer within {timeout:?}"))
        })
    }

    /// Records that a pooler sits in between, and discards the client.
    pub(super) async fn mark_pooled(&self) {
        self.connector.mark_pooled();
        self.discard().await;
    }

    /// Drops the client, whose state is unknown. The next use reconnects.
    pub(super) async fn discard(&self) {
        *self.client.lock().await = None;
    }

    /// Runs a query outside of a transaction.
    pub(super) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        for _ in 0..2 {
            let client = self.client().await?;
            let answer = match self.with_timeout(client.query_typed(sql, params)).await {
                Ok(answer) => answer,
                Err(error) => {
                    self.discard().await;
                    return Err(error);
                }
            };
            match answer {
                Ok(rows) => {
                    // A failure shows up again in the next statement.
                    client.prepare_recent().await.ok();
                    return Ok(rows);
                }
                Err(error) if indicates_pooler(&error) => self.mark_pooled().await,
                Err(error) => return Err(unavailable(error)),
            }
        }
        Err(StoreError::unavailable(
            "the pooler in front of the database loses statements".to_owned(),
        ))
    }
}

/// A round-robin pool of connections for reads.
pub(super) struct Pool {
    connections: Vec<Connection>,
    next: AtomicUsize,
}

impl Pool {
    pub(super) fn new(connections: Vec<Connection>) -> Self {
        Self { connections, next: AtomicUsize::new(0) }
    }

    /// Returns the next connection.
    pub(super) fn connection(&self) -> &Connection {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.connections[next % self.connections.len()]
    }

    pub(super) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.connection().query(sql, params).await
    }

    /// Runs a query that returns exactly one row.
    pub(super) async fn query_one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row> {
        let mut rows = self.query(sql, params).await?;
        rows.pop().ok_or_else(|| StoreError::corrupt("a query returned no row"))
    }
}

/// Converts a driver error, without the URL and its password.
pub(super) fn unavailable(error: tokio_postgres::Error) -> StoreError {
    use std::error::Error as _;
    let message = match (error.as_db_error(), error.source()) {
        (Some(db), _) => format!("the database says: {}", db.message()),
        (None, Some(cause)) => format!("the database cannot be reached: {error}: {cause}"),
        (None, None) => format!("the database cannot be reached: {error}"),
    };
    StoreError::unavailable(message).caused_by(error)
}
