//! JSON types of the pipelines API. A run is a job with the same id.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure_core::retry::TIME_LIMIT;
use tenure_core::{Job, JobId, JobState, Millis, Token};

use crate::run_args::RunArgs;
use tenure_core::limits;
use tenure_wire::schema::{self, name, string_enum};
use tenure_wire::{FailureInfo, ProgressInfo, RequestedByInfo, instant, parse_optional_document};

tenure_wire::schemas! {
    /// Status of a run.
        RunStatusParam => string_enum(RunStatus::ALL.iter().map(|status| status.as_str()));
    /// Name of a pipeline.
    PipelineName => name(limits::NAME_BYTES_MAX).examples(["gcp_billing_export"]);
}

/// Status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[derive(utoipa::ToSchema)]
pub enum RunStatus {
    /// Waiting to start.
    Pending,
    /// Executing its steps.
    Running,
    /// All steps succeeded.
    Complete,
    /// A step failed permanently, or the worker was lost.
    Failed,
    /// Requested to stop.
    Cancelling,
    /// Cancelled on request.
    Cancelled,
    /// Exceeded its time limit.
    Timeout,
}

impl RunStatus {
    /// All statuses.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Running,
        Self::Complete,
        Self::Failed,
        Self::Cancelling,
        Self::Cancelled,
        Self::Timeout,
    ];

    /// Returns the spelling in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Complete => "COMPLETE",
            Self::Failed => "FAILED",
            Self::Cancelling => "CANCELLING",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
        }
    }

    /// Returns the status of the run that `job` is. A run in backoff is pending.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        let timed_out = job.error.as_ref().is_some_and(|error| *error.code == *TIME_LIMIT);
        match job.state {
            JobState::Queued | JobState::Backoff => Self::Pending,
            JobState::Running => Self::Running,
            JobState::Cancelling => Self::Cancelling,
            JobState::Succeeded => Self::Complete,
            JobState::Cancelled | JobState::Superseded => Self::Cancelled,
            JobState::Failed | JobState::Dead | JobState::Redriven | JobState::Discarded => {
                if timed_out {
                    Self::Timeout
                } else {
                    Self::Failed
                }
            }
        }
    }

    /// Returns the job states that map to this status.
    #[must_use]
    pub fn states(self) -> &'static [JobState] {
        match self {
            Self::Pending => &[JobState::Queued, JobState::Backoff],
            Self::Running => &[JobState::Running],
            Self::Cancelling => &[JobState::Cancelling],
            Self::Complete => &[JobState::Succeeded],
            Self::Cancelled => &[JobState::Cancelled, JobState::Superseded],
            Self::Failed | Self::Timeout => {
                &[JobState::Failed, JobState::Dead, JobState::Redriven, JobState::Discarded]
            }
        }
    }

    /// Returns whether the run has ended.
    #[must_use]
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Cancelled | Self::Timeout)
    }
}

impl std::str::FromStr for RunStatus {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|status| status.as_str() == text);
        let expected = || Self::ALL.map(Self::as_str).join(", ");
        found.ok_or_else(|| format!("{text:?} is not a run status; expected {}", expected()))
    }
}

/// Triggers a run. The parameters of the pipeline are fields beside `trigger_by`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(example = json!({ "trigger_by": "ann" }))]
pub struct TriggerRequest {
    /// Name of the caller, for display. Defaults to the name of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::HolderName>)]
    pub trigger_by: Option<String>,
    /// Parameters of the pipeline.
    #[serde(flatten)]
    pub parameters: Map<String, Value>,
}

/// Result of a trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TriggerResponse {
    /// Id of the run: a new one, or the active one. Null if the active run is one of an external
    /// system.
    #[schema(value_type = Option<schema::Id>)]
    pub pipeline_logging_id: Option<JobId>,
    /// Id of the active run in an external system, found by the precheck of the pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// Name of the pipeline.
    pub pipeline_id: String,
    /// Tenant.
    pub tenant_id: String,
    /// `PENDING` for a new run, `RUNNING` for the active one.
    pub status: RunStatus,
    /// Message for people.
    pub message: String,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RunInfo {
    /// Id of the run, which is the id of its job.
    #[schema(value_type = schema::Id)]
    pub pipeline_logging_id: JobId,
    /// Name of the pipeline.
    pub pipeline_id: String,
    /// Tenant.
    pub tenant_id: String,
    /// Status of the run.
    pub status: RunStatus,
    /// Name of the caller that triggered it.
    pub trigger_by: String,
    /// Parameters, with defaults filled in.
    pub parameters: Map<String, Value>,
    /// Tick of the schedule that triggered it; null if something else did.
    #[serde(default)]
    #[schema(value_type = Option<schema::Instant>)]
    pub scheduled_at: Option<String>,
    /// Time of the trigger.
    #[schema(value_type = schema::Instant)]
    pub triggered_at: String,
    /// Time at which the first attempt started.
    #[schema(value_type = Option<schema::Instant>)]
    pub started_at: Option<String>,
    /// Time of the end.
    #[schema(value_type = Option<schema::Instant>)]
    pub ended_at: Option<String>,
    /// Time from start to end, or until now, in milliseconds.
    pub duration_ms: Option<u64>,
    /// Number of attempts; more than one if its worker was lost or the run was retried.
    pub attempt: u32,
    /// Failure of the run.
    pub error: Option<FailureInfo>,
    /// Progress of the current attempt.
    pub progress: Option<ProgressInfo>,
    /// Cancellation request, if there is one.
    pub cancel: Option<RequestedByInfo>,
    /// Results of its steps by name.
    pub result: Option<Value>,
    /// Number of other triggers that attached to it.
    pub duplicates: u32,
}

