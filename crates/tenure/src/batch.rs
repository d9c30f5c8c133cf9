//! Batches: many requests in one.
//!
//! Each request is applied and answered on its own; those on one resource are applied in order. A
//! batch that gets no response is sent again with the same request ids. `Transport::send_all` says
//! how it reaches the store.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
#[cfg(doc)]
use tenure_core::Refusal;
use tenure_core::{Command, Outcome, Precondition, ResourceAction, ResourceKey, Text};

use crate::clock::BootInstant;
use crate::error::Error;
use crate::job::{BY_DEFAULT, JobHandle};
use crate::random;
use crate::resource::Put;
use crate::submit::{Submission, Submitted, to_json};
use crate::transport::{RETRY_DELAY, RETRY_TIMEOUT, Transport};

/// Builder for a batch of requests; see [`crate::Client::batch`].
#[must_use = "a batch does nothing until it is sent"]
pub struct Batch {
    transport: Arc<dyn Transport>,
    tenant: Text,
    by: Text,
    /// The commands; an invalid one is reported as the result of its request.
    requests: Vec<Result<Command, Error>>,
}

/// Result of a request of a batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BatchResult {
    /// The resource was put.
    Put(Put),
    /// The job was submitted.
    Submitted(Submitted),
    /// The resource was deleted.
    Deleted,
    /// The resource is paused.
    Paused,
    /// The resource is not paused.
    Resumed,
}

impl Batch {
    pub(crate) fn new(transport: Arc<dyn Transport>, tenant: Text) -> Self {
        Self { transport, tenant, by: BY_DEFAULT.into(), requests: Vec::new() }
    }

    /// Sets the name of the caller of the requests that follow. A server that authenticates the
    /// caller overrides it.
    pub fn by(&mut self, by: &str) -> &mut Self {
        self.by = by.into();
        self
    }

    /// Adds a put: the desired state of the resource `kind/name`, serialized as JSON.
    pub fn put(&mut self, resource: &str, spec: &impl Serialize) -> &mut Self {
        self.add_put(resource, spec, None)
    }

    /// Adds a put that is refused with [`Refusal::PreconditionFailed`] unless the condition holds.
    pub fn put_if(
        &mut self,
        resource: &str,
        spec: &impl Serialize,
        precondition: Precondition,
    ) -> &mut Self {
        self.add_put(resource, spec, Some(precondition))
    }

    fn add_put(
        &mut self,
        resource: &str,
        spec: &impl Serialize,
        precondition: Option<Precondition>,
    ) -> &mut Self {
        let by = self.by.clone();
        let put = to_json("spec", spec).map(|spec| tenure_core::Put {
            request: Some(random::request_id()),
            precondition,
            ..tenure_core::Put::new(spec, by)
        });
        self.add_action(resource, put.map(ResourceAction::Put))
    }

    /// Adds a submission of `operation` without arguments on the resource `kind/name`.
    pub fn submit(&mut self, resource: &str, operation: &str) -> &mut Self {
        let (transport, key) = (Arc::clone(&self.transport), self.key(resource));
        self.add(Submission::new(transport, key, operation, self.by.clone()))
    }

    /// Adds a submission built with [`crate::Client::submit`] of the same client.
    pub fn add(&mut self, submission: Submission) -> &mut Self {
        self.requests.push(submission.into_command());
        self
    }

    /// Adds the deletion of a resource that is not in use.
    pub fn delete(&mut self, resource: &str) -> &mut Self {
        let action = ResourceAction::Delete { by: self.by.clone(), precondition: None };
        self.add_action(resource, Ok(action))
    }

    /// Adds a deletion that is refused with [`Refusal::PreconditionFailed`] unless the condition
    /// holds.
    pub fn delete_if(&mut self, resource: &str, precondition: Precondition) -> &mut Self {
        let (by, precondition) = (self.by.clone(), Some(precondition));
        self.add_action(resource, Ok(ResourceAction::Delete { by, precondition }))
    }

