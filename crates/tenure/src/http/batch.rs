//! Batches over HTTP.

use std::time::Duration;

use reqwest::StatusCode;
use tenure_core::{Command, Outcome, Precondition};

use super::jobs::ResourceCall;
use super::refusals::error_from_problem;
use super::{HttpTransport, RequestOptions};
use crate::error::Error;
use crate::wire::{
    BATCH_BODY_BYTES_MAX, BATCH_REQUESTS_MAX, BatchRequest, BatchResponse, BatchedAnswer,
    BatchedRequest,
};

/// Time that a server may take for a batch, in addition to that for a request.
const BATCH_WAIT: Duration = Duration::from_secs(20);
/// Size of the body without its requests, and of what separates two of them.
const FRAME_BYTES: usize = 64;

/// A request of a batch, and how its answer is read.
struct Part {
    request: BatchedRequest,
    parse: fn(serde_json::Value) -> Result<Outcome, Error>,
}

impl HttpTransport {
    /// Sends commands in as few batches as possible, one after the other. After a batch without a
    /// response the others are not sent.
    pub(super) async fn batches(&self, commands: Vec<Command>) -> Vec<Result<Outcome, Error>> {
        let mut outcomes: Vec<Option<Result<Outcome, Error>>> = Vec::new();
        let (mut parts, mut indexes, mut size) = (Vec::new(), Vec::new(), FRAME_BYTES);
        let mut failed = None;
        for (index, command) in commands.into_iter().enumerate() {
            outcomes.push(None);
            let part = match part(command) {
                Ok(part) => part,
                Err(error) => {
                    outcomes[index] = Some(Err(error));
                    continue;
                }
            };
            let bytes = serde_json::to_string(&part.request).map_or(0, |text| text.len()) + 1;
            if parts.len() == BATCH_REQUESTS_MAX || size + bytes > BATCH_BODY_BYTES_MAX {
                let sent = (std::mem::take(&mut parts), std::mem::take(&mut indexes));
                self.batch(sent, &mut failed, &mut outcomes).await;
                size = FRAME_BYTES;
            }
            parts.push(part);
            indexes.push(index);
            size += bytes;
        }
        self.batch((parts, indexes), &mut failed, &mut outcomes).await;
        let missing = || Err(Error::Protocol("the batch has too few answers".to_owned()));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(missing)).collect()
    }

    /// Sends one batch, unless an earlier one got no response, and stores its outcomes.
    async fn batch(
        &self,
        (parts, indexes): (Vec<Part>, Vec<usize>),
        failed: &mut Option<String>,
        outcomes: &mut [Option<Result<Outcome, Error>>],
    ) {
        if parts.is_empty() {
            return;
        }
        let (requests, parsers): (Vec<_>, Vec<_>) =
            parts.into_iter().map(|part| (part.request, part.parse)).unzip();
        let answers = match failed {
            Some(why) => Err(Error::Unavailable(why.clone())),
            None => {
                let body = BatchRequest { requests };
                let answer: Result<BatchResponse, _> =
                    self.post("/v1/batch", None, &body, BATCH_WAIT).await;
                answer.map(|answer| answer.answers)
            }
        };
        match answers {
            Ok(answers) => {
                for ((index, parse), answer) in indexes.into_iter().zip(parsers).zip(answers) {
                    outcomes[index] = Some(self.outcome(answer, parse));
                }
            }
            Err(error) => {
                *failed = error.is_unavailable().then(|| error.to_string());
                for index in &indexes[1..] {
                    outcomes[*index] = Some(Err(copy(&error)));
                }
                outcomes[indexes[0]] = Some(Err(error));
            }
        }
    }

    fn outcome(
        &self,
        answer: BatchedAnswer,
        parse: fn(serde_json::Value) -> Result<Outcome, Error>,
    ) -> Result<Outcome, Error> {
        let BatchedAnswer { status, body } = answer;
        let status = StatusCode::from_u16(status).map_err(|e| Error::Protocol(e.to_string()))?;
        if status.is_success() {
            return parse(body);
        }
        let problem = serde_json::from_value(body).map_err(|e| Error::Protocol(e.to_string()))?;
        if let Some(observe) = self.on_problem {
            observe(&problem);
        }
        match error_from_problem(status, problem) {
            Error::Refused(refusal) => Ok(Outcome::Refused(refusal)),
            error => Err(error),
        }
    }
}

/// Copies the error of a whole batch for one of its requests.
fn copy(error: &Error) -> Error {
    match error {
        Error::Unavailable(why) => Error::Unavailable(why.clone()),
        Error::Denied(why) => Error::Denied(why.clone()),
        Error::NotFound(why) => Error::NotFound(why.clone()),
        Error::Corrupt(why) => Error::Corrupt(why.clone()),
        Error::Refused(refusal) => Error::Refused(refusal.clone()),
        other => Error::Protocol(other.to_string()),
    }
}

/// Converts a command to a request of a batch.
fn part(command: Command) -> Result<Part, Error> {
    let (command, once) = match command {
        Command::Once { request, command } => (*command, Some(request)),
        command => (command, None),
    };
    let Command::Resource { key, action } = command else {
        let message = "only commands on resources can be sent in a batch over HTTP";
        return Err(Error::Protocol(message.to_owned()));
    };
    let call = ResourceCall::new(&key, action)?.once(once);
    let ResourceCall { method, path, options, body, parse } = call;
    let RequestOptions { id, precondition, .. } = options;
    let (if_match, if_none_match) = match precondition {
        Some(Precondition::Generation(wanted)) => (Some(format!("\"{wanted}\"")), None),
        Some(Precondition::Absent) => (None, Some("*".to_owned())),
        None => (None, None),
    };
    let method = method.to_string();
    let request =
        BatchedRequest { method, path, body, idempotency_key: id, if_match, if_none_match };
    Ok(Part { request, parse })
}
