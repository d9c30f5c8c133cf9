//! Refusals: the expected ways to say no.
//!
//! A refusal is part of an outcome, not an error: nothing went wrong. Each has a stable code, one
//! page in `docs/errors/`, and a message that names the remedy.

use std::fmt;

use crate::fact::Fact;
use crate::id::JobId;
use crate::job::JobState;
use crate::key::{ResourceKey, Text};
use crate::limits;
use crate::outcome::TenureView;
use crate::record::Ending;
use crate::token::Token;

/// The stable codes of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Somebody else has it.
    Held,
    /// The tenure or session is over.
    Lost,
    /// A rule of the kind or a bound says no.
    Rejected,
    /// The state of the resource does not allow the operation.
    BadTransition,
    /// There is no such thing.
    NotFound,
    /// Does not fit the present state.
    Conflict,
    /// The input is wrong.
    Invalid,
    /// Belongs to another tenant, or the role is too low.
    Forbidden,
    /// Not at the moment.
    Unavailable,
}

impl Code {
    /// The code as the API writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Lost => "lost",
            Self::Rejected => "rejected",
            Self::BadTransition => "bad_transition",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Forbidden => "forbidden",
            Self::Unavailable => "unavailable",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An expected no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody else holds the lock, or stands before you in the queue.
    Held {
        /// Who, unless only earlier waiters are in the way.
        by: Option<TenureView>,
        /// How many wait.
        queue_length: usize,
    },
    /// The tenure with this token is over.
    Lost {
        /// The token.
        token: Token,
        /// How it ended, as far as it is remembered.
        how: Option<Ending>,
        /// Who holds the lock now.
        current: Option<TenureView>,
    },
    /// The session is over: it lapsed, was closed, or never was.
    SessionOver,
    /// The queue of the resource is full.
    QueueFull,
    /// The request id was used for something else.
    RequestReused,
    /// The token is not that of the present tenure, so nothing was broken.
    NotCurrent {
        /// Who holds the lock.
        current: Option<TenureView>,
    },
    /// The session has not lapsed, so it was not ended.
    StillAlive,
    /// The session belongs to another tenant.
    ForeignSession,
    /// The operation met one that it must not meet.
    Rejected {
        /// The job that is there.
        present: JobId,
        /// Its verb.
        operation: Text,
        /// Where it is in its life.
        state: JobState,
    },
    /// The lane of the resource is full.
    LaneFull,
    /// The state of the resource does not allow the operation, and nothing is under way that could
    /// change it.
    BadTransition {
        /// The verb.
        operation: Text,
        /// The state of the resource.
        state: Text,
        /// The states that it may start from.
        from: Vec<Text>,
    },
    /// There is no such kind or operation.
    NotDeclared(String),
    /// There is no such job.
    NoSuchJob,
    /// There is no such resource.
    NoSuchResource,
    /// The job is over, or not yet: what was asked does not fit.
    JobIs {
        /// Where it is in its life.
        state: JobState,
        /// What it would have to be.
        wanted: &'static str,
    },
    /// The resource has jobs that are not over, or somebody holds or wants its locks.
    InUse {
        /// A job that is not over.
        job: Option<JobId>,
    },
    /// The tenure belongs to a job, which is finished or cancelled instead.
    JobsTenure(JobId),
    /// Something about the command is wrong.
    Invalid(String),
    /// Somebody else is at the resource in a store that several share.
    Busy,
}

