//! Backends of the durable store: a file, or a PostgreSQL database.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tenure_store::clock::ManualClock;
use tenure_store::{Embedded, Store, embedded, postgres};

thread_local! {
    /// Database shared by the cases of a test: creating one takes longer than a case.
    static NAME: String = tenure_testbed::shared().new_database().expect("a new database");
}

/// Backend of the durable store.
pub(crate) enum Backend {
    /// File, used by one process.
    File(TempDir),
    /// URL of a database, which several processes can share.
    Database(String),
}

impl Backend {
    pub(crate) fn file() -> Self {
        Self::File(TempDir::new().expect("a temporary directory"))
    }

    /// Returns an empty database, behind a pooler if `pooled`.
    pub(crate) fn database(pooled: bool) -> Self {
        let server = tenure_testbed::shared();
        NAME.with(|name| {
            let sql = "DROP SCHEMA IF EXISTS tenure CASCADE";
            server.psql(name, sql).expect("an empty database");
            Self::Database(match pooled {
                true => tenure_testbed::shared_bouncer().url(server, name),
                false => server.url(name),
            })
        })
    }

    /// Returns whether other processes may be active during a restart, which then renews no
    /// session.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Database(_))
    }

    /// Returns the number of concurrent stores.
    pub(crate) fn store_count(&self) -> usize {
        if self.is_shared() { 2 } else { 1 }
    }

    pub(crate) async fn open(&self, clock: &ManualClock) -> Box<dyn Store> {
        let clock = Some(Arc::new(clock.clone()) as _);
        match self {
            Self::File(dir) => {
                let options = embedded::Options { clock, ..embedded::Options::default() };
                let path = dir.path().join("tenure.db");
                Box::new(Embedded::open_with(&path, options).expect("it opens"))
            }
            Self::Database(url) => {
                let options = postgres::Options { clock, ..postgres::Options::default() };
                let store = postgres::Postgres::open_with(url, options).await;
                Box::new(store.expect("it opens"))
            }
        }
    }

    /// Returns the state that a crash would leave now. A database is not affected.
    pub(crate) fn crash_image(&self) -> Self {
        let dir = match self {
            Self::File(dir) => dir,
            Self::Database(url) => return Self::Database(url.clone()),
        };
        let copy = TempDir::new().expect("a temporary directory");
        for extension in ["", "-wal", ".life"] {
            let name = format!("tenure.db{extension}");
            let from: &Path = dir.path();
            if from.join(&name).exists() {
                fs::copy(from.join(&name), copy.path().join(&name)).expect("it copies");
            }
        }
        Self::File(copy)
    }
}
