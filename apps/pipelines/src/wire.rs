//! The JSON of pipelines, in the names of their users: a run is a job, its id the job's.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure_core::retry::TIME_LIMIT;
use tenure_core::{Job, JobId, JobState, Millis, Token};

use tenure_core::limits;
use tenure_wire::schema::{self, name, words};
use tenure_wire::{AskedAnswer, FailureAnswer, ProgressAnswer, instant, values};

tenure_wire::schemas! {
    /// Where a run is in its life.
    RunStatusWord => words(RunStatus::ALL.iter().map(|status| status.as_str()));
    /// The name of a pipeline.
    PipelineName => name(limits::NAME_BYTES_MAX).examples(["gcp_billing_export"]);
}

/// Where a run is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[derive(utoipa::ToSchema)]
pub enum RunStatus {
    /// It was triggered and waits to be begun.
    Pending,
    /// Its steps run.
    Running,
    /// All steps are done.
    Complete,
    /// A step failed for good, or the run was lost.
    Failed,
    /// Somebody wants it to stop.
    Cancelling,
    /// It was stopped by somebody's wish.
    Cancelled,
    /// It took longer than it may.
    Timeout,
}

impl RunStatus {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Running,
        Self::Complete,
        Self::Failed,
        Self::Cancelling,
        Self::Cancelled,
        Self::Timeout,
    ];

    /// The word for it.
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

    /// Where a job is in the life of a run. One that rests between two attempts waits to be begun.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        let late = job.error.as_ref().is_some_and(|error| *error.code == *TIME_LIMIT);
        match job.state {
            JobState::Queued | JobState::Backoff => Self::Pending,
            JobState::Running => Self::Running,
            JobState::Cancelling => Self::Cancelling,
            JobState::Succeeded => Self::Complete,
            JobState::Cancelled | JobState::Superseded => Self::Cancelled,
            JobState::Failed | JobState::Dead | JobState::Redriven | JobState::Discarded => {
                if late { Self::Timeout } else { Self::Failed }
            }
        }
    }

    /// The states of jobs that can have this status.
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

    /// Whether nothing more happens to the run.
    #[must_use]
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Cancelled | Self::Timeout)
    }
}

impl std::str::FromStr for RunStatus {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|status| status.as_str() == word);
        let words = || Self::ALL.map(Self::as_str).join(", ");
        known.ok_or_else(|| format!("{word:?} is no status of a run; there are {}", words()))
    }
}

/// What triggers a run: who, and the pipeline's parameters beside it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(example = json!({ "trigger_by": "ann" }))]
pub struct TriggerBody {
    /// Who triggers it, for people; the name of the key when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::HolderName>)]
    pub trigger_by: Option<String>,
    /// The parameters that the pipeline declares.
    #[serde(flatten)]
    pub parameters: Map<String, Value>,
}

/// What a trigger came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TriggerAnswer {
    /// The run that counts: a new one, or the one that was there.
    #[schema(value_type = schema::Id)]
    pub pipeline_logging_id: JobId,
    /// The pipeline.
    pub pipeline_id: String,
    /// Whose it is.
    pub tenant_id: String,
    /// `PENDING` for the run that this trigger started, `RUNNING` for one that was there.
    pub status: RunStatus,
    /// The same, for people.
    pub message: String,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RunAnswer {
    /// The identity; as a job it has the same.
    #[schema(value_type = schema::Id)]
    pub pipeline_logging_id: JobId,
    /// The pipeline.
    pub pipeline_id: String,
    /// Whose it is.
    pub tenant_id: String,
    /// Where it is in its life.
    pub status: RunStatus,
    /// Who triggered it.
    pub trigger_by: String,
    /// Its parameters, with defaults filled in.
    pub parameters: Map<String, Value>,
    /// When it was triggered.
    #[schema(value_type = schema::Instant)]
    pub triggered_at: String,
    /// When its first step began.
    #[schema(value_type = Option<schema::Instant>)]
    pub started_at: Option<String>,
    /// When it was over.
    #[schema(value_type = Option<schema::Instant>)]
    pub ended_at: Option<String>,
    /// How long it took from start to end, or takes until now.
    pub duration_ms: Option<u64>,
    /// How often it was begun; more than once says that its process was lost, or went away.
    pub attempt: u32,
    /// Why it failed.
    pub error: Option<FailureAnswer>,
    /// How far it has come.
    pub progress: Option<ProgressAnswer>,
    /// Who asked it to stop.
    pub cancel: Option<AskedAnswer>,
    /// What its steps gave, by their names.
    pub result: Option<Value>,
    /// How many other triggers got its id.
    pub duplicates: u32,
}

