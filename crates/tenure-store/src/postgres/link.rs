//! Connections: made when they are needed, made anew when they break.
//!
//! Statements are sent unnamed and typed, in one round trip, so that a pooler in transaction mode
//! may hand every transaction to another connection. The tasks that move the bytes have a runtime
//! of their own: whoever asks may come from any other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio_postgres::{Client, Config, Row};

use super::conn::{Conn, Param, says_pooler};
use super::tls::Tls;
use crate::store::{Result, StoreError};

/// How long the answer to a question of somebody who looks around may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long making a connection may take, with all that is said at its begin.
const DIAL_MAX: Duration = Duration::from_secs(5);
/// How often it is seen whether a connection still answers.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What all connections of a store have in common.
#[derive(Clone)]
pub(super) struct Ways {
    pub(super) config: Config,
    pub(super) tls: Tls,
    pub(super) runtime: Handle,
    /// Settings of every transaction: names and values.
    pub(super) settings: Arc<Vec<(&'static str, String)>>,
    /// How long the answer to anything may take.
    pub(super) patience: Duration,
    /// Whether a pooler stands between: then nothing may be set for a connection.
    pub(super) pooled: Arc<AtomicBool>,
}

impl Ways {
    async fn connect(&self) -> Result<Arc<Conn>> {
        loop {
            let pooled = self.pooled.load(Ordering::Relaxed);
            let mut config = self.config.clone();
            if !pooled {
                let set = |(name, value): &(&str, String)| format!(" -c {name}={value}");
                let own: String = self.settings.iter().map(set).collect();
                config.options(format!("{}{own}", config.get_options().unwrap_or("")));
            }
            match self.dial(config).await? {
                Ok((client, moving)) => {
                    let conn = Arc::new(Conn::new(client, self.begin(pooled), !pooled));
                    self.runtime.spawn(watch(Arc::downgrade(&conn), moving, self.patience));
                    return Ok(conn);
                }
                Err(error) if !pooled && says_pooler(&error) => self.is_pooled(),
                Err(error) => return Err(unavailable(&error)),
            }
        }
    }

    /// Connects. Gives what moves the bytes, too.
    async fn dial(&self, config: Config) -> Result<Dialled> {
        let tls = self.tls.clone();
        let dialling = self.runtime.spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            let moving = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to the database has ended");
                }
            });
            Ok((client, moving.abort_handle()))
        });
        let giving_up = dialling.abort_handle();
        let Ok(dialled) = tokio::time::timeout(DIAL_MAX, dialling).await else {
            giving_up.abort();
            let why = format!("the database did not answer within {DIAL_MAX:?}");
            return Err(StoreError::Unavailable(why));
        };
        dialled.map_err(|_| StoreError::Unavailable("the store is closing".to_owned()))
    }

    fn begin(&self, pooled: bool) -> String {
        let set = |(name, value): &(&str, String)| format!("; SET LOCAL {name} = {value}");
        let own: String = self.settings.iter().filter(|_| pooled).map(set).collect();
        format!("BEGIN{own}")
    }

    /// Notes that a pooler stands between.
    pub(super) fn is_pooled(&self) {
        if !self.pooled.swap(true, Ordering::Relaxed) {
            tracing::info!("a pooler stands before the database: statements are not prepared");
        }
    }
}

impl Ways {
    /// Connections of which nothing is asked: for looking around.
    pub(super) fn plain(config: Config, tls: Tls, runtime: Handle) -> Self {
        let (settings, pooled) = (Arc::default(), Arc::new(AtomicBool::new(true)));
        Self { config, tls, runtime, settings, patience: PATIENCE, pooled }
    }
}

/// A connection, or why there is none.
type Dialled = std::result::Result<(Client, AbortHandle), tokio_postgres::Error>;

/// Ends a connection that does not answer any more, so that everybody who waits for it finds out,
/// and nobody uses it again: what swallows bytes tells nobody.
async fn watch(conn: Weak<Conn>, moving: AbortHandle, patience: Duration) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(conn) = conn.upgrade() else { return };
        if tokio::time::timeout(patience, conn.ping()).await.is_err() {
            tracing::warn!(?patience, "the database did not answer; connecting again");
            moving.abort();
            return;
        }
    }
}

/// A connection that is made when it is needed.
pub(super) struct Link {
    ways: Ways,
    conn: Mutex<Option<Arc<Conn>>>,
}

impl Link {
    pub(super) fn new(ways: &Ways) -> Self {
        Self { ways: ways.clone(), conn: Mutex::new(None) }
    }

    /// The connection, made anew if it has broken.
    pub(super) async fn client(&self) -> Result<Arc<Conn>> {
        let mut slot = self.conn.lock().await;
        if let Some(conn) = slot.as_ref().filter(|conn| !conn.is_closed()) {
            return Ok(Arc::clone(conn));
        }
        let conn = self.ways.connect().await?;
        *slot = Some(Arc::clone(&conn));
        Ok(conn)
    }

    /// Waits for the database, but not for ever: a connection may swallow everything.
    pub(super) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let most = self.ways.patience;
        tokio::time::timeout(most, work).await.map_err(|_| {
            StoreError::Unavailable(format!("the database did not answer within {most:?}"))
        })
    }

    /// Notes that a pooler stands between, and drops the connection.
    pub(super) async fn is_pooled(&self) {
        self.ways.is_pooled();
        self.discard().await;
    }

    /// Drops the connection: nobody knows what state it is in.
    pub(super) async fn discard(&self) {
        *self.conn.lock().await = None;
    }

    /// Rows of a query outside of any transaction.
    pub(super) async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        for _ in 0..2 {
            let conn = self.client().await?;
            let answer = match self.in_time(conn.query_typed(sql, params)).await {
                Ok(answer) => answer,
                Err(error) => {
                    self.discard().await;
                    return Err(error);
                }
            };
            match answer {
                Ok(rows) => {
                    // Nobody waits for it, and a failure is that of the next statement.
                    conn.prepare().await.ok();
                    return Ok(rows);
                }
                Err(error) if says_pooler(&error) => self.is_pooled().await,
                Err(error) => return Err(unavailable(&error)),
            }
        }
        Err(StoreError::Unavailable("the pooler before the database loses statements".to_owned()))
    }
}

/// Connections for reading, used in turn.
pub(super) struct Pool {
    links: Vec<Link>,
    next: AtomicUsize,
}

impl Pool {
    pub(super) fn new(links: Vec<Link>) -> Self {
        Self { links, next: AtomicUsize::new(0) }
    }

    pub(super) fn link(&self) -> &Link {
        &self.links[self.next.fetch_add(1, Ordering::Relaxed) % self.links.len()]
    }

    pub(super) async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.link().rows(sql, params).await
    }

    /// The only row of a query.
    pub(super) async fn one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row> {
        let mut rows = self.rows(sql, params).await?;
        rows.pop().ok_or_else(|| StoreError::Corrupt("a query gave no row".to_owned()))
    }
}

/// What went wrong, without the address and its password.
pub(super) fn unavailable(error: &tokio_postgres::Error) -> StoreError {
    use std::error::Error as _;
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => StoreError::Unavailable(format!("the database says: {}", db.message())),
        (None, Some(cause)) => {
            StoreError::Unavailable(format!("the database cannot be reached: {error}: {cause}"))
        }
        (None, None) => StoreError::Unavailable(format!("the database cannot be reached: {error}")),
    }
}
