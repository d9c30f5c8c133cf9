//! The suite of all stores, on a private PostgreSQL server.

#![cfg(feature = "postgres")]

use std::sync::Arc;

use async_trait::async_trait;
use tenure_store::clock::ManualClock;
use tenure_store::conformance::Harness;
use tenure_store::postgres::{Options, Postgres};
use tenure_store::{Store, store_conformance};

struct OnPostgres {
    clock: ManualClock,
    store: Option<Arc<Postgres>>,
    url: String,
}

impl OnPostgres {
    async fn open(&mut self) {
        let options = Options { clock: Some(Arc::new(self.clock.clone())) };
        let store = Postgres::open_with(&self.url, options).await.expect("the server is there");
        self.store = Some(Arc::new(store));
    }
}

#[async_trait]
impl Harness for OnPostgres {
    async fn fresh() -> Self {
        let server = tenure_testbed::shared();
        let name = server.new_database().expect("a new database");
        let url = server.url(&name);
        let mut harness = Self { clock: ManualClock::default(), store: None, url };
        harness.open().await;
        harness
    }
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(self.store.as_ref().expect("it is open")) as Arc<dyn Store>
    }
    fn clock(&self) -> &ManualClock {
        &self.clock
    }
    async fn restart(&mut self) {
        self.store = None;
        self.open().await;
    }
}

store_conformance!(postgres, OnPostgres, shared);
