//! Snapshots of install directories.

use serde::{Deserialize, Serialize};
use tenure_core::Token;

/// A complete snapshot: the pointer that the status of its cluster has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Place of its manifest in the store, without the ending `.json`:
    /// `clusters/ID/TOKEN/SEQ-PHASE`.
    pub path: String,
    /// Token of the attempt that took it.
    pub token: Token,
    /// SHA-256 of the manifest.
    pub sha256: String,
}
