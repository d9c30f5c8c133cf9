//! The lane of a resource: which of its jobs can start next, and when.
//!
//! Jobs are examined in lane order. A blocked job is skipped, but the locks it needs are reserved,
//! so that jobs needing few locks do not starve one needing many. The scan stops at a job that
//! waits for a lock which every operation needs and, with [`Backoff::Hold`], at a job in backoff;
//! with [`Backoff::Reserve`] a job in backoff reserves its locks, too.
//!
//! `LaneScan` is the only code that decides whether a job may start: claims ask it through
//! [`Record::next_job`], submits for their verdict, and [`crate::why`] for its explanation.

use crate::canary::{Canary, planted};
use crate::id::JobId;
use crate::job::{Job, JobState};
use crate::key::LockName;
use crate::kind::{Backoff, Kind, Operation};
use crate::record::Record;
use crate::resource::Resource;
use crate::time::Millis;

/// The next startable job of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextJob {
    /// This job can start.
    Ready {
        /// Job.
        job: JobId,
        /// Priority within the tenant; higher runs first.
        priority: i32,
        /// Time since which it could have started.
        since: Millis,
        /// Earliest time at which a job ahead of it becomes due, if any.
        recheck_at: Option<Millis>,
    },
    /// No job can start before this time.
    NotBefore(Millis),
    /// No job can start until the record changes.
    None,
}

/// Why a job cannot start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// The resource is paused.
    Paused,
    /// Its operation is not declared.
    NotDeclared,
    /// It is not due before this time.
    NotDue(Millis),
    /// The state of the resource does not allow it.
    State,
    /// This waiting job is ahead of it and needs one of its locks, or holds the whole lane.
    Behind(JobId),
    /// One of its locks is held, or reserved for a request in the wait queue.
    Locks,
}

/// Examines the waiting jobs of a lane in order and decides for each whether it may start.
pub(crate) struct LaneScan<'a> {
    record: &'a Record,
    resource: &'a Resource,
    kind: &'a Kind,
    now: Millis,
    /// Locks of the jobs examined so far, and the job that reserves each.
    reserved: Vec<(&'a LockName, JobId)>,
    /// Job that nothing behind it may overtake.
    stopped_at: Option<JobId>,
}

impl<'a> LaneScan<'a> {
    /// Starts a scan; `None` if the resource does not exist.
    pub(crate) fn new(record: &'a Record, kind: &'a Kind, now: Millis) -> Option<Self> {
        let resource = record.resource.as_ref()?;
        Some(Self { record, resource, kind, now, reserved: Vec::new(), stopped_at: None })
    }

    /// Returns whether no job behind those examined so far may start.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped_at.is_some()
    }

    /// Decides the next waiting job of the lane, and reserves its locks against those behind it.
    pub(crate) fn examine(&mut self, job: &'a Job) -> Result<(), Blocker> {
        let Some(operation) = self.kind.operations.get(&job.operation) else {
            return Err(Blocker::NotDeclared);
        };
        let decision = self.decide(operation, job.due);
        match decision {
            Err(Blocker::NotDue(_)) => {
                if job.state == JobState::Backoff {
                    match self.kind.backoff {
                        Backoff::Hold => {
                            self.stopped_at.get_or_insert(job.id);
                        }
                        Backoff::Reserve if !planted(Canary::ReserveIgnored) => {
                            self.reserve(job.id, operation);
                        }
                        Backoff::Reserve | Backoff::Pass => {}
                    }
                }
            }
            Ok(()) | Err(Blocker::Locks | Blocker::Behind(_)) => self.reserve(job.id, operation),
            Err(Blocker::Paused | Blocker::NotDeclared | Blocker::State) => {}
        }
        decision
    }

    fn reserve(&mut self, job: JobId, operation: &'a Operation) {
        self.reserved.extend(operation.locks.iter().map(|lock| (lock, job)));
        if operation.locks.iter().any(|lock| self.kind.is_required_by_all(lock)) {
            // Nothing behind it can start first.
            self.stopped_at.get_or_insert(job);
        }
    }

    /// Decides a job with this operation and due time behind the jobs examined so far.
    pub(crate) fn decide(&self, operation: &Operation, due: Millis) -> Result<(), Blocker> {
        if self.resource.paused.is_some() {
            return Err(Blocker::Paused);
        }
        if due > self.now {
            return Err(Blocker::NotDue(due));
        }
        if !operation.allows(&self.resource.state) {
            return Err(Blocker::State);
        }
        if let Some(job) = self.stopped_at {
            return Err(Blocker::Behind(job));
        }
        let reserved = self.reserved.iter().find(|(lock, _)| operation.locks.contains(lock));
        if let Some((_, job)) = reserved {
            return Err(Blocker::Behind(*job));
        }
        if !self.record.is_grantable(&operation.locks) {
            return Err(Blocker::Locks);
        }
        Ok(())
    }
}

/// Returns the instant by which a waiting job must start, if its operation has a start deadline and
/// it has never started.
pub(crate) fn start_by(job: &Job, kind: &Kind) -> Option<Millis> {
    if job.state != JobState::Queued || !job.attempts.is_empty() {
        return None;
    }
    let deadline_ms = kind.operations.get(&job.operation)?.start_deadline_ms?;
    Some(job.due.max(job.submitted_at).plus(deadline_ms))
}

impl Record {
    /// Returns the earliest instant by which a waiting job must start.
    pub(crate) fn next_start_deadline(&self, kind: &Kind) -> Option<Millis> {
        if !kind.has_start_deadlines() {
            return None;
        }
        self.lane().iter().filter_map(|job| start_by(job, kind)).min()
    }

    /// Returns the next startable job at `now`.
    #[must_use]
    pub fn next_job(&self, kind: &Kind, now: Millis) -> NextJob {
        let Some(mut scan) = LaneScan::new(self, kind, now) else { return NextJob::None };
        if scan.resource.paused.is_some() {
            return NextJob::None;
        }
        let mut recheck_at: Option<Millis> = None;
        for job in scan.resource.lane.iter().filter(|job| !job.state.is_running()) {
            match scan.examine(job) {
                Ok(()) => {
                    let (priority, since) = (job.priority, job.due.max(job.submitted_at));
                    return NextJob::Ready { job: job.id, priority, since, recheck_at };
                }
                Err(Blocker::NotDue(due)) => {
                    recheck_at = Some(recheck_at.map_or(due, |recheck_at| recheck_at.min(due)));
                }
                Err(_) => {}
            }
            if scan.is_stopped() {
                // Lanes can be long.
                break;
            }
        }
        recheck_at.map_or(NextJob::None, NextJob::NotBefore)
    }

    /// Returns whether a waiting job may start at `now`, and what blocks it otherwise.
    pub fn startability(&self, kind: &Kind, id: JobId, now: Millis) -> Result<(), Blocker> {
        let Some(mut scan) = LaneScan::new(self, kind, now) else {
            return Err(Blocker::NotDeclared);
        };
        let mut decision = Err(Blocker::NotDeclared);
        for job in scan.resource.lane.iter().filter(|job| !job.state.is_running()) {
            decision = scan.examine(job);
            if job.id == id {
                break;
            }
        }
        decision
    }
}
