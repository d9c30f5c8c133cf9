//! The worker of an app, in a process that runs workers.

use std::sync::Arc;
use std::time::Duration;

use tenure::Handler;
use tenure::trace::TraceParent;
use tenure::worker::Wakeups;

use crate::live::Live;

/// Environment that a process with workers provides to apps.
#[derive(Clone)]
pub struct WorkerEnv {
    /// The live configuration.
    pub live: Live,
    /// Kind of the store: `embedded`, `postgres`, `memory`.
    pub store: String,
    /// Returns the span around the current attempt, if spans are exported.
    pub span: fn() -> Option<TraceParent>,
}

/// The worker of an app, with its own slots.
pub struct AppWorker {
    /// Maximum number of concurrent jobs; zero if this process should run none.
    pub slots: usize,
    /// A handler for each kind.
    pub handlers: Vec<(&'static str, Arc<dyn Handler>)>,
    /// Time to live and heartbeat interval of its session, if they differ from those of other
    /// workers.
    pub session: Option<(Duration, Duration)>,
    /// What makes it claim jobs, if not the store.
    pub wakeups: Option<Arc<dyn Wakeups>>,
}

impl AppWorker {
    /// Creates a worker without handlers.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { slots, handlers: Vec::new(), session: None, wakeups: None }
    }

    /// Adds the handler of a kind.
    #[must_use]
    pub fn handle(mut self, kind: &'static str, handler: impl Handler) -> Self {
        self.handlers.push((kind, Arc::new(handler)));
        self
    }
}
