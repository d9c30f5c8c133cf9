//! The part of a record that is about jobs: the resource's state, its desired state, its lane.
//!
//! A record has it once the resource was put or a job was submitted for it; a resource that is only
//! locked does not. The lane is in the order in which jobs are looked at: by priority, then by
//! arrival.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::answers::Answers;
use crate::id::JobId;
use crate::job::{Asked, Job};
use crate::key::Text;
use crate::time::Millis;

/// What is known of a resource beside its locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resource {
    /// Its state, one of its kind's.
    pub state: Text,
    /// Since when.
    pub since: Millis,
    /// What it should be like, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Text>,
    /// Counts the changes of what it should be like.
    #[serde(default)]
    pub generation: u64,
    /// The generation that it has been brought to.
    #[serde(default)]
    pub observed: u64,
    /// Who paused it: nothing starts until it is resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Asked>,
    /// Its jobs that are not over.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub lane: VecDeque<Box<Job>>,
    /// What became of the latest submits.
    #[serde(default, skip_serializing_if = "Answers::is_empty")]
    pub answered: Answers,
    /// The job that was over last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_job: Option<JobId>,
}

impl Resource {
    /// A resource in a state.
    #[must_use]
    pub fn new(state: Text, since: Millis) -> Self {
        Self {
            state,
            since,
            spec: None,
            generation: 0,
            observed: 0,
            paused: None,
            lane: VecDeque::new(),
            answered: Answers::default(),
            last_job: None,
        }
    }

    /// The job of that id, unless it is over.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.lane.iter().find(|job| job.id == id).map(|job| &**job)
    }

    /// The same, to be changed.
    pub(crate) fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.lane.iter_mut().find(|job| job.id == id).map(|job| &mut **job)
    }

    /// How many of its jobs have an attempt under way.
    #[must_use]
    pub fn running(&self) -> usize {
        self.lane.iter().filter(|job| job.state.is_running()).count()
    }

    /// Moves it to a state, if one is given.
    pub(crate) fn enter(&mut self, state: Option<&Text>, at: Millis) {
        if let Some(state) = state
            && self.state != *state
        {
            self.state = state.clone();
            self.since = at;
        }
    }

    /// Where a job of this priority belongs: behind all that are as urgent.
    #[must_use]
    pub(crate) fn place(&self, priority: i32) -> usize {
        self.lane.iter().position(|job| job.priority < priority).unwrap_or(self.lane.len())
    }

    /// Takes a job that is over out of the lane.
    pub(crate) fn leave(&mut self, id: JobId, at: Millis) -> Option<Box<Job>> {
        let place = self.lane.iter().position(|job| job.id == id)?;
        let mut job = self.lane.remove(place)?;
        job.ended_at = Some(at);
        job.progress = None;
        job.previous = self.last_job.replace(id);
        Some(job)
    }
}