impl RunInfo {
    /// Converts a job of a pipeline.
    #[must_use]
    pub fn new(tenant: &str, pipeline: &str, job: &Job, now: Millis) -> Self {
        let args = RunArgs::from_json(parse_optional_document(job.args.as_ref()));
        // A run that succeeded has no error, even if an earlier attempt failed.
        let failed = job.error.as_ref().filter(|_| job.state != JobState::Succeeded);
        let started = job.attempts.first().map(|attempt| attempt.started_at);
        Self {
            pipeline_logging_id: job.id,
            pipeline_id: pipeline.to_owned(),
            tenant_id: tenant.to_owned(),
            status: RunStatus::of(job),
            trigger_by: job.by.to_string(),
            parameters: args.parameters,
            scheduled_at: args.scheduled_at,
            triggered_at: instant(job.submitted_at),
            started_at: started.map(instant),
            ended_at: job.ended_at.map(instant),
            duration_ms: started.map(|started| job.ended_at.unwrap_or(now).since(started)),
            attempt: job.attempt,
            error: failed.map(FailureInfo::new),
            progress: job.progress.as_ref().map(ProgressInfo::new),
            cancel: job.cancel.as_ref().map(RequestedByInfo::new),
            result: parse_optional_document(job.result.as_ref()),
            duplicates: job.joined,
        }
    }
}

/// A run with its steps and attached triggers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RunDetail {
    /// The run.
    #[serde(flatten)]
    pub run: RunInfo,
    /// Steps in order of execution.
    pub steps: Vec<StepInfo>,
    /// Latest triggers that attached to it, oldest first.
    pub attached: Vec<AttachedTriggerInfo>,
}

/// Status of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[derive(utoipa::ToSchema)]
pub enum StepStatus {
    /// Not started.
    Pending,
    /// Running.
    Running,
    /// Failed, waiting for the next try.
    Retrying,
    /// Succeeded.
    Complete,
    /// Failed permanently.
    Failed,
    /// Stopped because the run ended.
    Stopped,
}

impl StepStatus {
    /// Returns the spelling in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Retrying => "RETRYING",
            Self::Complete => "COMPLETE",
            Self::Failed => "FAILED",
            Self::Stopped => "STOPPED",
        }
    }
}

/// A step of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StepInfo {
    /// Name of the step.
    pub name: String,
    /// Status of the step.
    pub status: StepStatus,
    /// Number of tries.
    pub tries: u32,
    /// Time of the first try.
    #[schema(value_type = Option<schema::Instant>)]
    pub started_at: Option<String>,
    /// Time of the end.
    #[schema(value_type = Option<schema::Instant>)]
    pub ended_at: Option<String>,
    /// Failure of the last try.
    pub error: Option<FailureInfo>,
}

/// A trigger that attached to an active run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AttachedTriggerInfo {
    /// Name of the caller.
    pub trigger_by: String,
    /// Time of the trigger.
    #[schema(value_type = schema::Instant)]
    pub at: String,
}

/// A held lock of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PipelineLockInfo {
    /// Tenant.
    pub tenant_id: String,
    /// Name of the pipeline.
    pub pipeline_id: String,
    /// Id of the run; null if the lock was acquired manually.
    #[schema(value_type = Option<schema::Id>)]
    pub pipeline_logging_id: Option<JobId>,
    /// Name of the caller that triggered the run, or of the holder.
    pub locked_by: String,
    /// Time of the acquisition.
    #[schema(value_type = schema::Instant)]
    pub locked_at: String,
    /// Time since the acquisition in milliseconds.
    pub age_ms: u64,
    /// Time limit of the run in milliseconds.
    pub limit_ms: u64,
    /// Fencing token, required by a forced release.
    #[schema(value_type = schema::FencingToken)]
    pub token: Token,
}

/// Forces the release of a lock, which ends its run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[derive(utoipa::ToSchema)]
#[schema(example = json!({ "token": 1, "reason": "stuck" }))]
pub struct ForceReleaseRequest {
    /// Token of the current tenure, as in the list of locks.
    #[schema(value_type = schema::FencingToken)]
    pub token: Token,
    /// Id of the run. Required if several concurrent runs of the pipeline have the same token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Id>)]
    pub pipeline_logging_id: Option<JobId>,
    /// Reason for the release, for the audit log and the history.
    #[schema(value_type = schema::Reason)]
    pub reason: String,
}

/// Result of a forced release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForceReleaseResponse {
    /// Name of the pipeline.
    pub pipeline_id: String,
    /// Always true.
    pub released: bool,
}

/// A declared pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PipelineInfo {
    /// Tenant.
    pub tenant_id: String,
    /// Name of the pipeline.
    pub pipeline_id: String,
    /// Description for people.
    pub description: Option<String>,
    /// Time limit of a run in milliseconds.
    pub limit_ms: u64,
    /// Maximum number of concurrent runs.
    pub max_runs: u32,
    /// Schedule: a cron expression and a time zone.
    pub schedule: Option<String>,
    /// Time of the next scheduled run.
    #[schema(value_type = Option<schema::Instant>)]
    pub next_at: Option<String>,
    /// Declared parameters.
    pub parameters: Vec<ParameterInfo>,
    /// Names of its steps in order of execution.
    pub steps: Vec<String>,
    /// Ids of its unfinished runs.
    #[schema(value_type = Vec<schema::Id>)]
    pub running: Vec<JobId>,
}

/// A parameter of a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ParameterInfo {
    /// Name of the parameter.
    pub name: String,
    /// Type: `string`, `integer`, `number`, `boolean`, `date` or `json`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Default value; null if the parameter is required.
    pub default: Option<Value>,
}
