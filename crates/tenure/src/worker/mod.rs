//! Working jobs: a [`Worker`] takes them from the store and has [`Handler`]s do them.
//!
//! ```
//! # use std::sync::Arc;
//! use tenure::{Client, Context, Done, Failure, Worker};
//! # use tenure_core::{Kind, Kinds, Operation};
//! # use tenure_store::{Memory, Store};
//!
//! async fn create(job: Context) -> Result<Done, Failure> {
//!     let size: u32 = job.args()?;
//!     job.progress(50, "making room");
//!     job.log(&format!("{} gigabytes under token {}", size, job.token()));
//!     job.check()?; // right before each effect that nothing else protects
//!     Ok(Done::with(&size)?)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> anyhow::Result<()> {
//! # let store = Arc::new(Memory::new());
//! # let database = Kind::new("database").operation(Operation::new("create"));
//! # store.declare(Arc::new(Kinds::new([database])?)).await?;
//! let client = Client::local(store);
//! client.submit("database/orders", "create").args(&20).send().await?;
//!
//! # let done = async { tokio::time::sleep(std::time::Duration::from_millis(300)).await };
//! let worker = Worker::new(&client, "creator").slots(4).handle("database", create);
//! let summary = worker.run(done).await?; // until `done`, a signal for example
//! assert_eq!(summary.succeeded, 1);
//! # Ok(())
//! # }
//! ```
//!
//! What a worker never does: run two jobs of one resource at once, report for a tenure that it has
//! lost, begin a new job after it was told to stop, or leave a job running that nobody works on.
//!
//! Next: `shift.rs` for how jobs are taken and given back, `attempt.rs` for one job, `context.rs`
//! for what a handler sees; `command.rs` runs commands as jobs, with their output read by
//! `lines.rs`, cleaned by `redact.rs` and sent by `outbox.rs`.

mod attempt;
mod clock;
pub mod command;
pub mod context;
pub mod handler;
mod lines;
mod outbox;
mod redact;
mod shift;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use tenure_core::{Kinds, Refusal, Text, limits};
use tracing::Span;

use crate::client::Client;
use crate::error::Error;
use crate::exec;

pub use command::{Command, Part};
pub use context::{Context, Halt};
pub use handler::{Done, Failure, Handler};
pub use redact::REDACTED;

/// How long the session of a worker outlives a lost connection, unless said otherwise. Over HTTP a
/// third of it also bounds how late a job hears that it was cancelled.
pub const TTL_DEFAULT: Duration = Duration::from_millis(limits::WORKER_TTL_MS_DEFAULT);
/// How long jobs may go on after the worker was told to stop, unless said otherwise.
pub const DRAIN_DEFAULT: Duration = Duration::from_millis(limits::WORKER_DRAIN_MS_DEFAULT);
/// How long handing jobs back may take after that, unless said otherwise.
pub const HAND_BACK_DEFAULT: Duration = Duration::from_secs(15);
/// How long a handler may go on after it was told to stop, unless said otherwise.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// Most jobs that one worker has at once.
pub const SLOTS_MAX: usize = limits::WORKER_SLOTS_MAX;

/// Takes jobs and has them done.
#[must_use = "a worker does nothing before it runs"]
pub struct Worker {
    client: Client,
    name: String,
    ttl: Duration,
    slots: usize,
    grace: Duration,
    drain: Duration,
    hand_back: Duration,
    span: fn(&Context) -> Span,
    handlers: BTreeMap<Text, Handlers>,
}

/// The span around an attempt: it carries the job's id to every line of the log. Its level is the
/// highest, so that no filter takes the id away from a line.
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

/// The handlers of one kind.
#[derive(Default)]
struct Handlers {
    of: HashMap<Text, Arc<dyn Handler>>,
    others: Option<Arc<dyn Handler>>,
}

/// What a worker did from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Attempts whose end the store has confirmed, and that were not handed back.
    pub reported: u64,
    /// Those of them that made their job succeed.
    pub succeeded: u64,
    /// Attempts that were given back unfinished.
    pub handed_back: u64,
    /// Attempts that were lost with their tenure.
    pub lost: u64,
    /// Sessions that were opened; more than one says that one was lost.
    pub sessions: u64,
    /// Jobs that did not stop in time. The session lives until they do, or until this process ends.
    pub abandoned: usize,
}

