//! A store that counts transactions, and delays them on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tenure_core::{Command, Kinds, Outcome};
use tenure_store::observer::Observer;
use tenure_store::store::{Hint, Pruned, Reads, Result, Retention, Status, Store, Swept};
use tenure_store::{KeyRing, Memory};
use tokio::sync::{broadcast, watch};

/// What a [`Gated`] store shares with its test.
#[derive(Clone)]
pub(crate) struct Gate {
    /// Number of calls of `apply` that arrived.
    pub(crate) applied: Arc<AtomicUsize>,
    /// While true, they wait.
    pub(crate) close: watch::Sender<bool>,
}

/// Store that counts transactions, and delays them on request.
pub(crate) struct Gated {
    inner: Memory,
    gate: Gate,
}

impl Gated {
    pub(crate) fn new() -> (Gate, Self) {
        let gate = Gate { applied: Arc::default(), close: watch::Sender::new(false) };
        (gate.clone(), Self { inner: Memory::new(), gate })
    }
}

#[async_trait]
impl Store for Gated {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.gate.applied.fetch_add(1, Ordering::SeqCst);
        let mut closed = self.gate.close.subscribe();
        closed.wait_for(|closed| !closed).await.expect("the sender is here");
        self.inner.apply(commands).await
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
        self.inner.watch()
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
}
