//! Offline verification: proves from history alone that every lock was exclusive, every token
//! increased and every tenure ended once.
//!
//! The verifier replays the entries of each chain and shares no code with the rules that wrote
//! them, so it can run on a copy. Each problem names the contradicting entries.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::history::{Entry, Event, Hash, chain_hash};
use crate::id::JobId;
use crate::job::Job;
use crate::key::{LockName, LockSet, ResourceKey};
use crate::record::{Record, TenureEnd};
use crate::time::Millis;
use crate::token::Token;

/// A contradiction in the history of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Resource.
    pub key: ResourceKey,
    /// Number of the entry that shows it.
    pub n: u64,
    /// Description, naming the contradicted entry.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entry {}: {}", self.key, self.n, self.what)
    }
}

/// Summary of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Resources with a history.
    pub resources: usize,
    /// Entries read.
    pub entries: u64,
    /// Grants read.
    pub grants: u64,
    /// Jobs that lost their tenure because the store was damaged or restored.
    pub incidents: u64,
    /// Contradictions, at most [`PROBLEMS_MAX`].
    pub problems: Vec<Problem>,
}

/// Maximum number of problems in a report.
pub const PROBLEMS_MAX: usize = 100;

/// Reads histories line by line. Lines of one resource must be in order; resources may be
/// interleaved.
#[derive(Debug, Default)]
pub struct Verifier {
    chains: HashMap<ResourceKey, ChainCheckpoint>,
    report: Report,
}

/// What one line shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedLine {
    /// Number of the entry; 0 if the line cannot be read.
    pub n: u64,
    /// Whether it is a grant.
    pub is_grant: bool,
    /// Whether it is an incident.
    pub is_incident: bool,
    /// Contradictions to the entries before it.
    pub problems: Vec<String>,
}

/// The state that the entries of one resource add up to. A store that prunes entries keeps this in
/// their place, so that the rest can still be verified. It is also all that a verification of a
/// growing history has to remember of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainCheckpoint {
    n: u64,
    head: Hash,
    at: Millis,
    token: Token,
    /// Token and granting entry of each held lock.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    held: BTreeMap<LockName, (Token, u64)>,
    /// Unfinished jobs: number of attempts, and token of the running one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    jobs: BTreeMap<JobId, (u32, Option<Token>)>,
}

impl Verifier {
    /// Checks one line.
    pub fn check_line(&mut self, key: &ResourceKey, line: &str, hash: Hash) {
        let checkpoint =
            self.chains.entry(key.clone()).or_insert_with(|| ChainCheckpoint::new(key));
        let checked = checkpoint.check_line(line, hash);
        self.report.entries += 1;
        self.report.grants += u64::from(checked.is_grant);
        self.report.incidents += u64::from(checked.is_incident);
        for what in checked.problems {
            self.problem(key, checked.n, what);
        }
    }

    /// Starts the history of a resource from a checkpoint left by pruning.
    pub fn resume(&mut self, key: &ResourceKey, checkpoint: ChainCheckpoint) {
        self.chains.entry(key.clone()).or_insert(checkpoint);
    }

    /// Compares the replayed history of a resource with its stored record.
    pub fn compare(&mut self, key: &ResourceKey, record: &Record) {
        let checkpoint =
            self.chains.entry(key.clone()).or_insert_with(|| ChainCheckpoint::new(key));
        let found = checkpoint.differences(record);
        let n = checkpoint.n;
        for what in found {
            self.problem(key, n, what);
        }
    }

    /// Returns the number of the last entry read for a resource.
    #[must_use]
    pub fn last_entry(&self, key: &ResourceKey) -> u64 {
        self.chains.get(key).map_or(0, |checkpoint| checkpoint.n)
    }

    /// Returns the report.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.report.resources = self.chains.len();
        self.report
    }

    fn problem(&mut self, key: &ResourceKey, n: u64, what: String) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(Problem { key: key.clone(), n, what });
        }
    }
}

impl ChainCheckpoint {
    /// Returns the checkpoint before the first entry.
    #[must_use]
    pub fn new(key: &ResourceKey) -> Self {
        let genesis = crate::history::Chain::genesis(key);
        Self {
            n: genesis.n,
            head: genesis.head,
            at: Millis::default(),
            token: Token::default(),
            held: BTreeMap::new(),
            jobs: BTreeMap::new(),
        }
    }

