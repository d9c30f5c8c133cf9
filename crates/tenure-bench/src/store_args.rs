//! Argument `--store`: the durable store to measure, by default the embedded one.

use std::ffi::OsStr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::Args;
use tenure_store::{Embedded, Store};

use crate::remote::Server;
use crate::servers::Scratch;
use tenure_cli_kit::store::open as open_store;

/// Unreachable address (the discard port).
const UNREACHABLE_ADDR: &str = "127.0.0.1:9";

/// The store to measure.
#[derive(Args)]
pub struct StoreArgs {
    /// Store to measure instead of the embedded one: postgres://USER@HOST/DATABASE
    #[arg(long, env = "TENURE_BENCH_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
}

impl StoreArgs {
    /// Returns the scheme of the URL, or `embedded`.
    pub fn name(&self) -> &str {
        self.store.as_deref().and_then(|url| url.split(':').next()).unwrap_or("embedded")
    }

    /// Returns the URL if several processes can share the store.
    pub fn shared(&self) -> Option<&str> {
        let url = self.store.as_deref()?;
        matches!(self.name(), "postgres" | "postgresql").then_some(url)
    }

    /// Fails unless several servers can share the store.
    pub fn ensure_shared(&self) -> Result<()> {
        let why = "this measurement needs a store that servers can share; set \
                           --store postgres://USER@HOST/DATABASE";
        ensure!(self.shared().is_some(), why);
        Ok(())
    }

    /// Opens the store in this process.
    pub async fn open(&self, scratch: &Scratch) -> Result<Arc<dyn Store>> {
        match &self.store {
            Some(url) => open_store(url).await,
            None => Ok(Arc::new(Embedded::open(&scratch.path().join("bench.db"))?)),
        }
    }

    /// Opens the store with notifications disabled, so that it neither receives nor sends any.
    pub async fn open_without_notifications(&self, scratch: &Scratch) -> Result<Arc<dyn Store>> {
        match self.shared() {
            Some(url) => {
                let separator = if url.contains('?') { '&' } else { '?' };
                open_store(&format!("{url}{separator}listen={UNREACHABLE_ADDR}")).await
            }
            None => self.open(scratch).await,
        }
    }

    /// Starts a server on the store in a separate process.
    pub(crate) async fn serve(&self, scratch: &Scratch, args: &[&OsStr]) -> Result<Server> {
        Server::start(scratch.path(), self.store.as_deref(), args).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_database_is_shared() {
        for (store, shared) in [
            (None, false),
            (Some("memory:"), false),
            (Some("embedded:bench.db"), false),
            (Some("postgres://u@h/d"), true),
            (Some("postgresql://u@h/d"), true),
        ] {
            let args = StoreArgs { store: store.map(str::to_owned) };
            assert_eq!(args.shared(), store.filter(|_| shared));
            assert_eq!(args.ensure_shared().is_ok(), shared, "{store:?}");
        }
    }
}
