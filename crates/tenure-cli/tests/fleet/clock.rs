//! Polling for conditions, and sleeping for the duration of a fault.

use std::time::{Duration, Instant};

/// Maximum time to recover after a fault.
const TIMEOUT: Duration = Duration::from_secs(40);

#[expect(clippy::disallowed_methods, reason = "the one stopwatch of these tests")]
pub(crate) fn stopwatch() -> Instant {
    Instant::now()
}

/// Sleeps for the duration of a fault.
#[expect(clippy::disallowed_methods, reason = "the duration of a fault")]
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Polls until `check` succeeds, and panics with its last error on a timeout.
pub(crate) fn until<T>(mut check: impl FnMut() -> Result<T, String>) -> T {
    let started = stopwatch();
    loop {
        match check() {
            Ok(found) => return found,
            Err(missing) => assert!(started.elapsed() < TIMEOUT, "timed out: {missing}"),
        }
        sleep(Duration::from_millis(20));
    }
}
