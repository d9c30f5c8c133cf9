//! Maps problem documents of the API back to errors and refusals.

use reqwest::StatusCode;
use tenure_core::{Code, JobId, JobRequirement, JobState, Precondition, Refusal};

use crate::error::Error;
use crate::wire::{CORRUPT, Problem, TenureInfo};

pub(super) fn error_from_problem(status: StatusCode, problem: Problem) -> Error {
    match status {
        StatusCode::UNAUTHORIZED => Error::Denied(problem.detail),
        // Without a reason the route or the name does not exist; with one it is a refusal.
        StatusCode::NOT_FOUND if problem.reason.is_none() => Error::NotFound(problem.detail),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            Error::Unavailable(problem.detail)
        }
        status if status.is_server_error() && problem.reason.as_deref() == Some(CORRUPT) => {
            Error::Corrupt(problem.detail)
        }
        status if status.is_server_error() => Error::Unavailable(problem.detail),
        _ => refusal_from_problem(problem),
    }
}

fn refusal_from_problem(problem: Problem) -> Error {
    let view = |answer: Option<TenureInfo>| answer.and_then(|answer| answer.to_view().ok());
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
        ("rejected" | "bad_transition" | "not_found" | "conflict", _) => {
            return job_refusal(problem).map_or_else(|error| error, Error::Refused);
        }
        ("precondition_failed", _) => Refusal::PreconditionFailed {
            wanted: (problem.wanted_generation)
                .map_or(Precondition::Absent, Precondition::Generation),
            generation: problem.generation,
        },
        ("too_large", _) => Refusal::TooLarge(problem.detail),
        ("invalid", _) => Refusal::Invalid(problem.detail),
        _ => return unknown(&problem),
    })
}

/// Maps refusals about jobs and resources, and those without details.
fn job_refusal(problem: Problem) -> Result<Refusal, Error> {
    let operation = problem.operation.as_deref().unwrap_or_default().into();
    Ok(match (problem.code.as_str(), problem.reason.as_deref()) {
        ("rejected", Some("present_job")) => Refusal::Rejected {
            present: problem.present_job.unwrap_or(JobId(0)),
            operation,
            state: job_state(problem.state.as_deref()),
        },
        ("rejected", Some("lane_full")) => Refusal::LaneFull,
        ("rejected", Some("queue_full")) => Refusal::QueueFull,
        ("rejected", Some("too_many_keys")) => Refusal::TooManyKeys,
        ("bad_transition", _) => Refusal::BadTransition {
            operation,
            state: problem.state.as_deref().unwrap_or_default().into(),
            from: problem.from.unwrap_or_default().into_iter().map(Into::into).collect(),
        },
        ("not_found", Some("no_such_job")) => Refusal::NoSuchJob,
        ("not_found", Some("no_such_resource")) => Refusal::NoSuchResource,
        ("not_found", Some("not_declared")) => {
            Refusal::NotDeclared(problem.subject.unwrap_or_default())
        }
        (_, Some("job_state")) => {
            let wanted = problem.wanted.as_deref().and_then(JobRequirement::parse);
            let state = job_state(problem.state.as_deref());
            match wanted {
                Some(wanted) => Refusal::WrongJobState { state, wanted },
                None => return Err(unknown(&problem)),
            }
        }
        (_, Some("in_use")) => Refusal::InUse { job: problem.job },
        (_, Some("job_tenure")) => Refusal::TenureOfJob(problem.job.unwrap_or(JobId(0))),
        (_, Some("not_waiting")) => {
            Refusal::NotWaiting { to: problem.subject.unwrap_or_default().into() }
        }
        (_, Some("request_reused")) => Refusal::RequestReused,
        (_, Some("already_answered")) => Refusal::AlreadyAnswered,
        _ => return Err(unknown(&problem)),
    })
}

/// A refusal without details comes from an app. One with a reason that this version of the library
/// does not know comes from a newer server.
fn unknown(problem: &Problem) -> Error {
    let code = Code::ALL.into_iter().find(|code| code.as_str() == problem.code);
    if let Some(code) = code.filter(|_| problem.reason.is_none()) {
        return Error::RefusedByApp { code, detail: problem.detail.clone() };
    }
    let reason = problem.reason.as_deref().unwrap_or("none");
    Error::Protocol(format!("{} (code {}, reason {reason})", problem.detail, problem.code))
}

/// Parses the job state that servers include in these refusals.
fn job_state(word: Option<&str>) -> JobState {
    word.and_then(|word| word.parse().ok()).unwrap_or(JobState::Running)
}
