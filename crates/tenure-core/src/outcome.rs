//! Outcomes: the responses of the engine.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, RequestId, SessionId};
use crate::job::{Job, JobState, Verdict};
use crate::key::{LockSet, ResourceKey, Text};
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::session::Revocation;
use crate::time::Millis;
use crate::token::Token;

/// A tenure as shown to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenureView {
    /// Resource.
    pub key: ResourceKey,
    /// Locks held together.
    pub locks: LockSet,
    /// Fencing token.
    pub token: Token,
    /// Session that holds it.
    pub session: SessionId,
    /// Display name of the holder.
    pub holder: Text,
    /// Purpose.
    pub purpose: Option<Text>,
    /// Age above which it is reported: that of the acquire, else that of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
    /// Request that acquired it.
    pub request: RequestId,
    /// Job whose attempt it belongs to.
    pub job: Option<JobId>,
    /// Time of the grant.
    pub since: Millis,
    /// Time since the grant.
    pub age_ms: u64,
    /// Time until it expires without a heartbeat. A stale margin of the kind is not included.
    pub expires_in_ms: u64,
    /// Time since the last heartbeat of the session.
    #[serde(default)]
    pub heartbeat_age_ms: u64,
    /// Length of the resource's wait queue.
    pub waiters: usize,
}

/// The response to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The session is alive.
    Alive {
        /// Session.
        session: SessionId,
        /// Time after which it expires without a heartbeat.
        ttl_ms: u64,
        /// Revocations that its process has not acknowledged.
        revoked: Vec<Revocation>,
    },
    /// The session has ended, or its row was removed.
    Closed,
    /// The locks were granted.
    Granted(TenureView),
    /// The request is queued.
    Waiting {
        /// Position in the queue, from 1.
        position: usize,
        /// Length of the queue.
        queue_length: usize,
        /// Current holder; `None` if only earlier waiters block the request.
        held_by: Option<TenureView>,
    },
    /// The tenure was renewed.
    Renewed(TenureView),
    /// The locks were released.
    Released {
        /// Whether an earlier copy of this release ended the tenure.
        already: bool,
    },
    /// The request was withdrawn.
    Withdrawn {
        /// Tenure that had been granted to it and was released.
        released: Option<Token>,
    },
    /// The tenure was broken.
    Broken,
    /// The record was settled.
    Settled {
        /// Number of tenures that ended.
        ended: usize,
    },
    /// The job was submitted or attached.
    Submitted {
        /// Verdict.
        verdict: Verdict,
        /// Job that performs the operation.
        job: JobId,
        /// That job, as it is after the submit. `None` if a repeated submit names a job that has
        /// left the lane; always `None` from a transport that does not carry all fields of a job.
        snapshot: Option<Box<Job>>,
    },
    /// Jobs assigned to the worker, possibly none.
    Claimed(Vec<Assignment>),
    /// The attempt ended.
    Finished {
        /// New state of the job.
        state: JobState,
        /// Whether an earlier copy of this finish ended the attempt.
        already: bool,
    },
    /// Progress or log output was recorded.
    Noted {
        /// Whether the job has been requested to stop.
        cancelling: bool,
    },
    /// The job was cancelled, or requested to stop.
    Cancelled {
        /// State of the job.
        state: JobState,
    },
    /// The dead job was discarded.
    Discarded,
    /// The desired state is set.
    Put {
        /// Generation of the desired state.
        generation: u64,
        /// Job that reconciles the resource, if there is one.
        job: Option<JobId>,
        /// The resource as it is after the step; `None` from a transport that does not carry all
        /// of its fields.
        snapshot: Option<Box<Resource>>,
    },
    /// Timers were changed.
    TimersSet {
        /// The resource as it is after the step; `None` from a transport that does not carry all
        /// of its fields.
        snapshot: Option<Box<Resource>>,
    },
    /// The resource was deleted.
    Deleted,
    /// The resource was forgotten.
    Forgotten,
    /// Whether the resource is paused.
    Paused(bool),
    /// The command was refused.
    Refused(Refusal),
}

impl Outcome {
    /// Returns the response to an acquire whose wait has ended without a grant, given its last
    /// response: the request has left the queue.
    #[must_use]
    pub fn after_withdrawal(self) -> Self {
        match self {
            Self::Waiting { queue_length, held_by, .. } => {
                let queue_length = queue_length.saturating_sub(1);
                Self::Refused(Refusal::Held { by: held_by, queue_length })
            }
            other => other,
        }
    }
}

/// A job assigned to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Tenure of the attempt.
    pub tenure: TenureView,
    /// Job.
    pub job: Box<Job>,
    /// Desired state of the resource, as JSON.
    pub spec: Option<Text>,
    /// Status of the resource, as JSON.
    pub status: Option<Text>,
    /// Time limit of the attempt.
    pub limit_ms: Option<u64>,
    /// Maximum number of attempts.
    pub attempts_max: u32,
}