    /// Returns the number of the last entry read.
    #[must_use]
    pub fn last_entry(&self) -> u64 {
        self.n
    }

    /// Returns the hash of the last entry read.
    #[must_use]
    pub fn head(&self) -> Hash {
        self.head
    }

    /// Returns the highest token read.
    #[must_use]
    pub fn last_token(&self) -> Token {
        self.token
    }

    /// Returns the checkpoint before the first entry of a resource that was forgotten and is used
    /// again: its tokens still have to exceed the last one.
    #[must_use]
    pub fn after_forgotten(key: &ResourceKey, last: Token) -> Self {
        Self { token: last, ..Self::new(key) }
    }

    /// Folds in a line that is about to be pruned. Does not report contradictions; a verification
    /// does.
    pub fn fold(&mut self, line: &str, hash: Hash) -> Result<(), serde_json::Error> {
        self.check_entry(&Entry::parse(line)?, line, hash);
        Ok(())
    }

    /// Checks the next line of the resource. Continues after a contradiction with what the line
    /// says, so that one edit is not reported for each later line. A line that cannot be read
    /// changes nothing.
    pub fn check_line(&mut self, line: &str, hash: Hash) -> CheckedLine {
        let entry = match Entry::parse(line) {
            Ok(entry) => entry,
            Err(error) => {
                let problems = vec![format!("cannot be read: {error}")];
                return CheckedLine { problems, ..CheckedLine::default() };
            }
        };
        CheckedLine {
            n: entry.n,
            is_grant: matches!(entry.event, Event::Granted { .. }),
            is_incident: matches!(entry.event, Event::Incident { .. }),
            problems: self.check_entry(&entry, line, hash),
        }
    }

    fn check_entry(&mut self, entry: &Entry, line: &str, hash: Hash) -> Vec<String> {
        let mut found = Vec::new();
        if entry.n != self.n + 1 {
            found.push(format!("follows entry {}: entries are missing or out of order", self.n));
        }
        if hash != chain_hash(self.head, line) {
            found.push("its hash does not follow from the entry before: it was edited".to_owned());
        }
        if entry.at < self.at {
            found.push(format!("is dated before entry {}", self.n));
        }
        (self.n, self.head, self.at) = (entry.n, hash, entry.at);
        match &entry.event {
            Event::Granted { locks, token, .. } => self.check_grant(locks, *token, &mut found),
            Event::Ended { locks, token, how, .. } => {
                self.check_end(locks, *token, how, &mut found);
            }
            Event::Fenced { token, .. } => self.check_fenced(*token, &mut found),
            Event::Observed { token, .. } => self.check_observed(*token, &mut found),
            _ => {}
        }
        if let Some(id) = entry.event.job() {
            self.check_job(id, &entry.event, &mut found);
        }
        found
    }

    /// Checks that what an entry states about a job follows from the entries before it.
    fn check_job(&mut self, id: JobId, event: &Event, found: &mut Vec<String>) {
        let name = event.as_str();
        let tracked = self.jobs.get(&id).copied();
        match (event, tracked) {
            (Event::Submitted { .. }, None) => {
                self.jobs.insert(id, (0, None));
            }
            (Event::Submitted { .. }, Some(_)) => found.push(format!("job {id} enters twice")),
            // Finished jobs are not tracked.
            (Event::Redriven { .. } | Event::Discarded { .. }, None) => {}
            (Event::TimerFired { .. }, _) => {}
            (Event::Granted { job: Some(started), token, .. }, Some((attempts, None))) => {
                if started.attempt != attempts + 1 {
                    let n = started.attempt;
                    found.push(format!("job {id} begins attempt {n} after attempt {attempts}"));
                }
                self.jobs.insert(id, (started.attempt, Some(*token)));
            }
            (Event::Ended { job: Some(completed), token, .. }, Some((attempts, Some(running)))) => {
                if running != *token {
                    found.push(format!(
                        "job {id} ends its attempt with token {token}, but it runs with {running}"
                    ));
                }
                let counted = completed.outcome.is_counted();
                let attempts = if counted { attempts } else { attempts.saturating_sub(1) };
                self.jobs.insert(id, (attempts, None));
                if completed.job_state.is_finished() {
                    self.jobs.remove(&id);
                }
            }
            (Event::Attached { .. }, Some(_)) | (Event::Cancelled { .. }, Some((_, Some(_)))) => {}
            (Event::Superseded { .. } | Event::Cancelled { .. }, Some((_, None)))
            | (Event::NotStarted { .. }, Some((0, None)))
            | (Event::Incident { .. }, Some((_, None))) => {
                self.jobs.remove(&id);
            }
            (Event::Incident { .. }, Some((_, Some(token)))) => {
                // The entry itself states that the tenure no longer exists.
                self.held.retain(|_, (holder, _)| *holder != token);
                self.jobs.remove(&id);
            }
            (_, None) => {
                found.push(format!("job {id} is {name}, but it has finished or never existed"));
            }
            (_, Some((_, None))) => found.push(format!("job {id} is {name}, but it does not run")),
            (_, Some((_, Some(_)))) => found.push(format!("job {id} is {name} while it runs")),
        }
    }

