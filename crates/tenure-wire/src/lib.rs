//! The JSON of the API, apart from the types of the model: what clients and servers exchange.
//!
//! Bodies refuse unknown fields, so that a misspelt option is an error and not a surprise.
//! Durations are milliseconds, instants RFC 3339 in UTC. Arguments, results and desired states are
//! any JSON value. One file for each noun; here is what they share. No rule of the model is here.

mod access;
#[cfg(feature = "openapi")]
pub mod bodies;
mod dead;
mod jobs;
mod kinds;
mod locks;
mod object;
mod resources;
#[cfg(feature = "openapi")]
pub mod schema;
#[cfg(test)]
mod tests;
mod why;
mod work;
mod workers;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::{JobId, Millis, ResourceKey, Text, Token};

pub use access::{AuditLine, KeyAnswer, KeyBody, NewKeyAnswer, SignInBody, WhoamiAnswer};
pub use dead::{
    DeadAnswer, DeadBody, DeadFilter, DeadGroup, DiscardAnswer, RedriveAnswer, Redriven, Unmoved,
};
pub use jobs::{
    AskedAnswer, AttemptAnswer, CancelAnswer, DiscardedAnswer, FailureAnswer, JobAnswer, LogAnswer,
    LogsAnswer, ProgressAnswer, ReasonBody, SubmitAnswer, SubmitBody,
};
pub use kinds::{KindAnswer, OperationAnswer, RetryAnswer};
pub use locks::{
    AcquireBody, BeatBody, BreakBody, BrokenAnswer, ClosedAnswer, HolderAnswer, Locks, OpenBody,
    ReleaseAnswer, ReleaseBody, RenewBody, ResourceLocks, RevokedAnswer, SessionAnswer,
    TenureAnswer, WaiterAnswer, WithdrawAnswer, WithdrawBody,
};
pub use object::Object;
pub use resources::{DeletedAnswer, PausedAnswer, PutAnswer, PutBody, ResourceAnswer};
pub use why::{BehindAnswer, WhyAnswer};
pub use work::{
    AssignmentAnswer, ClaimAnswer, ClaimBody, FinishAnswer, FinishBody, FinishWord, LogBody,
    NotedAnswer, ProgressBody,
};
pub use workers::{ControllerAnswer, DutyAnswer, JanitorAnswer, WorkerAnswer, WorkerJob};

/// Reason of an `unavailable` problem that a retry does not help: stored data is damaged.
pub const CORRUPT: &str = "corrupt";

/// Prefix of log lines that carry data for programs, such as the steps of a run.
pub const LOG_MARK: &str = "::step ";

/// A page of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListAnswer<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Give it as `cursor` for the next page; nothing when this is the last.
    pub next: Option<String>,
}

/// A line of history.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HistoryLine {
    /// The place among all lines.
    pub position: u64,
    /// `tenant/kind/name`.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ResourcePath))]
    pub resource: ResourceKey,
    /// When, as text.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub at: String,
    /// The entry, exactly as it was hashed.
    pub line: String,
    /// `sha256(hash of the entry before, line)`.
    pub hash: String,
}

/// `GET /v1/verify`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VerifyAnswer {
    /// Whether nothing contradicts.
    pub ok: bool,
    /// Resources with a history.
    pub resources: usize,
    /// Entries read.
    pub entries: u64,
    /// Tenures that began.
    pub grants: u64,
    /// The contradictions.
    pub problems: Vec<String>,
}

/// `GET /readyz`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadyAnswer {
    /// Whether it answers.
    pub ready: bool,
    /// `embedded`, `memory`, ….
    pub store: String,
    /// What its locks are worth.
    pub safety: String,
    /// Its life between two restores.
    pub incarnation: u32,
    /// What a person should look at although it answers: duties of the janitor that are late.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// The stable codes of problems. Each has a page: `docs/errors/CODE.md`.
pub const CODES: [&str; 13] = [
    "held",
    "lost",
    "rejected",
    "bad_transition",
    "not_found",
    "conflict",
    "invalid",
    "unauthenticated",
    "forbidden",
    "rate_limited",
    "too_large",
    "unavailable",
    "timeout",
];

/// RFC 9457 problem details, with the facts that are useful.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The page about it.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ProblemCode))]
    pub code: String,
    /// What happened and what to do.
    pub detail: String,
    /// Quote it when you ask for help.
    pub request_id: String,
    /// After how many seconds it is worth asking again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// Which of the refusals with this code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What is not declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Who holds the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<TenureAnswer>,
    /// The present tenure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<TenureAnswer>,
    /// How many wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_length: Option<usize>,
    /// The place in the queue of a request that still waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// The token that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Fence>))]
    pub token: Option<Token>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// The job that an operation must not meet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub present_job: Option<JobId>,
    /// Another job that is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub job: Option<JobId>,
    /// The verb of the present job, or the one that may not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The state of the job or of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What the job would have to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// The states that the operation may start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<String>>,
}

/// An instant as the API writes it.
#[must_use]
pub fn instant(at: Millis) -> String {
    let ms = i64::try_from(at.0).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX).to_string()
}

/// The instant that a text in RFC 3339 means.
pub fn parse_instant(text: &str) -> Result<Millis, String> {
    let at: Timestamp = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    u64::try_from(at.as_millisecond()).map(Millis).map_err(|_| "it is before 1970".to_owned())
}

/// The instant that a server wrote; it writes none that cannot be read.
fn millis(text: &str) -> Millis {
    parse_instant(text).unwrap_or_default()
}

/// A document of the model as a JSON value. One that is no JSON is shown as a text.
#[must_use]
pub fn value(document: &str) -> Value {
    serde_json::from_str(document).unwrap_or_else(|_| Value::from(document))
}

/// A JSON value as a document of the model: without spaces.
#[must_use]
pub fn document(value: &Value) -> Text {
    value.to_string().into()
}

/// Parses an optional document of the store.
#[must_use]
pub fn values(document: Option<&Text>) -> Option<Value> {
    document.map(|document| value(document))
}

fn documents(value: Option<&Value>) -> Option<Text> {
    value.map(document)
}
