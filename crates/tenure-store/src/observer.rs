//! Observers of a store, for metrics.
//!
//! A store reports facts after their batch is durable. It never blocks on an observer and does not
//! depend on one. [`crate::metered`] reports durations and failures of calls.

use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use tenure_core::MetricEvent;

use crate::store::{StoreError, Swept};

/// Receiver of facts and measurements. It is called on the threads of the store and must not block.
pub trait Observer: Send + Sync {
    /// Called with the facts of a durable batch or sweep of this process.
    fn on_facts(&self, facts: &[MetricEvent]);

    /// Called after a batch, with the number of its commands.
    fn on_apply(&self, commands: usize, took: Duration);

    /// Called after a successful sweep.
    fn on_sweep(&self, swept: &Swept, took: Duration);

    /// Called after a failed call, with the name of the [`Store`](crate::Store) method.
    fn on_failure(&self, call: &'static str, error: &StoreError);
}

/// Weakly referenced observers of a store.
#[derive(Default)]
pub struct Observers(RwLock<Vec<Weak<dyn Observer>>>);

impl Observers {
    /// Registers an observer.
    pub fn add(&self, observer: &Arc<dyn Observer>) {
        let mut observers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        observers.retain(|observer| observer.strong_count() > 0);
        observers.push(Arc::downgrade(observer));
    }

    /// Reports facts to all observers.
    pub fn notify(&self, facts: &[MetricEvent]) {
        if facts.is_empty() {
            return;
        }
        let observers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for observer in observers.iter().filter_map(Weak::upgrade) {
            observer.on_facts(facts);
        }
    }
}
