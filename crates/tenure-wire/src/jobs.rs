//! JSON types of jobs for clients. Those for workers are in `work`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::job::{Attempt, AttemptOutcome, Failure, Progress, RequestedBy};
use tenure_core::key::InvalidName;
use tenure_core::{
    Job, JobId, JobState, Kind, Millis, RequestId, ResourceKey, SessionId, Token, Verdict,
};

#[cfg(feature = "openapi")]
use super::schema;
use super::{instant, parse_optional_document, parse_server_instant, to_optional_document};

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct JobInfo {
    /// Id of the job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub id: JobId,
    /// Tenant.
    pub tenant: String,
    /// Kind of the resource.
    pub kind: String,
    /// Name of the resource.
    pub name: String,
    /// Operation to execute.
    pub operation: String,
    /// Arguments of the operation.
    pub args: Option<Value>,
    /// Priority within the tenant; higher runs first.
    pub priority: i32,
    /// Principal that submitted the job.
    pub by: String,
    /// State of the job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::JobState))]
    pub state: JobState,
    /// Number of attempts started, without those handed back.
    pub attempt: u32,
    /// Maximum number of attempts. Present only in the response for a single job whose kind is
    /// declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// Latest attempts, oldest first.
    pub attempts: Vec<AttemptInfo>,
    /// Time of submission.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub submitted_at: String,
    /// Earliest start of the next attempt.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub due_at: String,
    /// Time at which the job ended.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub ended_at: Option<String>,
    /// Failure of the latest attempt.
    pub error: Option<FailureInfo>,
    /// Progress of the current attempt.
    pub progress: Option<ProgressInfo>,
    /// Result of the operation.
    pub result: Option<Value>,
    /// Number of other submits that were attached to this job.
    pub joined: u32,
    /// Cancellation request, if there is one.
    pub cancel: Option<RequestedByInfo>,
    /// Job that this one retries.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub retry_of: Option<JobId>,
    /// Job that replaced this one, or that was created from it.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub followed_by: Option<JobId>,
    /// Generation of the resource that the latest attempt saw.
    pub generation: u64,
    /// Number of consecutive attempts that were deferred.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deferrals: u32,
    /// State of the resource before the latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_before: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl JobInfo {
    /// Converts a job of the resource `key`.
    #[must_use]
    pub fn new(key: &ResourceKey, job: &Job) -> Self {
        Self {
            id: job.id,
            tenant: key.tenant().to_owned(),
            kind: key.kind().to_owned(),
            name: key.name().to_owned(),
            operation: job.operation.to_string(),
            args: parse_optional_document(job.args.as_ref()),
            priority: job.priority,
            by: job.by.to_string(),
            state: job.state,
            attempt: job.attempt,
            attempts_max: None,
            attempts: job.attempts.iter().map(AttemptInfo::new).collect(),
            submitted_at: instant(job.submitted_at),
            due_at: instant(job.due),
            ended_at: job.ended_at.map(instant),
            error: job.error.as_ref().map(FailureInfo::new),
            progress: job.progress.as_ref().map(ProgressInfo::new),
            result: parse_optional_document(job.result.as_ref()),
            joined: job.joined,
            cancel: job.cancel.as_ref().map(RequestedByInfo::new),
            retry_of: job.retry_of,
            followed_by: job.followed_by,
            generation: job.generation,
            deferrals: job.deferrals,
            state_before: job.state_before.as_deref().map(str::to_owned),
        }
    }

    /// Sets the maximum number of attempts from the declaration of the kind.
    #[must_use]
    pub fn with_attempts_max(mut self, kind: Option<&Kind>, key: &ResourceKey) -> Self {
        self.attempts_max = kind.and_then(|kind| {
            let operation = kind.operations.get(self.operation.as_str())?;
            Some(kind.retry(key, operation).attempts)
        });
        self
    }

    /// Returns the key of the resource.
    pub fn key(&self) -> Result<ResourceKey, InvalidName> {
        ResourceKey::new(&self.tenant, &self.kind, &self.name)
    }

    /// Converts back. Fields that are not part of the JSON have default values: the request id, and
    /// the internal state of the lane and the store.
    #[must_use]
    pub fn to_job(&self) -> Job {
        Job {
            id: self.id,
            request: RequestId(0),
            operation: self.operation.as_str().into(),
            args: to_optional_document(self.args.as_ref()),
            priority: self.priority,
            by: self.by.as_str().into(),
            submitted_at: parse_server_instant(&self.submitted_at),
            due: parse_server_instant(&self.due_at),
            state: self.state,
            attempt: self.attempt,
            attempts: self.attempts.iter().map(AttemptInfo::to_attempt).collect(),
            cancel: self.cancel.as_ref().map(RequestedByInfo::to_requested_by),
            progress: self.progress.as_ref().map(ProgressInfo::to_progress),
            error: self.error.as_ref().map(FailureInfo::to_failure),
            result: to_optional_document(self.result.as_ref()),
            ended_at: self.ended_at.as_deref().map(parse_server_instant),
            joined: self.joined,
            generation: self.generation,
            state_before: self.state_before.as_deref().map(Into::into),
            retry_of: self.retry_of,
            followed_by: self.followed_by,
            previous: None,
            log_bytes: 0,
            deferrals: self.deferrals,
        }
    }
}

