//! Servers that share a database, both in this process.
//!
//! A server is a store with its committer. Two of them know of each other only through the
//! database, as if they were on two hosts, but have to do with the cores of one.

use std::time::Duration;

use anyhow::Result;
use tenure_store::Committer;

use crate::kept::Kept;
use crate::servers::Scratch;

/// How long notifications may take until they come through.
const HEARD_MAX: Duration = Duration::from_secs(15);
/// How often to see whether they do.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Servers say hello once a second: after so long each knows of the other.
const HELLOS: Duration = Duration::from_millis(2_500);

/// What to say when two servers cannot be measured.
pub(crate) const DEAF: &str = "two servers were not measured: notifications do not come through; \
                               `tenure doctor` says why";

/// What was measured of servers that share a database.
pub(crate) struct Shared<T> {
    /// One server, and no other there.
    pub(crate) alone: T,
    /// With another one; nothing if they do not hear each other.
    pub(crate) two: Option<Two<T>>,
}

/// What was measured with a second server.
pub(crate) struct Two<T> {
    /// The second follows what the first does; the first tells it nothing.
    pub(crate) untold: T,
    /// The first also sends notifications.
    pub(crate) told: T,
    /// The load is on both.
    pub(crate) split: T,
}

impl<T> Two<T> {
    /// What was measured, what to call it, and the sort of ratio that tells something.
    pub(crate) fn rows(
        &self,
        alone: &T,
        rate: impl Fn(&T) -> f64,
    ) -> [(&'static str, &T, String); 3] {
        let against = |of: &T, to: &T, name: &str| format!("{:.2}× of {name}", rate(of) / rate(to));
        let one = "one server alone";
        [
            ("a second follows, no notifications", &self.untold, against(&self.untold, alone, one)),
            (
                "a second follows, notifications",
                &self.told,
                against(&self.told, &self.untold, "no notifications"),
            ),
            ("two servers", &self.split, against(&self.split, alone, one)),
        ]
    }
}

/// Measures the same load on one server alone, on one while another follows, and on two.
pub(crate) async fn each<T>(
    kept: &Kept,
    scratch: &Scratch,
    measure: impl AsyncFn(&[Committer]) -> Result<T>,
) -> Result<Shared<T>> {
    let mute = Committer::start(kept.open_deaf(scratch).await?);
    let alone = measure(std::slice::from_ref(&mute)).await?;
    let second = server(kept, scratch).await?;
    if !acquainted(std::slice::from_ref(&second)).await? {
        return Ok(Shared { alone, two: None });
    }
    let untold = measure(&[mute]).await?;
    let servers = [server(kept, scratch).await?, second];
    if !acquainted(&servers).await? {
        return Ok(Shared { alone, two: None });
    }
    let told = measure(&servers[..1]).await?;
    let split = measure(&servers).await?;
    Ok(Shared { alone, two: Some(Two { untold, told, split }) })
}

/// A server of its own.
async fn server(kept: &Kept, scratch: &Scratch) -> Result<Committer> {
    Ok(Committer::start(kept.open(scratch).await?))
}

/// Waits until all know of each other. Says whether they do.
async fn acquainted(servers: &[Committer]) -> Result<bool> {
    let hearing = async {
        for server in servers {
            while server.store().status().await?.wakeups != Some(true) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(HEARD_MAX, hearing).await {
        Ok(heard) => heard?,
        Err(_) => return Ok(false),
    }
    tokio::time::sleep(HELLOS).await;
    Ok(true)
}
