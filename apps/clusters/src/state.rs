//! The states of a cluster.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// State of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ClusterState {
    /// Nothing of it exists yet.
    Pending,
    /// The installer is creating it, or removes what an earlier attempt has left.
    Creating,
    /// It runs.
    Ready,
    /// The number of its workers is being changed.
    Scaling,
    /// The installer is destroying it.
    Destroying,
    /// Nothing of it exists any more.
    Destroyed,
    /// It could not be created; parts of it may exist.
    Failed,
    /// It could not be destroyed; parts of it exist.
    DestroyFailed,
}

impl ClusterState {
    /// All states; the first is that of a new cluster.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Creating,
        Self::Ready,
        Self::Scaling,
        Self::Destroying,
        Self::Destroyed,
        Self::Failed,
        Self::DestroyFailed,
    ];

    /// Returns the stored spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Creating => "CREATING",
            Self::Ready => "READY",
            Self::Scaling => "SCALING",
            Self::Destroying => "DESTROYING",
            Self::Destroyed => "DESTROYED",
            Self::Failed => "FAILED",
            Self::DestroyFailed => "DESTROY_FAILED",
        }
    }

    /// Parses the stored spelling.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}