/// An attempt to execute a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct AttemptInfo {
    /// Number of the attempt, from 1.
    pub n: u32,
    /// Name of the worker.
    pub worker: String,
    /// Session of the worker.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// Token of the attempt's tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// Time at which the attempt started.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub started_at: String,
    /// Time at which the attempt ended.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub ended_at: Option<String>,
    /// Outcome of the attempt; null while it is running.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::AttemptOutcome>))]
    pub outcome: Option<AttemptOutcome>,
    /// Failure code for programs.
    pub code: Option<String>,
    /// Failure message for people.
    pub message: Option<String>,
}

impl AttemptInfo {
    fn new(attempt: &Attempt) -> Self {
        Self {
            n: attempt.n,
            worker: attempt.worker.to_string(),
            session: attempt.session,
            token: attempt.token,
            started_at: instant(attempt.started_at),
            ended_at: attempt.ended_at.map(instant),
            outcome: attempt.outcome,
            code: attempt.error.as_ref().map(|error| error.code.to_string()),
            message: attempt.error.as_ref().map(|error| error.message.to_string()),
        }
    }

    fn to_attempt(&self) -> Attempt {
        let message = self.message.as_deref().unwrap_or_default();
        let error =
            self.code.as_deref().map(|code| Failure { code: code.into(), message: message.into() });
        Attempt {
            n: self.n,
            token: self.token,
            session: self.session,
            worker: self.worker.as_str().into(),
            started_at: parse_server_instant(&self.started_at),
            ended_at: self.ended_at.as_deref().map(parse_server_instant),
            outcome: self.outcome,
            error,
        }
    }
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailureInfo {
    /// Code for programs.
    pub code: String,
    /// Message for people.
    pub message: String,
}

impl FailureInfo {
    /// Converts a failure.
    #[must_use]
    pub fn new(failure: &Failure) -> Self {
        Self { code: failure.code.to_string(), message: failure.message.to_string() }
    }

    pub(super) fn to_failure(&self) -> Failure {
        Failure { code: self.code.as_str().into(), message: self.message.as_str().into() }
    }
}

/// Progress of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProgressInfo {
    /// Percentage, from 0 to 100.
    pub percent: u8,
    /// Current activity.
    pub message: String,
    /// Time of the report.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub at: String,
}

impl ProgressInfo {
    /// Converts a progress report.
    #[must_use]
    pub fn new(progress: &Progress) -> Self {
        let (percent, at) = (progress.percent, instant(progress.at));
        Self { percent, message: progress.message.to_string(), at }
    }

    fn to_progress(&self) -> Progress {
        let message = self.message.as_str().into();
        Progress { percent: self.percent, message, at: parse_server_instant(&self.at) }
    }
}

/// Requester of an action, with reason and time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RequestedByInfo {
    /// Principal.
    pub by: String,
    /// Reason given by the caller.
    pub reason: String,
    /// Time of the request.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub at: String,
}

impl RequestedByInfo {
    /// Converts a requester.
    #[must_use]
    pub fn new(requested: &RequestedBy) -> Self {
        let (by, reason) = (requested.by.to_string(), requested.reason.to_string());
        Self { by, reason, at: instant(requested.at) }
    }

    pub(super) fn to_requested_by(&self) -> RequestedBy {
        let (by, reason) = (self.by.as_str().into(), self.reason.as_str().into());
        RequestedBy { by, reason, at: parse_server_instant(&self.at) }
    }
}

/// `POST /v1/resources/{kind}/{name}/jobs`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "operation": "build", "args": { "steps": 3 }
})))]
pub struct SubmitRequest {
    /// Operation to execute.
    pub operation: String,
    /// Arguments of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Value>,
    /// Priority within the tenant; higher runs first.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Priority))]
    pub priority: i32,
    /// Earliest time at which the job may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub run_at: Option<String>,
}

/// Result of a submit or a retry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubmitResponse {
    /// Verdict on the submit.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Verdict))]
    pub verdict: Verdict,
    /// The job that executes the operation: a new one, or the one attached to.
    pub job: JobInfo,
}

/// `POST …/cancel`, `…/retry`, `…/discard`, `…/pause`, `…/resume`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "reason": "not needed" })))]
pub struct ReasonRequest {
    /// Reason given by the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::OptionalReason>))]
    pub reason: Option<String>,
}

/// Result of a cancellation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelResponse {
    /// `cancelled` if the job was waiting, `cancelling` if it is running.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::JobState))]
    pub state: JobState,
}

/// Result of discarding a dead job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiscardJobResponse {
    /// Always true.
    pub discarded: bool,
}

/// `GET /v1/jobs/{id}/logs`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogResponse {
    /// Chunks, oldest first.
    pub items: Vec<LogChunkInfo>,
    /// Value of `after` to continue reading from here.
    pub next: u64,
}

/// A chunk of a job's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct LogChunkInfo {
    /// Position of the chunk in the log.
    pub position: u64,
    /// Number of the attempt.
    pub attempt: u32,
    /// Time at which the chunk was written.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub at: String,
    /// Complete lines.
    pub text: String,
}

impl LogChunkInfo {
    /// Converts a chunk.
    #[must_use]
    pub fn new(position: u64, attempt: u32, at: Millis, text: &str) -> Self {
        Self { position, attempt, at: instant(at), text: text.to_owned() }
    }
}
