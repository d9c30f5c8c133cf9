//! Error responses of the API: RFC 9457 problem details with a stable code.

use std::fmt::Display;

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tenure_core::{Code, Outcome, Precondition, Refusal, TenureView, Text};
use tenure_store::StoreError;
use tenure_wire::{self as wire, TenureInfo};

/// The code of a problem, as an extension of its response.
#[derive(Clone, Debug)]
pub struct ProblemCode(pub String);

/// An error response.
#[derive(Debug)]
pub struct Problem(Box<wire::Problem>);

impl Problem {
    /// Creates a problem with a status, a stable code and a sentence that names the remedy.
    #[must_use]
    pub fn new(status: u16, code: &str, detail: &str) -> Self {
        debug_assert!(wire::CODES.contains(&code), "{code} is not a stable code");
        Self(Box::new(wire::Problem {
            kind: format!("/docs/errors/{code}"),
            title: code.replace('_', " "),
            status,
            code: code.to_owned(),
            detail: detail.to_owned(),
            request_id: crate::request_id::current(),
            ..wire::Problem::default()
        }))
    }

    /// Creates the problem of invalid input.
    #[must_use]
    pub fn invalid(error: &dyn Display) -> Self {
        Self::new(422, "invalid", &error.to_string())
    }

    /// Creates the problem of an object that does not exist.
    #[must_use]
    pub fn not_found(detail: &str) -> Self {
        Self::new(404, "not_found", detail)
    }

    /// Creates the problem of a missing or invalid key.
    #[must_use]
    pub fn unauthenticated() -> Self {
        let detail = "send a valid key as `Authorization: Bearer KEY` or `x-api-key: KEY`; `tenure \
                      key create` creates one, and the admin key is in admin.key in the server's \
                      data directory";
        Self::new(401, "unauthenticated", detail)
    }

    /// Creates the problem of a rate limit.
    #[must_use]
    pub fn rate_limited(retry_after_s: u64) -> Self {
        let detail = format!("too many requests; retry after {retry_after_s} s");
        let mut problem = Self::new(429, "rate_limited", &detail);
        problem.0.retry_after_s = Some(retry_after_s);
        problem
    }

    /// Creates the problem of a method that the route does not support.
    #[must_use]
    pub fn method_not_allowed(method: &Method) -> Self {
        Self::new(405, "not_found", &format!("this route does not support {method}"))
    }

    /// Creates the problem of a server or store that cannot respond: fail closed.
    #[must_use]
    pub fn unavailable(detail: &str) -> Self {
        let mut problem = Self::new(503, "unavailable", detail);
        problem.0.retry_after_s = Some(1);
        problem
    }

    /// Creates the problem of an acquire that is still waiting.
    #[must_use]
    pub fn waiting(position: usize, queue_length: usize, held_by: Option<&TenureView>) -> Self {
        let detail = "still waiting; repeat the request with the same Idempotency-Key to continue";
        let mut problem = Self::new(409, "held", detail);
        problem.0.position = Some(position);
        problem.0.queue_length = Some(queue_length);
        problem.0.held_by = held_by.map(TenureInfo::new);
        problem
    }

    /// Returns whether the problem has this code.
    #[must_use]
    pub fn is(&self, code: Code) -> bool {
        self.0.code == code.as_str()
    }

    /// Creates the problem of an outcome that does not belong to the command: a bug.
    #[must_use]
    pub fn unexpected(outcome: &Outcome) -> Self {
        tracing::error!(?outcome, "bug: the outcome does not belong to the command");
        Self::new(500, "unavailable", "internal error; see the log of the server")
    }
}

/// Maps codes to statuses.
fn status(code: Code) -> u16 {
    match code {
        Code::Held | Code::Lost | Code::Rejected | Code::BadTransition | Code::Conflict => 409,
        Code::NotFound => 404,
        Code::PreconditionFailed => 412,
        Code::TooLarge => 413,
        Code::Invalid => 422,
        Code::Forbidden => 403,
        Code::Unavailable => 503,
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = refusal.code();
        let mut problem = Self::new(status(code), code.as_str(), &refusal.to_string());
        problem.0.reason = refusal.reason().map(str::to_owned);
        add_facts(&mut problem.0, refusal);
        problem
    }
}

/// Adds the facts of a refusal.
fn add_facts(problem: &mut wire::Problem, refusal: Refusal) {
    match refusal {
        Refusal::Held { by, queue_length } => {
            problem.held_by = by.as_ref().map(TenureInfo::new);
            problem.queue_length = Some(queue_length);
        }
        Refusal::Lost { token, how, current } => {
            problem.token = Some(token);
            problem.how = how.map(|how| how.as_str().to_owned());
            problem.current = current.as_ref().map(TenureInfo::new);
        }
        Refusal::NotCurrent { current } => {
            problem.current = current.as_ref().map(TenureInfo::new);
        }
        Refusal::Rejected { present, operation, state } => {
            problem.present_job = Some(present);
            problem.operation = Some(operation.to_string());
            problem.state = Some(state.as_str().to_owned());
        }
        Refusal::BadTransition { operation, state, from } => {
            problem.operation = Some(operation.to_string());
            problem.state = Some(state.to_string());
            problem.from = Some(from.iter().map(Text::to_string).collect());
        }
        Refusal::WrongJobState { state, wanted } => {
            problem.state = Some(state.as_str().to_owned());
            problem.wanted = Some(wanted.as_str().to_owned());
        }
        Refusal::PreconditionFailed { wanted, generation } => {
            problem.wanted_generation = match wanted {
                Precondition::Generation(wanted) => Some(wanted),
                Precondition::Absent => None,
            };
            problem.generation = generation;
        }
        Refusal::NotWaiting { to } => problem.subject = Some(to.to_string()),
        Refusal::NotDeclared(what) => problem.subject = Some(what),
        Refusal::InUse { job } => problem.job = job,
        Refusal::TenureOfJob(job) => problem.job = Some(job),
        Refusal::SessionExpired
        | Refusal::QueueFull
        | Refusal::LaneFull
        | Refusal::RequestReused
        | Refusal::AlreadyAnswered
        | Refusal::TooManyKeys
        | Refusal::StillAlive
        | Refusal::ForeignSession
        | Refusal::NoSuchJob
        | Refusal::NoSuchResource
        | Refusal::Busy
        | Refusal::TooLarge(_)
        | Refusal::Invalid(_) => {}
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let mut problem = Self::unavailable(&error.to_string());
        if !error.is_retryable() {
            problem.0.reason = Some(wire::CORRUPT.to_owned());
            problem.0.retry_after_s = None;
        }
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::BAD_REQUEST);
        tracing::debug!(code = self.0.code, request_id = self.0.request_id, "{}", self.0.detail);
        let mut response = (status, Json(&*self.0)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if let Some(after_s) = self.0.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after_s));
        }
        response.extensions_mut().insert(ProblemCode(self.0.code));
        response
    }
}
