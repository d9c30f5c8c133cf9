//! Why a request did not do what was asked.

use tenure_core::key::BadName;
use tenure_core::{Code, Refusal, TenureView};

/// Why a request did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An expected no.
    #[error("{0}")]
    Refused(Refusal),
    /// Neither the server nor the store gave an answer. What was asked may have happened.
    #[error("the server or its store is unavailable: {0}")]
    Unavailable(String),
    /// The key is missing or wrong, or its role is too low.
    #[error("{0}")]
    Denied(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The request still waits in the queue; asking again goes on waiting.
    #[error("still waiting, at place {position} of {queue_length}")]
    Waiting {
        /// Its place, 1 for the next.
        position: usize,
        /// How many wait in all.
        queue_length: usize,
        /// Who holds the lock.
        held_by: Option<Box<TenureView>>,
    },
    /// A name is not acceptable.
    #[error(transparent)]
    BadName(#[from] BadName),
    /// The server answered something that is not in the contract.
    #[error("the answer cannot be understood: {0}")]
    Protocol(String),
}

impl Error {
    /// Whether trying again later may help.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// The stable code of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(refusal) => Some(refusal.code()),
            Self::BadName(_) => Some(Code::Invalid),
            Self::Unavailable(_)
            | Self::Denied(_)
            | Self::NotFound(_)
            | Self::Waiting { .. }
            | Self::Protocol(_) => None,
        }
    }
}

impl From<tenure_store::StoreError> for Error {
    fn from(error: tenure_store::StoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}
