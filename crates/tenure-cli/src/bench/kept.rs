//! The durable store that is measured: the embedded one, or the one that is named.

use std::ffi::OsStr;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use tenure_store::{Embedded, Store};

use super::remote::Server;
use super::servers::Scratch;
use crate::commands::open_store;

/// Which store to measure.
#[derive(Args)]
pub(crate) struct Kept {
    /// Measure this store in place of the embedded one: postgres://USER@HOST/DATABASE
    #[arg(long, env = "TENURE_BENCH_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
}

impl Kept {
    /// What to call it.
    pub(crate) fn name(&self) -> &str {
        self.store.as_deref().and_then(|url| url.split(':').next()).unwrap_or("embedded")
    }

    /// The store, in this process.
    pub(crate) async fn open(&self, scratch: &Scratch) -> Result<Arc<dyn Store>> {
        match &self.store {
            Some(url) => open_store(url).await,
            None => Ok(Arc::new(Embedded::open(&scratch.path().join("bench.db"))?)),
        }
    }

    /// A server on it, in a process of its own.
    pub(crate) async fn serve(&self, scratch: &Scratch, args: &[&OsStr]) -> Result<Server> {
        Server::start(scratch.path(), self.store.as_deref(), args).await
    }
}
