//! Where the durable one of two stores keeps its rows: in a file, or in PostgreSQL.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tenure_store::clock::ManualClock;
use tenure_store::{Embedded, Store, embedded, postgres};

thread_local! {
    /// The database that the cases of a test have one after the other: making one takes longer than
    /// a case.
    static NAME: String = tenure_testbed::shared().new_database().expect("a new database");
}

/// Where the rows are.
pub(crate) enum Place {
    /// A file, which one process has.
    File(TempDir),
    /// A database at this address, which any number of processes share.
    Database(String),
}

impl Place {
    pub(crate) fn file() -> Self {
        Self::File(TempDir::new().expect("a temporary directory"))
    }

    /// An empty database, perhaps behind a pooler.
    pub(crate) fn database(pooled: bool) -> Self {
        let server = tenure_testbed::shared();
        NAME.with(|name| {
            let empty = "DROP SCHEMA IF EXISTS tenure CASCADE";
            server.psql(name, empty).expect("an empty database");
            Self::Database(match pooled {
                true => tenure_testbed::shared_bouncer().url(server, name),
                false => server.url(name),
            })
        })
    }

    /// Whether others may look after the rows while one process restarts: then it gives no grace.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Database(_))
    }

    /// How many stores are on it at once.
    pub(crate) fn stores(&self) -> usize {
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
                let options = postgres::Options { clock };
                let store = postgres::Postgres::open_with(url, options).await;
                Box::new(store.expect("it opens"))
            }
        }
    }

    /// What a crash at this moment leaves. A database is not in the process that crashes.
    pub(crate) fn as_a_crash_leaves_it(&self) -> Self {
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