impl Refusal {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Held { .. } => Code::Held,
            Self::Lost { .. } | Self::SessionOver => Code::Lost,
            Self::QueueFull | Self::LaneFull | Self::Rejected { .. } => Code::Rejected,
            Self::BadTransition { .. } => Code::BadTransition,
            Self::NotDeclared(_) | Self::NoSuchJob | Self::NoSuchResource => Code::NotFound,
            Self::RequestReused
            | Self::NotCurrent { .. }
            | Self::StillAlive
            | Self::JobIs { .. }
            | Self::InUse { .. }
            | Self::JobsTenure(_) => Code::Conflict,
            Self::ForeignSession => Code::Forbidden,
            Self::Invalid(_) => Code::Invalid,
            Self::Busy => Code::Unavailable,
        }
    }

    /// Which of the refusals with the same code this is, when there are several.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::SessionOver => Some("session_over"),
            Self::QueueFull => Some("queue_full"),
            Self::RequestReused => Some("request_reused"),
            Self::NotCurrent { .. } => Some("not_current"),
            Self::StillAlive => Some("still_alive"),
            Self::ForeignSession => Some("foreign_session"),
            Self::LaneFull => Some("lane_full"),
            Self::Rejected { .. } => Some("present_job"),
            Self::NotDeclared(_) => Some("not_declared"),
            Self::NoSuchJob => Some("no_such_job"),
            Self::NoSuchResource => Some("no_such_resource"),
            Self::JobIs { .. } => Some("job_state"),
            Self::InUse { .. } => Some("in_use"),
            Self::JobsTenure(_) => Some("job_tenure"),
            Self::Busy => Some("busy"),
            Self::Held { .. }
            | Self::Lost { .. }
            | Self::BadTransition { .. }
            | Self::Invalid(_) => None,
        }
    }

    /// That a request for locks of a resource met this refusal, for those who count.
    #[must_use]
    pub fn failure(&self, key: &ResourceKey) -> Fact {
        let reason = self.reason().unwrap_or_else(|| self.code().as_str());
        Fact::Failed { key: key.clone(), reason }
    }

    /// The tenure that is in the way, for those who want to tell people.
    #[must_use]
    pub fn tenure(&self) -> Option<&TenureView> {
        match self {
            Self::Held { by: tenure, .. }
            | Self::Lost { current: tenure, .. }
            | Self::NotCurrent { current: tenure } => tenure.as_ref(),
            _ => None,
        }
    }

    /// The job that is in the way, for those who want to tell people.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Rejected { present, .. } => Some(*present),
            Self::InUse { job } => *job,
            Self::JobsTenure(job) => Some(*job),
            _ => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { by: Some(tenure), queue_length } => write!(
                f,
                "held by {} with token {}; {queue_length} waiting. Wait for it, or try later",
                tenure.holder, tenure.token
            ),
            Self::Held { by: None, queue_length } => {
                write!(f, "{queue_length} requests are first in the queue. Wait, or try later")
            }
            Self::Lost { token, how: Some(how), .. } => {
                let how = how.word();
                write!(f, "the tenure with token {token} is over ({how}). Stop its work")
            }
            Self::Lost { token, how: None, .. } => {
                write!(f, "there is no tenure with token {token}. Stop its work")
            }
            Self::SessionOver => f.write_str(
                "the session is over, and all it held with it. Stop its work and open a new one",
            ),
            Self::QueueFull => {
                write!(f, "{} requests wait already. Try later", limits::WAITERS_MAX)
            }
            Self::RequestReused => f.write_str(
                "the idempotency key was used for another request. Draw a new one for each request",
            ),
            Self::NotCurrent { current: Some(tenure) } => {
                write!(f, "the present token is {}; nothing was broken", tenure.token)
            }
            Self::NotCurrent { current: None } => {
                f.write_str("nobody holds this lock; nothing was broken")
            }
            Self::StillAlive => f.write_str("the session has not lapsed"),
            Self::ForeignSession => f.write_str("the session belongs to another tenant"),
            Self::Rejected { present, operation, state } => {
                let state = state.word();
                write!(f, "{operation} is {state} as job {present}. Try again when it is over")
            }
            Self::LaneFull => {
                write!(f, "{} jobs wait on this resource already. Try later", limits::LANE_MAX)
            }
            Self::BadTransition { operation, state, from } => write!(
                f,
                "the resource is {state}; {operation} may start from {}. Bring it there first",
                from.join(", ")
            ),
            Self::NotDeclared(what) => {
                write!(f, "{what} is not declared. Declare it in tenure.toml")
            }
            Self::NoSuchJob => f.write_str("there is no such job, or it was pruned"),
            Self::NoSuchResource => f.write_str("there is no such resource. Put it first"),
            Self::JobIs { state, wanted } => {
                write!(f, "the job is {}; this needs one that is {wanted}", state.word())
            }
            Self::InUse { job: Some(job) } => {
                write!(f, "job {job} is not over. Cancel it, or wait for it")
            }
            Self::InUse { job: None } => {
                f.write_str("somebody holds or wants its locks. Wait for the release")
            }
            Self::JobsTenure(job) => {
                write!(f, "the tenure belongs to job {job}. Finish or cancel the job instead")
            }
            Self::Invalid(why) => f.write_str(why),
            Self::Busy => f.write_str(
                "a transaction of the database is at this resource. Try again when it is over",
            ),
        }
    }
}
