//! Workers: a [`Worker`] claims jobs from the store and runs a [`Handler`] for each.
//!
//! ```
//! use tenure::{Client, Context, Done, Failure, Worker};
//! # use tenure::{Kind, Kinds, Operation};
//!
//! async fn create(job: Context) -> Result<Done, Failure> {
//!     let size: u32 = job.args()?;
//!     job.progress(50, "allocating");
//!     job.log(&format!("{} gigabytes under token {}", size, job.token()));
//!     job.check()?; // right before each effect that is not protected by the token
//!     Ok(Done::with(&size)?)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> anyhow::Result<()> {
//! # let database = Kind::new("database").operation(Operation::new("create"));
//! let client = Client::in_memory(Kinds::new([database])?).await?;
//! let submitted = client.submit("database/orders", "create").args(&20).send().await?;
//!
//! let worker = Worker::new(&client, "creator").slots(4).handle("database", create);
//! let shutdown = async { drop(submitted.wait().await) }; // SIGTERM in a real worker
//! let summary = worker.run(shutdown).await?;
//! assert_eq!(summary.succeeded, 1);
//! assert_eq!(submitted.wait().await?, 20);
//! # Ok(())
//! # }
//! ```
//!
//! A worker never runs two jobs of one resource at once, never reports for a tenure that it has
//! lost, never claims jobs after shutdown was requested, and never leaves a job in `running`
//! without a handler that works on it.
//!
//! See `worker_loop.rs` for how jobs are claimed and handed back, `attempt.rs` for one attempt,
//! `context.rs` for what a handler sees; `command.rs` runs commands as jobs: their output is split
//! by `output.rs`, redacted by `redact.rs` and sent by `outbox.rs`.

mod attempt;
#[cfg(feature = "exec")]
mod clock;
#[cfg(feature = "exec")]
pub mod command;
#[cfg(feature = "exec")]
mod commands;
pub mod context;
#[cfg(feature = "exec")]
mod environment;
#[cfg(feature = "exec")]
mod exit;
pub mod handler;
#[cfg(feature = "exec")]
mod observer;
mod outbox;
#[cfg(feature = "exec")]
mod output;
#[cfg(feature = "exec")]
mod output_file;
mod redact;
#[cfg(feature = "exec")]
mod streams;
mod text;
mod wakeups;
mod worker_loop;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use tenure_core::session::ALL_TENANTS;
use tenure_core::{ClaimScope, Refusal, ResourceKey, Text, limits};
use tracing::Span;

use crate::client::Client;
use crate::error::Error;
use crate::session_options::SessionOptions;

#[cfg(feature = "exec")]
pub use command::{Command, CommandOutput, Exit, Phase};
pub use context::{CancelReason, Context};
#[cfg(feature = "exec")]
pub use environment::{INHERITED_VARIABLES, inherited_variables};
pub use handler::{Done, Failure, Handler, completing};
#[cfg(feature = "exec")]
pub use observer::{Line, Stream};
pub use redact::REDACTED;
pub use wakeups::{Wakeup, Wakeups};

/// Default time to live of a worker's session. Over HTTP, a third of it bounds the delay until a
/// job learns that it was cancelled.
pub const TTL_DEFAULT: Duration = Duration::from_millis(limits::WORKER_TTL_MS_DEFAULT);
/// Default time that running jobs have to finish after shutdown was requested.
pub const DRAIN_DEFAULT: Duration = Duration::from_millis(limits::WORKER_DRAIN_MS_DEFAULT);
/// Default timeout of handing back unfinished jobs after the drain.
pub const HAND_BACK_DEFAULT: Duration = Duration::from_secs(15);
/// Default time that a handler has to stop before it is dropped.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// Minimum time to live of a worker with a handler that [must complete](Handler::must_complete).
const COMPLETING_TTL_MIN: Duration = Duration::from_millis(limits::SUPERVISED_TTL_MS_MIN);
/// Maximum number of slots of a worker.
pub const SLOTS_MAX: usize = limits::WORKER_SLOTS_MAX;

