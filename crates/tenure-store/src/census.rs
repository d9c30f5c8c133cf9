//! The census: the current number of locks, waiters and jobs by tenant and kind, with the age of
//! the oldest.
//!
//! It is counted from the rows each time, so it cannot drift. Every store has its live records in
//! memory; the census scans them in pages so that no batch waits long for it. A change between two
//! pages may be missed or counted twice. Dead letters are counted from the rows of finished jobs.
//! Frequent callers should cache the result.

use std::collections::BTreeMap;
use std::ops::Bound;

use tenure_core::record::Tenure;
use tenure_core::{Job, JobState, Kinds, Millis, Record, ResourceKey, Text};

use crate::ledger::Ledger;

/// Maximum number of resources counted per page, which takes less than two milliseconds.
pub const CENSUS_PAGE_MAX: usize = 2_048;

/// Counts of the current rows, grouped by tenant and kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Census {
    /// Store time of the count.
    pub now: Millis,
    /// Groups by `tenant/kind`.
    groups: BTreeMap<Text, Group>,
}

/// Counts of one kind of one tenant. An age is zero if there is nothing to measure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Held locks.
    pub locks: usize,
    /// Held locks whose session has expired but was not swept yet.
    pub stale: usize,
    /// Age of the oldest held lock.
    pub lock_oldest_ms: u64,
    /// Age of the oldest held lock without a maximum age.
    pub lock_unlimited_oldest_ms: u64,
    /// Highest ratio of a held lock's age to its maximum age; above 1 if it should be reported,
    /// `None` if no held lock has a maximum age.
    pub lock_max_age_ratio: Option<f64>,
    /// Requests queued for locks.
    pub waiters: usize,
    /// Live jobs and dead letters, by state.
    pub jobs: BTreeMap<JobState, usize>,
    /// Longest time that a queued job has been due.
    pub queue_oldest_ms: u64,
    /// Age of the oldest running attempt, by operation.
    pub running_ms: BTreeMap<Text, u64>,
    /// Highest ratio of an attempt's age to the time limit of its operation; above 1 if overdue,
    /// `None` if no running attempt has a limit.
    pub age_ratio: Option<f64>,
    /// Age of the oldest dead letter.
    pub dead_oldest_ms: u64,
}

impl Group {
    /// Returns the number of jobs in a state.
    #[must_use]
    pub fn jobs(&self, state: JobState) -> usize {
        self.jobs.get(&state).copied().unwrap_or(0)
    }

    /// Returns the number of jobs that are queued or in backoff.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.jobs(JobState::Queued) + self.jobs(JobState::Backoff)
    }

    /// Adds the counts of another group and keeps the higher of both ages.
    pub fn merge(&mut self, other: &Self) {
        self.locks += other.locks;
        self.stale += other.stale;
        self.lock_oldest_ms = self.lock_oldest_ms.max(other.lock_oldest_ms);
        self.lock_unlimited_oldest_ms =
            self.lock_unlimited_oldest_ms.max(other.lock_unlimited_oldest_ms);
        raise(&mut self.lock_max_age_ratio, other.lock_max_age_ratio);
        self.waiters += other.waiters;
        for (state, count) in &other.jobs {
            *self.jobs.entry(*state).or_default() += count;
        }
        self.queue_oldest_ms = self.queue_oldest_ms.max(other.queue_oldest_ms);
        for (operation, ms) in &other.running_ms {
            let longest = self.running_ms.entry(operation.clone()).or_default();
            *longest = (*ms).max(*longest);
        }
        raise(&mut self.age_ratio, other.age_ratio);
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
        raise(&mut self.age_ratio, limit_ms.map(|limit_ms| ratio(age_ms, limit_ms)));
    }

    fn add_lock(&mut self, age_ms: u64, max_age_ms: Option<u64>) {
        self.locks += 1;
        self.lock_oldest_ms = self.lock_oldest_ms.max(age_ms);
        match max_age_ms {
            Some(max_age_ms) => {
                raise(&mut self.lock_max_age_ratio, Some(ratio(age_ms, max_age_ms)));
            }
            None => self.lock_unlimited_oldest_ms = self.lock_unlimited_oldest_ms.max(age_ms),
        }
    }
}

impl Census {
    /// Iterates over tenant, kind and counts.
    pub fn groups(&self) -> impl Iterator<Item = (&str, &str, &Group)> {
        self.groups.iter().filter_map(|(name, group)| {
            let (tenant, kind) = name.split_once('/')?;
            Some((tenant, kind, group))
        })
    }

    /// Adds the counts of another page.
    pub(crate) fn merge(&mut self, page: Self) {
        self.now = self.now.max(page.now);
        for (name, group) in page.groups {
            self.groups.entry(name).or_default().merge(&group);
        }
    }

    /// Adds dead letters of a `tenant/kind`; `since` is when the oldest died.
    pub(crate) fn add_dead(&mut self, name: &str, count: usize, since: Millis) {
        let age_ms = self.now.since(since);
        let group = self.group(name);
        *group.jobs.entry(JobState::Dead).or_default() += count;
        group.dead_oldest_ms = group.dead_oldest_ms.max(age_ms);
    }

    fn group(&mut self, name: &str) -> &mut Group {
        if !self.groups.contains_key(name) {
            self.groups.insert(name.into(), Group::default());
        }
        self.groups.get_mut(name).expect("inserted above")
    }
}

/// One page of a census, and the key after which the next page starts.
pub type CensusPage = (Census, Option<ResourceKey>);

/// Returns the `tenant/kind` of a resource.
pub(crate) fn group_of(key: &ResourceKey) -> &str {
    let whole = key.as_str();
    let end = key.tenant().len() + 1 + key.kind().len();
    whole.get(..end).unwrap_or(whole)
}

/// Raises `highest` to `ratio`, if that is higher.
fn raise(highest: &mut Option<f64>, ratio: Option<f64>) {
    if let Some(ratio) = ratio {
        *highest = Some(highest.map_or(ratio, |highest| highest.max(ratio)));
    }
}

fn ratio(age_ms: u64, of_ms: u64) -> f64 {
    seconds(age_ms) / seconds(of_ms.max(1))
}

/// Converts milliseconds to seconds.
#[must_use]
pub fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}

impl Ledger {
    /// Counts one page of the live resources after a key. Dead letters are not in the ledger.
    #[must_use]
    pub fn census(&self, after: Option<&ResourceKey>, now: Millis) -> CensusPage {
        let mut census = Census { now, ..Census::default() };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut keys = self.live.range::<ResourceKey, _>((from, Bound::Unbounded));
        let mut last = None;
        for key in keys.by_ref().take(CENSUS_PAGE_MAX) {
            last = Some(key);
            let Some(record) = self.world().records.get(key) else { continue };
            self.count(key, record, now, census.group(group_of(key)));
        }
        let next = keys.next().and(last.cloned());
        (census, next)
    }

    fn count(&self, key: &ResourceKey, record: &Record, now: Millis, group: &mut Group) {
        let sessions = &self.world().sessions;
        let alive =
            |tenure: &&Tenure| sessions.get(tenure.session).is_some_and(|s| s.is_alive(now));
        for tenure in &record.tenures {
            let max_age_ms = self.world().kinds.lock_max_age_ms(key, tenure.max_age_ms);
            group.add_lock(now.since(tenure.since), max_age_ms);
        }
        group.stale += record.tenures.iter().filter(|tenure| !alive(tenure)).count();
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