    fn check_grant(&mut self, locks: &LockSet, token: Token, found: &mut Vec<String>) {
        if token <= self.token {
            found.push(format!("token {token} does not exceed the earlier token {}", self.token));
        }
        self.token = self.token.max(token);
        for lock in locks {
            if let Some((holder, n)) = self.held.insert(lock.clone(), (token, self.n)) {
                found.push(format!(
                    "lock {lock} is granted with token {token} while token {holder} holds it since \
                     entry {n}: two tenures at once"
                ));
            }
        }
    }

    fn check_end(
        &mut self,
        locks: &LockSet,
        token: Token,
        how: &TenureEnd,
        found: &mut Vec<String>,
    ) {
        for lock in locks {
            match self.held.remove(lock) {
                Some((holder, _)) if holder == token => {}
                Some((holder, n)) => {
                    found.push(format!(
                        "lock {lock} is {} with token {token}, but token {holder} holds it since \
                         entry {n}",
                        how.as_str()
                    ));
                    self.held.insert(lock.clone(), (holder, n));
                }
                None => found.push(format!(
                    "lock {lock} is {} with token {token}, but it was not held",
                    how.as_str()
                )),
            }
        }
    }

    fn check_fenced(&self, token: Token, found: &mut Vec<String>) {
        if self.held.values().any(|(holder, _)| *holder == token) {
            found.push(format!("a write with token {token} was refused although it held a lock"));
        }
    }

    fn check_observed(&self, token: Token, found: &mut Vec<String>) {
        if self.held.values().all(|(holder, _)| *holder != token) {
            found.push(format!("status was written with token {token}, which held no lock"));
        }
    }

    /// Compares the entries read with the stored record. Returns the contradictions.
    #[must_use]
    pub fn differences(&self, record: &Record) -> Vec<String> {
        let mut found = Vec::new();
        if (record.chain.n, record.chain.head) != (self.n, self.head) {
            let n = record.chain.n;
            found
                .push(format!("the record says its history ends with entry {n}: some are missing"));
        }
        let holds = |lock: &LockName, token: Token| {
            self.held.get(lock).is_some_and(|(holder, _)| *holder == token)
        };
        for tenure in record.tenures.iter().filter(|t| !holds(&t.lock, t.token)) {
            let (lock, token) = (&tenure.lock, tenure.token);
            found.push(format!("token {token} holds lock {lock}, but no entry granted it"));
        }
        for (lock, (token, n)) in &self.held {
            if record.tenure(lock).is_none_or(|tenure| tenure.token != *token) {
                found.push(format!(
                    "entry {n} granted lock {lock} with token {token}, and no entry ends it"
                ));
            }
        }
        let recorded = |job: &Job| (job.attempt, job.token());
        for job in record.lane().iter().filter(|job| self.jobs.get(&job.id) != Some(&recorded(job)))
        {
            let (id, state) = (job.id, job.state.as_str());
            found.push(format!("job {id} is {state}, which does not follow from the entries"));
        }
        for id in self.jobs.keys().filter(|id| record.job(**id).is_none()) {
            found.push(format!("job {id} is missing, and no entry ends it"));
        }
        found
    }
}
