//! Job submission.
//!
//! A submission that gets no response is sent again with the same request id, so a lost response
//! never creates a second job. The store decides what happens when it meets other jobs of the
//! resource.

use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use tenure_core::{
    Command, Outcome, Precondition, Refusal, RequestId, ResourceAction, ResourceKey, Submit, Text,
    Verdict,
};

use crate::error::Error;
use crate::job::JobHandle;
use crate::random;
use crate::transport::{Transport, send_with_retries};
use crate::update::millis;

/// Builder for a job submission; see [`crate::Client::submit`].
#[must_use = "a submission does nothing until it is sent"]
pub struct Submission {
    transport: Arc<dyn Transport>,
    /// The resource; an invalid name is reported by [`Submission::send`].
    key: Result<ResourceKey, Error>,
    submit: Submit,
    /// Error of serializing the arguments, reported by [`Submission::send`].
    args_error: Option<Error>,
}

/// Result of a submission.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Submitted {
    /// Whether the job was started, queued, attached or replaced others.
    pub verdict: Verdict,
    /// The new job, or the job that the submission attached to.
    pub job: JobHandle,
}

impl Submission {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        key: Result<ResourceKey, Error>,
        operation: &str,
        by: Text,
    ) -> Self {
        let submit = Submit {
            request: random::request_id(),
            operation: operation.into(),
            args: None,
            priority: 0,
            run_at: None,
            by,
            precondition: None,
        };
        Self { transport, key, submit, args_error: None }
    }

    /// Sets the arguments, serialized as JSON.
    pub fn args(mut self, args: &impl Serialize) -> Self {
        match to_json("args", args) {
            Ok(json) => self.submit.args = Some(json),
            Err(error) => self.args_error = Some(error),
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
        self.submit.run_at = Some(millis(at));
        self
    }

    /// Submits only if the condition on the resource holds; otherwise it is refused with
    /// [`Refusal::PreconditionFailed`].
    pub fn only_if(mut self, precondition: Precondition) -> Self {
        self.submit.precondition = Some(precondition);
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
        let (transport, by) = (Arc::clone(&self.transport), self.submit.by.clone());
        let command = self.into_command()?;
        let outcome = send_with_retries(&*transport, &command).await?;
        Submitted::from_outcome(&transport, outcome, &by)
    }

    /// Returns the command.
    pub(crate) fn into_command(self) -> Result<Command, Error> {
        if let Some(error) = self.args_error {
            return Err(error);
        }
        Ok(Command::Resource { key: self.key?, action: ResourceAction::Submit(self.submit) })
    }
}

impl Submitted {
    /// Waits until the job has succeeded and returns its result; see [`JobHandle::wait`].
    pub async fn wait(&self) -> Result<Value, Error> {
        self.job.wait().await
    }

    pub(crate) fn from_outcome(
        transport: &Arc<dyn Transport>,
        outcome: Outcome,
        by: &Text,
    ) -> Result<Self, Error> {
        match outcome {
            Outcome::Submitted { verdict, job, .. } => {
                Ok(Self { verdict, job: JobHandle::new(Arc::clone(transport), job, by.clone()) })
            }
            other => Err(Error::from_outcome("submit", other)),
        }
    }
}

/// Serializes a document; `name` names it in the error.
pub(crate) fn to_json(name: &str, document: &impl Serialize) -> Result<Text, Error> {
    serde_json::to_string(document).map(Into::into).map_err(|error| {
        let message = format!("{name} cannot be serialized as JSON: {error}");
        Error::Refused(Refusal::Invalid(message))
    })
}
