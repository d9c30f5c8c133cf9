//! The simulated disk: serialized rows, so that a restart reads what production would read.
//!
//! A batch is serialized when it is applied and becomes durable as a whole when it is flushed.
//! Reads must never return anything that was not flushed.

use std::collections::BTreeMap;

use tenure_core::history::{Entry, Hash, SealedEntry};
use tenure_core::verify::Verifier;
use tenure_core::{
    Incarnation, Job, JobId, JobState, Millis, Record, ResourceKey, Session, SessionId,
};
use tenure_store::ledger::{Batch, Ledger};

use crate::kinds::kinds;

/// State that survives a server crash.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    sessions: BTreeMap<SessionId, String>,
    records: BTreeMap<ResourceKey, String>,
    history: BTreeMap<ResourceKey, Vec<(String, Hash)>>,
    /// Ended jobs with their resources.
    jobs: BTreeMap<JobId, (ResourceKey, String)>,
    /// Token floors of forgotten resources.
    floors: Option<String>,
    latest: Millis,
}

/// The serialized rows of one batch, not yet durable.
#[derive(Clone, Debug, Default)]
pub struct Staged {
    sessions: Vec<(SessionId, Option<String>)>,
    /// Records that must be written, because history does not contain the change.
    records: Vec<(ResourceKey, String)>,
    history: Vec<(ResourceKey, SealedEntry)>,
    jobs: Vec<(JobId, ResourceKey, String)>,
    /// Resources of which everything is deleted before the rest is written.
    forgotten: Vec<ResourceKey>,
    /// Token floors, if they have changed.
    floors: Option<String>,
}

fn text(row: &impl serde::Serialize) -> String {
    serde_json::to_string(row).expect("rows have no maps with non-string keys")
}

impl Staged {
    /// Serializes the changes of a batch. Like the embedded store it writes a record only when
    /// history alone cannot restore it.
    #[must_use]
    pub fn from_batch(ledger: &Ledger, batch: &Batch, disk: &Disk) -> Self {
        let world = ledger.world();
        let session = |id: &SessionId| (*id, world.sessions.get(*id).map(text));
        let forgotten: Vec<_> = batch.forgotten.iter().map(|(key, _)| key.clone()).collect();
        let record = |key: &ResourceKey| {
            let is_new = !disk.records.contains_key(key) || forgotten.contains(key);
            let must_write = batch.unreplayable.contains(key) || is_new;
            let record = world.records.get(key).filter(|_| must_write)?;
            Some((key.clone(), text(record)))
        };
        Self {
            sessions: batch.sessions.iter().map(session).collect(),
            records: batch.records.iter().filter_map(record).collect(),
            history: batch.history.clone(),
            jobs: batch
                .finished
                .iter()
                .map(|(key, job)| (job.id, key.clone(), text(job)))
                .collect(),
            floors: (!forgotten.is_empty()).then(|| text(&world.floors)),
            forgotten,
        }
    }
}

impl Disk {
    /// Makes a whole batch durable.
    pub fn flush(&mut self, staged: Staged) {
        for key in &staged.forgotten {
            self.records.remove(key);
            self.history.remove(key);
            self.jobs.retain(|_, (of, _)| of != key);
        }
        self.floors = staged.floors.or(self.floors.take());
        for (id, row) in staged.sessions {
            match row {
                Some(row) => drop(self.sessions.insert(id, row)),
                None => drop(self.sessions.remove(&id)),
            }
        }
        self.records.extend(staged.records);
        for (key, sealed) in staged.history {
            self.latest = self.latest.max(sealed.at);
            self.history.entry(key).or_default().push((sealed.line, sealed.hash));
        }
        for (id, key, job) in staged.jobs {
            self.jobs.insert(id, (key, job));
        }
    }

    /// Returns the latest instant in history.
    #[must_use]
    pub fn latest(&self) -> Millis {
        self.latest
    }

    /// Loads the ledger of a server that starts at `now`.
    pub fn load(&self, now: Millis) -> Result<Ledger, String> {
        let parse = |row: &String| serde_json::from_str(row).map_err(|e| format!("session: {e}"));
        let sessions: Result<Vec<Session>, _> = self.sessions.values().map(parse).collect();
        let mut ledger = Ledger::load(Incarnation::default(), sessions?, now);
        ledger.declare(kinds(), now);
        if let Some(floors) = &self.floors {
            let floors = serde_json::from_str(floors).map_err(|e| format!("floors: {e}"))?;
            ledger.set_floors(floors);
        }
        for key in self.records.keys() {
            if let Some(record) = self.record(key)?.filter(Record::is_live) {
                ledger.insert_record(key, Box::new(record), now);
            }
        }
        Ok(ledger)
    }

    /// Loads a stored record into the ledger, if it is not there.
    pub fn admit(&self, ledger: &mut Ledger, key: &ResourceKey, now: Millis) -> Result<(), String> {
        if !ledger.has_record(key)
            && let Some(record) = self.record(key)?
        {
            ledger.insert_record(key, Box::new(record), now);
        }
        Ok(())
    }

    /// Loads an ended job into the ledger, with the record of its resource.
    pub fn load_job(&self, ledger: &mut Ledger, id: JobId, now: Millis) -> Result<(), String> {
        if ledger.has_live_job(id) {
            return Ok(());
        }
        let Some((key, row)) = self.jobs.get(&id) else { return Ok(()) };
        let job: Job = serde_json::from_str(row).map_err(|error| format!("job {id}: {error}"))?;
        self.admit(ledger, key, now)?;
        ledger.insert_finished_job(key.clone(), Box::new(job));
        Ok(())
    }

    /// Returns the ended jobs with their final states.
    pub fn ended_jobs(&self) -> Result<BTreeMap<JobId, JobState>, String> {
        let parse = |(id, (_, row)): (&JobId, &(ResourceKey, String))| {
            let job: Job =
                serde_json::from_str(row).map_err(|error| format!("job {id}: {error}"))?;
            Ok((*id, job.state))
        };
        self.jobs.iter().map(parse).collect()
    }

    /// Returns the stored record of a resource, with later history entries replayed.
    pub fn record(&self, key: &ResourceKey) -> Result<Option<Record>, String> {
        let Some(row) = self.records.get(key) else { return Ok(None) };
        let bad = |error| format!("record {key}: {error}");
        let mut record: Record = serde_json::from_str(row).map_err(bad)?;
        // The row already contains these entries.
        let known = usize::try_from(record.chain.n).unwrap_or(usize::MAX);
        for (line, hash) in self.history.get(key).into_iter().flatten().skip(known) {
            record.replay(&Entry::parse(line).map_err(bad)?, *hash);
        }
        Ok(Some(record))
    }

    /// Returns the number of stored sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Verifies the stored history and compares it with the stored records.
    pub fn verify(&self) -> Result<(), String> {
        let mut verifier = Verifier::default();
        for (key, lines) in &self.history {
            lines.iter().for_each(|(line, hash)| verifier.check_line(key, line, *hash));
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
