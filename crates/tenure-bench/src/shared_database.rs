//! Two servers on one database, both in this process.
//!
//! A server is a store with its committer. The two communicate only through the database, as if
//! they were on two hosts, but share the cores of one.

use std::time::Duration;

use anyhow::Result;
use tenure_store::Committer;

use crate::servers::Scratch;
use crate::store_args::StoreArgs;

/// Time limit for the first notification.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval of polling for it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which servers, which announce themselves once a second, know each other.
const DISCOVERY_TIME: Duration = Duration::from_millis(2_500);

/// Note for a run in which two servers cannot be measured.
pub(crate) const NO_NOTIFICATIONS: &str = "two servers were not measured: notifications are not \
    received; `tenure doctor` reports the cause";

/// Results of servers that share a database.
pub(crate) struct SharedResults<T> {
    /// One server alone.
    pub(crate) alone: T,
    /// With a second server; `None` if notifications are not received.
    pub(crate) two: Option<TwoServerResults<T>>,
}

/// Results with a second server.
pub(crate) struct TwoServerResults<T> {
    /// The load is on the first; the second replicates without notifications.
    pub(crate) without_notifications: T,
    /// The load is on the first, which sends notifications to the second.
    pub(crate) with_notifications: T,
    /// The load is on both.
    pub(crate) split: T,
}

impl<T> TwoServerResults<T> {
    /// Returns the label, the result and the ratio of each measurement.
    pub(crate) fn rows(
        &self,
        alone: &T,
        rate: impl Fn(&T) -> f64,
    ) -> [(&'static str, &T, String); 3] {
        let ratio = |of: &T, to: &T, name: &str| format!("{:.2}× of {name}", rate(of) / rate(to));
        let one = "one server alone";
        [
            (
                "second server replicates, no notifications",
                &self.without_notifications,
                ratio(&self.without_notifications, alone, one),
            ),
            (
                "second server replicates, notifications",
                &self.with_notifications,
                ratio(&self.with_notifications, &self.without_notifications, "no notifications"),
            ),
            ("two servers", &self.split, ratio(&self.split, alone, one)),
        ]
    }
}

/// Measures the same load on one server alone, on one with a second replicating, and on both.
pub(crate) async fn measure_each<T>(
    store: &StoreArgs,
    scratch: &Scratch,
    measure: impl AsyncFn(&[Committer]) -> Result<T>,
) -> Result<SharedResults<T>> {
    let first = Committer::start(store.open_without_notifications(scratch).await?);
    let alone = measure(std::slice::from_ref(&first)).await?;
    let second = start_server(store, scratch).await?;
    if !wait_for_discovery(std::slice::from_ref(&second)).await? {
        return Ok(SharedResults { alone, two: None });
    }
    let without_notifications = measure(&[first]).await?;
    let servers = [start_server(store, scratch).await?, second];
    if !wait_for_discovery(&servers).await? {
        return Ok(SharedResults { alone, two: None });
    }
    let with_notifications = measure(&servers[..1]).await?;
    let split = measure(&servers).await?;
    Ok(SharedResults {
        alone,
        two: Some(TwoServerResults { without_notifications, with_notifications, split }),
    })
}

/// Starts a server.
async fn start_server(store: &StoreArgs, scratch: &Scratch) -> Result<Committer> {
    Ok(Committer::start(store.open(scratch).await?))
}

/// Waits until all servers know each other. Returns whether they do.
async fn wait_for_discovery(servers: &[Committer]) -> Result<bool> {
    let receiving = async {
        for server in servers {
            while server.store().status().await?.wakeups != Some(true) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(NOTIFICATION_TIMEOUT, receiving).await {
        Ok(received) => received?,
        Err(_) => return Ok(false),
    }
    tokio::time::sleep(DISCOVERY_TIME).await;
    Ok(true)
}
