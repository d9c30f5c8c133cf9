//! Refusals: expected negative responses.
//!
//! A refusal is part of an outcome, not an error. Each has a stable code, a page in `docs/errors/`,
//! and a message that names the remedy.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::command::{Command, LockAction, Precondition};
use crate::id::JobId;
use crate::job::JobState;
use crate::key::{ResourceKey, Text};
use crate::limits;
use crate::metric_event::MetricEvent;
use crate::outcome::{Outcome, TenureView};
use crate::record::EndKind;
use crate::token::Token;
use crate::why::HumanDuration;

/// Stable error codes of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Held by another session.
    Held,
    /// The tenure or session has ended.
    Lost,
    /// Rejected by a policy or a limit.
    Rejected,
    /// The state of the resource does not allow the operation.
    BadTransition,
    /// Not found.
    NotFound,
    /// Conflicts with the current state.
    Conflict,
    /// Invalid input.
    Invalid,
    /// Belongs to another tenant, or the role does not suffice.
    Forbidden,
    /// A precondition of the request does not hold.
    PreconditionFailed,
    /// Larger than a limit.
    TooLarge,
    /// Temporarily unavailable.
    Unavailable,
}

impl Code {
    /// All codes.
    pub const ALL: [Self; 11] = [
        Self::Held,
        Self::Lost,
        Self::Rejected,
        Self::BadTransition,
        Self::NotFound,
        Self::Conflict,
        Self::Invalid,
        Self::Forbidden,
        Self::PreconditionFailed,
        Self::TooLarge,
        Self::Unavailable,
    ];

    /// Returns the spelling of the API.
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
            Self::PreconditionFailed => "precondition_failed",
            Self::TooLarge => "too_large",
            Self::Unavailable => "unavailable",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a job must be for a command to apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobRequirement {
    /// Unfinished.
    Unfinished,
    /// In backoff, or finished.
    InBackoffOrFinished,
    /// Dead, and neither redriven nor discarded.
    Unresolved,
    /// Dead.
    Dead,
}

impl JobRequirement {
    /// All requirements.
    pub const ALL: [Self; 4] =
        [Self::Unfinished, Self::InBackoffOrFinished, Self::Unresolved, Self::Dead];

    /// Returns the spelling in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unfinished => "not over",
            Self::InBackoffOrFinished => "in backoff or over",
            Self::Unresolved => "not dealt with yet",
            Self::Dead => "dead",
        }
    }

    /// Parses the spelling in the API.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|requirement| requirement.as_str() == text)
    }
}

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The lock is held, or earlier waiters want it.
    Held {
        /// Holder; `None` if only earlier waiters block the request.
        by: Option<TenureView>,
        /// Length of the queue.
        queue_length: usize,
    },
    /// The tenure with this token has ended.
    Lost {
        /// Token.
        token: Token,
        /// How it ended, if that is still remembered.
        how: Option<EndKind>,
        /// Current holder.
        current: Option<TenureView>,
    },
    /// The session expired, was closed, or never existed.
    SessionExpired,
    /// The wait queue of the resource is full.
    QueueFull,
    /// The request id was used for a different request.
    RequestReused,
    /// The request was answered before, and the answer was too large to be remembered.
    AlreadyAnswered,
    /// The resource cannot remember another request with an idempotency key.
    TooManyKeys,
    /// The token does not belong to a current tenure; nothing was broken.
    NotCurrent {
        /// Current holder.
        current: Option<TenureView>,
    },
    /// The session has not ended, so it was neither expired nor removed.
    StillAlive,
    /// The session belongs to another tenant.
    ForeignSession,
    /// A policy rejects the operation because of a present job.
    Rejected {
        /// The present job.
        present: JobId,
        /// Its operation.
        operation: Text,
        /// Its state.
        state: JobState,
    },
    /// The lane of the resource is full.
    LaneFull,
    /// The state of the resource does not allow the operation, and no job in the lane could change
    /// it.
    BadTransition {
        /// Operation.
        operation: Text,
        /// State of the resource.
        state: Text,
        /// States that the operation may start from.
        from: Vec<Text>,
    },
    /// Unknown kind or operation.
    NotDeclared(String),
    /// Unknown job.
    NoSuchJob,
    /// Unknown resource.
    NoSuchResource,
    /// The state of the job does not allow the action.
    WrongJobState {
        /// State of the job.
        state: JobState,
        /// Required state.
        wanted: JobRequirement,
    },
    /// The resource has unfinished jobs, tenures or waiters.
    InUse {
        /// An unfinished job.
        job: Option<JobId>,
    },
    /// The tenure belongs to a job and ends with it.
    TenureOfJob(JobId),
    /// A precondition does not hold.
    PreconditionFailed {
        /// The precondition.
        wanted: Precondition,
        /// Generation of the resource; `None` if it does not exist.
        generation: Option<u64>,
    },
    /// The session that a lock should be transferred to does not wait for it.
    NotWaiting {
        /// Name or id of the session.
        to: Text,
    },
    /// The command is invalid.
    Invalid(String),
    /// A document would exceed its limit.
    TooLarge(String),
    /// Another transaction holds the resource in a shared database.
    Busy,
}

