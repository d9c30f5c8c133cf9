//! JSON types that clients and servers exchange.
//!
//! Request bodies reject unknown fields, so that a misspelt option is an error. Durations are in
//! milliseconds, instants in RFC 3339 (UTC). Arguments, results and desired states are arbitrary
//! JSON. Each noun has its own file; this one has the shared types. The rules of the model are in
//! `tenure_core`.
//!
//! The names of the types are the names of the schemas in the OpenAPI document: requests end in
//! `Request`, whole responses in `Response`, objects within them in `Info`.

mod access;
mod batch;
mod dead_letters;
mod jobs;
mod kinds;
mod locks;
mod object;
mod observed;
#[cfg(feature = "openapi")]
pub mod request_schemas;
mod resources;
#[cfg(feature = "openapi")]
pub mod schema;
mod status;
#[cfg(test)]
mod tests;
mod why;
mod work;
mod workers;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::history::Entry;
use tenure_core::{JobId, Millis, ResourceKey, Text, Token};

pub use access::{
    AuditEntry, AuditResponse, CreateKeyRequest, CreateKeyResponse, KeyInfo, SignInRequest,
    WhoamiResponse,
};
pub use batch::{
    BATCH_BODY_BYTES_MAX, BATCH_REQUESTS_MAX, BatchRequest, BatchResponse, BatchedAnswer,
    BatchedRequest,
};
pub use dead_letters::{
    DeadLetterFilter, DeadLetterGroup, DeadLetterRequest, DeadLettersResponse, DiscardResponse,
    RedriveResponse, RedrivenJob, RefusedJob,
};
pub use jobs::{
    AttemptInfo, CancelResponse, DiscardJobResponse, FailureInfo, JobInfo, LogChunkInfo,
    LogResponse, ProgressInfo, ReasonRequest, RequestedByInfo, SubmitRequest, SubmitResponse,
};
pub use kinds::{KindInfo, OperationInfo, RetryInfo};
pub use locks::{
    AcquireRequest, BreakRequest, BreakResponse, CloseSessionResponse, HeartbeatRequest,
    HolderInfo, Locks, OpenSessionRequest, ReleaseRequest, ReleaseResponse, RenewRequest,
    ResourceLocksResponse, RevocationInfo, SessionResponse, TenureInfo, WaiterInfo,
    WithdrawRequest, WithdrawResponse,
};
pub use object::Object;
pub use observed::{
    GroupInfo, StatusRequest, TimerInfo, TimerRequest, TimerRequests, status_update, timer_changes,
    timer_requests,
};
pub use resources::{
    DeleteResourceResponse, PauseResponse, PutResourceRequest, PutResourceResponse, ResourceInfo,
};
pub use status::{AttentionInfo, JobCountsInfo, LockCountsInfo, StatusResponse, WorkerCountsInfo};
pub use why::{BlockingJobInfo, WhyResponse};
pub use work::{
    AppendLogRequest, AssignmentInfo, ClaimRequest, ClaimResponse, ClaimScopeRequest,
    FinishOutcome, FinishRequest, FinishResponse, ProgressRequest, ReportResponse,
};
pub use workers::{ControllerInfo, DutyInfo, JanitorResponse, WorkerInfo, WorkerJobInfo};

/// Reason of an `unavailable` problem that a retry does not help: stored data is damaged.
pub const CORRUPT: &str = "corrupt";

/// Prefix of log lines that carry data for programs, such as the steps of a run.
pub const LOG_DATA_PREFIX: &str = "::step ";

/// A page of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListResponse<T> {
    /// Items of the page.
    pub items: Vec<T>,
    /// Value of `cursor` for the next page; null on the last page.
    pub next: Option<String>,
}

/// An entry of the history.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct HistoryEntry {
    /// Position of the entry in the history.
    pub position: u64,
    /// `tenant/kind/name`.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ResourcePath))]
    pub resource: ResourceKey,
    /// Time of the event.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub at: String,
    /// The entry exactly as it was hashed.
    pub line: String,
    /// `sha256(hash of the previous entry, line)`.
    pub hash: String,
}

