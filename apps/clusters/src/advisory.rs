//! The second belt: a PostgreSQL advisory lock around the work of a job.
//!
//! It never decides who runs; the engine does. It stops a worker whose own clock or supervision is
//! broken from working at the same time as its successor. The lock is held by a session of the
//! database, on a connection of its own that must not go through a pooler. Its key has 64 bits.
//! When the connection breaks, the lock is taken again within the time to live of the worker's
//! session, or the work is stopped. The database ends the session of a worker that is frozen or cut
//! off, but not before the work has been stopped.

use std::time::Duration;

use tenure::clock::{BootInstant, sleep_until};
use tenure::{Context, Failure};
use tenure_store::StoreError;
use tenure_store::postgres::{self, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Config;
use tokio_postgres::types::{ToSql, Type};

/// Code of a lock that could not be taken, or was lost.
const ADVISORY_LOCK: &str = "ADVISORY_LOCK";
/// Interval between two tries.
const TRY_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum interval at which the lock is checked.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// Maximum time of a check, and of one try to take the lock.
const STEP_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// Makes the database end a session from which nothing is heard. Servers before 14 have no such
/// setting.
const SET_IDLE_TIMEOUT: &str = "SELECT set_config(name, $1, false) <> '' FROM pg_settings \
     WHERE name = 'idle_session_timeout'";
/// Takes the lock unless another session has it.
const TRY_LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
/// Whether this session has it.
const IS_HELD: &str = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE pid = pg_backend_pid() \
     AND locktype = 'advisory' AND objsubid = 1 AND granted \
     AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1, 0))";
/// Process of this session.
const PID: &str = "SELECT pg_backend_pid()";
/// Ends a session of this role that has the lock.
const TERMINATE: &str = "SELECT bool_or(pg_terminate_backend(l.pid)) FROM pg_locks l \
     JOIN pg_stat_activity a ON a.pid = l.pid AND a.usename = current_user \
     WHERE l.pid = $2 AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
     AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended($1, 0)";

/// A held advisory lock; released when dropped.
pub(crate) struct AdvisoryLock(JoinHandle<()>);

impl Drop for AdvisoryLock {
    fn drop(&mut self) {
        // The task owns the connection, whose end releases the lock.
        self.0.abort();
    }
}

/// A parameter of a statement, with its type: nothing is prepared.
type Param<'a> = (&'a (dyn ToSql + Sync), Type);

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
}

/// How the lock of one job is held.
struct Belt {
    url: String,
    /// Name of the cluster.
    name: String,
    /// Time for which the work continues without knowing that the lock is held.
    ttl: Duration,
    /// Time after which the database ends a silent session: later than the work has been stopped.
    idle_timeout_ms: String,
    /// Maximum time of a check, and of one try to take the lock.
    step: Duration,
}

/// A session that had the lock at an instant.
struct Held {
    client: Client,
    pid: i32,
    at: BootInstant,
}

/// Takes the advisory lock of the cluster of a job. `variable` is the name of the environment
/// variable with the URL of the database. `stop` becomes true when the lock is lost; the work has
/// ended after `grace`.
///
/// # Errors
///
/// Fails without being counted as an attempt if another session keeps the lock, or the database
/// cannot be used.
pub(crate) async fn acquire(
    variable: &str,
    job: &Context,
    grace: Duration,
    stop: watch::Sender<bool>,
) -> Result<AdvisoryLock, Failure> {
    let (name, ttl) = (job.key().as_str().to_owned(), job.session().ttl());
    let deferred = |why: &str| {
        let why = format!("cannot take the advisory lock of {name}: {why}");
        Failure::deferred(ttl, ADVISORY_LOCK, why)
    };
    let url = std::env::var(variable).map_err(|_| {
        deferred(&format!(
            "`advisory_locks` names the environment variable {variable}, which this worker does \
             not have; set it to the URL of the database"
        ))
    })?;
    job.add_secret(&url);
    if let Some(password) = password(&url) {
        job.add_secret(&password);
    }
    let idle_timeout_ms = (ttl * 2 + grace).as_millis().to_string();
    let step = STEP_TIMEOUT_MAX.min(ttl / 3);
    let belt = Belt { url, name: name.clone(), ttl, idle_timeout_ms, step };
    // A holder that dies or is cut off releases it in this time.
    let until = BootInstant::now() + ttl;
    let held = belt.take(None, until).await;
    let held = held.map_err(|error| deferred(&error.to_string()))?;
    Ok(AdvisoryLock(tokio::spawn(belt.hold(held, stop))))
}

