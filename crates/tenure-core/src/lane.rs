//! The lane of a resource: which of its jobs can start next, and when.
//!
//! Jobs are examined in lane order. A blocked job is skipped, but the locks it needs are reserved,
//! so that jobs needing few locks do not starve one needing many. The scan stops at a job that
//! waits for a lock which every operation needs and, with [`Backoff::Hold`], at a job in backoff.

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
    /// Its operation is not declared.
    NotDeclared,
    /// It is not due before this time.
    NotDue(Millis),
    /// The state of the resource does not allow it.
    State,
    /// Its locks are held or reserved.
    Locks,
}

impl Record {
    /// Returns the next startable job at `now`.
    #[must_use]
    pub fn next_job(&self, kind: &Kind, now: Millis) -> NextJob {
        let Some(resource) = &self.resource else { return NextJob::None };
        if resource.paused.is_some() {
            return NextJob::None;
        }
        let mut reserved: Vec<&LockName> = Vec::new();
        let mut recheck_at: Option<Millis> = None;
        for job in resource.lane.iter().filter(|job| !job.state.is_running()) {
            match self.blocker(resource, kind, job, &reserved, now) {
                None => {
                    let since = job.due.max(job.submitted_at);
                    return NextJob::Ready {
                        job: job.id,
                        priority: job.priority,
                        since,
                        recheck_at,
                    };
                }
                Some(Blocker::NotDue(due)) => {
                    recheck_at = Some(recheck_at.map_or(due, |recheck_at| recheck_at.min(due)));
                    if job.state == JobState::Backoff && kind.backoff == Backoff::Hold {
                        break;
                    }
                }
                Some(Blocker::Locks) => {
                    let operation = kind.operations.get(&job.operation);
                    let locks = || operation.iter().flat_map(|operation| operation.locks.iter());
                    if locks().any(|lock| kind.is_required_by_all(lock)) {
                        // Nothing behind it can start first. Stop here, because lanes can be long.
                        break;
                    }
                    reserved.extend(locks());
                }
                Some(Blocker::State | Blocker::NotDeclared) => {}
            }
        }
        recheck_at.map_or(NextJob::None, NextJob::NotBefore)
    }

    /// Returns what blocks a waiting job, if anything.
    pub(crate) fn blocker(
        &self,
        resource: &Resource,
        kind: &Kind,
        job: &Job,
        reserved: &[&LockName],
        now: Millis,
    ) -> Option<Blocker> {
        let Some(operation) = kind.operations.get(&job.operation) else {
            return Some(Blocker::NotDeclared);
        };
        if job.due > now {
            return Some(Blocker::NotDue(job.due));
        }
        if !operation.allows(&resource.state) {
            return Some(Blocker::State);
        }
        if !self.locks_free_for(operation, reserved) {
            return Some(Blocker::Locks);
        }
        None
    }

    fn locks_free_for(&self, operation: &Operation, reserved: &[&LockName]) -> bool {
        let is_reserved = operation.locks.iter().any(|lock| reserved.contains(&lock));
        !is_reserved && self.is_grantable(&operation.locks)
    }
}