impl RunAnswer {
    /// A run of a pipeline.
    #[must_use]
    pub fn of(tenant: &str, pipeline: &str, job: &Job, now: Millis) -> Self {
        let parameters = match values(job.args.as_ref()) {
            Some(Value::Object(parameters)) => parameters,
            _ => Map::new(),
        };
        // What an earlier attempt failed with is no error of a run that went well.
        let failed = job.error.as_ref().filter(|_| job.state != JobState::Succeeded);
        let started = job.attempts.first().map(|attempt| attempt.started_at);
        Self {
            pipeline_logging_id: job.id,
            pipeline_id: pipeline.to_owned(),
            tenant_id: tenant.to_owned(),
            status: RunStatus::of(job),
            trigger_by: job.by.to_string(),
            parameters,
            triggered_at: instant(job.submitted_at),
            started_at: started.map(instant),
            ended_at: job.ended_at.map(instant),
            duration_ms: started.map(|started| job.ended_at.unwrap_or(now).since(started)),
            attempt: job.attempt,
            error: failed.map(FailureAnswer::of),
            progress: job.progress.as_ref().map(ProgressAnswer::of),
            cancel: job.cancel.as_ref().map(AskedAnswer::of),
            result: values(job.result.as_ref()),
            duplicates: job.joined,
        }
    }
}

/// A run with all that is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RunDetail {
    /// The run.
    #[serde(flatten)]
    pub run: RunAnswer,
    /// Its steps in their order.
    pub steps: Vec<StepAnswer>,
    /// The latest triggers that got its id, oldest first.
    pub attached: Vec<AttachedAnswer>,
}

/// Where a step is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[derive(utoipa::ToSchema)]
pub enum StepStatus {
    /// Its turn has not come.
    Pending,
    /// It runs.
    Running,
    /// It failed and is tried again soon.
    Retrying,
    /// It is done.
    Complete,
    /// It failed for good.
    Failed,
    /// The run ended while it ran.
    Stopped,
}

impl StepStatus {
    /// The word for it.
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
pub struct StepAnswer {
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub status: StepStatus,
    /// How often it was tried.
    pub tries: u32,
    /// When it was first tried.
    #[schema(value_type = Option<schema::Instant>)]
    pub started_at: Option<String>,
    /// When it was over.
    #[schema(value_type = Option<schema::Instant>)]
    pub ended_at: Option<String>,
    /// Why it failed the last time.
    pub error: Option<FailureAnswer>,
}

/// A trigger that got the id of a run that was there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AttachedAnswer {
    /// Who triggered.
    pub trigger_by: String,
    /// When.
    #[schema(value_type = schema::Instant)]
    pub at: String,
}

/// The lock of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PipelineLockAnswer {
    /// Whose it is.
    pub tenant_id: String,
    /// The pipeline.
    pub pipeline_id: String,
    /// The run; none when somebody holds the lock by hand.
    #[schema(value_type = Option<schema::Id>)]
    pub pipeline_logging_id: Option<JobId>,
    /// Who triggered the run, or holds the lock.
    pub locked_by: String,
    /// When it was taken.
    #[schema(value_type = schema::Instant)]
    pub locked_at: String,
    /// How long ago that is.
    pub age_ms: u64,
    /// How long the run may take.
    pub limit_ms: u64,
    /// Its fencing number, which a force release has to name.
    #[schema(value_type = schema::Fence)]
    pub token: Token,
}

/// What ends a run's tenure against its will.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[derive(utoipa::ToSchema)]
#[schema(example = json!({ "token": 1, "reason": "stuck" }))]
pub struct ForceReleaseBody {
    /// The token, exactly, as the list of locks has it.
    #[schema(value_type = schema::Fence)]
    pub token: Token,
    /// The run, for a pipeline with several at once whose tokens are the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Id>)]
    pub pipeline_logging_id: Option<JobId>,
    /// Why.
    #[schema(value_type = schema::Reason)]
    pub reason: String,
}

/// What a force release came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForceReleaseAnswer {
    /// The pipeline.
    pub pipeline_id: String,
    /// Always true.
    pub released: bool,
}

/// A declared pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PipelineAnswer {
    /// Whose it is.
    pub tenant_id: String,
    /// Its name.
    pub pipeline_id: String,
    /// What it is for, in its own words.
    pub description: Option<String>,
    /// How long a run may take.
    pub limit_ms: u64,
    /// Most runs of it at once.
    pub max_runs: u32,
    /// When it runs by itself: a cron expression and a time zone.
    pub schedule: Option<String>,
    /// When that is next.
    #[schema(value_type = Option<schema::Instant>)]
    pub next_at: Option<String>,
    /// What it takes.
    pub parameters: Vec<ParameterAnswer>,
    /// The names of its steps in their order.
    pub steps: Vec<String>,
    /// The runs that are not over.
    #[schema(value_type = Vec<schema::Id>)]
    pub running: Vec<JobId>,
}

/// A parameter of a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ParameterAnswer {
    /// Its name.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean`, `date` or `json`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its value when a trigger says nothing; without one it must be given.
    pub default: Option<Value>,
}
