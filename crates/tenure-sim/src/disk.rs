//! The simulated disk: rows as text, so that a restart reads what production would read.
//!
//! A batch is staged as text when it is applied and becomes durable as a whole when it is flushed.
//! It must never hand out anything that was not flushed.

use std::collections::BTreeMap;

use tenure_core::history::{Entry, Hash, Sealed};
use tenure_core::verify::Verifier;
use tenure_core::{
    Incarnation, Job, JobId, JobState, Millis, Record, ResourceKey, Session, SessionId,
};
use tenure_store::ledger::{Batch, Ledger};

use crate::kinds::kinds;

/// What survives a crash of the server.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    sessions: BTreeMap<SessionId, String>,
    records: BTreeMap<ResourceKey, String>,
    history: BTreeMap<ResourceKey, Vec<(String, Hash)>>,
    /// Jobs that are over, with their resources.
    jobs: BTreeMap<JobId, (ResourceKey, String)>,
    latest: Millis,
}

/// The text of one batch, not yet durable.
#[derive(Clone, Debug, Default)]
pub struct Staged {
    sessions: Vec<(SessionId, Option<String>)>,
    /// Those that must be written, because the history does not tell the change.
    records: Vec<(ResourceKey, String)>,
    history: Vec<(ResourceKey, Sealed)>,
    jobs: Vec<(JobId, ResourceKey, String)>,
}

fn text(row: &impl serde::Serialize) -> String {
    serde_json::to_string(row).expect("rows have no map with odd keys")
}

impl Staged {
    /// Writes down what a batch changed, like the embedded store at its laziest: a row is only
    /// written when it must be.
    #[must_use]
    pub fn of(ledger: &Ledger, batch: &Batch, disk: &Disk) -> Self {
        let world = ledger.world();
        let session = |id: &SessionId| (*id, world.sessions.get(*id).map(text));
        let record = |key: &ResourceKey| {
            let must = batch.untold.contains(key) || !disk.records.contains_key(key);
            let record = world.records.get(key).filter(|_| must)?;
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
        self.records.extend(staged.records);
        for (key, sealed) in staged.history {
            self.latest = self.latest.max(sealed.at);
            self.history.entry(key).or_default().push((sealed.line, sealed.hash));
        }
        for (id, key, job) in staged.jobs {
            self.jobs.insert(id, (key, job));
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
        ledger.declare(kinds(), now);
        for key in self.records.keys() {
            if let Some(record) = self.record(key)?.filter(Record::is_live) {
                ledger.admit(key, Box::new(record), now);
            }
        }
        Ok(ledger)
    }

    /// Puts one kept record into the ledger, if it is not there.
    pub fn admit(&self, ledger: &mut Ledger, key: &ResourceKey, now: Millis) -> Result<(), String> {
        if !ledger.has(key)
            && let Some(record) = self.record(key)?
        {
            ledger.admit(key, Box::new(record), now);
        }
        Ok(())
    }

    /// Puts a job that is over into the ledger, with the record of its resource.
    pub fn recall(&self, ledger: &mut Ledger, id: JobId, now: Millis) -> Result<(), String> {
        if ledger.has_job(id) {
            return Ok(());
        }
        let Some((key, row)) = self.jobs.get(&id) else { return Ok(()) };
        let job: Job = serde_json::from_str(row).map_err(|error| format!("job {id}: {error}"))?;
        self.admit(ledger, key, now)?;
        ledger.recall(key.clone(), Box::new(job));
        Ok(())
    }

    /// The jobs that are over, and how.
    pub fn over(&self) -> Result<BTreeMap<JobId, JobState>, String> {
        let parse = |(id, (_, row)): (&JobId, &(ResourceKey, String))| {
            let job: Job =
                serde_json::from_str(row).map_err(|error| format!("job {id}: {error}"))?;
            Ok((*id, job.state))
        };
        self.jobs.iter().map(parse).collect()
    }

    /// The kept record of a resource, with what its history tells since.
    pub fn record(&self, key: &ResourceKey) -> Result<Option<Record>, String> {
        let Some(row) = self.records.get(key) else { return Ok(None) };
        let bad = |error| format!("record {key}: {error}");
        let mut record: Record = serde_json::from_str(row).map_err(bad)?;
        // What the row knows need not be read.
        let known = usize::try_from(record.chain.n).unwrap_or(usize::MAX);
        for (line, hash) in self.history.get(key).into_iter().flatten().skip(known) {
            record.replay(&Entry::parse(line).map_err(bad)?, *hash);
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
