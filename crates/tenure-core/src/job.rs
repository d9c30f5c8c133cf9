//! Jobs: durable requests for one operation on one resource.
//!
//! A job stays in the lane of its resource until it is finished, then leaves the record and is
//! stored separately. After that only a dead job changes once more, when an operator redrives or
//! discards it. An attempt is counted when it starts, by [`crate::record::Record::apply`]. The
//! rules are in `submit.rs`, `attempt.rs` and `manage.rs`.

use serde::{Deserialize, Serialize};

use crate::id::{JobId, RequestId, SessionId};
use crate::key::Text;
use crate::time::Millis;
use crate::token::Token;

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waiting to start.
    Queued,
    /// Waiting for the next attempt after a failure.
    Backoff,
    /// An attempt is running.
    Running,
    /// An attempt is running and has been requested to stop.
    Cancelling,
    /// Finished successfully.
    Succeeded,
    /// Failed permanently.
    Failed,
    /// Quarantined: all attempts failed, and an operator should investigate.
    Dead,
    /// Cancelled on request.
    Cancelled,
    /// Replaced by another job before it started.
    Superseded,
    /// Was dead, and has been submitted again as another job.
    Redriven,
    /// Was dead, and has been discarded.
    Discarded,
}

impl JobState {
    /// All states.
    pub const ALL: [Self; 11] = [
        Self::Queued,
        Self::Backoff,
        Self::Running,
        Self::Cancelling,
        Self::Succeeded,
        Self::Failed,
        Self::Dead,
        Self::Cancelled,
        Self::Superseded,
        Self::Redriven,
        Self::Discarded,
    ];

    /// Returns the stored spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Backoff => "backoff",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
            Self::Redriven => "redriven",
            Self::Discarded => "discarded",
        }
    }

    /// Returns `true` if the job is finished: it has left the lane.
    #[must_use]
    pub fn is_finished(self) -> bool {
        !matches!(self, Self::Queued | Self::Backoff | Self::Running | Self::Cancelling)
    }

    /// Returns `true` if an attempt is running.
    #[must_use]
    pub fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::Cancelling)
    }

    /// Returns `true` if an operator has redriven or discarded the dead job.
    #[must_use]
    pub fn is_resolved(self) -> bool {
        matches!(self, Self::Redriven | Self::Discarded)
    }
}

impl std::str::FromStr for JobState {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == word);
        let all = || Self::ALL.map(Self::as_str).join(", ");
        found.ok_or_else(|| format!("{word:?} is not a job state; expected {}", all()))
    }
}

/// Outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// Its worker reported success.
    Ok,
    /// Its worker reported a failure.
    Failed,
    /// Its worker stopped because of a cancel.
    Cancelled,
    /// Its worker handed the job back unfinished. Does not use up an attempt.
    HandedBack,
    /// Its worker could not do the work yet. Does not use up an attempt.
    Deferred,
    /// Its worker lost the tenure.
    Lost,
}

impl AttemptOutcome {
    /// All outcomes.
    pub const ALL: [Self; 6] =
        [Self::Ok, Self::Failed, Self::Cancelled, Self::HandedBack, Self::Deferred, Self::Lost];

    /// Returns the stored spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::HandedBack => "handed_back",
            Self::Deferred => "deferred",
            Self::Lost => "lost",
        }
    }

    /// Returns `true` if the attempt used up one of those that the retry rule allows.
    #[must_use]
    pub fn is_counted(self) -> bool {
        !matches!(self, Self::HandedBack | Self::Deferred)
    }
}

/// An error of a job or an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// Machine-readable code.
    pub code: Text,
    /// Human-readable message.
    #[serde(default = "empty", skip_serializing_if = "str::is_empty")]
    pub message: Text,
}

fn empty() -> Text {
    "".into()
}

