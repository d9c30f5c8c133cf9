//! The lane of a resource: which of its jobs is next, and when.
//!
//! Jobs are looked at in the order of the lane. One that cannot start yet is passed over, but what
//! it needs is kept from those behind it: a job that wants several locks is not starved by small
//! ones. Nobody looks behind one that waits for a lock that all need, nor, if its kind says so,
//! behind one that rests between two attempts.

use crate::id::JobId;
use crate::job::{Job, JobState};
use crate::key::LockName;
use crate::kind::{Backoff, Kind, Operation};
use crate::record::Record;
use crate::resource::Resource;
use crate::time::Millis;

/// What the lane of a resource is up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This job may start.
    Ready {
        /// The job.
        job: JobId,
        /// Higher goes first within the tenant.
        priority: i32,
        /// Since when it may be worked.
        since: Millis,
        /// When one that goes before it comes due, if one does.
        later: Option<Millis>,
    },
    /// Nothing can start before this instant.
    Later(Millis),
    /// Nothing can start until something else happens.
    Nothing,
}

/// Why one job cannot start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurdle {
    /// Its operation is not declared.
    NotDeclared,
    /// It is not due before this instant.
    NotDue(Millis),
    /// The state of the resource does not allow it.
    State,
    /// Its locks are held, or others want them first.
    Locks,
}

impl Record {
    /// What is next on the lane at `now`.
    #[must_use]
    pub fn next(&self, kind: &Kind, now: Millis) -> Next {
        let Some(resource) = &self.resource else { return Next::Nothing };
        if resource.paused.is_some() {
            return Next::Nothing;
        }
        let mut reserved: Vec<&LockName> = Vec::new();
        let mut later: Option<Millis> = None;
        for job in resource.lane.iter().filter(|job| !job.state.is_running()) {
            match self.hurdle(resource, kind, job, &reserved, now) {
                None => {
                    let since = job.due.max(job.submitted_at);
                    return Next::Ready { job: job.id, priority: job.priority, since, later };
                }
                Some(Hurdle::NotDue(due)) => {
                    later = Some(later.map_or(due, |later| later.min(due)));
                    if job.state == JobState::Backoff && kind.backoff == Backoff::Hold {
                        break;
                    }
                }
                Some(Hurdle::Locks) => {
                    let operation = kind.operations.get(&job.operation);
                    let locks = || operation.iter().flat_map(|operation| operation.locks.iter());
                    if locks().any(|lock| kind.all_need(lock)) {
                        // Nothing behind it starts before it does, and lanes are long.
                        break;
                    }
                    reserved.extend(locks());
                }
                Some(Hurdle::State | Hurdle::NotDeclared) => {}
            }
        }
        later.map_or(Next::Nothing, Next::Later)
    }

    /// Why a waiting job cannot start now, if it cannot.
    pub(crate) fn hurdle(
        &self,
        resource: &Resource,
        kind: &Kind,
        job: &Job,
        reserved: &[&LockName],
        now: Millis,
    ) -> Option<Hurdle> {
        let Some(operation) = kind.operations.get(&job.operation) else {
            return Some(Hurdle::NotDeclared);
        };
        if job.due > now {
            return Some(Hurdle::NotDue(job.due));
        }
        if !operation.allows(&resource.state) {
            return Some(Hurdle::State);
        }
        if !self.free_for(operation, reserved) {
            return Some(Hurdle::Locks);
        }
        None
    }

    fn free_for(&self, operation: &Operation, reserved: &[&LockName]) -> bool {
        let taken = operation.locks.iter().any(|lock| reserved.contains(&lock));
        !taken && self.obtainable(&operation.locks)
    }
}
