//! Lanes: connections that write at the same time.
//!
//! While the database works on one half of a batch we work on the other. What is about one resource
//! goes to one lane, so that the halves do not get into each other's way; whoever does all the same
//! is answered `Busy` and sent again.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use tenure_core::{Assignment, Command, JobId, Outcome, ResourceKey, SessionId};

use super::life::Mark;
use super::link::Link;
use super::load::{changed_session, session};

/// How many there are.
pub(super) const LANES: usize = 2;
/// A batch of fewer commands is not worth two transactions.
const SPLIT_MIN: usize = 32;
/// Most jobs of which it is remembered where they are; when there are more, all are forgotten.
const JOBS_MAX: usize = 65_536;

/// One of them.
pub(super) struct Lane {
    /// Its row among those who write.
    pub(super) id: String,
    pub(super) link: Link,
    /// Whose turn it is to write.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// The number of the next batch.
    batch: AtomicI64,
    /// The last batch that is surely committed.
    pub(super) mark: Mutex<Mark>,
}

impl Lane {
    pub(super) fn new(id: String, link: Link) -> Self {
        let (turn, batch) = (tokio::sync::Mutex::default(), AtomicI64::new(1));
        Self { id, link, turn, batch, mark: Mutex::default() }
    }

    /// A number for the next batch, which no other one of this lane has.
    pub(super) fn next_batch(&self) -> i64 {
        self.batch.fetch_add(1, Ordering::Relaxed)
    }
}

/// Which lane commands go to.
#[derive(Default)]
pub(super) struct Points {
    /// Where jobs are, as far as it was seen.
    jobs: Mutex<HashMap<JobId, usize>>,
}

impl Points {
    /// The lane of each command.
    pub(super) fn split(&self, commands: &[Command]) -> Vec<usize> {
        if commands.len() < SPLIT_MIN {
            return vec![0; commands.len()];
        }
        // What a batch says about a session comes before what it does with it.
        let told: BTreeSet<SessionId> = commands.iter().filter_map(changed_session).collect();
        let jobs = self.jobs.lock().expect("nothing panics while it is locked");
        let lane = |command: &Command| match command {
            Command::Lock { key, .. } | Command::Resource { key, .. } => {
                let first = session(command).is_some_and(|id| told.contains(&id));
                if first { 0 } else { of(key) }
            }
            Command::Job { id, .. } => jobs.get(id).copied().unwrap_or(0),
            _ => 0,
        };
        commands.iter().map(lane).collect()
    }

    /// Remembers where the jobs of a batch are.
    pub(super) fn note(&self, commands: &[Command], outcomes: &[Outcome]) {
        let mut jobs = self.jobs.lock().expect("nothing panics while it is locked");
        if jobs.len() > JOBS_MAX {
            jobs.clear();
        }
        for (command, outcome) in commands.iter().zip(outcomes) {
            match (command, outcome) {
                (Command::Resource { key, .. }, Outcome::Submitted { job, .. }) => {
                    jobs.insert(*job, of(key));
                }
                (_, Outcome::Claimed(all)) => {
                    let place = |a: &Assignment| (a.job.id, of(&a.tenure.key));
                    jobs.extend(all.iter().map(place));
                }
                (Command::Job { id, .. }, Outcome::Finished { .. }) => {
                    jobs.remove(id);
                }
                _ => {}
            }
        }
    }
}

fn of(key: &ResourceKey) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::from(hasher.finish() % 2 == 1)
}
