//! A decorator that counts and times what goes through to a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tenure_core::{Command, Kinds, Outcome};
use tokio::sync::broadcast;

use crate::keys::KeyRing;
use crate::store::{Hint, Pruned, Reads, Result, Retention, Status, Store, Swept};

/// Counts in front of a store.
pub struct Metered<S> {
    inner: S,
    meter: Meter,
}

/// The counts so far.
#[derive(Debug, Default)]
pub struct Meter {
    /// Batches that were applied.
    pub batches: AtomicU64,
    /// Commands in them.
    pub commands: AtomicU64,
    /// Commands that were refused.
    pub refusals: AtomicU64,
    /// Calls of any kind that failed.
    pub failures: AtomicU64,
    /// Sessions ended by sweeps.
    pub lapsed: AtomicU64,
    /// Time spent in `apply`, in microseconds.
    pub apply_us: AtomicU64,
}

impl<S: Store> Metered<S> {
    /// Puts a meter in front of `inner`.
    pub fn new(inner: S) -> Self {
        Self { inner, meter: Meter::default() }
    }

    /// The counts so far.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    fn count<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            add(&self.meter.failures, 1);
        }
        result
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

#[async_trait]
impl<S: Store> Store for Metered<S> {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        add(&self.meter.batches, 1);
        add(&self.meter.commands, commands.len() as u64);
        let started = crate::clock::stopwatch();
        let result = self.inner.apply(commands).await;
        add(&self.meter.apply_us, micros(started));
        let refused = |outcome: &&Outcome| matches!(outcome, Outcome::Refused(_));
        let refusals = result.iter().flatten().filter(refused).count();
        add(&self.meter.refusals, refusals as u64);
        self.count(result)
    }

    async fn sweep(&self) -> Result<Swept> {
        let result = self.inner.sweep().await;
        add(&self.meter.lapsed, result.as_ref().map_or(0, |swept| swept.sessions as u64));
        self.count(result)
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.count(self.inner.prune(keep).await)
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.count(self.inner.declare(kinds).await)
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.inner.watch()
    }

    async fn status(&self) -> Result<Status> {
        self.count(self.inner.status().await)
    }

    fn reads(&self) -> &dyn Reads {
        self.inner.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.inner.key_ring()
    }
}

fn micros(started: Instant) -> u64 {
    u64::try_from(Duration::as_micros(&started.elapsed())).unwrap_or(u64::MAX)
}
