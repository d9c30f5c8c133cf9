//! What does the work: a [`Handler`], and what it gives back.
//!
//! A handler knows nothing of claims, sessions or retries: it gets a [`Context`] and ends with
//! [`Done`] or [`Failure`]. What that means for the job is decided by the store.
//!
//! Next: `context.rs` for what a handler is given, `attempt.rs` for how it is looked after.

use std::fmt;

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;
use tenure_core::retry::Class;

use super::context::Context;

/// Does the work of jobs.
///
/// A handler may be called for several jobs at once, never for two of the same resource. When the
/// tenure of a job is lost its future is dropped at the next `await`; code that never awaits has to
/// call [`Context::check`] right before each effect. It is also dropped some time after it was told
/// to stop and did not: see [`Context::cancelled`].
///
/// A closure from a [`Context`] to a future is a handler, too.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Does the work of one attempt.
    async fn run(&self, job: &Context) -> Result<Done, Failure>;

    /// Whether its future may not be dropped while it runs, because it has to see the end of
    /// something outside of this process. Such a handler must end soon, by itself, after
    /// [`Context::cancelled`] or [`Context::lost`].
    fn winds_up(&self) -> bool {
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

#[async_trait]
impl Handler for Arc<dyn Handler> {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        (**self).run(job).await
    }

    fn winds_up(&self) -> bool {
        (**self).winds_up()
    }
}

/// The work is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Another end state of the resource than the declared one.
    pub state: Option<String>,
    /// What it gave, as JSON.
    pub result: Option<String>,
}

impl Done {
    /// Done, with something to show for it.
    ///
    /// # Errors
    ///
    /// When it cannot be written as JSON.
    pub fn with(result: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self { state: None, result: Some(serde_json::to_string(result)?) })
    }

    /// Ends in another declared state than the usual one.
    #[must_use]
    pub fn state(mut self, state: &str) -> Self {
        self.state = Some(state.to_owned());
        self
    }
}

impl From<()> for Done {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// The work failed.
///
/// Every error turns into one with the code `ERROR`, so `?` works in a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For programs; the retry rule knows codes.
    pub code: String,
    /// For people.
    pub message: String,
    /// Whether trying again may help, if that is known. Lists in the retry rule come first.
    pub class: Option<Class>,
    /// Another end state of the resource than the declared one, should it be the last attempt.
    pub state: Option<String>,
}

/// The code of a failure that has none of its own.
pub const ERROR: &str = "ERROR";
/// The code of a handler that panicked.
pub const PANIC: &str = "PANIC";
/// The code of arguments that a handler cannot read.
pub const BAD_ARGS: &str = "BAD_ARGS";
/// The code of an attempt whose result the store does not take.
pub const BAD_RESULT: &str = "BAD_RESULT";

impl Failure {
    /// A failure that the retry rule judges by its code.
    #[must_use]
    pub fn new(code: &str, message: impl fmt::Display) -> Self {
        Self { code: code.to_owned(), message: message.to_string(), class: None, state: None }
    }

    /// A failure that may be gone the next time.
    #[must_use]
    pub fn transient(code: &str, message: impl fmt::Display) -> Self {
        Self { class: Some(Class::Transient), ..Self::new(code, message) }
    }

    /// A failure that trying again will not help.
    #[must_use]
    pub fn permanent(code: &str, message: impl fmt::Display) -> Self {
        Self { class: Some(Class::Permanent), ..Self::new(code, message) }
    }

    /// Ends in another declared state than the usual one, should it be the last attempt.
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

/// The message of an error with all its causes.
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
    fn an_error_becomes_a_failure_with_its_causes() {
        let error = "x".parse::<u8>().map_err(Outer).unwrap_err();
        let failure = Failure::from(error);
        assert_eq!((failure.code.as_str(), failure.class), (ERROR, None));
        assert_eq!(failure.message, "cannot create the database: invalid digit found in string");
    }

    #[test]
    fn a_result_is_kept_as_json() {
        let done = Done::with(&serde_json::json!({ "rows": 3 })).unwrap().state("READY");
        assert_eq!(done.result.as_deref(), Some(r#"{"rows":3}"#));
        assert_eq!(done.state.as_deref(), Some("READY"));
        assert_eq!(Done::from(()), Done::default());
    }
}
