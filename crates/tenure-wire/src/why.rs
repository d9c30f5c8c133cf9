//! The JSON of `why`: what a job or a resource waits for.

use serde::{Deserialize, Serialize};
use tenure_core::job::JobState;
use tenure_core::why::Why;
use tenure_core::{JobId, Text, Token};

use super::jobs::{AskedAnswer, FailureAnswer, ProgressAnswer};
use super::locks::TenureAnswer;
#[cfg(feature = "openapi")]
use super::schema;

/// Why a job or a resource is where it is. Only the facts that belong to the word are there.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhyAnswer {
    /// The word for programs.
    pub why: String,
    /// The sentence for people.
    pub text: String,
    /// The job that it is about; none for a resource without one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub job: Option<JobId>,
    /// The worker that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// For how long already, or for how long still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// The tenure of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Fence>))]
    pub token: Option<Token>,
    /// How far it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressAnswer>,
    /// Who asked it to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<AskedAnswer>,
    /// Who paused the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<AskedAnswer>,
    /// How many attempts were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Why the latest attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureAnswer>,
    /// The state of the resource, which does not allow it; of the job, when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The states that it may start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<String>>,
    /// The job that is first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<BehindAnswer>,
    /// Who holds a lock that it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<TenureAnswer>,
    /// How many jobs of its kind run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<usize>,
    /// How many of them may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// Whether that is the cap of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_tenant: Option<bool>,
    /// How many workers ask for jobs of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
}

/// The job that another one waits for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BehindAnswer {
    /// The job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub job: JobId,
    /// Its verb.
    pub operation: String,
    /// Where it is in its life.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::JobStateWord))]
    pub state: JobState,
    /// Its worker, when it runs.
    pub worker: Option<String>,
    /// For how long it has been there.
    pub for_ms: u64,
}

impl WhyAnswer {
    /// The answer about a job, or about a resource.
    #[must_use]
    pub fn of(job: Option<JobId>, why: &Why) -> Self {
        let (word, text) = (why.as_str().to_owned(), why.to_string());
        let plain = Self { why: word, text, job, ..Self::default() };
        let failure = |error: &Option<_>| error.as_ref().map(FailureAnswer::of);
        match why {
            Why::Running { worker, for_ms, token, progress, cancel } => Self {
                worker: Some(worker.to_string()),
                for_ms: Some(*for_ms),
                token: Some(*token),
                progress: progress.as_ref().map(ProgressAnswer::of),
                cancel: cancel.as_ref().map(AskedAnswer::of),
                ..plain
            },
            Why::Paused(asked) => Self { paused: Some(AskedAnswer::of(asked)), ..plain },
            Why::Backoff { for_ms, attempt, error } => {
                let (for_ms, attempt) = (Some(*for_ms), Some(*attempt));
                Self { for_ms, attempt, error: failure(error), ..plain }
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
                let behind = BehindAnswer { job, operation, state, worker, for_ms };
                Self { behind: Some(behind), ..plain }
            }
            Why::Held(tenure) => Self { held_by: Some(TenureAnswer::of(tenure)), ..plain },
            Why::AtCap { running, max, of_tenant } => {
                let (running, max) = (Some(*running), Some(*max));
                Self { running, max, of_tenant: Some(*of_tenant), ..plain }
            }
            Why::Ready { workers } => Self { workers: Some(*workers), ..plain },
            Why::Finished { state, error } => {
                Self { state: Some(state.as_str().to_owned()), error: failure(error), ..plain }
            }
            Why::NotDeclared | Why::NoWorker | Why::Idle => plain,
        }
    }
}
