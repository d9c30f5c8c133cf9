//! Proof from history alone: was every lock exclusive, did every token rise, did every tenure end
//! once?
//!
//! The verifier replays the lines of history, chain by chain, and knows nothing of the code that
//! wrote them. It reads what a resource's chain says and nothing else, so it can run offline, on a
//! copy. A problem it finds comes with the lines that prove it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::history::{Entry, Event, Hash, link};
use crate::id::JobId;
use crate::job::{AttemptOutcome, Job};
use crate::key::{LockName, LockSet, ResourceKey};
use crate::record::{How, Record};
use crate::time::Millis;
use crate::token::Token;

/// A contradiction in the history of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The resource.
    pub key: ResourceKey,
    /// The number of the entry where it shows.
    pub n: u64,
    /// What is wrong, naming the entry it contradicts.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entry {}: {}", self.key, self.n, self.what)
    }
}

/// What was checked, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Resources with a history.
    pub resources: usize,
    /// Entries read.
    pub entries: u64,
    /// Tenures that began.
    pub grants: u64,
    /// Jobs that a damaged or restored store had lost the tenure of.
    pub incidents: u64,
    /// Contradictions, the first [`PROBLEMS_MAX`].
    pub problems: Vec<Problem>,
}

/// Most problems that a report lists; one is enough to know.
pub const PROBLEMS_MAX: usize = 100;

/// Reads histories line by line. The lines of one resource must come in their order; resources may
/// be mixed.
#[derive(Debug, Default)]
pub struct Verifier {
    chains: HashMap<ResourceKey, Replay>,
    report: Report,
}

/// What the lines of one resource add up to. When a store prunes the first of them, it keeps this
/// in their place, so that the rest can still be checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    n: u64,
    head: Hash,
    at: Millis,
    token: Token,
    /// Who holds each lock, and the entry that says so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    held: BTreeMap<LockName, (Token, u64)>,
    /// The jobs that are not over: how many attempts were counted, and the tenure of the one that
    /// is under way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    jobs: BTreeMap<JobId, (u32, Option<Token>)>,
}

impl Verifier {
    /// Reads one line.
    pub fn line(&mut self, key: &ResourceKey, line: &str, hash: Hash) {
        self.report.entries += 1;
        let entry = match Entry::parse(line) {
            Ok(entry) => entry,
            Err(error) => return self.problem(key, 0, format!("cannot be read: {error}")),
        };
        let n = entry.n;
        let replay = self.chains.entry(key.clone()).or_insert_with(|| Replay::new(key));
        self.report.incidents += u64::from(matches!(entry.event, Event::Incident { .. }));
        let found = replay.read(&entry, line, hash, &mut self.report.grants);
        for what in found {
            self.problem(key, n, what);
        }
    }

    /// Begins the history of a resource where a store has pruned it.
    pub fn resume(&mut self, key: &ResourceKey, replay: Replay) {
        self.chains.entry(key.clone()).or_insert(replay);
    }

    /// Compares what the lines of a resource add up to with the record that a store keeps of it.
    pub fn compare(&mut self, key: &ResourceKey, record: &Record) {
        let replay = self.chains.entry(key.clone()).or_insert_with(|| Replay::new(key));
        let found = replay.differences(record);
        let n = replay.n;
        for what in found {
            self.problem(key, n, what);
        }
    }

    /// The number of the last entry that was read of a resource.
    #[must_use]
    pub fn read_up_to(&self, key: &ResourceKey) -> u64 {
        self.chains.get(key).map_or(0, |replay| replay.n)
    }

    /// The result.
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

impl Replay {
    /// Before the first line.
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

    /// The number of the last line that was read.
    #[must_use]
    pub fn read_up_to(&self) -> u64 {
        self.n
    }

    /// Reads one more line, which is about to be pruned; whether it fits was for `verify` to say.
    pub fn fold(&mut self, line: &str, hash: Hash) -> Result<(), serde_json::Error> {
        self.read(&Entry::parse(line)?, line, hash, &mut 0);
        Ok(())
    }

