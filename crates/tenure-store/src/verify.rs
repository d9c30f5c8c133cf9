//! Runs the verifier of the core over the history of a store: all of it on demand, in this file, or
//! as it grows, in [`incremental`].

mod chain_cache;
mod chain_read;
pub mod incremental;

use tenure_core::ResourceKey;
use tenure_core::verify::{ChainCheckpoint, Report, Verifier};

use crate::store::{HistoryQuery, PAGE_MAX, Result, Store};

/// Maximum number of passes if history is pruned during a pass.
const TRIES_MAX: usize = 3;

/// Verifies the whole history and compares it with the current records. All records are compared,
/// so that a removed history is detected.
pub async fn verify(store: &dyn Store) -> Result<Report> {
    verify_tenant(store, None).await
}

/// Verifies the resources of one tenant, or of all tenants if `tenant` is `None`.
pub async fn verify_tenant(store: &dyn Store, tenant: Option<&str>) -> Result<Report> {
    let mut tries = 0;
    loop {
        let mut pass = Pass { verifier: Verifier::default(), position: 0, tenant };
        let checkpoints = read_checkpoints(store).await?;
        for (key, replay) in &checkpoints {
            if pass.includes(key) {
                pass.verifier.resume(key, replay.clone());
            }
        }
        let report = pass.run(store).await?;
        tries += 1;
        // Lines that were pruned during the pass are reported as missing: try again.
        if report.problems.is_empty()
            || tries == TRIES_MAX
            || read_checkpoints(store).await? == checkpoints
        {
            return Ok(report);
        }
    }
}

/// Reads the checkpoints of pruned history.
async fn read_checkpoints(store: &dyn Store) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
    let mut all = Vec::new();
    loop {
        let after = all.last().map(|(key, _): &(ResourceKey, ChainCheckpoint)| key.clone());
        let page = store.reads().checkpoints(after, PAGE_MAX).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// One pass over history and records.
struct Pass<'t> {
    verifier: Verifier,
    position: u64,
    tenant: Option<&'t str>,
}

impl Pass<'_> {
    fn includes(&self, key: &ResourceKey) -> bool {
        self.tenant.is_none_or(|tenant| key.tenant() == tenant)
    }

    async fn run(mut self, store: &dyn Store) -> Result<Report> {
        self.catch_up(store).await?;
        let mut after = None;
        loop {
            let keys = store.reads().keys(after, PAGE_MAX).await?;
            for key in &keys {
                if self.includes(key) {
                    self.compare(store, key).await?;
                }
            }
            match keys.last() {
                Some(last) => after = Some(last.clone()),
                None => return Ok(self.verifier.finish()),
            }
        }
    }

    async fn catch_up(&mut self, store: &dyn Store) -> Result<()> {
        loop {
            let query = HistoryQuery::Scan { after: self.position, limit: PAGE_MAX };
            let lines = store.reads().history(query).await?;
            let Some(last) = lines.last() else { return Ok(()) };
            self.position = last.position;
            for line in &lines {
                if self.includes(&line.key) {
                    self.verifier.check_line(&line.key, &line.text, line.hash);
                }
            }
        }
    }

    async fn compare(&mut self, store: &dyn Store, key: &ResourceKey) -> Result<()> {
        let Some(detail) = store.reads().show(key).await? else { return Ok(()) };
        if self.verifier.last_entry(key) < detail.record.chain.n {
            // The resource changed during the pass. A line is visible no later than the record that
            // counts it.
            self.catch_up(store).await?;
        }
        if self.verifier.last_entry(key) <= detail.record.chain.n {
            self.verifier.compare(key, &detail.record);
        }
        Ok(())
    }
}