/// Claims jobs and runs their handlers.
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    client: Client,
    name: String,
    ttl: Duration,
    heartbeat: Option<Duration>,
    slots: usize,
    grace: Duration,
    drain: Duration,
    hand_back: Duration,
    span: fn(&Context) -> Span,
    handlers: BTreeMap<Text, Handlers>,
    only: Option<Restriction>,
    wakeups: Option<Arc<dyn Wakeups>>,
}

/// What a worker claims jobs of, if not all that it has handlers for.
struct Restriction {
    kind: Text,
    scope: ClaimScope,
}

/// Returns the default span of an attempt, which adds the job's id to every log line.
///
/// Its level is the highest, so that no filter removes the id from a line.
#[must_use]
pub fn attempt_span(job: &Context) -> Span {
    tracing::error_span!(
        "attempt",
        job = %job.id(),
        resource = %job.key(),
        operation = job.operation(),
        attempt = job.attempt(),
        token = %job.token(),
        otel.status_code = tracing::field::Empty,
    )
}

/// Handlers of one kind.
#[derive(Default)]
struct Handlers {
    by_operation: HashMap<Text, Arc<dyn Handler>>,
    default: Option<Arc<dyn Handler>>,
}

/// Statistics of a worker from start to shutdown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Attempts whose result the store has confirmed, except hand-backs.
    pub reported: u64,
    /// Reported attempts that made their job succeed.
    pub succeeded: u64,
    /// Attempts that were handed back unfinished.
    pub handed_back: u64,
    /// Attempts whose tenure was lost.
    pub lost: u64,
    /// Sessions opened; more than one means that a session was lost.
    pub sessions: u64,
    /// Jobs that did not stop in time. The session is kept alive until they do, or until this
    /// process exits.
    pub abandoned: usize,
}

impl Worker {
    /// Creates a worker with one slot per core and no handlers.
    pub fn new(client: &Client, name: &str) -> Self {
        Self {
            client: client.clone(),
            name: name.to_owned(),
            ttl: TTL_DEFAULT,
            heartbeat: None,
            slots: available_parallelism().map_or(1, usize::from),
            grace: GRACE_DEFAULT,
            drain: DRAIN_DEFAULT,
            hand_back: HAND_BACK_DEFAULT,
            span: attempt_span,
            handlers: BTreeMap::new(),
            only: None,
            wakeups: None,
        }
    }

    /// Claims only jobs of the resources of one group: of a grouped kind, those that are named
    /// `GROUP:REST`, in the tenant of the client. The worker must have handlers for this kind only.
    pub fn only_group(mut self, kind: &str, group: &str) -> Self {
        let (tenant, group) = (self.client.tenant().clone(), group.into());
        let scope = ClaimScope::Group { tenant, group };
        self.only = Some(Restriction { kind: kind.into(), scope });
        self
    }

    /// Claims only jobs of one resource, in the tenant of the client. The worker must have handlers
    /// for its kind only.
    pub fn only_resource(mut self, kind: &str, name: &str) -> Self {
        let (tenant, name) = (self.client.tenant().clone(), name.into());
        let scope = ClaimScope::Resource { tenant, name };
        self.only = Some(Restriction { kind: kind.into(), scope });
        self
    }

    /// Claims jobs only when `wakeups` says so, and when a job of this worker has ended, which can
    /// make others ready. By default the store wakes the worker.
    pub fn wakeups(mut self, wakeups: Arc<dyn Wakeups>) -> Self {
        self.wakeups = Some(wakeups);
        self
    }

