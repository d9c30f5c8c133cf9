//! A decorator that fails on purpose: before the store, after it, or by losing every wake-up.
//!
//! With a plan that does nothing it must be transparent: it passes the conformance suite like any
//! store. What it breaks is drawn from a seed, so a failure replays.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tenure_core::{Command, Kinds, Outcome};
use tokio::sync::broadcast;

use crate::keys::KeyRing;
use crate::observer::Observer;
use crate::store::{Hint, Pruned, Reads, Result, Retention, Status, Store, StoreError, Swept};

/// How often what goes wrong, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// The batch never reaches the store.
    pub lost_request: u8,
    /// The batch is applied, and the answer is lost.
    pub lost_reply: u8,
    /// The batch is applied twice, and the second answer is given.
    pub repeated: u8,
    /// No wake-up ever arrives.
    pub deaf: bool,
}

/// Fails in front of a store.
pub struct Faulty<S> {
    inner: S,
    plan: Plan,
    seed: Mutex<u64>,
    /// A channel on which nothing is ever sent.
    silence: broadcast::Sender<Hint>,
}

impl<S: Store> Faulty<S> {
    /// Puts faults in front of `inner`.
    pub fn new(inner: S, plan: Plan, seed: u64) -> Self {
        let (silence, _) = broadcast::channel(1);
        Self { inner, plan, seed: Mutex::new(seed.max(1)), silence }
    }

    /// Draws whether something that happens in `percent` of cases happens now.
    fn draw(&self, percent: u8) -> bool {
        let mut seed = self.seed.lock().expect("nothing panics while the seed is locked");
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed % 100 < u64::from(percent)
    }
}

fn lost(what: &str) -> StoreError {
    StoreError::Unavailable(format!("the {what} was lost on purpose"))
}

#[async_trait]
impl<S: Store> Store for Faulty<S> {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        if self.draw(self.plan.lost_request) {
            return Err(lost("request"));
        }
        if self.draw(self.plan.repeated) {
            self.inner.apply(commands.clone()).await?;
        }
        let outcomes = self.inner.apply(commands).await?;
        if self.draw(self.plan.lost_reply) { Err(lost("reply")) } else { Ok(outcomes) }
    }

    async fn sweep(&self) -> Result<Swept> {
        self.inner.sweep().await
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.inner.prune(keep).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.inner.declare(kinds).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        if self.plan.deaf { self.silence.subscribe() } else { self.inner.watch() }
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
