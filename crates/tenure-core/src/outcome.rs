//! Outcomes: every answer of the model.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, RequestId, SessionId};
use crate::job::{Job, JobState, Verdict};
use crate::key::{LockSet, ResourceKey, Text};
use crate::refusal::Refusal;
use crate::session::Revoked;
use crate::time::Millis;
use crate::token::Token;

/// A tenure as its readers see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenureView {
    /// The resource.
    pub key: ResourceKey,
    /// The locks that are held together.
    pub locks: LockSet,
    /// The fencing number.
    pub token: Token,
    /// Who holds it.
    pub session: SessionId,
    /// What people call the holder.
    pub holder: Text,
    /// What for.
    pub purpose: Option<Text>,
    /// The request that got it.
    pub request: RequestId,
    /// The job whose attempt it belongs to.
    pub job: Option<JobId>,
    /// Since when.
    pub since: Millis,
    /// For how long already.
    pub age_ms: u64,
    /// How long it lasts without a heartbeat.
    pub expires_in_ms: u64,
    /// How many requests wait in the queue of the resource.
    pub waiters: usize,
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The session lives.
    Alive {
        /// The session.
        session: SessionId,
        /// How long it lives without a heartbeat.
        ttl_ms: u64,
        /// Tenures that were taken from it and that its process has not confirmed.
        revoked: Vec<Revoked>,
    },
    /// The session is over, as was asked.
    Closed,
    /// The locks are held.
    Granted(TenureView),
    /// The request is in the queue.
    Waiting {
        /// Its place, 1 for the next.
        position: usize,
        /// How many wait in all.
        queue_length: usize,
        /// Who is in the way: a holder, unless only earlier waiters are.
        held_by: Option<TenureView>,
    },
    /// The tenure goes on.
    Renewed(TenureView),
    /// The tenure is over; `already` when it was before.
    Released {
        /// A repetition of an earlier release.
        already: bool,
    },
    /// The request waits no more; `released` is the tenure it had got meanwhile.
    Withdrawn {
        /// The tenure that was given back.
        released: Option<Token>,
    },
    /// The tenure was broken.
    Broken,
    /// The resource was looked after; says how many tenures were ended.
    Settled {
        /// Tenures that were ended.
        ended: usize,
    },
    /// The operation is asked for; says which job counts.
    Submitted {
        /// What the submit came to.
        verdict: Verdict,
        /// The job that counts.
        job: JobId,
    },
    /// The worker has these jobs now; perhaps none.
    Claimed(Vec<Assignment>),
    /// The attempt is over; says where that leaves the job.
    Finished {
        /// The state of the job.
        state: JobState,
        /// A repetition of an earlier finish.
        already: bool,
    },
    /// What the worker said is noted.
    Noted {
        /// Whether the job is asked to stop.
        cancelling: bool,
    },
    /// The job is over or asked to stop.
    Cancelled {
        /// The state of the job.
        state: JobState,
    },
    /// The dead job is thrown away.
    Discarded,
    /// The resource is as was asked.
    Put {
        /// Counts the changes of what it should be like.
        generation: u64,
        /// The job that brings it there, when one was made for it.
        job: Option<JobId>,
    },
    /// The resource is forgotten.
    Deleted,
    /// The resource is paused, or not any more.
    Paused(bool),
    /// No.
    Refused(Refusal),
}

/// A job in the hands of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The tenure of the attempt.
    pub tenure: TenureView,
    /// The job.
    pub job: Box<Job>,
    /// What the resource should be like, as JSON.
    pub spec: Option<Text>,
    /// The longest the attempt may take.
    pub limit_ms: Option<u64>,
    /// Attempts in all.
    pub attempts_max: u32,
}
