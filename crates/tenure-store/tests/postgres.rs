//! The conformance suite on a private PostgreSQL server: directly, and through PgBouncer in
//! transaction mode, where every transaction may run on another server connection.

#![cfg(feature = "postgres")]

use std::sync::Arc;

use async_trait::async_trait;
use tenure_store::clock::ManualClock;
use tenure_store::conformance::Harness;
use tenure_store::postgres::{Options, Postgres};
use tenure_store::{Store, store_conformance};

struct PostgresHarness<const POOLED: bool> {
    clock: ManualClock,
    store: Option<Arc<Postgres>>,
    url: String,
}

impl<const POOLED: bool> PostgresHarness<POOLED> {
    async fn open(&mut self) {
        let options = Options { clock: Some(Arc::new(self.clock.clone())), ..Options::default() };
        let store = Postgres::open_with(&self.url, options).await.expect("database is up");
        self.store = Some(Arc::new(store));
    }
}

#[async_trait]
impl<const POOLED: bool> Harness for PostgresHarness<POOLED> {
    async fn fresh() -> Self {
        let server = tenure_testbed::shared();
        let name = server.new_database().expect("new database");
        let url = match POOLED {
            true => tenure_testbed::shared_bouncer().url(server, &name),
            false => server.url(&name),
        };
        let mut harness = Self { clock: ManualClock::default(), store: None, url };
        harness.open().await;
        harness
    }
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(self.store.as_ref().expect("store is open")) as Arc<dyn Store>
    }
    fn clock(&self) -> &ManualClock {
        &self.clock
    }
    async fn restart(&mut self) {
        self.store = None;
        self.open().await;
    }
}

store_conformance!(postgres, PostgresHarness<false>, shared);

mod pooled {
    use super::*;
    store_conformance!(postgres, PostgresHarness<true>, shared);
}