/// One attempt at a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attempt {
    /// Number, from 1.
    pub n: u32,
    /// Token of its tenure.
    pub token: Token,
    /// Session of its worker.
    pub session: SessionId,
    /// Display name of its worker.
    pub worker: Text,
    /// Start time.
    pub started_at: Millis,
    /// End time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
    /// Outcome, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<AttemptOutcome>,
    /// Error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// Who requested an action, why and when.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestedBy {
    /// Principal.
    pub by: Text,
    /// Reason.
    pub reason: Text,
    /// Time of the request.
    pub at: Millis,
}

/// Progress of an attempt, as reported by its worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Progress {
    /// Percentage, from 0 to 100.
    pub percent: u8,
    /// Current activity.
    pub message: Text,
    /// Time of the report.
    pub at: Millis,
}

/// A durable request for one operation on one resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
    /// Id.
    pub id: JobId,
    /// Request that created it.
    pub request: RequestId,
    /// Operation.
    pub operation: Text,
    /// Arguments, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Text>,
    /// Priority within the tenant; higher runs first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// Principal that submitted it.
    pub by: Text,
    /// Submit time.
    pub submitted_at: Millis,
    /// Earliest start of the next attempt.
    pub due: Millis,
    /// State.
    pub state: JobState,
    /// Number of attempts that have started, except those handed back or deferred.
    #[serde(default)]
    pub attempt: u32,
    /// Number of deferred attempts since the last counted one.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub deferrals: u32,
    /// The latest attempts, the current one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Cancel request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<RequestedBy>,
    /// Progress of the current attempt. Not durable: workers report it repeatedly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Error of the latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Result, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Text>,
    /// Time at which it finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
    /// Number of other submits that attached to it.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub joined: u32,
    /// Generation of the resource when the latest attempt started.
    #[serde(default)]
    pub generation: u64,
    /// State of the resource before the latest attempt.
    #[serde(rename = "before", default, skip_serializing_if = "Option::is_none")]
    pub state_before: Option<Text>,
    /// Job that this one retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<JobId>,
    /// Job that replaced this one or was created from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed_by: Option<JobId>,
    /// Job of this resource that finished before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<JobId>,
    /// Log size of the current attempt. Not durable.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub log_bytes: u64,
}

fn is_zero(n: &i32) -> bool {
    *n == 0
}

fn is_zero_u32(n: &u32) -> bool {
    *n == 0
}

fn is_zero_u64(n: &u64) -> bool {
    *n == 0
}

impl Job {
    /// Returns the token of the running attempt.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        if !self.state.is_running() {
            return None;
        }
        self.attempts.last().map(|attempt| attempt.token)
    }
}

/// The job's part of [`crate::history::Event::Ended`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CompletedAttempt {
    /// Job.
    pub id: JobId,
    /// Outcome of the attempt.
    pub outcome: AttemptOutcome,
    /// New state of the job.
    #[serde(rename = "then")]
    pub job_state: JobState,
    /// Earliest start of the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Millis>,
    /// Error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Result, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Text>,
    /// New state of the resource.
    #[serde(rename = "state", default, skip_serializing_if = "Option::is_none")]
    pub resource_state: Option<Text>,
    /// Generation that the resource has been reconciled to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<u64>,
}

/// The job's part of [`crate::history::Event::Granted`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StartedAttempt {
    /// Job.
    pub id: JobId,
    /// Number of the attempt.
    pub attempt: u32,
    /// New state of the resource.
    #[serde(rename = "state", default, skip_serializing_if = "Option::is_none")]
    pub resource_state: Option<Text>,
}

/// Verdict of a submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing blocks the job: the next worker takes it.
    Started,
    /// The job waits.
    Queued,
    /// The submit attached to an existing job.
    Attached,
    /// The job replaced waiting ones.
    Replaced,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Self; 4] = [Self::Started, Self::Queued, Self::Attached, Self::Replaced];

    /// Returns the stored spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Queued => "queued",
            Self::Attached => "attached",
            Self::Replaced => "replaced",
        }
    }
}
