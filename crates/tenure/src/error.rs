//! Errors of requests to a server or a store.

use tenure_core::key::InvalidName;
use tenure_core::{Code, JobState, Outcome, Refusal, TenureView};

use crate::wire::JobInfo;

/// Error of a request to a server or a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store refused the command.
    #[error("{0}")]
    Refused(Refusal),
    /// Neither the server nor the store responded. The command may or may not have been applied.
    #[error("the server or its store is unavailable: {0}")]
    Unavailable(String),
    /// Stored data is damaged. A retry does not help.
    #[error("{0}")]
    Corrupt(String),
    /// The embedded store cannot be opened.
    #[cfg(feature = "local")]
    #[error(transparent)]
    Open(#[from] tenure_store::embedded::Error),
    /// The API key is missing or invalid, or its role does not permit the request.
    #[error("{0}")]
    Denied(String),
    /// The addressed object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// An app of the server refused the request.
    #[error("{detail}")]
    RefusedByApp {
        /// Stable code.
        code: Code,
        /// Description with the remedy.
        detail: String,
    },
    /// The lock request is still in the queue. Sending it again continues the wait.
    #[error("still waiting at position {position} of {queue_length}")]
    Waiting {
        /// Position in the queue, starting at 1.
        position: usize,
        /// Number of requests in the queue.
        queue_length: usize,
        /// Current holder of the lock.
        held_by: Option<Box<TenureView>>,
    },
    /// The job has finished without success: it failed, was cancelled or was superseded.
    #[error("{}", describe_end(.0))]
    JobFailed(Box<JobInfo>),
    /// A resource, kind or lock name is invalid.
    #[error(transparent)]
    BadName(#[from] InvalidName),
    /// The response does not conform to the API.
    #[error("unexpected response: {0}")]
    Protocol(String),
}

impl Error {
    /// Returns whether the request may succeed if it is retried later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Converts an outcome that the command `name` does not expect.
    pub(crate) fn from_outcome(name: &str, outcome: Outcome) -> Self {
        match outcome {
            Outcome::Refused(refusal) => Self::Refused(refusal),
            other => Self::Protocol(format!("{name} returned {other:?}")),
        }
    }

    /// Returns the stable code of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(refusal) => Some(refusal.code()),
            Self::RefusedByApp { code, .. } => Some(*code),
            Self::BadName(_) => Some(Code::Invalid),
            #[cfg(feature = "local")]
            Self::Open(_) => None,
            Self::Unavailable(_)
            | Self::Corrupt(_)
            | Self::Denied(_)
            | Self::NotFound(_)
            | Self::Waiting { .. }
            | Self::JobFailed(_)
            | Self::Protocol(_) => None,
        }
    }
}

/// Describes how a job ended.
fn describe_end(job: &JobInfo) -> String {
    let (id, state) = (job.id, job.state.as_str());
    if let Some(next) = job.followed_by {
        return format!("job {id} is {state}; job {next} follows it");
    }
    match (&job.error, &job.cancel) {
        (_, Some(cancel)) if job.state == JobState::Cancelled => {
            format!("job {id} was cancelled by {}: {}", cancel.by, cancel.reason)
        }
        (Some(error), _) => format!("job {id} is {state}: {}: {}", error.code, error.message),
        (None, _) => format!("job {id} is {state}"),
    }
}

#[cfg(feature = "local")]
impl From<tenure_store::StoreError> for Error {
    fn from(error: tenure_store::StoreError) -> Self {
        if error.is_retryable() {
            Self::Unavailable(error.to_string())
        } else {
            Self::Corrupt(error.to_string())
        }
    }
}
