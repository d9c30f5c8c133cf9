//! The job-related part of a record: state, desired state and lane.
//!
//! Present once the resource was put or a job was submitted for it; a resource that is only locked
//! has none. The lane is ordered by priority, then by arrival.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::id::{JobId, RequestId};
use crate::job::{Job, RequestedBy};
use crate::key::Text;
use crate::recent_submits::{PutDigest, RecentSubmits};
use crate::status::Status;
use crate::time::Millis;
use crate::timers::Timer;

/// State of a resource apart from its locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resource {
    /// State, one of its kind's.
    pub state: Text,
    /// Time of the last state change.
    pub since: Millis,
    /// Desired state, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Text>,
    /// Generation of the desired state.
    #[serde(default)]
    pub generation: u64,
    /// Generation that the resource has been reconciled to.
    #[serde(default)]
    pub observed: u64,
    /// Request id of the put that set the desired state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_put: Option<RequestId>,
    /// Digest of the rest of that put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_put_digest: Option<PutDigest>,
    /// What its holders know about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Box<Status>>,
    /// Instants at which the engine submits operations, at most one per operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<Timer>,
    /// Who paused it; no job starts until it is resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<RequestedBy>,
    /// Unfinished jobs.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub lane: VecDeque<Box<Job>>,
    /// Idempotency cache of the latest submits.
    #[serde(rename = "answered", default, skip_serializing_if = "RecentSubmits::is_empty")]
    pub recent_submits: RecentSubmits,
    /// Job that finished last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_job: Option<JobId>,
}

impl Resource {
    /// Returns a resource without jobs.
    #[must_use]
    pub fn new(state: Text, since: Millis) -> Self {
        Self {
            state,
            since,
            spec: None,
            generation: 0,
            observed: 0,
            last_put: None,
            last_put_digest: None,
            status: None,
            timers: Vec::new(),
            paused: None,
            lane: VecDeque::new(),
            recent_submits: RecentSubmits::default(),
            last_job: None,
        }
    }

    /// Returns an unfinished job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.lane.iter().find(|job| job.id == id).map(|job| &**job)
    }

    /// Returns an unfinished job for modification.
    pub(crate) fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.lane.iter_mut().find(|job| job.id == id).map(|job| &mut **job)
    }

    /// Returns the number of jobs with a running attempt.
    #[must_use]
    pub fn running_count(&self) -> usize {
        self.lane.iter().filter(|job| job.state.is_running()).count()
    }

    /// Changes the state, if one is given.
    pub(crate) fn set_state(&mut self, state: Option<&Text>, at: Millis) {
        if let Some(state) = state
            && self.state != *state
        {
            self.state = state.clone();
            self.since = at;
        }
    }

    /// Returns the lane index for a new job: behind all jobs of equal or higher priority.
    #[must_use]
    pub(crate) fn insert_position(&self, priority: i32) -> usize {
        self.lane.iter().position(|job| job.priority < priority).unwrap_or(self.lane.len())
    }

    /// Removes a job from the lane because it is finished.
    pub(crate) fn remove_finished(&mut self, id: JobId, at: Millis) -> Option<Box<Job>> {
        let position = self.lane.iter().position(|job| job.id == id)?;
        let mut job = self.lane.remove(position)?;
        job.ended_at = Some(at);
        job.progress = None;
        job.previous = self.last_job.replace(id);
        Some(job)
    }
}
