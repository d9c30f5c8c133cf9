//! A decorator that measures what goes through to a store, and tells an observer.
//!
//! It measures calls. What they came to is told by the store itself, where it is known exactly: see
//! [`tenure_core::metric_event`]. So it copies no command and looks at no outcome.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::{Command, Kinds, Outcome};
use tokio::sync::broadcast;

use crate::clock::stopwatch;
use crate::keys::KeyRing;
use crate::observer::Observer;
use crate::store::{Hint, Pruned, Reads, Result, Retention, Status, Store, Swept};

/// The calls that an observer is told of when they fail.
pub const CALLS: [&str; 5] = ["apply", "sweep", "prune", "declare", "status"];

/// Measures in front of a store.
pub struct Metered {
    inner: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
}

impl Metered {
    /// Puts an observer in front of `inner`, and tells it what happens within.
    pub fn new(inner: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Self {
        inner.observe(&observer);
        Self { inner, observer }
    }

    fn note<T>(&self, call: &'static str, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.observer.failed(call, error))
    }
}

#[async_trait]
impl Store for Metered {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        let (count, started) = (commands.len(), stopwatch());
        let result = self.inner.apply(commands).await;
        self.observer.applied(count, started.elapsed());
        self.note("apply", result)
    }

    async fn sweep(&self) -> Result<Swept> {
        let started = stopwatch();
        let result = self.inner.sweep().await;
        if let Ok(swept) = &result {
            self.observer.swept(swept, started.elapsed());
        }
        self.note("sweep", result)
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.note("prune", self.inner.prune(keep).await)
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.note("declare", self.inner.declare(kinds).await)
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.inner.watch()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.inner.observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.note("status", self.inner.status().await)
    }

    fn reads(&self) -> &dyn Reads {
        self.inner.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.inner.key_ring()
    }
}
