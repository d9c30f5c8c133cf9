//! Store time.
//!
//! The engine never reads a clock; each step takes the time as an argument. Instants belong to the
//! store; expiry never depends on a client's clock, so requests carry durations in milliseconds.

use serde::{Deserialize, Serialize};

/// An instant of store time, in milliseconds since the Unix epoch by the store's clock.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// Returns the instant `ms` later, saturating.
    #[must_use]
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Returns the milliseconds since `earlier`, or zero if it is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
