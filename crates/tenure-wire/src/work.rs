//! JSON types of claims, progress, logs and finishes: what workers exchange with the server.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::key::InvalidName;
use tenure_core::retry::Class;
use tenure_core::{Assignment, Finish, JobState, RequestId, SessionId, StatusUpdate, Text, Token};

use super::jobs::JobInfo;
use super::locks::TenureInfo;
use super::observed::{TimerRequests, status_update, timer_requests};
#[cfg(feature = "openapi")]
use super::schema;
use super::{parse_optional_document, to_document, to_optional_document};

/// `POST /v1/jobs/claim`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "session": "0123456789abcdef0123456789abcdef", "kinds": ["report"], "wait_ms": 20_000
})))]
pub struct ClaimRequest {
    /// Session of the worker.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// Kinds to claim jobs of. May be left out with `only`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<schema::KindName>))]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 256))]
    pub kinds: Vec<String>,
    /// Maximum number of jobs to claim.
    #[serde(default = "one")]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimSize))]
    pub max: usize,
    /// Maximum time to wait for the first job in milliseconds, at most one minute.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Uint64))]
    pub wait_ms: u64,
    /// Restriction to one kind, and one of its groups or resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<ClaimScopeRequest>,
}

/// Restriction of a claim, within the tenant of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "kind": "test", "group": "build-7" })))]
pub struct ClaimScopeRequest {
    /// Kind.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::KindName))]
    pub kind: String,
    /// Group of a grouped kind. Excludes `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::ResourceName>))]
    pub group: Option<String>,
    /// Name of the resource. Excludes `group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::ResourceName>))]
    pub name: Option<String>,
}

fn one() -> usize {
    1
}

/// Result of a claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimResponse {
    /// Jobs assigned to the worker; may be empty.
    pub jobs: Vec<AssignmentInfo>,
}

/// A job assigned to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AssignmentInfo {
    /// The job.
    pub job: JobInfo,
    /// Tenure of the attempt.
    pub tenure: TenureInfo,
    /// Desired state of the resource.
    pub spec: Option<Value>,
    /// Status of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
    /// Time limit of the attempt in milliseconds.
    pub limit_ms: Option<u64>,
    /// Maximum number of attempts.
    pub attempts_max: u32,
}

impl AssignmentInfo {
    /// Converts an assignment.
    #[must_use]
    pub fn new(assignment: &Assignment) -> Self {
        Self {
            job: JobInfo::new(&assignment.tenure.key, &assignment.job),
            tenure: TenureInfo::new(&assignment.tenure),
            spec: parse_optional_document(assignment.spec.as_ref()),
            status: parse_optional_document(assignment.status.as_ref()),
            limit_ms: assignment.limit_ms,
            attempts_max: assignment.attempts_max,
        }
    }

    /// Converts back; `request` is the id of the claim.
    pub fn to_assignment(&self, request: RequestId) -> Result<Assignment, InvalidName> {
        let mut tenure = self.tenure.to_view()?;
        tenure.request = request;
        Ok(Assignment {
            tenure,
            job: Box::new(self.job.to_job()),
            spec: to_optional_document(self.spec.as_ref()),
            limit_ms: self.limit_ms,
            attempts_max: self.attempts_max,
            status: to_optional_document(self.status.as_ref()),
        })
    }
}

/// `POST /v1/jobs/{id}/progress`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "token": 1, "percent": 40, "message": "copying"
})))]
pub struct ProgressRequest {
    /// Token of the attempt's tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// Percentage, from 0 to 100.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Percent))]
    pub percent: u8,
    /// Current activity.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ProgressMessage))]
    pub message: String,
}

/// `POST /v1/jobs/{id}/logs`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "token": 1, "text": "one\ntwo\n" })))]
pub struct AppendLogRequest {
    /// Token of the attempt's tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// Complete lines.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LogText))]
    pub text: String,
}

/// Result of a progress report or of appending to the log.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportResponse {
    /// Whether the job has been requested to stop.
    pub cancelling: bool,
}

/// Outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishOutcome {
    /// Succeeded.
    Ok,
    /// Failed.
    Failed,
    /// Cancelled on request.
    Cancelled,
    /// Handed back unfinished.
    HandedBack,
    /// Could not be done yet; repeated later, and not counted as an attempt.
    Deferred,
}

