//! The simulated disk: rows as text, so that a restart reads what production would read.
//!
//! A batch is staged as text when it is applied and becomes durable as a whole when it is flushed.
//! It must never hand out anything that was not flushed.

use std::collections::BTreeMap;

use tenure_core::history::{Entry, Hash, Sealed};
use tenure_core::verify::Verifier;
use tenure_core::{Incarnation, Millis, Record, ResourceKey, Session, SessionId};
use tenure_store::ledger::{Batch, Ledger};

/// What survives a crash of the server.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    sessions: BTreeMap<SessionId, String>,
    records: BTreeMap<ResourceKey, String>,
    history: BTreeMap<ResourceKey, Vec<(String, Hash)>>,
    latest: Millis,
}

/// The text of one batch, not yet durable.
#[derive(Clone, Debug, Default)]
pub struct Staged {
    sessions: Vec<(SessionId, Option<String>)>,
    /// With whether the history does not tell the change, so that the row must be written.
    records: Vec<(ResourceKey, bool, String)>,
    history: Vec<(ResourceKey, Sealed)>,
}

fn text(row: &impl serde::Serialize) -> String {
    serde_json::to_string(row).expect("rows have no map with odd keys")
}

impl Staged {
    /// Writes down what a batch changed.
    #[must_use]
    pub fn of(ledger: &Ledger, batch: &Batch) -> Self {
        let world = ledger.world();
        let session = |id: &SessionId| (*id, world.sessions.get(*id).map(text));
        let record = |key: &ResourceKey| {
            let record = world.records.get(key)?;
            Some((key.clone(), batch.untold.contains(key), text(record)))
        };
        Self {
            sessions: batch.sessions.iter().map(session).collect(),
            records: batch.records.iter().filter_map(record).collect(),
            history: batch.history.clone(),
        }
    }
}

impl Disk {
    /// Makes a batch durable, all of it.
    pub fn flush(&mut self, staged: Staged) {
        for (id, row) in staged.sessions {
            match row {
                Some(row) => drop(self.sessions.insert(id, row)),
                None => drop(self.sessions.remove(&id)),
            }
        }
        // Like the embedded store at its laziest: a row is only written when it must be.
        for (key, untold, row) in staged.records {
            if untold || !self.records.contains_key(&key) {
                self.records.insert(key, row);
            }
        }
        for (key, sealed) in staged.history {
            self.latest = self.latest.max(sealed.at);
            self.history.entry(key).or_default().push((sealed.line, sealed.hash));
        }
    }

    /// The latest instant that the history knows of.
    #[must_use]
    pub fn latest(&self) -> Millis {
        self.latest
    }

    /// What a server that starts at `now` has in memory.
    pub fn load(&self, now: Millis) -> Result<Ledger, String> {
        let parse = |row: &String| serde_json::from_str(row).map_err(|e| format!("session: {e}"));
        let sessions: Result<Vec<Session>, _> = self.sessions.values().map(parse).collect();
        let mut ledger = Ledger::load(Incarnation::default(), sessions?, now);
        for key in self.records.keys() {
            if self.record(key)?.is_some_and(|record| record.is_live()) {
                self.admit(&mut ledger, key)?;
            }
        }
        Ok(ledger)
    }

    /// Puts one kept record into the ledger, if it is not there.
    pub fn admit(&self, ledger: &mut Ledger, key: &ResourceKey) -> Result<(), String> {
        if !ledger.has(key)
            && let Some(record) = self.record(key)?
        {
            ledger.admit(key, record);
        }
        Ok(())
    }

    /// The kept record of a resource, with what its history tells since.
    pub fn record(&self, key: &ResourceKey) -> Result<Option<Record>, String> {
        let Some(row) = self.records.get(key) else { return Ok(None) };
        let bad = |error| format!("record {key}: {error}");
        let mut record: Record = serde_json::from_str(row).map_err(bad)?;
        for (line, hash) in self.history.get(key).into_iter().flatten() {
            record.replay(Entry::parse(line).map_err(bad)?, *hash);
        }
        Ok(Some(record))
    }

    /// How many sessions are kept.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Proves the kept history and compares it with the kept records.
    pub fn verify(&self) -> Result<(), String> {
        let mut verifier = Verifier::default();
        for (key, lines) in &self.history {
            lines.iter().for_each(|(line, hash)| verifier.line(key, line, *hash));
        }
        for key in self.records.keys() {
            if let Some(record) = self.record(key)? {
                verifier.compare(key, &record);
            }
        }
        match verifier.finish().problems.first() {
            Some(problem) => Err(problem.to_string()),
            None => Ok(()),
        }
    }
}