    /// Sets the time to live of the worker's session. The default is [`TTL_DEFAULT`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the interval between heartbeats, at most half the time to live. The default is a third
    /// of it.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = Some(interval);
        self
    }

    /// Sets the function that creates the span of each attempt. The default is [`attempt_span`].
    pub fn span(mut self, span: fn(&Context) -> Span) -> Self {
        self.span = span;
        self
    }

    /// Sets the number of jobs that run concurrently. The default is the number of cores.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Sets the time that a handler has to stop before it is dropped. The default is
    /// [`GRACE_DEFAULT`].
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the time that running jobs have to finish after shutdown was requested. The default is
    /// [`DRAIN_DEFAULT`].
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Sets the timeout of handing back unfinished jobs after the drain; [`Worker::run`] then
    /// returns in any case. The default is [`HAND_BACK_DEFAULT`].
    pub fn hand_back(mut self, timeout: Duration) -> Self {
        self.hand_back = timeout;
        self
    }

    /// Sets the handler for all operations of a kind that have no handler of their own.
    pub fn handle(mut self, kind: &str, handler: impl Handler) -> Self {
        self.kind_handlers(kind).default = Some(Arc::new(handler));
        self
    }

    /// Sets the handler for one operation of a kind.
    ///
    /// A worker claims whole kinds and hands back jobs that it has no handler for, so another
    /// worker should handle them.
    pub fn handle_operation(mut self, kind: &str, operation: &str, handler: impl Handler) -> Self {
        self.kind_handlers(kind).by_operation.insert(operation.into(), Arc::new(handler));
        self
    }

    /// Runs jobs until `shutdown` completes, then shuts down gracefully.
    ///
    /// On shutdown no more jobs are claimed. Running jobs have the drain period to finish; those
    /// that do not are handed back.
    ///
    /// # Errors
    ///
    /// Fails if the worker is misconfigured or not permitted to claim jobs. An unavailable store is
    /// not an error: the worker retries until it is available.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Summary, Error> {
        self.validate().map_err(|message| Error::Refused(Refusal::Invalid(message)))?;
        self.session_options().validate()?;
        worker_loop::WorkerLoop::new(self).run(shutdown).await
    }

    /// Returns the options of the worker's sessions.
    fn session_options(&self) -> SessionOptions {
        let options = SessionOptions::new(&self.name, self.ttl);
        match self.heartbeat {
            Some(interval) => options.heartbeat(interval),
            None => options,
        }
    }

    fn kind_handlers(&mut self, kind: &str) -> &mut Handlers {
        self.handlers.entry(kind.into()).or_default()
    }

    fn handler(&self, kind: &str, operation: &str) -> Option<Arc<dyn Handler>> {
        let handlers = self.handlers.get(kind)?;
        handlers.by_operation.get(operation).or(handlers.default.as_ref()).cloned()
    }

    /// Returns whether this worker may run jobs of a resource.
    fn serves(&self, key: &ResourceKey) -> bool {
        let tenant = self.client.tenant();
        self.handlers.contains_key(key.kind())
            && (**tenant == *ALL_TENANTS || **tenant == *key.tenant())
            && self.only.as_ref().is_none_or(|only| only.scope.contains(key))
    }

    fn validate(&self) -> Result<(), String> {
        if !(1..=limits::CLAIM_KINDS_MAX).contains(&self.handlers.len()) {
            let (got, max) = (self.handlers.len(), limits::CLAIM_KINDS_MAX);
            return Err(format!(
                "the worker handles {got} kinds; the number must be between 1 and {max}"
            ));
        }
        if let Some(Restriction { kind, scope }) = &self.only {
            let part = match scope {
                ClaimScope::Group { group, .. } => group,
                ClaimScope::Resource { name, .. } => name,
            };
            ResourceKey::new(scope.tenant(), kind, part).map_err(|error| {
                format!("the worker is restricted to what has an invalid name: {error}")
            })?;
            if self.handlers.len() != 1 || !self.handlers.contains_key(kind) {
                return Err(format!(
                    "the worker is restricted to the kind {kind}; give it a handler for this kind \
                     and for no other"
                ));
            }
        }
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            let got = self.slots;
            return Err(format!(
                "the worker has {got} slots; the number must be between 1 and {SLOTS_MAX}"
            ));
        }
        let mut handlers =
            self.handlers.values().flat_map(|kind| kind.by_operation.values().chain(&kind.default));
        if self.ttl < COMPLETING_TTL_MIN && handlers.any(|handler| handler.must_complete()) {
            let min = COMPLETING_TTL_MIN;
            return Err(format!("a worker that runs commands needs a ttl of at least {min:?}"));
        }
        Ok(())
    }
}
