//! The census: how many locks, requests and jobs there are now, by tenant and kind, and how old the
//! oldest are.
//!
//! It is counted from rows each time, so it cannot drift. What lives is in memory in every store,
//! so it costs a walk over that, in parts, so that no batch waits long for it; what changes
//! meanwhile may be missed or seen twice. Dead letters come from the rows of jobs that are over.
//! Whoever asks often keeps the answer for a while.

use std::collections::BTreeMap;
use std::ops::Bound;

use tenure_core::record::Tenure;
use tenure_core::{Job, JobState, Kinds, Millis, Record, ResourceKey, Text};

use crate::ledger::Ledger;

/// Resources that are counted at once: less than two milliseconds.
pub const PART_MAX: usize = 2_048;

/// What there is now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Census {
    /// When it was taken, in store time.
    pub now: Millis,
    /// By `tenant/kind`.
    groups: BTreeMap<Text, Group>,
}

/// What there is of one kind for one tenant. Ages are zero where there is nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Locks that are held.
    pub locks: usize,
    /// Those of them whose session is dead and that nobody has cleaned up yet.
    pub stale: usize,
    /// Requests that wait for locks.
    pub waiters: usize,
    /// Jobs that are not over, and dead letters.
    pub jobs: BTreeMap<JobState, usize>,
    /// How long the job has waited that could have started first.
    pub queue_oldest_ms: u64,
    /// How long the longest attempt of each operation has been under way.
    pub running_ms: BTreeMap<Text, u64>,
    /// How far the attempt has come that is closest to the limit of its operation, or furthest past
    /// it, as a part of it; nothing when none that runs has a limit.
    pub age_ratio: Option<f64>,
    /// For how long the oldest dead letter is dead.
    pub dead_oldest_ms: u64,
}

impl Group {
    /// Jobs in a state.
    #[must_use]
    pub fn jobs(&self, state: JobState) -> usize {
        self.jobs.get(&state).copied().unwrap_or(0)
    }

    /// Jobs that wait for their turn or rest.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.jobs(JobState::Queued) + self.jobs(JobState::Backoff)
    }

    /// Takes another group in: counts add up, and the oldest is the oldest of both.
    pub fn merge(&mut self, other: &Self) {
        self.locks += other.locks;
        self.stale += other.stale;
        self.waiters += other.waiters;
        for (state, count) in &other.jobs {
            *self.jobs.entry(*state).or_default() += count;
        }
        self.queue_oldest_ms = self.queue_oldest_ms.max(other.queue_oldest_ms);
        for (operation, ms) in &other.running_ms {
            let longest = self.running_ms.entry(operation.clone()).or_default();
            *longest = (*ms).max(*longest);
        }
        self.age_ratio = match (self.age_ratio, other.age_ratio) {
            (Some(one), Some(another)) => Some(one.max(another)),
            (one, another) => one.or(another),
        };
        self.dead_oldest_ms = self.dead_oldest_ms.max(other.dead_oldest_ms);
    }

    fn add_job(&mut self, job: &Job, limit_ms: Option<u64>, now: Millis) {
        *self.jobs.entry(job.state).or_default() += 1;
        if !job.state.is_running() {
            let waited = now.since(job.due.max(job.submitted_at));
            self.queue_oldest_ms = self.queue_oldest_ms.max(waited);
            return;
        }
        let Some(attempt) = job.attempts.last() else { return };
        let age_ms = now.since(attempt.started_at);
        let longest = self.running_ms.entry(job.operation.clone()).or_default();
        *longest = age_ms.max(*longest);
        if let Some(limit_ms) = limit_ms {
            let ratio = seconds(age_ms) / seconds(limit_ms.max(1));
            self.age_ratio = Some(self.age_ratio.map_or(ratio, |highest| highest.max(ratio)));
        }
    }
}

impl Census {
    /// Tenant, kind, and what there is.
    pub fn groups(&self) -> impl Iterator<Item = (&str, &str, &Group)> {
        self.groups.iter().filter_map(|(of, group)| {
            let (tenant, kind) = of.split_once('/')?;
            Some((tenant, kind, group))
        })
    }

    /// Takes another part in.
    pub(crate) fn merge(&mut self, part: Self) {
        self.now = self.now.max(part.now);
        for (of, group) in part.groups {
            self.groups.entry(of).or_default().merge(&group);
        }
    }

    /// Adds dead letters of a `tenant/kind`; the oldest is dead since `since`.
    pub(crate) fn add_dead(&mut self, of: &str, count: usize, since: Millis) {
        let age_ms = self.now.since(since);
        let group = self.group(of);
        *group.jobs.entry(JobState::Dead).or_default() += count;
        group.dead_oldest_ms = group.dead_oldest_ms.max(age_ms);
    }

    fn group(&mut self, of: &str) -> &mut Group {
        if !self.groups.contains_key(of) {
            self.groups.insert(of.into(), Group::default());
        }
        self.groups.get_mut(of).expect("it was put in above")
    }
}

/// Some of a census, and where to go on.
pub type Part = (Census, Option<ResourceKey>);

/// The `tenant/kind` of a resource.
pub(crate) fn group_of(key: &ResourceKey) -> &str {
    let whole = key.as_str();
    let end = key.tenant().len() + 1 + key.kind().len();
    whole.get(..end).unwrap_or(whole)
}

/// Milliseconds in seconds, for ratios and for people.
#[must_use]
pub fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}

impl Ledger {
    /// Counts some of what lives, after a resource, and says where to go on; dead letters are kept
    /// elsewhere.
    #[must_use]
    pub fn census(&self, after: Option<&ResourceKey>, now: Millis) -> Part {
        let mut census = Census { now, ..Census::default() };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut keys = self.live.range((from, Bound::Unbounded));
        let mut last = None;
        for key in keys.by_ref().take(PART_MAX) {
            last = Some(key);
            let Some(record) = self.world().records.get(key) else { continue };
            self.count(key, record, now, census.group(group_of(key)));
        }
        let next = keys.next().and(last.cloned());
        (census, next)
    }

    fn count(&self, key: &ResourceKey, record: &Record, now: Millis, group: &mut Group) {
        let sessions = &self.world().sessions;
        let lives =
            |tenure: &&Tenure| sessions.get(tenure.session).is_some_and(|s| s.is_alive(now));
        group.locks += record.tenures.len();
        group.stale += record.tenures.iter().filter(|tenure| !lives(tenure)).count();
        group.waiters += record.queue.len();
        for job in record.lane() {
            let limit_ms = limit_ms(&self.world().kinds, key, job);
            group.add_job(job, limit_ms, now);
        }
    }
}

fn limit_ms(kinds: &Kinds, key: &ResourceKey, job: &Job) -> Option<u64> {
    let kind = kinds.get(key.kind())?;
    kind.limit_ms(key, kind.operations.get(&job.operation)?)
}
