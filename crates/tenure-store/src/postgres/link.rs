//! Connections: made when they are needed, made anew when they break.
//!
//! Statements are sent unnamed and typed, in one round trip, so that a pooler in transaction mode
//! may hand every transaction to another connection. The tasks that move the bytes have a runtime
//! of their own: whoever asks may come from any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row};

use super::tls::Tls;
use crate::store::{Result, StoreError};

/// A parameter with its type.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection that is made when it is needed.
pub(super) struct Link {
    config: Config,
    tls: Tls,
    runtime: Handle,
    client: Mutex<Option<Arc<Client>>>,
}

impl Link {
    pub(super) fn new(config: Config, tls: Tls, runtime: Handle) -> Self {
        Self { config, tls, runtime, client: Mutex::new(None) }
    }

    /// The connection, made anew if it has broken.
    pub(super) async fn client(&self) -> Result<Arc<Client>> {
        let mut slot = self.client.lock().await;
        if let Some(client) = slot.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(self.connect().await?);
        *slot = Some(Arc::clone(&client));
        Ok(client)
    }

    async fn connect(&self) -> Result<Client> {
        let (config, tls) = (self.config.clone(), self.tls.clone());
        let connecting = self.runtime.spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to the database has ended");
                }
            });
            Ok::<_, tokio_postgres::Error>(client)
        });
        match connecting.await {
            Ok(connected) => connected.map_err(|error| unavailable(&error)),
            Err(_) => Err(StoreError::Unavailable("the store is closing".to_owned())),
        }
    }

    /// Drops the connection: nobody knows what state it is in.
    pub(super) async fn discard(&self) {
        *self.client.lock().await = None;
    }

    /// Rows of a query outside of any transaction.
    pub(super) async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let client = self.client().await?;
        client.query_typed(sql, params).await.map_err(|error| unavailable(&error))
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