/// `POST /v1/jobs/{id}/finish`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishRequest {
    /// Token of the attempt's tenure.
    pub token: Token,
    /// Outcome of the attempt.
    pub outcome: FinishOutcome,
    /// End state of the resource, if it differs from the declared one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Result of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Failure code for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Failure message for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether a retry may help, if the worker knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transient: Option<bool>,
    /// Time until the next attempt in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Merge patch (RFC 7396) for the status of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<Value>,
    /// Timers to set, by operation; `null` removes a timer.
    #[serde(default, skip_serializing_if = "TimerRequests::is_empty")]
    pub timers: TimerRequests,
}

impl FinishRequest {
    /// Creates the request of a worker.
    #[must_use]
    pub fn new(token: Token, finish: &Finish, update: Option<&StatusUpdate>) -> Self {
        let plain = |outcome| Self {
            token,
            outcome,
            state: None,
            result: None,
            code: None,
            message: None,
            transient: None,
            delay_ms: None,
            merge: update.and_then(|update| parse_optional_document(update.merge.as_ref())),
            timers: update.map(|update| timer_requests(&update.timers)).unwrap_or_default(),
        };
        let text = |text: &Option<Text>| text.as_deref().map(str::to_owned);
        match finish {
            Finish::Ok { state, result } => {
                let result = parse_optional_document(result.as_ref());
                Self { state: text(state), result, ..plain(FinishOutcome::Ok) }
            }
            Finish::Failed { code, message, class, state, delay_ms } => Self {
                state: text(state),
                code: Some(code.to_string()),
                message: Some(message.to_string()),
                transient: class.map(|class| class == Class::Transient),
                delay_ms: *delay_ms,
                ..plain(FinishOutcome::Failed)
            },
            Finish::Deferred { delay_ms, code, message } => Self {
                code: Some(code.to_string()),
                message: Some(message.to_string()),
                delay_ms: Some(*delay_ms),
                ..plain(FinishOutcome::Deferred)
            },
            Finish::Cancelled => plain(FinishOutcome::Cancelled),
            Finish::HandBack => plain(FinishOutcome::HandedBack),
        }
    }

    /// Returns the update of the status and the timers. Fails with a message that names the field.
    pub fn to_update(&self) -> Result<Option<Box<StatusUpdate>>, String> {
        status_update(self.merge.as_ref(), &self.timers)
    }

    /// Converts to the model. Fails with a message that names the field that the outcome does not
    /// allow.
    pub fn to_finish(&self) -> Result<Finish, String> {
        let state = self.state.as_deref().map(Into::into);
        let failure = self.code.is_some()
            || self.message.is_some()
            || self.transient.is_some()
            || self.delay_ms.is_some();
        match self.outcome {
            FinishOutcome::Ok if failure => {
                Err("`code`, `message`, `transient` and `delay_ms` go with the outcome `failed`"
                    .to_owned())
            }
            FinishOutcome::Ok => {
                Ok(Finish::Ok { state, result: self.result.as_ref().map(to_document) })
            }
            FinishOutcome::Failed if self.result.is_some() => {
                Err("`result` goes with the outcome `ok`".to_owned())
            }
            FinishOutcome::Failed => {
                let code = self.code.as_deref().ok_or("the outcome `failed` needs a `code`")?;
                let message = self.message.as_deref().unwrap_or_default().into();
                let class = |helps| if helps { Class::Transient } else { Class::Permanent };
                let class = self.transient.map(class);
                let delay_ms = self.delay_ms;
                Ok(Finish::Failed { code: code.into(), message, class, state, delay_ms })
            }
            FinishOutcome::Deferred
                if self.state.is_some() || self.result.is_some() || self.transient.is_some() =>
            {
                Err("the outcome `deferred` has only `delay_ms`, `code` and `message`".to_owned())
            }
            FinishOutcome::Deferred => {
                let code = self.code.as_deref().ok_or("the outcome `deferred` needs a `code`")?;
                let delay_ms =
                    self.delay_ms.ok_or("the outcome `deferred` needs the `delay_ms`")?;
                let message = self.message.as_deref().unwrap_or_default().into();
                Ok(Finish::Deferred { delay_ms, code: code.into(), message })
            }
            FinishOutcome::Cancelled | FinishOutcome::HandedBack
                if failure || self.state.is_some() || self.result.is_some() =>
            {
                Err("only `ok` and `failed` have a `state`, a `result` or an error".to_owned())
            }
            FinishOutcome::Cancelled => Ok(Finish::Cancelled),
            FinishOutcome::HandedBack => Ok(Finish::HandBack),
        }
    }
}

/// Result of finishing an attempt.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FinishResponse {
    /// Resulting state of the job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::JobState))]
    pub state: JobState,
    /// Whether it had been finished before.
    pub already: bool,
}
