//! Memory usage of held locks.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use tenure_core::{Command, Outcome, RequestId, ResourceKey, SessionId};
use tenure_store::Store;

use crate::local::{acquire, open};

/// Number of locks held by one session.
const LOCKS_PER_SESSION: usize = 1_000;

/// Acquires `count` locks and returns the growth of this process in bytes.
pub(crate) async fn growth(store: Arc<dyn Store>, count: usize) -> Result<u64> {
    let before = resident_bytes()?;
    for from in (0..count).step_by(LOCKS_PER_SESSION) {
        let session = SessionId(1 << 64 | from as u128);
        let mut batch: Vec<Command> = vec![open(session)];
        for n in from..(from + LOCKS_PER_SESSION).min(count) {
            let key = ResourceKey::new("bench", "cluster", &format!("held-{n:07}"))?;
            batch.push(acquire(&key, session, RequestId(1 << 65 | n as u128), 0));
        }
        let outcomes = store.apply(batch).await?;
        let granted = outcomes.iter().filter(|o| matches!(o, Outcome::Granted(_))).count();
        ensure!(granted == outcomes.len() - 1, "not all locks were granted");
    }
    let held = store.status().await?.live;
    ensure!(held == count, "{held} locks are held, expected {count}");
    Ok(resident_bytes()?.saturating_sub(before))
}

/// Returns the resident set size of this process in bytes.
fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").context("read /proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).context("find the resident pages")?;
    Ok(pages.parse::<u64>()? * rustix::param::page_size() as u64)
}
