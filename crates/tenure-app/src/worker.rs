//! How an app works its jobs in a process that runs workers.

use std::sync::Arc;

use tenure::Handler;
use tenure::trace::TraceParent;

use crate::live::Live;

/// What a process that runs workers offers to apps.
#[derive(Clone)]
pub struct WorkerEnv {
    /// The live configuration.
    pub live: Live,
    /// Kind of the store: `embedded`, `postgres`, `memory`.
    pub store: String,
    /// Returns the span around the current attempt, if spans are exported.
    pub span: fn() -> Option<TraceParent>,
}

/// A worker of an app, with slots of its own.
pub struct AppWorker {
    /// Maximum number of jobs at once; zero if this process should work none.
    pub slots: usize,
    /// A handler for each kind.
    pub handlers: Vec<(&'static str, Arc<dyn Handler>)>,
}
