//! Failures of requests to AWS.
//!
//! Answers can quote signed requests, with their session token: what is kept of them is short and
//! has no such text.

use std::error::Error as _;
use std::sync::LazyLock;

use regex::Regex;
use reqwest::Response;
use serde_json::Value;

use crate::artifacts::redact::is_suspicious;

/// Maximum length of what is quoted of an answer.
const MESSAGE_CHARS_MAX: usize = 300;
/// Maximum length of a code.
const CODE_CHARS_MAX: usize = 100;

/// Codes that mean that there were too many requests.
const THROTTLING: [&str; 14] = [
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "KmsThrottled",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "Throttling",
    "ThrottledException",
    "ThrottlingException",
    "TooManyRequestsException",
];

/// Codes of answers that are different the next time, whatever their status.
const TRANSIENT: [&str; 7] = [
    "InternalError",
    "InternalFailure",
    "InternalServiceException",
    "InternalServerError",
    "RequestTimeout",
    "ServiceUnavailable",
    "Unavailable",
];

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum AwsError {
    /// The client cannot be created, or the request not be made.
    #[error("cannot use AWS: {0}")]
    Setup(String),
    /// There are no valid credentials.
    #[error("cannot get credentials for AWS: {0}; check the environment and the role")]
    Credentials(String),
    /// There was no answer: the effect is unknown.
    #[error("no answer from {service} to {action}: {why}; check the network and the endpoint")]
    Unreachable {
        /// Service.
        service: &'static str,
        /// Action.
        action: &'static str,
        /// What failed.
        why: String,
    },
    /// The request was refused.
    #[error("{service} refused {action} with {code} ({status}): {message}")]
    Refused {
        /// Service.
        service: &'static str,
        /// Action.
        action: &'static str,
        /// Status of HTTP.
        status: u16,
        /// Code of the error.
        code: String,
        /// Its message, shortened.
        message: String,
    },
    /// The answer could not be read.
    #[error("cannot read the answer of {service} to {action}: {why}")]
    Answer {
        /// Service.
        service: &'static str,
        /// Action.
        action: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A value exceeds a limit of the service.
    #[error("cannot send {action} to {service}: {why}")]
    Limit {
        /// Service.
        service: &'static str,
        /// Action.
        action: &'static str,
        /// Value and limit.
        why: String,
    },
}

impl AwsError {
    /// Returns the code of a refused request.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            Self::Setup(_)
            | Self::Credentials(_)
            | Self::Unreachable { .. }
            | Self::Answer { .. }
            | Self::Limit { .. } => None,
        }
    }

    /// Returns whether there were too many requests.
    #[must_use]
    pub fn is_throttling(&self) -> bool {
        match self {
            Self::Refused { status, code, .. } => {
                *status == 429 || THROTTLING.contains(&code.as_str())
            }
            _ => false,
        }
    }

    /// Returns whether the same request may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, code, .. } => {
                *status >= 500 || TRANSIENT.contains(&code.as_str()) || self.is_throttling()
            }
            _ => false,
        }
    }

    pub(super) fn credentials(error: &object_store::Error) -> Self {
        let text = error.to_string();
        Self::Credentials(shorten(&text).unwrap_or_else(|| "the answer is not shown".to_owned()))
    }

    pub(super) fn refused(
        service: &'static str,
        action: &'static str,
        response: &Response,
        body: &[u8],
    ) -> Self {
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let (code, message) = read(body);
        // Of SQS: what the code was called before it spoke JSON is more precise, but less known.
        let code = code.or_else(|| header("x-amzn-errortype").map(str::to_owned));
        let status = response.status().as_u16();
        let code = code.map_or_else(|| format!("HTTP {status}"), |code| plain_code(&code));
        let message = message.as_deref().and_then(shorten);
        let message = message.unwrap_or_else(|| "no message".to_owned());
        Self::Refused { service, action, status, code, message }
    }
}

