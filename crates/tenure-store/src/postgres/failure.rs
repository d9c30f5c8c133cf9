//! Why a transaction failed, and whether trying it again helps.

use tokio_postgres::error::SqlState;

use super::conn::says_pooler;
use super::link::unavailable;
use crate::store::StoreError;

/// Why a try failed.
pub(super) enum Failure {
    /// Another transaction won: trying again helps.
    Contended(StoreError),
    /// The connection broke: nobody knows whether it was committed.
    Broken(StoreError),
    /// A pooler stands between.
    Pooled(StoreError),
    /// What is in memory is not what the journal says: it has to be read again.
    Stale,
    /// The journal is further than can be followed at once.
    Behind,
    /// The database is another one than before.
    Reborn,
    /// Trying again does not help.
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
                StoreError::Unavailable("the journal went on meanwhile".to_owned())
            }
            Self::Reborn => StoreError::Unavailable("the database is another one".to_owned()),
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
        let store = unavailable(&error);
        if says_pooler(&error) {
            return Self::Pooled(store);
        }
        match error.code() {
            Some(code) if contended.contains(code) => Self::Contended(store),
            // It is shutting down or starting, or somebody ended our connection.
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
