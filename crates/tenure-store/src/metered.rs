//! A decorator that measures the calls to a store and reports them to an observer.
//!
//! It reports durations and failures only. The store itself reports the facts (see
//! [`tenure_core::metric_event`]), so the decorator neither copies commands nor inspects outcomes.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::{Command, Kinds, Outcome};
use tokio::sync::broadcast;

use crate::audit::SharedAudit;
use crate::clock::stopwatch;
use crate::keys::KeyRing;
use crate::observer::Observer;
use crate::store::{Hint, Pruned, Reads, Result, Retention, Status, Store, Swept};

/// Names of the calls whose failures are reported.
pub const CALLS: [&str; 5] = ["apply", "sweep", "prune", "declare", "status"];

/// Store decorator that reports durations and failures of calls.
pub struct Metered {
    inner: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
}

impl Metered {
    /// Wraps `inner` and registers the observer with it.
    pub fn new(inner: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Self {
        inner.observe(&observer);
        Self { inner, observer }
    }

    fn report<T>(&self, call: &'static str, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.observer.on_failure(call, error))
    }
}

#[async_trait]
impl Store for Metered {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        let (count, started) = (commands.len(), stopwatch());
        let result = self.inner.apply(commands).await;
        self.observer.on_apply(count, started.elapsed());
        self.report("apply", result)
    }

    async fn sweep(&self) -> Result<Swept> {
        let started = stopwatch();
        let result = self.inner.sweep().await;
        if let Ok(swept) = &result {
            self.observer.on_sweep(swept, started.elapsed());
        }
        self.report("sweep", result)
    }

    async fn prune(&self, retention: Retention) -> Result<Pruned> {
        self.report("prune", self.inner.prune(retention).await)
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.report("declare", self.inner.declare(kinds).await)
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.inner.watch()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.inner.observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.report("status", self.inner.status().await)
    }

    fn reads(&self) -> &dyn Reads {
        self.inner.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.inner.key_ring()
    }

    fn shared_audit(&self) -> Option<&dyn SharedAudit> {
        self.inner.shared_audit()
    }
}
