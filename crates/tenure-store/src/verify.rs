//! Runs the verifier of the core over the history that a store keeps.

use tenure_core::ResourceKey;
use tenure_core::verify::{Report, Verifier};

use crate::store::{HistoryQuery, PAGE_MAX, Result, Store};

/// Reads the whole history, checks it, and compares it with the records of the present: with all of
/// them, so that a history that was removed is missed.
pub async fn verify(store: &dyn Store) -> Result<Report> {
    let mut reading = Reading { verifier: Verifier::default(), position: 0 };
    reading.catch_up(store).await?;
    let mut after = None;
    loop {
        let keys = store.keys(after, PAGE_MAX).await?;
        for key in &keys {
            reading.compare(store, key).await?;
        }
        match keys.last() {
            Some(last) => after = Some(last.clone()),
            None => return Ok(reading.verifier.finish()),
        }
    }
}

struct Reading {
    verifier: Verifier,
    position: u64,
}

impl Reading {
    async fn catch_up(&mut self, store: &dyn Store) -> Result<()> {
        loop {
            let query = HistoryQuery::Scan { after: self.position, limit: PAGE_MAX };
            let lines = store.history(query).await?;
            let Some(last) = lines.last() else { return Ok(()) };
            self.position = last.position;
            for line in &lines {
                self.verifier.line(&line.key, &line.text, line.hash);
            }
        }
    }

    async fn compare(&mut self, store: &dyn Store, key: &ResourceKey) -> Result<()> {
        let Some(shown) = store.show(key).await? else { return Ok(()) };
        if self.verifier.read_up_to(key) < shown.record.chain.n {
            // It went on while we read. A line is kept no later than the record that counts it.
            self.catch_up(store).await?;
        }
        if self.verifier.read_up_to(key) <= shown.record.chain.n {
            self.verifier.compare(key, &shown.record);
        }
        Ok(())
    }
}
