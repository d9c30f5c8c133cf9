//! Opening and closing a store by its URL.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tenure_store::{Embedded, Memory, Postgres, Store, StoreError, postgres};

/// The forms of a store URL, for error messages.
pub const STORE_FORMS: &str = "expected memory:, embedded:PATH or postgres://USER@HOST/DATABASE";

/// Interval and maximum number of checks whether the last other handle to a store is dropped.
const CLOSE_POLL: Duration = Duration::from_millis(10);
const CLOSE_POLLS_MAX: usize = 500;

/// Name of the file in the data directory that keeps the identity of a database.
const IDENTITY_FILE: &str = "database.identity";

/// Opens the store that `url` names.
pub async fn open(url: &str) -> anyhow::Result<Arc<dyn Store>> {
    open_in(url, None).await
}

/// Opens the store that `url` names. A file in `data` keeps the identity of a database, to
/// recognize an old primary after a restart.
pub async fn open_in(url: &str, data: Option<&Path>) -> anyhow::Result<Arc<dyn Store>> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Arc::new(Memory::new())),
        Some(("embedded", path)) if !path.is_empty() => {
            Ok(Arc::new(Embedded::open(Path::new(path))?))
        }
        Some(("postgres" | "postgresql", _)) => {
            let identity_file = data.map(|data| data.join(IDENTITY_FILE));
            let options = postgres::Options { identity_file, ..postgres::Options::default() };
            let store = Postgres::open_with(url, options).await;
            Ok(Arc::new(store.map_err(|error| explain(&error))?))
        }
        // The rest of the URL may contain a password.
        Some((scheme, _)) => bail!("{scheme}: is not a store; {STORE_FORMS}"),
        None => bail!("{url:?} is not a store; {STORE_FORMS}"),
    }
}

/// Waits until no other handle to the store is left, then closes it, which flushes it to its file.
pub async fn close(store: Arc<dyn Store>) {
    for _ in 0..CLOSE_POLLS_MAX {
        if Arc::strong_count(&store) == 1 {
            break;
        }
        tokio::time::sleep(CLOSE_POLL).await;
    }
    tokio::task::block_in_place(|| drop(store));
}

/// Adds the remedy to an error of a database. An unreachable one has exit code 69.
pub fn explain(error: &StoreError) -> anyhow::Error {
    let text = match postgres::remedy(error) {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    };
    if text.contains("cannot be reached") {
        return tenure::Error::Unavailable(text).into();
    }
    anyhow::anyhow!(text)
}
