//! Runs the verifier of the core over the history that a store keeps.

use tenure_core::ResourceKey;
use tenure_core::verify::{ChainCheckpoint, Report, Verifier};

use crate::store::{HistoryQuery, PAGE_MAX, Result, Store};

/// How often it reads again when history was pruned meanwhile.
const TRIES_MAX: usize = 3;

/// Reads the whole history, checks it, and compares it with the records of the present: with all of
/// them, so that a history that was removed is missed.
pub async fn verify(store: &dyn Store) -> Result<Report> {
    verify_of(store, None).await
}

/// The same for the resources of one tenant: nothing is said of others.
pub async fn verify_of(store: &dyn Store, tenant: Option<&str>) -> Result<Report> {
    let mut tries = 0;
    loop {
        let mut reading = Reading { verifier: Verifier::default(), position: 0, tenant };
        let bases = bases(store).await?;
        for (key, replay) in &bases {
            if reading.wants(key) {
                reading.verifier.resume(key, replay.clone());
            }
        }
        let report = reading.run(store).await?;
        tries += 1;
        // What was pruned while we read looks as if it was missing.
        if report.problems.is_empty() || tries == TRIES_MAX || self::bases(store).await? == bases {
            return Ok(report);
        }
    }
}

/// What stands in place of pruned history.
async fn bases(store: &dyn Store) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
    let mut all = Vec::new();
    loop {
        let after = all.last().map(|(key, _): &(ResourceKey, ChainCheckpoint)| key.clone());
        let page = store.reads().bases(after, PAGE_MAX).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

struct Reading<'t> {
    verifier: Verifier,
    position: u64,
    tenant: Option<&'t str>,
}

impl Reading<'_> {
    fn wants(&self, key: &ResourceKey) -> bool {
        self.tenant.is_none_or(|tenant| key.tenant() == tenant)
    }

    async fn run(mut self, store: &dyn Store) -> Result<Report> {
        self.catch_up(store).await?;
        let mut after = None;
        loop {
            let keys = store.reads().keys(after, PAGE_MAX).await?;
            for key in &keys {
                if self.wants(key) {
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
                if self.wants(&line.key) {
                    self.verifier.check_line(&line.key, &line.text, line.hash);
                }
            }
        }
    }

    async fn compare(&mut self, store: &dyn Store, key: &ResourceKey) -> Result<()> {
        let Some(shown) = store.reads().show(key).await? else { return Ok(()) };
        if self.verifier.last_entry(key) < shown.record.chain.n {
            // It went on while we read. A line is kept no later than the record that counts it.
            self.catch_up(store).await?;
        }
        if self.verifier.last_entry(key) <= shown.record.chain.n {
            self.verifier.compare(key, &shown.record);
        }
        Ok(())
    }
}
