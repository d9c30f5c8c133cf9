//! Handlers: user code that executes jobs, and its result types.
//!
//! A handler knows nothing of claims, sessions or retries: it gets a [`Context`] and returns
//! [`Done`] or [`Failure`]. The store decides what that means for the job.
//!
//! See `context.rs` for what a handler is given, `attempt.rs` for how it is run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use tenure_core::retry::Class;

use super::context::Context;
use crate::update::Update;

/// Executes jobs.
///
/// A handler may be called for several jobs concurrently, but never for two of the same resource.
/// When the tenure of a job is lost, the future is dropped at its next `await`; code that never
/// awaits has to call [`Context::check`] right before each effect. The future is also dropped if it
/// does not complete within the grace period after a stop was requested: see
/// [`Context::cancelled`].
///
/// A closure from [`Context`] to a future is a handler, too.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Executes one attempt.
    async fn run(&self, job: &Context) -> Result<Done, Failure>;

    /// Returns whether the future must not be dropped while it runs, because it has to wait for the
    /// end of something outside of this process. Such a handler must complete promptly by itself
    /// after [`Context::cancelled`] or [`Context::lost`].
    fn must_complete(&self) -> bool {
        false
    }
}

#[async_trait]
impl<F, R> Handler for F
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Done, Failure>> + Send,
{
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        self(job.clone()).await
    }
}

/// Returns a handler whose future [must complete](Handler::must_complete), for a closure that runs
/// commands.
#[must_use]
pub fn completing(handler: impl Handler) -> impl Handler {
    Completing(handler)
}

struct Completing<H>(H);

#[async_trait]
impl<H: Handler> Handler for Completing<H> {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        self.0.run(job).await
    }

    fn must_complete(&self) -> bool {
        true
    }
}

#[async_trait]
impl Handler for Arc<dyn Handler> {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        (**self).run(job).await
    }

    fn must_complete(&self) -> bool {
        (**self).must_complete()
    }
}

/// Successful result of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// End state of the resource, if it differs from the declared one.
    pub state: Option<String>,
    /// Result of the job as JSON.
    pub result: Option<String>,
    /// Update of the resource, in the same step.
    pub update: Update,
}

impl Done {
    /// Creates a success with a result, serialized as JSON.
    ///
    /// # Errors
    ///
    /// Fails if `result` cannot be serialized as JSON.
    pub fn with(result: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self { result: Some(serde_json::to_string(result)?), ..Self::default() })
    }

    /// Sets another declared end state of the resource.
    #[must_use]
    pub fn state(mut self, state: &str) -> Self {
        self.state = Some(state.to_owned());
        self
    }

    /// Updates status and timers of the resource in the step that ends the attempt.
    #[must_use]
    pub fn update(mut self, update: Update) -> Self {
        self.update = update;
        self
    }
}

impl From<()> for Done {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// Failed result of an attempt.
///
/// Every [`std::error::Error`] converts into a failure with the code `ERROR`, so `?` works in a
/// handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Code for programs and for the retry rule.
    pub code: String,
    /// Message for people.
    pub message: String,
    /// Whether a retry may help, if known. Codes listed in the retry rule take precedence.
    pub class: Option<Class>,
    /// End state of the resource if this is the last attempt and the state differs from the
    /// declared one.
    pub state: Option<String>,
    /// Time until the next attempt, instead of the backoff of the retry rule.
    pub delay: Option<Duration>,
    /// Whether the attempt is deferred: repeated after the delay without being counted, unless it
    /// was deferred 100 times in a row.
    pub deferred: bool,
    /// Update of the resource, in the same step.
    pub update: Update,
}

/// Code of a failure without a code of its own.
pub const ERROR: &str = "ERROR";
/// Code of a handler that panicked.
pub const PANIC: &str = "PANIC";
/// Code of arguments that a handler cannot deserialize.
pub const BAD_ARGS: &str = "BAD_ARGS";
/// Code of an attempt whose result the store refused.
pub const BAD_RESULT: &str = "BAD_RESULT";

impl Failure {
    /// Creates a failure that the retry rule classifies by its code.
    #[must_use]
    pub fn new(code: &str, message: impl fmt::Display) -> Self {
        Self {
            code: code.to_owned(),
            message: message.to_string(),
            class: None,
            state: None,
            delay: None,
            deferred: false,
            update: Update::new(),
        }
    }

    /// Creates a failure that a retry may resolve.
    #[must_use]
    pub fn transient(code: &str, message: impl fmt::Display) -> Self {
        Self { class: Some(Class::Transient), ..Self::new(code, message) }
    }

    /// Creates a failure that a retry cannot resolve.
    #[must_use]
    pub fn permanent(code: &str, message: impl fmt::Display) -> Self {
        Self { class: Some(Class::Permanent), ..Self::new(code, message) }
    }

    /// Creates the result of an attempt that could not do its work yet: it is repeated after
    /// `delay` and not counted.
    #[must_use]
    pub fn deferred(delay: Duration, code: &str, message: impl fmt::Display) -> Self {
        Self { delay: Some(delay), deferred: true, ..Self::new(code, message) }
    }

    /// Sets the time until the next attempt, instead of the backoff of the retry rule.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Updates status and timers of the resource in the step that ends the attempt.
    #[must_use]
    pub fn update(mut self, update: Update) -> Self {
        self.update = update;
        self
    }

    /// Sets another declared end state of the resource, used if this is the last attempt.
    #[must_use]
    pub fn state(mut self, state: &str) -> Self {
        self.state = Some(state.to_owned());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

/// The message consists of the error and all its sources.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            message.push_str(&format!(": {error}"));
            cause = error.source();
        }
        Self::new(ERROR, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot create the database")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn an_error_becomes_a_failure_with_its_sources() {
        let error = "x".parse::<u8>().map_err(Outer).unwrap_err();
        let failure = Failure::from(error);
        assert_eq!((failure.code.as_str(), failure.class), (ERROR, None));
        assert_eq!(failure.message, "cannot create the database: invalid digit found in string");
    }

    #[test]
    fn a_result_is_serialized_as_json() {
        let done = Done::with(&serde_json::json!({ "rows": 3 })).unwrap().state("READY");
        assert_eq!(done.result.as_deref(), Some(r#"{"rows":3}"#));
        assert_eq!(done.state.as_deref(), Some("READY"));
        assert_eq!(Done::from(()), Done::default());
    }
}