    fn read(&mut self, entry: &Entry, line: &str, hash: Hash, grants: &mut u64) -> Vec<String> {
        let mut found = Vec::new();
        if entry.n != self.n + 1 {
            found.push(format!("follows entry {}: entries are missing or out of order", self.n));
        }
        if hash != link(self.head, line) {
            found.push("its hash does not follow from the entry before: it was edited".to_owned());
        }
        if entry.at < self.at {
            found.push(format!("is dated before entry {}", self.n));
        }
        (self.n, self.head, self.at) = (entry.n, hash, entry.at);
        match &entry.event {
            Event::Granted { locks, token, .. } => {
                *grants += 1;
                self.granted(locks, *token, &mut found);
            }
            Event::Ended { locks, token, how, .. } => self.ended(locks, *token, how, &mut found),
            Event::Fenced { token, .. } => self.fenced(*token, &mut found),
            _ => {}
        }
        if let Some(id) = entry.event.job() {
            self.job(id, &entry.event, &mut found);
        }
        found
    }

    /// What a line says of a job must follow from what the lines before said.
    fn job(&mut self, id: JobId, event: &Event, found: &mut Vec<String>) {
        let word = event.word();
        let known = self.jobs.get(&id).copied();
        match (event, known) {
            (Event::Submitted { .. }, None) => {
                self.jobs.insert(id, (0, None));
            }
            (Event::Submitted { .. }, Some(_)) => found.push(format!("job {id} enters twice")),
            // Those that are over are not followed any more.
            (Event::Redriven { .. } | Event::Discarded { .. }, None) => {}
            (Event::Granted { job: Some(begun), token, .. }, Some((attempts, None))) => {
                if begun.attempt != attempts + 1 {
                    let n = begun.attempt;
                    found.push(format!("job {id} begins attempt {n} after attempt {attempts}"));
                }
                self.jobs.insert(id, (begun.attempt, Some(*token)));
            }
            (Event::Ended { job: Some(ran), token, .. }, Some((attempts, Some(running)))) => {
                if running != *token {
                    found.push(format!(
                        "job {id} ends its attempt with token {token}, but it runs with {running}"
                    ));
                }
                let handed_back = ran.outcome == AttemptOutcome::HandedBack;
                let attempts = if handed_back { attempts.saturating_sub(1) } else { attempts };
                self.jobs.insert(id, (attempts, None));
                if ran.then.is_over() {
                    self.jobs.remove(&id);
                }
            }
            (Event::Attached { .. }, Some(_)) | (Event::Cancelled { .. }, Some((_, Some(_)))) => {}
            (Event::Superseded { .. } | Event::Cancelled { .. }, Some((_, None)))
            | (Event::Incident { .. }, Some((_, None))) => {
                self.jobs.remove(&id);
            }
            (Event::Incident { .. }, Some((_, Some(token)))) => {
                // The entry owns up to it: the tenure is not there any more.
                self.held.retain(|_, (holder, _)| *holder != token);
                self.jobs.remove(&id);
            }
            (_, None) => found.push(format!("job {id} is {word}, but it is over or never was")),
            (_, Some((_, None))) => found.push(format!("job {id} is {word}, but it does not run")),
            (_, Some((_, Some(_)))) => found.push(format!("job {id} is {word} while it runs")),
        }
    }

    fn granted(&mut self, locks: &LockSet, token: Token, found: &mut Vec<String>) {
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

    fn ended(&mut self, locks: &LockSet, token: Token, how: &How, found: &mut Vec<String>) {
        for lock in locks {
            match self.held.remove(lock) {
                Some((holder, _)) if holder == token => {}
                Some((holder, n)) => {
                    found.push(format!(
                        "lock {lock} is {} with token {token}, but token {holder} holds it since \
                         entry {n}",
                        how.word()
                    ));
                    self.held.insert(lock.clone(), (holder, n));
                }
                None => found.push(format!(
                    "lock {lock} is {} with token {token}, but nobody held it",
                    how.word()
                )),
            }
        }
    }

    fn fenced(&self, token: Token, found: &mut Vec<String>) {
        if self.held.values().any(|(holder, _)| *holder == token) {
            found.push(format!("a write with token {token} was refused although it held a lock"));
        }
    }

    fn differences(&self, record: &Record) -> Vec<String> {
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
        let said = |job: &Job| (job.attempt, job.token());
        for job in record.lane().iter().filter(|job| self.jobs.get(&job.id) != Some(&said(job))) {
            let (id, state) = (job.id, job.state.word());
            found.push(format!("job {id} is {state}, which does not follow from the entries"));
        }
        for id in self.jobs.keys().filter(|id| record.job(**id).is_none()) {
            found.push(format!("job {id} is not there, and no entry ends it"));
        }
        found
    }
}
