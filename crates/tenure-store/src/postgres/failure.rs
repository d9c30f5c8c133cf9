//! Classification of transaction failures by whether a retry helps.

use tokio_postgres::error::SqlState;

use super::client::indicates_pooler;
use super::connection::unavailable;
use crate::store::StoreError;

/// Why a transaction failed.
pub(super) enum Failure {
    /// Another transaction won. A retry helps.
    Contended(StoreError),
    /// The connection broke. It is unknown whether the transaction was committed.
    Broken(StoreError),
    /// A pooler sits in front of the database.
    Pooled(StoreError),
    /// The replica does not match the journal and must be reloaded.
    Stale,
    /// The journal is further ahead than one catch-up reads.
    Behind,
    /// The database is not the one that its tables were last used on: restored or failed over.
    IdentityChanged,
    /// A retry does not help.
    Store(StoreError),
}

impl Failure {
    pub(super) fn into_store(self) -> StoreError {
        match self {
            Self::Contended(error)
            | Self::Broken(error)
            | Self::Pooled(error)
            | Self::Store(error) => error,
            Self::Stale | Self::Behind => {
                StoreError::unavailable("the journal has advanced concurrently")
            }
            Self::IdentityChanged => {
                StoreError::unavailable("the database was restored or failed over")
            }
        }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let contended = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        let (pooled, code) = (indicates_pooler(&error), error.code().cloned());
        let store = unavailable(error);
        if pooled {
            return Self::Pooled(store);
        }
        match &code {
            Some(code) if contended.contains(code) => Self::Contended(store),
            // The database shuts down or starts up, or the backend was terminated.
            Some(code)
                if code.code().starts_with("57")
                    || code.code().starts_with("08")
                    || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT =>
            {
                Self::Broken(store)
            }
            Some(_) => Self::Store(store),
            None => Self::Broken(store),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
