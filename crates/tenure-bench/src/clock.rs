//! The clock of the benchmarks.

use std::time::Instant;

/// Returns the current time. All measurements use this clock.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}
