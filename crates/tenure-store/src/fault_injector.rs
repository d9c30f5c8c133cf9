//! A decorator that injects faults: lost requests, lost responses, duplicates and lost hints.
//!
//! With all rates at zero it is transparent and passes the conformance suite like any store. Faults
//! are drawn from a seed, so a failure can be replayed.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tenure_core::{Command, Kinds, Outcome};
use tokio::sync::broadcast;

use crate::audit::SharedAudit;
use crate::keys::KeyRing;
use crate::observer::Observer;
use crate::store::{Hint, Pruned, Reads, Result, Retention, Status, Store, StoreError, Swept};

/// Fault rates in percent of the batches.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// The batch does not reach the store.
    pub drop_requests: u8,
    /// The batch is applied, but the response is lost.
    pub drop_responses: u8,
    /// The batch is applied twice, and the second response is returned.
    pub duplicate_requests: u8,
    /// No hint ever arrives.
    pub drop_hints: bool,
}

/// Store decorator that injects faults.
pub struct FaultInjector<S> {
    inner: S,
    rates: FaultRates,
    seed: Mutex<u64>,
    /// Channel without messages, for `drop_hints`.
    no_hints: broadcast::Sender<Hint>,
}

impl<S: Store> FaultInjector<S> {
    /// Wraps `inner`.
    pub fn new(inner: S, rates: FaultRates, seed: u64) -> Self {
        let (no_hints, _) = broadcast::channel(1);
        Self { inner, rates, seed: Mutex::new(seed.max(1)), no_hints }
    }

    /// Returns `true` with a probability of `percent`.
    fn draw(&self, percent: u8) -> bool {
        let mut seed = self.seed.lock().expect("no panic while the seed is locked");
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed % 100 < u64::from(percent)
    }
}

fn injected(message: &str) -> StoreError {
    StoreError::unavailable(format!("injected fault: {message} lost"))
}

#[async_trait]
impl<S: Store> Store for FaultInjector<S> {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        if self.draw(self.rates.drop_requests) {
            return Err(injected("request"));
        }
        if self.draw(self.rates.duplicate_requests) {
            self.inner.apply(commands.clone()).await?;
        }
        let outcomes = self.inner.apply(commands).await?;
        if self.draw(self.rates.drop_responses) { Err(injected("response")) } else { Ok(outcomes) }
    }

    async fn sweep(&self) -> Result<Swept> {
        self.inner.sweep().await
    }

    async fn prune(&self, retention: Retention) -> Result<Pruned> {
        self.inner.prune(retention).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.inner.declare(kinds).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        if self.rates.drop_hints { self.no_hints.subscribe() } else { self.inner.watch() }
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.inner.observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.inner.status().await
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
