//! Circuit breaker: while the database cannot be reached, requests fail at once.
//!
//! A transaction that takes long may wait for a lock, or for a database that is gone. So the
//! monitor runs a query on another connection. If that works, the transaction keeps its time.
//! Otherwise the breaker opens: requests are answered with the error, and existing connections are
//! closed. The monitor keeps connecting, and the first answer closes the breaker.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;

use super::client::indicates_pooler;
use super::connection::Connector;
use crate::clock::stopwatch;
use crate::store::{Result, StoreError};

/// Duration of a transaction after which the monitor checks whether the database can be reached.
pub(super) const SUSPICION_AFTER: Duration = Duration::from_millis(400);
/// Time without a new connection after which the breaker opens.
const OUTAGE_AFTER: Duration = Duration::from_millis(1_000);
/// Factor by which that time exceeds the time that the last connection took, for distant databases.
const CONNECT_TIME_FACTOR: u32 = 3;
/// Time that a request waits for an open breaker to close.
const RECOVERY_WAIT: Duration = Duration::from_millis(200);
/// Interval at which the monitor starts connecting.
const PROBE_INTERVAL: Duration = Duration::from_millis(150);
/// The same while the breaker is open, so that many servers do not delay a recovery.
const PROBE_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// The breaker of a store, shared by its connections.
#[derive(Default)]
pub(super) struct Breaker {
    /// Why the database cannot be reached; `None` while the breaker is closed.
    outage: watch::Sender<Option<StoreError>>,
    suspicion: Notify,
    /// A transaction has succeeded.
    success: Notify,
    /// Time that the last connection took to open.
    connect_ms: AtomicU64,
}

impl Breaker {
    /// Fails if the breaker is open.
    pub(super) fn check_now(&self) -> Result<()> {
        self.outage.borrow().clone().map_or(Ok(()), Err)
    }

    /// Fails if the breaker is open and stays so for a moment.
    pub(super) async fn check(&self) -> Result<()> {
        let Err(error) = self.check_now() else { return Ok(()) };
        let mut outage = self.outage.subscribe();
        let closed = tokio::time::timeout(RECOVERY_WAIT, outage.wait_for(Option::is_none)).await;
        if closed.is_ok() { Ok(()) } else { Err(error) }
    }

    /// Completes when the breaker is open.
    pub(super) async fn opened(&self) -> StoreError {
        let mut outage = self.outage.subscribe();
        // The sender is not dropped while `self` is borrowed.
        let error = outage.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        error.unwrap_or_else(|| StoreError::unavailable("the store is closing"))
    }

    /// Awaits a transaction until the breaker opens. The monitor checks the database while it
    /// takes long.
    pub(super) async fn watch<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let suspect = async {
            loop {
                tokio::time::sleep(SUSPICION_AFTER).await;
                self.suspicion.notify_one();
            }
        };
        tokio::select! {
            result = work => {
                if result.is_ok() {
                    self.success.notify_waiters();
                }
                result
            }
            error = self.opened() => Err(error),
            () = suspect => Err(StoreError::unavailable("the store is closing")),
        }
    }

    /// Records the time that a new connection took.
    pub(super) fn record_connect(&self, took: Duration) {
        let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.connect_ms.store(took, Ordering::Relaxed);
    }

    fn outage_after(&self) -> Duration {
        let connect = Duration::from_millis(self.connect_ms.load(Ordering::Relaxed));
        OUTAGE_AFTER.max(connect * CONNECT_TIME_FACTOR)
    }

    fn open(&self, error: &StoreError) {
        self.outage.send_if_modified(|outage| {
            let opens = outage.is_none();
            if opens {
                tracing::warn!(%error, "database cannot be reached; requests fail until it can");
                *outage = Some(error.clone());
            }
            opens
        });
    }

    fn close(&self) {
        if self.outage.send_replace(None).is_some() {
            tracing::info!("database can be reached again");
        }
    }
}

/// Checks the database whenever a transaction takes long, and opens and closes the breaker.
pub(super) async fn monitor(connector: Connector) {
    let breaker = Arc::clone(&connector.breaker);
    loop {
        breaker.suspicion.notified().await;
        tokio::select! {
            () = until_reachable(&connector) => {}
            // A transaction has succeeded.
            () = breaker.success.notified() => {}
        }
        breaker.close();
    }
}

/// Connects until it works, and opens the breaker meanwhile. Short probes notice a recovery early;
/// a long one lets a slow database finish.
async fn until_reachable(connector: &Connector) {
    let breaker = &connector.breaker;
    let started = stopwatch();
    let unanswered = || StoreError::unavailable("the database does not answer");
    let (mut last_error, mut short) = (None, JoinSet::new());
    let mut long = pin!(async {
        loop {
            if probe(connector.clone(), stopwatch()).await.is_ok() {
                return;
            }
            tokio::time::sleep(PROBE_INTERVAL_MAX).await;
        }
    });
    loop {
        let probe = probe(connector.clone(), stopwatch());
        short.spawn(tokio::time::timeout(breaker.outage_after(), probe));
        let interval =
            if breaker.check_now().is_ok() { PROBE_INTERVAL } else { PROBE_INTERVAL_MAX };
        let mut next = pin!(tokio::time::sleep(interval));
        loop {
            tokio::select! {
                () = &mut next => break,
                () = &mut long => return,
                Some(result) = short.join_next() => match result {
                    Ok(Ok(Ok(()))) => return,
                    Ok(Ok(Err(error))) => last_error = Some(error),
                    Ok(Err(_)) => last_error = Some(unanswered()),
                    // A panic in the driver.
                    Err(error) => last_error = Some(StoreError::unavailable(error.to_string())),
                },
            }
        }
        if started.elapsed() >= breaker.outage_after() {
            breaker.open(&last_error.clone().unwrap_or_else(unanswered));
        }
    }
}

/// Connects and runs a query: a pooler accepts connections while the database is gone. A database
/// that refuses this connection for a reason of its own, such as their number, can be reached.
async fn probe(connector: Connector, started: Instant) -> Result<()> {
    let error = match connector.open(connector.config.clone()).await? {
        Ok((client, driver)) => {
            let answered = client.batch_execute("SELECT 1").await;
            driver.abort();
            match answered {
                Ok(()) => {
                    connector.breaker.record_connect(started.elapsed());
                    return Ok(());
                }
                Err(error) => error,
            }
        }
        Err(error) => error,
    };
    // Shutdown and start of the database, and what a pooler says if it cannot reach it.
    let is_outage = |code: &SqlState| ["57P0", "08"].iter().any(|c| code.code().starts_with(c));
    match error.code() {
        Some(code) if !is_outage(code) || indicates_pooler(&error) => Ok(()),
        _ => Err(super::connection::unavailable(error)),
    }
}