    /// Adds a pause: no jobs start until the resource is resumed.
    pub fn pause(&mut self, resource: &str, reason: &str) -> &mut Self {
        let (by, reason) = (self.by.clone(), reason.into());
        self.add_action(resource, Ok(ResourceAction::Pause { by, reason }))
    }

    /// Adds a resume: jobs may start again.
    pub fn resume(&mut self, resource: &str, reason: &str) -> &mut Self {
        let (by, reason) = (self.by.clone(), reason.into());
        self.add_action(resource, Ok(ResourceAction::Resume { by, reason }))
    }

    fn add_action(&mut self, resource: &str, action: Result<ResourceAction, Error>) -> &mut Self {
        let key = self.key(resource);
        let command = key.and_then(|key| {
            let action = action?;
            // Puts carry a request id of their own.
            let is_put = matches!(action, ResourceAction::Put(_));
            let command = Command::Resource { key, action };
            Ok(if is_put { command } else { command.once(random::request_id()) })
        });
        self.requests.push(command);
        self
    }

    fn key(&self, resource: &str) -> Result<ResourceKey, Error> {
        let (kind, name) = resource.split_once('/').unwrap_or((resource, ""));
        Ok(ResourceKey::new(&self.tenant, kind, name)?)
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether the batch has no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Sends the batch, retrying while the server is unavailable, and returns one result per
    /// request, in order. A server gets at most 4,096 requests at once, one part after the other.
    pub async fn send(self) -> Vec<Result<BatchResult, Error>> {
        let Self { transport, by, requests, .. } = self;
        let mut results: Vec<Option<Result<BatchResult, Error>>> = Vec::new();
        let mut pending = Vec::new();
        for (index, request) in requests.into_iter().enumerate() {
            match request {
                Ok(command) => {
                    pending.push((index, command));
                    results.push(None);
                }
                Err(error) => results.push(Some(Err(error))),
            }
        }
        let retry_until = BootInstant::now() + RETRY_TIMEOUT;
        while !pending.is_empty() {
            let commands: Vec<Command> =
                pending.iter().map(|(_, command)| command.clone()).collect();
            let outcomes = transport.send_all(commands).await;
            let retry = !retry_until.has_passed();
            let mut again = Vec::new();
            // Backwards: a request that comes after an applied one would be applied out of order.
            let mut applied: HashSet<ResourceKey> = HashSet::new();
            for ((index, command), outcome) in pending.into_iter().zip(outcomes).rev() {
                let key = command.key().cloned();
                let is_last = key.as_ref().is_none_or(|key| !applied.contains(key));
                match outcome {
                    Err(error) if error.is_unavailable() && retry && is_last => {
                        again.push((index, command));
                    }
                    outcome => {
                        applied.extend(key);
                        let result = result(&transport, &by, &command, outcome);
                        results[index] = Some(result);
                    }
                }
            }
            again.reverse();
            pending = again;
            if !pending.is_empty() {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
        let missing = || Err(Error::Protocol("the transport returned too few outcomes".to_owned()));
        results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }
}

fn result(
    transport: &Arc<dyn Transport>,
    by: &Text,
    command: &Command,
    outcome: Result<Outcome, Error>,
) -> Result<BatchResult, Error> {
    let command = command.inner();
    let pauses = matches!(command, Command::Resource { action: ResourceAction::Pause { .. }, .. });
    match outcome? {
        Outcome::Put { generation, job, .. } => {
            let job = job.map(|id| JobHandle::new(Arc::clone(transport), id, by.clone()));
            Ok(BatchResult::Put(Put { generation, job }))
        }
        outcome @ Outcome::Submitted { .. } => {
            Submitted::from_outcome(transport, outcome, by).map(BatchResult::Submitted)
        }
        Outcome::Deleted => Ok(BatchResult::Deleted),
        Outcome::Paused(_) if pauses => Ok(BatchResult::Paused),
        Outcome::Paused(_) => Ok(BatchResult::Resumed),
        other => Err(Error::from_outcome("a batch", other)),
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("requests", &self.requests.len()).finish_non_exhaustive()
    }
}