impl HistoryEntry {
    /// Converts a line of the history.
    ///
    /// # Errors
    ///
    /// Fails if the line is damaged.
    pub fn new(
        position: u64,
        resource: ResourceKey,
        line: String,
        hash: String,
    ) -> serde_json::Result<Self> {
        let at = instant(Entry::parse(&line)?.at);
        Ok(Self { position, resource, at, line, hash })
    }
}

/// `GET /v1/verify`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VerifyResponse {
    /// Whether no violation was found.
    pub ok: bool,
    /// Number of resources with a history.
    pub resources: usize,
    /// Number of entries read.
    pub entries: u64,
    /// Number of tenures granted.
    pub grants: u64,
    /// Violations found.
    pub problems: Vec<String>,
}

/// `GET /readyz`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadyResponse {
    /// Whether the server is ready to serve requests.
    pub ready: bool,
    /// Type of the store: `embedded`, `memory`, ….
    pub store: String,
    /// Safety class of its locks.
    pub safety: String,
    /// Incarnation of the store; changes after a restore or a fail-over.
    pub incarnation: u32,
    /// Conditions that need an operator's attention although the server is ready, such as overdue
    /// duties of the janitor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// Stable problem codes. Each is documented in `docs/errors/CODE.md`.
pub const CODES: [&str; 14] = [
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
    "precondition_failed",
];

/// RFC 9457 problem details. Which optional fields are present depends on the code.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Address of the page that documents the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// Title of the code.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Stable code.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ProblemCode))]
    pub code: String,
    /// What happened and how to resolve it.
    pub detail: String,
    /// Id of the request, to be quoted in support requests.
    pub request_id: String,
    /// Time in seconds after which a retry may succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// Reason code that distinguishes refusals with the same code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What is not declared, or does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Current tenure of the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<TenureInfo>,
    /// Current tenure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<TenureInfo>,
    /// Number of waiting requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_length: Option<usize>,
    /// Position in the queue of a request that is still waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Token of the tenure that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::FencingToken>))]
    pub token: Option<Token>,
    /// How the tenure ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// Queued or running job that the operation must not meet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub present_job: Option<JobId>,
    /// Another job that conflicts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub job: Option<JobId>,
    /// Operation of the present job, or the operation that may not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// State of the job or of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Required state of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// States from which the operation may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<String>>,
    /// Generation of the resource; missing if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Uint64>))]
    pub generation: Option<u64>,
    /// Generation that the request requires; missing if the resource must not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Uint64>))]
    pub wanted_generation: Option<u64>,
}

/// Formats an instant as RFC 3339 in UTC.
#[must_use]
pub fn instant(at: Millis) -> String {
    let ms = i64::try_from(at.0).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX).to_string()
}

/// Parses an instant in RFC 3339.
pub fn parse_instant(text: &str) -> Result<Millis, String> {
    let at: Timestamp = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    u64::try_from(at.as_millisecond()).map(Millis).map_err(|_| "it is before 1970".to_owned())
}

/// Parses an instant written by a server; zero if it is invalid, which servers never send.
fn parse_server_instant(text: &str) -> Millis {
    parse_instant(text).unwrap_or_default()
}

/// Parses a stored document. Text that is not JSON becomes a JSON string.
#[must_use]
pub fn parse_document(document: &str) -> Value {
    serde_json::from_str(document).unwrap_or_else(|_| Value::from(document))
}

/// Serializes a JSON value as a compact document.
#[must_use]
pub fn to_document(value: &Value) -> Text {
    value.to_string().into()
}

/// Parses an optional stored document.
#[must_use]
pub fn parse_optional_document(document: Option<&Text>) -> Option<Value> {
    document.map(|document| parse_document(document))
}

fn to_optional_document(value: Option<&Value>) -> Option<Text> {
    value.map(to_document)
}
