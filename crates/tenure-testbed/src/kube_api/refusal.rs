//! Refusals in the form of the API: a `Status` object with code, reason and message.

use serde_json::{Value, json};

/// A request that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// Machine-readable reason.
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
}

impl Refusal {
    pub(super) fn not_found(plural: &str, name: &str) -> Self {
        Self { code: 404, reason: "NotFound", message: format!("{plural} \"{name}\" not found") }
    }

    pub(super) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".to_owned();
        Self { code: 404, reason: "NotFound", message }
    }

    pub(super) fn exists(plural: &str, name: &str) -> Self {
        let message = format!("{plural} \"{name}\" already exists");
        Self { code: 409, reason: "AlreadyExists", message }
    }

    pub(super) fn conflict(plural: &str, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {plural} \"{name}\": the object has been modified; \
             please apply your changes to the latest version and try again"
        );
        Self { code: 409, reason: "Conflict", message }
    }

    pub(super) fn expired() -> Self {
        let message = "too old resource version".to_owned();
        Self { code: 410, reason: "Expired", message }
    }

    pub(super) fn invalid(message: &str) -> Self {
        Self { code: 422, reason: "Invalid", message: message.to_owned() }
    }

    pub(super) fn bad_request(message: &str) -> Self {
        Self { code: 400, reason: "BadRequest", message: message.to_owned() }
    }

    /// Returns the refusal that belongs to an injected status.
    pub(super) fn of_code(code: u16) -> Self {
        let reason = match code {
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Self { code, reason, message: format!("injected status {code}") }
    }

    pub(super) fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}
