//! The durable store that is measured: the embedded one, or the one that is named.

use std::ffi::OsStr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::Args;
use tenure_store::{Embedded, Store};

use crate::remote::Server;
use crate::servers::Scratch;
use tenure_cli_kit::store::open as open_store;

/// An address at which nobody is: the port for what is thrown away.
const NOBODY: &str = "127.0.0.1:9";

/// Which store to measure.
#[derive(Args)]
pub struct Kept {
    /// Measure this store in place of the embedded one: postgres://USER@HOST/DATABASE
    #[arg(long, env = "TENURE_BENCH_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
}

impl Kept {
    /// What to call it.
    pub fn name(&self) -> &str {
        self.store.as_deref().and_then(|url| url.split(':').next()).unwrap_or("embedded")
    }

    /// The address of a store that any number of processes share.
    pub fn shared(&self) -> Option<&str> {
        let url = self.store.as_deref()?;
        matches!(self.name(), "postgres" | "postgresql").then_some(url)
    }

    /// Refuses to measure what servers share on a store that they cannot share.
    pub fn ensure_shared(&self) -> Result<()> {
        let why = "this can only be measured on a store that servers share: \
                   --store postgres://USER@HOST/DATABASE";
        ensure!(self.shared().is_some(), why);
        Ok(())
    }

    /// The store, in this process.
    pub async fn open(&self, scratch: &Scratch) -> Result<Arc<dyn Store>> {
        match &self.store {
            Some(url) => open_store(url).await,
            None => Ok(Arc::new(Embedded::open(&scratch.path().join("bench.db"))?)),
        }
    }

    /// The same, but it hears of no other server, and so has nobody to tell anything.
    pub async fn open_deaf(&self, scratch: &Scratch) -> Result<Arc<dyn Store>> {
        match self.shared() {
            Some(url) => {
                let separator = if url.contains('?') { '&' } else { '?' };
                open_store(&format!("{url}{separator}listen={NOBODY}")).await
            }
            None => self.open(scratch).await,
        }
    }

    /// A server on it, in a process of its own.
    pub(crate) async fn serve(&self, scratch: &Scratch, args: &[&OsStr]) -> Result<Server> {
        Server::start(scratch.path(), self.store.as_deref(), args).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_share_a_database_and_nothing_else() {
        for (store, shared) in [
            (None, false),
            (Some("memory:"), false),
            (Some("embedded:bench.db"), false),
            (Some("postgres://u@h/d"), true),
            (Some("postgresql://u@h/d"), true),
        ] {
            let kept = Kept { store: store.map(str::to_owned) };
            assert_eq!(kept.shared(), store.filter(|_| shared));
            assert_eq!(kept.ensure_shared().is_ok(), shared, "{store:?}");
        }
    }
}
