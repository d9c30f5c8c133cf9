//! What can go wrong with a Kubernetes API, by what the caller can do about it.
//!
//! Must never contain a secret: what the parsers of kubeconfigs and the credential plugins report
//! is left out, because they quote their input.

use tenure_core::Token;

/// The cause of a failed connection or of an answer that makes no sense.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Longest text of a server that an error repeats.
const MESSAGE_CHARS_MAX: usize = 300;

/// Failure of a request to a Kubernetes API.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer, or one that a later attempt may not give, after all attempts. What a write did is
    /// unknown.
    #[error(
        "cannot {tried}: no usable answer after {attempts} attempts; check that the API of the \
         cluster is up and can be reached from here"
    )]
    Unreachable {
        /// What was tried.
        tried: String,
        /// How often.
        attempts: u32,
        /// The last failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The credentials are not accepted, or could not be obtained.
    #[error("cannot {tried}: {message}; renew the kubeconfig of the cluster")]
    Unauthorized {
        /// What was tried.
        tried: String,
        /// What is wrong with the credentials.
        message: String,
    },
    /// The credentials lack a permission.
    #[error("cannot {tried}: {message}; grant it to the user of the kubeconfig")]
    Forbidden {
        /// What was tried.
        tried: String,
        /// Which permission, as the server says it.
        message: String,
    },
    /// The object, or the API, does not exist.
    #[error("cannot {tried}: {message}")]
    NotFound {
        /// What was tried.
        tried: String,
        /// What does not exist.
        message: String,
    },
    /// Somebody else changes the same objects.
    #[error("cannot {tried}: {message}; find out who else changes it, then repeat")]
    Conflict {
        /// What was tried.
        tried: String,
        /// What changed.
        message: String,
    },
    /// The version to continue from is no longer known; start over.
    #[error("cannot {tried}: {message}; read it again from the start")]
    Expired {
        /// What was tried.
        tried: String,
        /// What the server says.
        message: String,
    },
    /// A later tenure has written: this one is lost, and must not write any more.
    #[error(
        "{object} was written under token {live}, which is later than {token}: this tenure is \
         lost, stop its work"
    )]
    Fenced {
        /// The object with the later token.
        object: String,
        /// The token of the caller.
        token: Token,
        /// The later token.
        live: Token,
    },
    /// The input or the answer cannot be used; repeating does not help.
    #[error("cannot {tried}: {message}")]
    Invalid {
        /// What was tried.
        tried: String,
        /// What is wrong.
        message: String,
    },
}

impl Error {
    /// Returns whether a repetition may succeed without any change elsewhere.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Conflict { .. } | Self::Expired { .. })
    }

    pub(crate) fn invalid(tried: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { tried: tried.into(), message: message.into() }
    }

    /// Returns the error for a final status of the server.
    pub(crate) fn of_status(tried: &str, status: http::StatusCode, message: &str) -> Self {
        let message = match message.trim() {
            "" => format!("the server answered {status}"),
            text => text.chars().take(MESSAGE_CHARS_MAX).collect(),
        };
        let tried = tried.to_owned();
        match status.as_u16() {
            401 => Self::Unauthorized { tried, message },
            403 => Self::Forbidden { tried, message },
            404 => Self::NotFound { tried, message },
            409 => Self::Conflict { tried, message },
            410 => Self::Expired { tried, message },
            _ => Self::Invalid { tried, message },
        }
    }
}
