//! Runs the conformance suite on every store and decorator that needs no server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use tenure_core::MetricEvent;
use tenure_store::clock::ManualClock;
use tenure_store::conformance::Harness;
use tenure_store::embedded::Options;
use tenure_store::fault_injector::{FaultInjector, FaultRates};
use tenure_store::metered::Metered;
use tenure_store::observer::Observer;
use tenure_store::store::Swept;
use tenure_store::{Embedded, Memory, Store, StoreError, store_conformance};

/// Store that does not survive its process.
struct Volatile {
    clock: ManualClock,
    store: Arc<dyn Store>,
}

struct OnMemory(Volatile);
struct OnMetered(Volatile);
struct OnFaultInjector(Volatile);

macro_rules! volatile {
    ($harness:ident, $wrap:expr) => {
        #[async_trait]
        impl Harness for $harness {
            async fn fresh() -> Self {
                let clock = ManualClock::default();
                let memory = Memory::with_clock(clock.clone());
                Self(Volatile { clock, store: Arc::new($wrap(memory)) })
            }
            fn store(&self) -> Arc<dyn Store> {
                Arc::clone(&self.0.store)
            }
            fn clock(&self) -> &ManualClock {
                &self.0.clock
            }
            async fn restart(&mut self) {
                unreachable!("only durable stores are restarted")
            }
        }
    };
}

volatile!(OnMemory, std::convert::identity);
volatile!(OnMetered, measured);
volatile!(OnFaultInjector, without_faults);

fn without_faults(memory: Memory) -> FaultInjector<Memory> {
    FaultInjector::new(memory, FaultRates::default(), 1)
}

/// Observer that ignores everything: the suite registers its own.
struct NullObserver;

impl Observer for NullObserver {
    fn on_facts(&self, _: &[MetricEvent]) {}
    fn on_apply(&self, _: usize, _: Duration) {}
    fn on_sweep(&self, _: &Swept, _: Duration) {}
    fn on_failure(&self, _: &'static str, _: &StoreError) {}
}

fn measured(memory: Memory) -> Metered {
    Metered::new(Arc::new(memory), Arc::new(NullObserver))
}

struct OnEmbedded {
    clock: ManualClock,
    store: Option<Arc<Embedded>>,
    path: PathBuf,
    _dir: TempDir,
}

impl OnEmbedded {
    fn open(&mut self) {
        let clock = Arc::new(self.clock.clone());
        let options = Options { clock: Some(clock), ..Options::default() };
        let store = Embedded::open_with(&self.path, options).expect("a fresh directory");
        self.store = Some(Arc::new(store));
    }
}

#[async_trait]
impl Harness for OnEmbedded {
    async fn fresh() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let path = dir.path().join("tenure.db");
        let mut harness = Self { clock: ManualClock::default(), store: None, path, _dir: dir };
        harness.open();
        harness
    }
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(self.store.as_ref().expect("an open store")) as Arc<dyn Store>
    }
    fn clock(&self) -> &ManualClock {
        &self.clock
    }
    async fn restart(&mut self) {
        let store = self.store.take().expect("an open store");
        drop(Arc::into_inner(store).expect("no other reference to the store"));
        self.open();
    }
}

store_conformance!(memory, OnMemory);
store_conformance!(metered, OnMetered);
store_conformance!(fault_injector, OnFaultInjector);
store_conformance!(embedded, OnEmbedded, durable);
