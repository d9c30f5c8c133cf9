//! Submitting: asking for an operation on a resource.
//!
//! A submission that gets no answer is sent again with the same request id, so a lost answer never
//! makes a second job. What happens when it meets other jobs is the store's to say.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tenure_core::{
    Command, JobId, Millis, Outcome, Refusal, RequestId, ResourceAction, ResourceKey, Submit, Text,
    Verdict,
};

use crate::clock::BootInstant;
use crate::error::Error;
use crate::link::Link;

/// Pause before a submission that got no answer is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long it is sent again and again.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A request for an operation in the making; see [`crate::Client::submit`].
#[must_use = "nothing is asked for before it is sent"]
pub struct Submission {
    link: Arc<dyn Link>,
    key: Result<ResourceKey, Error>,
    submit: Submit,
    /// Why the arguments cannot be sent.
    bad_args: Option<String>,
}

/// What a submission came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// How it met the jobs that were there.
    pub verdict: Verdict,
    /// The job that counts: a new one, or the one that it joined.
    pub job: JobId,
}

impl Submission {
    pub(crate) fn new(link: Arc<dyn Link>, tenant: &Text, resource: &str, operation: &str) -> Self {
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
        Self { link, key, submit, bad_args: None }
    }

    /// Its arguments.
    pub fn args(mut self, args: &impl Serialize) -> Self {
        match serde_json::to_string(args) {
            Ok(json) => self.submit.args = Some(json.into()),
            Err(error) => self.bad_args = Some(format!("args cannot be written as JSON: {error}")),
        }
        self
    }

    /// Higher goes first within the tenant; 0 unless said.
    pub fn priority(mut self, priority: i32) -> Self {
        self.submit.priority = priority;
        self
    }

    /// Not before this instant.
    pub fn run_at(mut self, at: SystemTime) -> Self {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.submit.run_at = Some(Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)));
        self
    }

    /// Who wants it. A server that knows the caller by its key says so instead.
    pub fn by(mut self, by: &str) -> Self {
        self.submit.by = by.into();
        self
    }

    /// Its own id: sending a second submission with the same one gives the answer of the first.
    pub fn request(mut self, request: RequestId) -> Self {
        self.submit.request = request;
        self
    }

    /// Asks for it.
    pub async fn send(self) -> Result<Submitted, Error> {
        if let Some(why) = self.bad_args {
            return Err(Error::Refused(Refusal::Invalid(why)));
        }
        let action = ResourceAction::Submit(self.submit);
        let command = Command::Resource { key: self.key?, action };
        let give_up = BootInstant::now() + ANSWER_MAX;
        loop {
            match self.link.send(command.clone(), Duration::ZERO).await {
                Ok(Outcome::Submitted { verdict, job }) => return Ok(Submitted { verdict, job }),
                Ok(Outcome::Refused(refusal)) => return Err(Error::Refused(refusal)),
                Ok(other) => return Err(Error::Protocol(format!("{other:?} answers no submit"))),
                Err(error) if error.is_unavailable() && !give_up.has_passed() => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
