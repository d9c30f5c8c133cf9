//! Whoever counts what goes on in a store.
//!
//! A store tells facts when the batch they are of is durable, so what is counted has happened. It
//! never waits for an observer and never relies on one. [`crate::metered`] tells the rest: how long
//! calls took, and that they failed.

use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use tenure_core::MetricEvent;

use crate::store::{StoreError, Swept};

/// Counts what goes on in a store. It is told on the store's own threads: it must be quick and must
/// never wait.
pub trait Observer: Send + Sync {
    /// This happened, by the commands and sweeps of this process, and is durable.
    fn happened(&self, facts: &[MetricEvent]);

    /// A batch of so many commands was applied.
    fn applied(&self, commands: usize, took: Duration);

    /// A sweep was made.
    fn swept(&self, swept: &Swept, took: Duration);

    /// A call failed; it is named as the method of the store.
    fn failed(&self, call: &'static str, error: &StoreError);
}

/// The observers of a store, for as long as somebody else keeps them.
#[derive(Default)]
pub struct Observers(RwLock<Vec<Weak<dyn Observer>>>);

impl Observers {
    /// Tells one more from now on.
    pub fn add(&self, observer: &Arc<dyn Observer>) {
        let mut observers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        observers.retain(|observer| observer.strong_count() > 0);
        observers.push(Arc::downgrade(observer));
    }

    /// Tells all of them what happened.
    pub fn tell(&self, facts: &[MetricEvent]) {
        if facts.is_empty() {
            return;
        }
        let observers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for observer in observers.iter().filter_map(Weak::upgrade) {
            observer.happened(facts);
        }
    }
}
