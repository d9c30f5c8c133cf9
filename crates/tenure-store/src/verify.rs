//! Runs the verifier of the core over the history that a store keeps.

use std::collections::HashSet;

use tenure_core::ResourceKey;
use tenure_core::verify::{Report, Verifier};

use crate::store::{HistoryQuery, PAGE_MAX, Result, Store};

/// Reads the whole history, checks it, and compares it with the records of the present.
pub async fn verify(store: &dyn Store) -> Result<Report> {
    let mut reading = Reading { verifier: Verifier::default(), keys: HashSet::new(), position: 0 };
    reading.catch_up(store).await?;
    let keys: Vec<_> = reading.keys.iter().cloned().collect();
    for key in keys {
        let Some(shown) = store.show(&key).await? else { continue };
        if reading.verifier.read_up_to(&key) < shown.record.chain.n {
            // It went on while we read. A line is kept no later than the record that counts it.
            reading.catch_up(store).await?;
        }
        if reading.verifier.read_up_to(&key) <= shown.record.chain.n {
            reading.verifier.compare(&key, &shown.record);
        }
    }
    Ok(reading.verifier.finish())
}

struct Reading {
    verifier: Verifier,
    keys: HashSet<ResourceKey>,
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
                self.keys.insert(line.key.clone());
                self.verifier.line(&line.key, &line.text, line.hash);
            }
        }
    }
}