impl Refusal {
    /// Returns the response to a command on a resource that a transaction of the shared store has
    /// locked, and its metric event: only an acquire counts.
    #[must_use]
    pub fn busy(command: &Command) -> (Outcome, Option<MetricEvent>) {
        let event = match command {
            Command::Lock { key, action: LockAction::Acquire(_) } => Some(Self::Busy.failure(key)),
            _ => None,
        };
        (Outcome::Refused(Self::Busy), event)
    }

    /// Returns the stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Held { .. } => Code::Held,
            Self::Lost { .. } | Self::SessionExpired => Code::Lost,
            Self::QueueFull | Self::LaneFull | Self::TooManyKeys | Self::Rejected { .. } => {
                Code::Rejected
            }
            Self::BadTransition { .. } => Code::BadTransition,
            Self::NotDeclared(_) | Self::NoSuchJob | Self::NoSuchResource => Code::NotFound,
            Self::RequestReused
            | Self::AlreadyAnswered
            | Self::NotCurrent { .. }
            | Self::StillAlive
            | Self::WrongJobState { .. }
            | Self::InUse { .. }
            | Self::NotWaiting { .. }
            | Self::TenureOfJob(_) => Code::Conflict,
            Self::PreconditionFailed { .. } => Code::PreconditionFailed,
            Self::TooLarge(_) => Code::TooLarge,
            Self::ForeignSession => Code::Forbidden,
            Self::Invalid(_) => Code::Invalid,
            Self::Busy => Code::Unavailable,
        }
    }

    /// Returns the stable reason that distinguishes refusals with the same code.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::SessionExpired => Some("session_over"),
            Self::QueueFull => Some("queue_full"),
            Self::RequestReused => Some("request_reused"),
            Self::AlreadyAnswered => Some("already_answered"),
            Self::TooManyKeys => Some("too_many_keys"),
            Self::NotCurrent { .. } => Some("not_current"),
            Self::StillAlive => Some("still_alive"),
            Self::ForeignSession => Some("foreign_session"),
            Self::LaneFull => Some("lane_full"),
            Self::Rejected { .. } => Some("present_job"),
            Self::NotDeclared(_) => Some("not_declared"),
            Self::NoSuchJob => Some("no_such_job"),
            Self::NoSuchResource => Some("no_such_resource"),
            Self::WrongJobState { .. } => Some("job_state"),
            Self::InUse { .. } => Some("in_use"),
            Self::TenureOfJob(_) => Some("job_tenure"),
            Self::NotWaiting { .. } => Some("not_waiting"),
            Self::Busy => Some("busy"),
            Self::Held { .. }
            | Self::Lost { .. }
            | Self::BadTransition { .. }
            | Self::PreconditionFailed { .. }
            | Self::TooLarge(_)
            | Self::Invalid(_) => None,
        }
    }

    /// Returns the metric event for an acquire that was refused with this.
    #[must_use]
    pub fn failure(&self, key: &ResourceKey) -> MetricEvent {
        let reason = self.reason().unwrap_or_else(|| self.code().as_str());
        MetricEvent::AcquireFailed { key: key.clone(), reason }
    }

    /// Returns the tenure that blocks the command, for display.
    #[must_use]
    pub fn tenure(&self) -> Option<&TenureView> {
        match self {
            Self::Held { by: tenure, .. }
            | Self::Lost { current: tenure, .. }
            | Self::NotCurrent { current: tenure } => tenure.as_ref(),
            _ => None,
        }
    }

    /// Returns the job that blocks the command, for display.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Rejected { present, .. } => Some(*present),
            Self::InUse { job } => *job,
            Self::TenureOfJob(job) => Some(*job),
            _ => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { by: Some(tenure), queue_length } => write_held(f, tenure, *queue_length),
            Self::Held { by: None, queue_length: n } => {
                write!(f, "{n} requests are first in the queue. Wait, or try later")
            }
            Self::Lost { token, how, .. } => write_lost(f, *token, how.as_ref()),
            Self::SessionExpired => f.write_str(
                "the session has ended and its tenures are lost. Stop its work and open a new one",
            ),
            Self::QueueFull => {
                write!(f, "{} requests wait already. Try later", limits::WAITERS_MAX)
            }
            Self::RequestReused | Self::AlreadyAnswered | Self::TooManyKeys => {
                self.write_about_key(f)
            }
            Self::NotCurrent { current: Some(tenure) } => {
                write!(f, "the present token is {}; nothing was broken", tenure.token)
            }
            Self::NotCurrent { current: None } => {
                f.write_str("the lock is not held; nothing was broken")
            }
            Self::StillAlive => f.write_str("the session has not ended"),
            Self::ForeignSession => f.write_str("the session belongs to another tenant"),
            Self::Rejected { present, operation, state } => {
                let state = state.as_str();
                write!(f, "{operation} is {state} as job {present}. Try again when it has finished")
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
            Self::WrongJobState { state, wanted } => {
                let (state, wanted) = (state.as_str(), wanted.as_str());
                write!(f, "the job is {state}; this needs one that is {wanted}")
            }
            Self::InUse { job: Some(job) } => {
                write!(f, "job {job} has not finished. Cancel it, or wait for it")
            }
            Self::InUse { job: None } => {
                f.write_str("its locks are held or waited for. Wait for their release")
            }
            Self::TenureOfJob(job) => {
                write!(f, "the tenure belongs to job {job}. Finish or cancel the job instead")
            }
            Self::PreconditionFailed { wanted, generation } => {
                write_precondition_failed(f, *wanted, *generation)
            }
            Self::NotWaiting { to } => write!(
                f,
                "{to} does not wait for these locks, so nothing was released. Let it acquire them \
                 with a wait first"
            ),
            Self::Invalid(why) | Self::TooLarge(why) => f.write_str(why),
            Self::Busy => f.write_str(
                "a database transaction holds this resource. Try again when it has ended",
            ),
        }
    }
}

