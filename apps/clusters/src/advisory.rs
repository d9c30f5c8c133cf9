//! The second belt: a PostgreSQL advisory lock around the work of a job.
//!
//! It never decides who runs; the engine does. It stops a worker whose own clock or supervision is
//! broken from working at the same time as its successor. The lock is held by a session of the
//! database, on a connection of its own that must not go through a pooler. Its key has 64 bits.
//! When the connection breaks, the lock is taken again within the time to live of the worker's
//! session, or the work is stopped.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::{Context, Failure};
use tenure_store::StoreError;
use tenure_store::postgres::{self, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::types::Type;

/// Code of a lock that could not be taken, or was lost.
const ADVISORY_LOCK: &str = "ADVISORY_LOCK";
/// Time to wait for a holder whose connection is about to end.
const WAIT: Duration = Duration::from_secs(60);
/// Delay before another attempt if it did not end.
const RETRY_DELAY: Duration = Duration::from_secs(30);
/// Interval between two tries.
const TRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the lock is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes the lock unless another session has it.
const TRY_LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
/// Whether this session has it. Behind a pooler, another session would answer.
const IS_HELD: &str = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE pid = pg_backend_pid() \
     AND locktype = 'advisory' AND objsubid = 1 AND granted \
     AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1, 0))";

/// A held advisory lock; released when dropped.
pub(crate) struct AdvisoryLock(JoinHandle<()>);

impl Drop for AdvisoryLock {
    fn drop(&mut self) {
        // The task owns the connection, whose end releases the lock.
        self.0.abort();
    }
}

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot connect to the database: {0}")]
    Connect(#[from] StoreError),
    #[error("the database refused a statement: {0}")]
    Statement(#[from] tokio_postgres::Error),
    #[error("the database did not answer in time")]
    Timeout,
    #[error("another session holds it")]
    Held,
    #[error("the connection goes through a pooler; give the address of the database itself")]
    Pooled,
}

/// Takes the advisory lock of the cluster of a job. `variable` is the name of the environment
/// variable with the URL of the database; `stop` becomes true when the lock is lost.
pub(crate) async fn acquire(
    variable: &str,
    job: &Context,
    stop: watch::Sender<bool>,
) -> Result<AdvisoryLock, Failure> {
    let url = std::env::var(variable).map_err(|_| {
        let why = format!("advisory_locks names the variable {variable}, which is not set here");
        Failure::transient(ADVISORY_LOCK, why)
    })?;
    job.add_secret(&url);
    let name = job.key().as_str().to_owned();
    let until = BootInstant::now() + WAIT;
    let client = loop {
        match lock(&url, &name).await {
            Ok(client) => break client,
            Err(Error::Held) if !until.has_passed() => tokio::time::sleep(TRY_INTERVAL).await,
            Err(error) => {
                let why = format!("cannot take the advisory lock of {name}: {error}");
                return Err(Failure::deferred(RETRY_DELAY, ADVISORY_LOCK, why));
            }
        }
    };
    let ttl = job.session().ttl();
    let monitor = tokio::spawn(hold(client, url, name, ttl, stop));
    Ok(AdvisoryLock(monitor))
}

/// Returns the failure of an attempt whose advisory lock was lost.
pub(crate) fn lost() -> Failure {
    let why = "the advisory lock was lost with its connection and could not be taken again";
    Failure::transient(ADVISORY_LOCK, why)
}

/// Holds the lock until it is dropped, or stops the work.
async fn hold(
    mut client: Client,
    url: String,
    name: String,
    ttl: Duration,
    stop: watch::Sender<bool>,
) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if is_held(&client, &name).await.is_ok_and(|held| held) {
            continue;
        }
        tracing::warn!(resource = name, "advisory lock lost with its connection; taking it again");
        let until = BootInstant::now() + ttl;
        client = loop {
            match lock(&url, &name).await {
                Ok(client) => break client,
                Err(error) if until.has_passed() => {
                    tracing::error!(resource = name, %error,
                        "advisory lock lost; stopping the work");
                    stop.send_replace(true);
                    return;
                }
                Err(_) => tokio::time::sleep(TRY_INTERVAL).await,
            }
        };
    }
}

/// Connects and takes the lock, without waiting for it.
async fn lock(url: &str, name: &str) -> Result<Client, Error> {
    let client = within(async { Ok(postgres::connect(url).await?) }).await?;
    let locked = within(query(&client, TRY_LOCK, name)).await?;
    if !locked {
        return Err(Error::Held);
    }
    if !is_held(&client, name).await? {
        return Err(Error::Pooled);
    }
    Ok(client)
}

async fn is_held(client: &Client, name: &str) -> Result<bool, Error> {
    within(query(client, IS_HELD, name)).await
}

async fn query(client: &Client, sql: &str, name: &str) -> Result<bool, Error> {
    let rows = client.query_typed(sql, &[(&name, Type::TEXT)]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

async fn within<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(STATEMENT_TIMEOUT, work).await.unwrap_or(Err(Error::Timeout))
}
