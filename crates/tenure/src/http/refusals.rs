//! Maps problem documents of the API back to errors and refusals.

use reqwest::StatusCode;
use tenure_core::{JobId, JobState, Refusal};

use crate::error::Error;
use crate::wire::{Problem, TenureAnswer};

pub(super) fn error_from_problem(status: StatusCode, problem: Problem) -> Error {
    match status {
        StatusCode::UNAUTHORIZED => Error::Denied(problem.detail),
        // Without a reason the route or the name does not exist; with one it is a refusal.
        StatusCode::NOT_FOUND if problem.reason.is_none() => Error::NotFound(problem.detail),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            Error::Unavailable(problem.detail)
        }
        status if status.is_server_error() => Error::Unavailable(problem.detail),
        _ => refusal_from_problem(problem),
    }
}

fn refusal_from_problem(problem: Problem) -> Error {
    let view = |answer: Option<TenureAnswer>| answer.and_then(|answer| answer.to_view().ok());
    if let Some(position) = problem.position {
        let queue_length = problem.queue_length.unwrap_or(position);
        return Error::Waiting {
            position,
            queue_length,
            held_by: view(problem.held_by).map(Box::new),
        };
    }
    Error::Refused(match (problem.code.as_str(), problem.reason.as_deref()) {
        ("held", _) => Refusal::Held {
            by: view(problem.held_by),
            queue_length: problem.queue_length.unwrap_or(0),
        },
        ("lost", Some("session_over")) => Refusal::SessionExpired,
        ("lost", _) => Refusal::Lost {
            token: problem.token.unwrap_or_default(),
            how: problem.how.and_then(|how| how.parse().ok()),
            current: view(problem.current),
        },
        ("conflict", Some("not_current")) => Refusal::NotCurrent { current: view(problem.current) },
        ("conflict", Some("still_alive")) => Refusal::StillAlive,
        ("forbidden", Some("foreign_session")) => Refusal::ForeignSession,
        ("forbidden", _) => return Error::Denied(problem.detail),
        ("rejected" | "bad_transition" | "not_found" | "conflict", _) => job_refusal(problem),
        _ => Refusal::Invalid(problem.detail),
    })
}

/// Maps refusals about jobs and resources, and those without details.
fn job_refusal(problem: Problem) -> Refusal {
    let operation = problem.operation.as_deref().unwrap_or_default().into();
    match (problem.code.as_str(), problem.reason.as_deref()) {
        ("rejected", Some("present_job")) => Refusal::Rejected {
            present: problem.present_job.unwrap_or(JobId(0)),
            operation,
            state: job_state(problem.state.as_deref()),
        },
        ("rejected", Some("lane_full")) => Refusal::LaneFull,
        ("rejected", _) => Refusal::QueueFull,
        ("bad_transition", _) => Refusal::BadTransition {
            operation,
            state: problem.state.as_deref().unwrap_or_default().into(),
            from: problem.from.unwrap_or_default().into_iter().map(Into::into).collect(),
        },
        ("not_found", Some("no_such_job")) => Refusal::NoSuchJob,
        ("not_found", Some("no_such_resource")) => Refusal::NoSuchResource,
        ("not_found", _) => {
            let what = problem.detail.split(" is not declared.").next();
            Refusal::NotDeclared(what.unwrap_or_default().to_owned())
        }
        (_, Some("job_state")) => Refusal::WrongJobState {
            state: job_state(problem.state.as_deref()),
            wanted: required_state(problem.wanted.as_deref()),
        },
        (_, Some("in_use")) => Refusal::InUse { job: problem.job },
        (_, Some("job_tenure")) => Refusal::TenureOfJob(problem.job.unwrap_or(JobId(0))),
        _ => Refusal::RequestReused,
    }
}

/// Parses the job state that servers include in these refusals.
fn job_state(word: Option<&str>) -> JobState {
    word.and_then(|word| word.parse().ok()).unwrap_or(JobState::Running)
}

/// Maps the required state back to the static text of the refusal.
fn required_state(word: Option<&str>) -> &'static str {
    let known = ["not over", "in backoff or over", "not dealt with yet", "dead"];
    known.into_iter().find(|known| Some(*known) == word).unwrap_or("in another state")
}
