//! Jobs: durable requests for one operation on one resource.
//!
//! A job lives in the lane of its resource until it is over; then it leaves the record for good and
//! is kept apart, unchangeable. Its attempts are counted when they start, in one place:
//! [`crate::record::Record::apply`]. What may happen to a job is in [`crate::submit`] and
//! [`crate::attempt`].

use serde::{Deserialize, Serialize};

use crate::id::{JobId, RequestId, SessionId};
use crate::key::Text;
use crate::time::Millis;
use crate::token::Token;

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits for its turn.
    Queued,
    /// Rests after a failed attempt.
    Backoff,
    /// An attempt is under way.
    Running,
    /// An attempt is under way and was asked to stop.
    Cancelling,
    /// Over, done.
    Succeeded,
    /// Over, failed for good.
    Failed,
    /// Over, in quarantine: all attempts are used up, and a person should look.
    Dead,
    /// Over, by somebody's wish.
    Cancelled,
    /// Over before it began: another job took its place.
    Superseded,
    /// Was dead; another job was made from it.
    Redriven,
    /// Was dead; a person threw it away.
    Discarded,
}

impl JobState {
    /// All of them.
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

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
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

    /// Whether nothing more happens to the job.
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::Backoff | Self::Running | Self::Cancelling)
    }

    /// Whether an attempt is under way.
    #[must_use]
    pub fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::Cancelling)
    }

    /// Whether a person has dealt with it after it was over.
    #[must_use]
    pub fn is_dealt_with(self) -> bool {
        matches!(self, Self::Redriven | Self::Discarded)
    }
}

impl std::str::FromStr for JobState {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|state| state.word() == word);
        let words = || Self::ALL.map(Self::word).join(", ");
        known.ok_or_else(|| format!("{word:?} is no state of a job; there are {}", words()))
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// Its worker says: done.
    Ok,
    /// Its worker says: failed.
    Failed,
    /// Its worker stopped because it was asked to.
    Cancelled,
    /// Its worker gave it back unfinished; it does not count.
    HandedBack,
    /// Its worker lost the tenure.
    Lost,
}

impl AttemptOutcome {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Ok, Self::Failed, Self::Cancelled, Self::HandedBack, Self::Lost];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::HandedBack => "handed_back",
            Self::Lost => "lost",
        }
    }
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// For programs.
    pub code: Text,
    /// For people.
    #[serde(default = "empty", skip_serializing_if = "str::is_empty")]
    pub message: Text,
}

fn empty() -> Text {
    "".into()
}

/// One try.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attempt {
    /// Counts from 1.
    pub n: u32,
    /// The tenure it ran under.
    pub token: Token,
    /// The session of its worker.
    pub session: SessionId,
    /// What people call the worker.
    pub worker: Text,
    /// When it began.
    pub started_at: Millis,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<AttemptOutcome>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// Who asked for something, why and when.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Asked {
    /// Who.
    pub by: Text,
    /// Why.
    pub reason: Text,
    /// When.
    pub at: Millis,
}

/// How far an attempt has come, as its worker says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Progress {
    /// From 0 to 100.
    pub percent: u8,
    /// What it does now.
    pub message: Text,
    /// When it said so.
    pub at: Millis,
}

/// One durable request for one operation on one resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
    /// The identity.
    pub id: JobId,
    /// The request that made it.
    pub request: RequestId,
    /// The verb.
    pub operation: Text,
    /// Its arguments, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Text>,
    /// Higher goes first within its tenant.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// Who wants it.
    pub by: Text,
    /// When it was submitted.
    pub submitted_at: Millis,
    /// Not before this instant.
    pub due: Millis,
    /// Where it is in its life.
    pub state: JobState,
    /// Attempts that have started and count.
    #[serde(default)]
    pub attempt: u32,
    /// The latest attempts, the present one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Who asked it to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Asked>,
    /// How far the present attempt has come. Not durable: a worker says it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Why the latest attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// What it gave, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Text>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
    /// How many other submits got its id.
    #[serde(default, skip_serializing_if = "is_none")]
    pub joined: u32,
    /// The generation of the resource that its latest attempt saw.
    #[serde(default)]
    pub generation: u64,
    /// The state of the resource before its latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Text>,
    /// The job that it does over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<JobId>,
    /// The job that took its place, or that was made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed_by: Option<JobId>,
    /// The job of this resource that was over before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<JobId>,
    /// How long the log of the present attempt is. Not durable.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub log_bytes: u64,
}

fn is_zero(n: &i32) -> bool {
    *n == 0
}

fn is_none(n: &u32) -> bool {
    *n == 0
}

fn is_nothing(n: &u64) -> bool {
    *n == 0
}

impl Job {
    /// The tenure of the attempt that is under way.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        if !self.state.is_running() {
            return None;
        }
        self.attempts.last().map(|attempt| attempt.token)
    }
}

/// What an attempt came to: the part of an end of tenure that is about its job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ran {
    /// The job.
    pub id: JobId,
    /// How the attempt ended.
    pub outcome: AttemptOutcome,
    /// Where that leaves the job.
    pub then: JobState,
    /// When it may be tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Millis>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// What it gave, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Text>,
    /// The state of the resource from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Text>,
    /// The generation that the resource has been brought to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<u64>,
}

/// What a claim began: the part of a grant that is about its job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Begun {
    /// The job.
    pub id: JobId,
    /// The number of the attempt.
    pub attempt: u32,
    /// The state of the resource from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Text>,
}

/// What a submit came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing is in its way: the next worker takes it.
    Started,
    /// It waits for something.
    Queued,
    /// It joined a job that is there already.
    Attached,
    /// It took the place of jobs that waited.
    Replaced,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Started, Self::Queued, Self::Attached, Self::Replaced];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Queued => "queued",
            Self::Attached => "attached",
            Self::Replaced => "replaced",
        }
    }
}
