//! The only module that reads the clock and sleeps, to wait for servers to start.

use std::time::{Duration, Instant};

/// Interval between readiness checks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the start of a measurement.
#[expect(clippy::disallowed_methods, reason = "the only place that reads the clock")]
pub(crate) fn stopwatch() -> Instant {
    Instant::now()
}

/// Sleeps until the next readiness check.
#[expect(clippy::disallowed_methods, reason = "a starting process gives no readiness signal")]
pub(crate) fn pause() {
    std::thread::sleep(POLL_INTERVAL);
}
