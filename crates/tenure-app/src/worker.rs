//! The worker of an app, in a process that runs workers.

use std::sync::Arc;

use tenure::Handler;
use tenure::trace::TraceParent;

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
}

impl AppWorker {
    /// Creates a worker without handlers.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { slots, handlers: Vec::new() }
    }

    /// Adds the handler of a kind.
    #[must_use]
    pub fn handle(mut self, kind: &'static str, handler: impl Handler) -> Self {
        self.handlers.push((kind, Arc::new(handler)));
        self
    }
}