/// Returns the failure of an attempt whose advisory lock was lost.
pub(crate) fn lost() -> Failure {
    let why = "the advisory lock was lost with its connection and could not be taken again";
    Failure::transient(ADVISORY_LOCK, why)
}

/// Returns the password of a URL.
fn password(url: &str) -> Option<String> {
    // The driver does not know all parameters.
    let base = url.split_once('?').map_or(url, |(base, _)| base);
    let config: Config = base.parse().ok()?;
    Some(String::from_utf8_lossy(config.get_password()?).into_owned())
}

impl Belt {
    /// Holds the lock until this is dropped, or stops the work.
    async fn hold(self, mut held: Held, stop: watch::Sender<bool>) {
        let interval = CHECK_INTERVAL_MAX.min(self.ttl / 3);
        loop {
            sleep_until(held.at + interval).await;
            let at = BootInstant::now();
            let name: Param<'_> = (&self.name, Type::TEXT);
            let check = query(&held.client, IS_HELD, std::slice::from_ref(&name));
            if let Ok(Ok(true)) = timeout(self.step, check).await {
                held.at = at;
                continue;
            }
            let resource = &self.name;
            tracing::warn!(resource, "advisory lock lost with its connection; taking it again");
            match self.take(Some(held.pid), held.at + self.ttl).await {
                Ok(again) => held = again,
                Err(error) => {
                    tracing::error!(resource, %error, "advisory lock lost; stopping the work");
                    stop.send_replace(true);
                    return;
                }
            }
        }
    }

    /// Takes the lock, until an instant. `before` is the process of the session that had it.
    async fn take(&self, before: Option<i32>, until: BootInstant) -> Result<Held, Error> {
        loop {
            let step = match before {
                Some(_) => self.step.min(until.remaining()),
                None => STEP_TIMEOUT_MAX,
            };
            let error = match timeout(step, self.try_take(before)).await {
                Ok(Ok(held)) => return Ok(held),
                Ok(Err(error)) => error,
                Err(_) => Error::Timeout,
            };
            // If the lock has not been held yet, only its holder is waited for.
            let waits = before.is_some() || matches!(error, Error::Held);
            if !waits || until.remaining() <= TRY_INTERVAL {
                return Err(error);
            }
            tokio::time::sleep(TRY_INTERVAL).await;
        }
    }

    async fn try_take(&self, before: Option<i32>) -> Result<Held, Error> {
        let (name, at) = (&self.name, BootInstant::now());
        let client = postgres::connect_directly(&self.url).await?;
        query(&client, SET_IDLE_TIMEOUT, &[(&self.idle_timeout_ms, Type::TEXT)]).await?;
        if let Some(pid) = before {
            // It may live on behind a connection that is broken on this side only.
            query(&client, TERMINATE, &[(name, Type::TEXT), (&pid, Type::INT4)]).await?;
        }
        if !query(&client, TRY_LOCK, &[(name, Type::TEXT)]).await? {
            return Err(Error::Held);
        }
        let rows = client.query_typed(PID, &[]).await?;
        let pid = rows.first().map(|row| row.get(0)).ok_or(Error::Timeout)?;
        Ok(Held { client, pid, at })
    }
}

/// Runs a statement that returns a condition.
async fn query(client: &Client, sql: &str, params: &[Param<'_>]) -> Result<bool, Error> {
    let rows = client.query_typed(sql, params).await?;
    Ok(rows.first().is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_a_url_is_known() {
        let url = "postgres://u:hunter%32@h/d?sslmode=verify-full&listen=a:1";
        assert_eq!(password(url).unwrap(), "hunter2");
        assert_eq!(password("postgres://u@h/d"), None);
        assert_eq!(password("not a URL"), None);
    }
}
