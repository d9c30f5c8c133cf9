//! The one place that reads the time and waits: for servers that come up, and for how long to hope.

use std::time::{Duration, Instant};

/// How often somebody looks whether a server is there.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The start of a measurement.
#[expect(clippy::disallowed_methods, reason = "the one start of stopwatches")]
pub(crate) fn stopwatch() -> Instant {
    Instant::now()
}

/// Waits a moment before somebody looks again.
#[expect(clippy::disallowed_methods, reason = "another process comes up, and has no signal for it")]
pub(crate) fn pause() {
    std::thread::sleep(LOOK_EVERY);
}
