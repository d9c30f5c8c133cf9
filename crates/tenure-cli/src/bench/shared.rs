//! Servers that share a database, both in this process.
//!
//! A server is a store with its committer. Two of them know of each other only through the
//! database, as if they were on two hosts, but have to do with the cores of one.

use std::time::Duration;

use anyhow::Result;
use tenure_store::Committer;

use super::kept::Kept;
use super::servers::Scratch;

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
    /// One server, and nobody whom it could tell anything.
    pub(crate) alone: T,
    /// One server while another listens, and the load on both; nothing if they do not hear each
    /// other.
    pub(crate) two: Option<(T, T)>,
}

/// Measures the same load on one server alone, on one while another listens, and on two.
pub(crate) async fn each<T>(
    kept: &Kept,
    scratch: &Scratch,
    measure: impl AsyncFn(&[Committer]) -> Result<T>,
) -> Result<Shared<T>> {
    let first = server(kept, scratch).await?;
    let mut servers = vec![first];
    let alone = measure(&servers).await?;
    servers.push(server(kept, scratch).await?);
    if !acquainted(&servers).await? {
        return Ok(Shared { alone, two: None });
    }
    let listened = measure(&servers[..1]).await?;
    let split = measure(&servers).await?;
    Ok(Shared { alone, two: Some((listened, split)) })
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