impl Worker {
    /// A worker with as many slots as there are cores, and no handlers yet.
    pub fn new(client: &Client, name: &str) -> Self {
        Self {
            client: client.clone(),
            name: name.to_owned(),
            ttl: TTL_DEFAULT,
            slots: available_parallelism().map_or(1, usize::from),
            grace: GRACE_DEFAULT,
            drain: DRAIN_DEFAULT,
            hand_back: HAND_BACK_DEFAULT,
            span: attempt_span,
            handlers: BTreeMap::new(),
        }
    }

    /// How long its session outlives a lost connection.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Another span around each attempt than [`attempt_span`], for those who record spans.
    pub fn span(mut self, span: fn(&Context) -> Span) -> Self {
        self.span = span;
        self
    }

    /// How many jobs it has at once.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// How long a handler may go on after it was told to stop, before it is dropped.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long jobs may go on after the worker was told to stop.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// How long handing jobs back may take after that; then [`Worker::run`] returns in any case.
    pub fn hand_back(mut self, within: Duration) -> Self {
        self.hand_back = within;
        self
    }

    /// Handles the operations of a kind that have no handler of their own.
    pub fn handle(mut self, kind: &str, handler: impl Handler) -> Self {
        self.of(kind).others = Some(Arc::new(handler));
        self
    }

    /// Handles one operation of a kind. A worker claims whole kinds: what it cannot do it hands
    /// back, so another worker should be able to.
    pub fn handle_operation(mut self, kind: &str, operation: &str, handler: impl Handler) -> Self {
        self.of(kind).of.insert(operation.into(), Arc::new(handler));
        self
    }

    /// Handles every operation that declares a command with `run = […]`. The executable of this
    /// process must call [`exec::run_helper`] first in its `main`.
    pub fn commands(self, kinds: &Kinds) -> Self {
        self.commands_with(kinds, |command| command)
    }

    /// The same, with a say in how each command is run.
    pub fn commands_with(mut self, kinds: &Kinds, adapt: impl Fn(Command) -> Command) -> Self {
        for kind in kinds.iter() {
            for operation in kind.operations.values().filter(|one| !one.run.is_empty()) {
                let command = adapt(Command::new(&operation.run));
                self = self.handle_operation(&kind.name, &operation.name, command);
            }
        }
        self
    }

    /// Works until `shutdown` completes and everything is settled. Then no more jobs are taken;
    /// those that run may end, and are handed back when they do not.
    ///
    /// # Errors
    ///
    /// When the worker makes no sense, or may not work. A store that is away is no error: the
    /// worker waits for it.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Summary, Error> {
        self.check().map_err(|why| Error::Refused(Refusal::Invalid(why)))?;
        shift::Shift::new(self).run(shutdown).await
    }

    fn of(&mut self, kind: &str) -> &mut Handlers {
        self.handlers.entry(kind.into()).or_default()
    }

    fn handler(&self, kind: &str, operation: &str) -> Option<Arc<dyn Handler>> {
        let handlers = self.handlers.get(kind)?;
        handlers.of.get(operation).or(handlers.others.as_ref()).cloned()
    }

    fn check(&self) -> Result<(), String> {
        if !(1..=limits::CLAIM_KINDS_MAX).contains(&self.handlers.len()) {
            let (got, max) = (self.handlers.len(), limits::CLAIM_KINDS_MAX);
            return Err(format!("the worker handles {got} kinds; give it between 1 and {max}"));
        }
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            let got = self.slots;
            return Err(format!("the worker has {got} slots; give it between 1 and {SLOTS_MAX}"));
        }
        let mut handlers =
            self.handlers.values().flat_map(|kind| kind.of.values().chain(&kind.others));
        if self.ttl < exec::TTL_MIN && handlers.any(|handler| handler.winds_up()) {
            let min = exec::TTL_MIN;
            return Err(format!("a worker of commands needs a time to live of {min:?} or more"));
        }
        Ok(())
    }
}
