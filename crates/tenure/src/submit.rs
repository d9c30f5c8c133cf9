//! Job submission.
//!
//! A submission that gets no response is sent again with the same request id, so a lost response
//! never creates a second job. The store decides what happens when it meets other jobs of the
//! resource.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tenure_core::{
    Command, JobId, Millis, Outcome, Refusal, RequestId, ResourceAction, ResourceKey, Submit, Text,
    Verdict,
};

use crate::clock::BootInstant;
use crate::error::Error;
use crate::transport::Transport;

/// Delay before a submission that got no response is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Time after which an unanswered submission is no longer retried.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Builder for a job submission; see [`crate::Client::submit`].
#[must_use = "a submission does nothing until it is sent"]
pub struct Submission {
    transport: Arc<dyn Transport>,
    key: Result<ResourceKey, Error>,
    submit: Submit,
    /// Error of serializing the arguments, reported by [`Submission::send`].
    args_error: Option<String>,
}

/// Result of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Whether the job was started, queued, attached or replaced others.
    pub verdict: Verdict,
    /// Id of the new job, or of the job that the submission attached to.
    pub job: JobId,
}

impl Submission {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        tenant: &Text,
        resource: &str,
        operation: &str,
    ) -> Self {
        let (kind, name) = resource.split_once('/').unwrap_or((resource, ""));
        let submit = Submit {
            request: tenure_store::random::request_id(),
            operation: operation.into(),
            args: None,
            priority: 0,
            run_at: None,
            by: "client".into(),
        };
        let key = ResourceKey::new(tenant, kind, name).map_err(Error::from);
        Self { transport, key, submit, args_error: None }
    }

    /// Sets the arguments, serialized as JSON.
    pub fn args(mut self, args: &impl Serialize) -> Self {
        match serde_json::to_string(args) {
            Ok(json) => self.submit.args = Some(json.into()),
            Err(error) => {
                self.args_error = Some(format!("args cannot be serialized as JSON: {error}"));
            }
        }
        self
    }

    /// Sets the priority within the tenant. Higher runs first; the default is 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.submit.priority = priority;
        self
    }

    /// Delays the job until `at`.
    pub fn run_at(mut self, at: SystemTime) -> Self {
        let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.submit.run_at =
            Some(Millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)));
        self
    }

    /// Sets the name of the submitter. A server that authenticates the caller overrides it.
    pub fn by(mut self, by: &str) -> Self {
        self.submit.by = by.into();
        self
    }

    /// Sets the request id. A second submission with the same id returns the result of the first.
    pub fn request(mut self, request: RequestId) -> Self {
        self.submit.request = request;
        self
    }

    /// Sends the submission, retrying while the server is unavailable.
    pub async fn send(self) -> Result<Submitted, Error> {
        if let Some(message) = self.args_error {
            return Err(Error::Refused(Refusal::Invalid(message)));
        }
        let action = ResourceAction::Submit(self.submit);
        let command = Command::Resource { key: self.key?, action };
        let retry_until = BootInstant::now() + RETRY_TIMEOUT;
        loop {
            match self.transport.send(command.clone(), Duration::ZERO).await {
                Ok(Outcome::Submitted { verdict, job }) => return Ok(Submitted { verdict, job }),
                Ok(Outcome::Refused(refusal)) => return Err(Error::Refused(refusal)),
                Ok(other) => return Err(Error::Protocol(format!("submit returned {other:?}"))),
                Err(error) if error.is_unavailable() && !retry_until.has_passed() => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
