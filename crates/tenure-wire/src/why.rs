//! JSON types of `why`: what a job or a resource waits for.

use serde::{Deserialize, Serialize};
use tenure_core::job::JobState;
use tenure_core::why::Why;
use tenure_core::{JobId, Text, Token};

use super::jobs::{FailureInfo, ProgressInfo, RequestedByInfo};
use super::locks::TenureInfo;
#[cfg(feature = "openapi")]
use super::schema;

/// Explanation of why a job or a resource is in its state. Which fields are present depends on
/// `why`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhyResponse {
    /// Reason code for programs.
    pub why: String,
    /// Explanation for people.
    pub text: String,
    /// Job that is explained; null for a resource without unfinished jobs whose last job is not a
    /// dead letter.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub job: Option<JobId>,
    /// Worker that runs the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Time since the attempt started, time until the job may start, or age of the dead letter, in
    /// milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// Token of the attempt's tenure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::FencingToken>))]
    pub token: Option<Token>,
    /// Progress of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressInfo>,
    /// Cancellation request, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<RequestedByInfo>,
    /// Who paused the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<RequestedByInfo>,
    /// Number of attempts started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Number of consecutive attempts that were deferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deferrals: Option<u32>,
    /// Operation that a timer submits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Failure of the latest attempt, or refusal of the timer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureInfo>,
    /// State of the resource that prevents the start, or final state of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// States from which the operation may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<String>>,
    /// Job that has to finish first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<BlockingJobInfo>,
    /// Tenure of a lock that the job needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<TenureInfo>,
    /// Number of running jobs of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<usize>,
    /// Maximum number of running jobs of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// Whether the maximum is per tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_tenant: Option<bool>,
    /// Number of workers that claim jobs of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
}

/// A job that another one waits for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlockingJobInfo {
    /// Id of the job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub job: JobId,
    /// Operation of the job.
    pub operation: String,
    /// State of the job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::JobState))]
    pub state: JobState,
    /// Worker that runs the job, if it is running.
    pub worker: Option<String>,
    /// Time since it started or, if it waits, since it was submitted, in milliseconds.
    pub for_ms: u64,
}

impl WhyResponse {
    /// Converts the explanation of a job, or of a resource without a job.
    #[must_use]
    pub fn new(job: Option<JobId>, why: &Why) -> Self {
        let (code, text) = (why.as_str().to_owned(), why.to_string());
        let plain = Self { why: code, text, job, ..Self::default() };
        let failure = |error: &Option<_>| error.as_ref().map(FailureInfo::new);
        match why {
            Why::Running { worker, for_ms, token, progress, cancel } => Self {
                worker: Some(worker.to_string()),
                for_ms: Some(*for_ms),
                token: Some(*token),
                progress: progress.as_ref().map(ProgressInfo::new),
                cancel: cancel.as_ref().map(RequestedByInfo::new),
                ..plain
            },
            Why::Paused(requested) => {
                Self { paused: Some(RequestedByInfo::new(requested)), ..plain }
            }
            Why::Backoff { for_ms, attempt, error } => {
                let (for_ms, attempt) = (Some(*for_ms), Some(*attempt));
                Self { for_ms, attempt, error: failure(error), ..plain }
            }
            Why::Deferred { for_ms, deferrals, error } => {
                let (for_ms, deferrals) = (Some(*for_ms), Some(*deferrals));
                Self { for_ms, deferrals, error: failure(error), ..plain }
            }
            Why::Timer { operation, for_ms, error } => {
                let (operation, for_ms) = (Some(operation.to_string()), Some(*for_ms));
                Self { operation, for_ms, error: failure(error), ..plain }
            }
            Why::Scheduled { for_ms } => Self { for_ms: Some(*for_ms), ..plain },
            Why::State { state, from } => {
                let from = from.iter().map(Text::to_string).collect();
                Self { state: Some(state.to_string()), from: Some(from), ..plain }
            }
            Why::Behind { job, operation, state, worker, for_ms } => {
                let (operation, worker) =
                    (operation.to_string(), worker.as_deref().map(str::to_owned));
                let (job, state, for_ms) = (*job, *state, *for_ms);
                let behind = BlockingJobInfo { job, operation, state, worker, for_ms };
                Self { behind: Some(behind), ..plain }
            }
            Why::Held(tenure) => Self { held_by: Some(TenureInfo::new(tenure)), ..plain },
            Why::AtCap { running, max, of_tenant } => {
                let (running, max) = (Some(*running), Some(*max));
                Self { running, max, of_tenant: Some(*of_tenant), ..plain }
            }
            Why::Ready { workers } => Self { workers: Some(*workers), ..plain },
            Why::Finished { state, error } => {
                Self { state: Some(state.as_str().to_owned()), error: failure(error), ..plain }
            }
            Why::LastFailed { for_ms, error, .. } => Self {
                for_ms: Some(*for_ms),
                error: failure(error),
                state: Some(why.as_str().to_owned()),
                ..plain
            },
            Why::NotDeclared | Why::NoWorker | Why::Idle => plain,
        }
    }
}