impl Refusal {
    /// Writes a refusal because of an idempotency key.
    fn write_about_key(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyAnswered => f.write_str(
                "the request was answered before, and its answer is not known any more. Read the \
                 resource",
            ),
            Self::TooManyKeys => write!(
                f,
                "the resource remembers {} requests with an idempotency key already. Send this one \
                 without a key, or try later",
                limits::RECENT_ANSWERS_MAX
            ),
            _ => f.write_str(
                "the idempotency key was used for another request. Draw a new one for each request",
            ),
        }
    }
}

fn write_lost(f: &mut fmt::Formatter<'_>, token: Token, how: Option<&EndKind>) -> fmt::Result {
    match how.map(|how| how.as_str()) {
        Some(how) => write!(f, "the tenure with token {token} has ended ({how}). Stop its work"),
        None => write!(f, "there is no tenure with token {token}. Stop its work"),
    }
}

fn write_precondition_failed(
    f: &mut fmt::Formatter<'_>,
    wanted: Precondition,
    generation: Option<u64>,
) -> fmt::Result {
    match (wanted, generation) {
        (Precondition::Absent, _) => {
            return f.write_str(
                "the resource exists already. Read it, and make the request conditional on its \
                 generation",
            );
        }
        (Precondition::Generation(wanted), Some(is)) => {
            write!(f, "the generation is {is}, not {wanted}")?;
        }
        (Precondition::Generation(_), None) => f.write_str("the resource does not exist")?,
    }
    f.write_str(". Read the resource and decide again")
}

fn write_held(f: &mut fmt::Formatter<'_>, tenure: &TenureView, queue_length: usize) -> fmt::Result {
    write!(f, "held by {}", tenure.holder)?;
    if let Some(purpose) = &tenure.purpose {
        write!(f, " ({purpose})")?;
    }
    let (age, token) = (HumanDuration(tenure.age_ms), tenure.token);
    write!(f, " for {age} with token {token}; {queue_length} waiting. Wait for it, or try later")
}
