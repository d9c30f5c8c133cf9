//! Resources: desired state, history, and why nothing happens.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use tenure_core::{
    Command, Outcome, Precondition, Refusal, ResourceAction, ResourceKey, Text, TimerChange,
    TimerSetting,
};

use crate::error::Error;
use crate::items::Items;
use crate::job::{BY_DEFAULT, JobHandle};
use crate::random;
use crate::submit::{Submission, to_json};
use crate::transport::{Transport, send_with_retries};
use crate::update::{Update, millis, whole_millis};
use crate::wire::{HistoryEntry, ResourceInfo, WhyResponse};

/// A resource, addressed by its key; see [`crate::Client::resource`].
#[derive(Clone)]
pub struct ResourceHandle {
    transport: Arc<dyn Transport>,
    key: ResourceKey,
    by: Text,
    precondition: Option<Precondition>,
}

/// Result of [`ResourceHandle::put`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Put {
    /// Generation of the desired state.
    pub generation: u64,
    /// Job that reconciles the resource, if one was submitted.
    pub job: Option<JobHandle>,
}

impl ResourceHandle {
    pub(crate) fn new(transport: Arc<dyn Transport>, key: ResourceKey) -> Self {
        Self { transport, key, by: BY_DEFAULT.into(), precondition: None }
    }

    /// Makes every put, delete, submit and change of a timer of the returned handle conditional: it
    /// is refused with [`Refusal::PreconditionFailed`] unless the condition holds in the step
    /// that applies it.
    #[must_use]
    pub fn only_if(mut self, precondition: Precondition) -> Self {
        self.precondition = Some(precondition);
        self
    }

    /// Sets the name of the caller. A server that authenticates the caller overrides it.
    #[must_use]
    pub fn by(mut self, by: &str) -> Self {
        self.by = by.into();
        self
    }

    /// Returns the key of the resource.
    #[must_use]
    pub fn key(&self) -> &ResourceKey {
        &self.key
    }

    /// Returns the resource, or `None` if it does not exist.
    pub async fn get(&self) -> Result<Option<ResourceInfo>, Error> {
        match self.transport.queries().resource(&self.key).await {
            Err(Error::Refused(Refusal::NoSuchResource)) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Sets the desired state, serialized as JSON, and creates the resource if it does not exist.
    pub async fn put(&self, spec: &impl Serialize) -> Result<Put, Error> {
        self.put_with(spec, Update::new()).await
    }

    /// Like [`Self::put`], and sets timers in the same step. The update must not have a status:
    /// only the holder of a job writes it.
    pub async fn put_with(&self, spec: &impl Serialize, update: Update) -> Result<Put, Error> {
        if update.has_merge() {
            let message = "a put has no status; the holder of a job writes it";
            return Err(Error::Refused(Refusal::Invalid(message.to_owned())));
        }
        let put = tenure_core::Put {
            request: Some(random::request_id()),
            precondition: self.precondition,
            timers: update.timers().to_vec(),
            ..tenure_core::Put::new(to_json("spec", spec)?, self.by.clone())
        };
        match self.send_with_retries(ResourceAction::Put(put)).await? {
            Outcome::Put { generation, job, .. } => {
                let job =
                    job.map(|id| JobHandle::new(Arc::clone(&self.transport), id, self.by.clone()));
                Ok(Put { generation, job })
            }
            other => Err(Error::from_outcome("put", other)),
        }
    }

    /// Deletes the state and the desired state of a resource that is not in use.
    pub async fn delete(&self) -> Result<(), Error> {
        let (by, precondition) = (self.by.clone(), self.precondition);
        match self.send(ResourceAction::Delete { by, precondition }).await? {
            Outcome::Deleted => Ok(()),
            other => Err(Error::from_outcome("delete", other)),
        }
    }

    /// Sets or moves a timer: at `at`, or at once if that has passed, the engine submits
    /// `operation` under the policies of the kind.
    pub async fn set_timer(&self, operation: &str, at: SystemTime) -> Result<(), Error> {
        self.change_timer(operation, TimerSetting::At(millis(at))).await
    }

    /// Like [`Self::set_timer`], after `delay`.
    pub async fn set_timer_after(&self, operation: &str, delay: Duration) -> Result<(), Error> {
        self.change_timer(operation, TimerSetting::After(whole_millis(delay))).await
    }

    /// Removes the timer of an operation, if there is one.
    pub async fn remove_timer(&self, operation: &str) -> Result<(), Error> {
        self.change_timer(operation, TimerSetting::Remove).await
    }

    async fn change_timer(&self, operation: &str, setting: TimerSetting) -> Result<(), Error> {
        let timers = vec![TimerChange { operation: operation.into(), setting }];
        let (by, precondition) = (self.by.clone(), self.precondition);
        match self.send(ResourceAction::SetTimers { timers, by, precondition }).await? {
            Outcome::TimersSet { .. } => Ok(()),
            other => Err(Error::from_outcome("set the timer", other)),
        }
    }

    /// Prevents jobs from starting until the resource is resumed.
    pub async fn pause(&self, reason: &str) -> Result<(), Error> {
        let (by, reason) = (self.by.clone(), reason.into());
        self.send_pause(ResourceAction::Pause { by, reason }).await
    }

    /// Allows jobs to start again.
    pub async fn resume(&self, reason: &str) -> Result<(), Error> {
        let (by, reason) = (self.by.clone(), reason.into());
        self.send_pause(ResourceAction::Resume { by, reason }).await
    }

    /// Builds a job submission, like [`crate::Client::submit`].
    pub fn submit(&self, operation: &str) -> Submission {
        let key = Ok(self.key.clone());
        let submission =
            Submission::new(Arc::clone(&self.transport), key, operation, self.by.clone());
        match self.precondition {
            Some(precondition) => submission.only_if(precondition),
            None => submission,
        }
    }

    /// Streams the history, newest first.
    #[must_use]
    pub fn history(&self) -> Items<HistoryEntry> {
        let (transport, key) = (Arc::clone(&self.transport), self.key.clone());
        let first = Some((transport, key, None));
        let pages = stream::try_unfold(first, |page| async move {
            let Some((transport, key, cursor)) = page else {
                return Ok::<_, Error>(None);
            };
            let page = transport.queries().history(&key, cursor).await?;
            let next = page.next.map(|next| (transport, key, Some(next)));
            Ok(Some((stream::iter(page.items).map(Ok), next)))
        });
        Items::new(pages.try_flatten())
    }

    /// Explains what the resource waits for.
    pub async fn why(&self) -> Result<WhyResponse, Error> {
        self.transport.queries().why_resource(&self.key).await
    }

    async fn send_pause(&self, action: ResourceAction) -> Result<(), Error> {
        match self.send(action).await? {
            Outcome::Paused(_) => Ok(()),
            other => Err(Error::from_outcome("pause", other)),
        }
    }

    /// Sends an action that carries a request id.
    async fn send_with_retries(&self, action: ResourceAction) -> Result<Outcome, Error> {
        let command = Command::Resource { key: self.key.clone(), action };
        send_with_retries(&*self.transport, &command).await
    }

    async fn send(&self, action: ResourceAction) -> Result<Outcome, Error> {
        let command = Command::Resource { key: self.key.clone(), action };
        self.transport.send(command, Duration::ZERO).await
    }
}

impl fmt::Debug for ResourceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceHandle").field("key", &self.key).finish_non_exhaustive()
    }
}
