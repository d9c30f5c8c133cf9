//! Store time.
//!
//! The model never asks what time it is: each step is told. Instants are the store's own and never
//! travel to a client; durations do, as whole milliseconds.

use serde::{Deserialize, Serialize};

/// An instant of store time, in milliseconds since the Unix epoch as the store counts it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// The instant `ms` later; the end of time instead of an overflow.
    #[must_use]
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// How long after `earlier` this is, or zero when it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