/// Returns code and message of an answer in JSON or XML.
fn read(body: &[u8]) -> (Option<String>, Option<String>) {
    static CODE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("<Code>([^<]*)</Code>").expect("a valid pattern"));
    static MESSAGE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("<Message>([^<]*)</Message>").expect("a valid pattern"));
    if let Ok(json) = serde_json::from_slice::<Value>(body) {
        let text = |names: [&str; 2]| {
            let found = names.into_iter().find_map(|name| json.get(name)?.as_str());
            found.map(str::to_owned)
        };
        return (text(["__type", "code"]), text(["message", "Message"]));
    }
    let text = String::from_utf8_lossy(body);
    let find = |pattern: &Regex| pattern.captures(&text).map(|found| found[1].to_owned());
    (find(&CODE), find(&MESSAGE))
}

/// Returns a code without its namespace, `com.amazonaws.sqs#`, and what follows it.
fn plain_code(code: &str) -> String {
    let code = code.rsplit('#').next().unwrap_or_default();
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    // Older services have this name for it in JSON.
    let code: String = code.chars().take_while(allowed).take(CODE_CHARS_MAX).collect();
    code.strip_prefix("AWS.SimpleQueueService.").map_or_else(|| code.clone(), str::to_owned)
}

/// Returns the beginning of the first line of a text, unless it may have credentials.
fn shorten(text: &str) -> Option<String> {
    let line = text.lines().next().unwrap_or_default();
    let line: String = line.chars().take(MESSAGE_CHARS_MAX).collect();
    (!line.is_empty() && !is_suspicious(&line)).then_some(line)
}

/// Returns what failed before there was an answer.
pub(super) fn transport(error: &reqwest::Error) -> String {
    let mut text = match () {
        () if error.is_timeout() => "timeout".to_owned(),
        () if error.is_connect() => "cannot connect".to_owned(),
        () => "the connection failed".to_owned(),
    };
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    shorten(&text).unwrap_or_else(|| "the connection failed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> AwsError {
        let (code, message) = (code.to_owned(), String::new());
        AwsError::Refused { service: "sqs", action: "SendMessage", status, code, message }
    }

    #[test]
    fn throttling_and_faults_of_the_server_are_transient() {
        for code in THROTTLING {
            assert!(refused(400, code).is_throttling() && refused(400, code).is_transient());
        }
        assert!(refused(429, "x").is_throttling());
        assert!(refused(503, "x").is_transient() && !refused(503, "x").is_throttling());
        for code in TRANSIENT {
            assert!(refused(400, code).is_transient());
        }
        for code in ["AccessDenied", "InvalidClientTokenId", "QueueDoesNotExist", "LimitExceeded"] {
            assert!(!refused(400, code).is_transient(), "{code}");
        }
    }

    #[test]
    fn codes_are_read_from_json_and_xml() {
        let json = br#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"none"}"#;
        let (code, message) = read(json);
        assert_eq!(plain_code(&code.unwrap()), "QueueDoesNotExist");
        assert_eq!(message.unwrap(), "none");
        let xml = b"<Response><Errors><Error><Code>RequestLimitExceeded</Code>\
                    <Message>slow</Message></Error></Errors></Response>";
        assert_eq!(read(xml), (Some("RequestLimitExceeded".into()), Some("slow".into())));
        assert_eq!(read(b"\xff no"), (None, None));
        assert_eq!(plain_code("ThrottlingException:http://internal/"), "ThrottlingException");
        assert_eq!(plain_code("AWS.SimpleQueueService.NonExistentQueue"), "NonExistentQueue");
    }

    #[test]
    fn messages_are_short_and_have_no_credentials() {
        assert_eq!(shorten("first\nx-amz-security-token:hunter2").unwrap(), "first");
        assert_eq!(shorten("x-amz-security-token:hunter2"), None);
        assert_eq!(shorten("The key AKIAIOSFODNN7EXAMPLE is unknown"), None);
        assert_eq!(shorten(&"x".repeat(1_000)).unwrap().len(), MESSAGE_CHARS_MAX);
    }
}
