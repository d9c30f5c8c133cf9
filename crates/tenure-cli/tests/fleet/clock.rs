//! Waiting: for what is polled, and for as long as a fault lasts.

use std::time::{Duration, Instant};

/// How long anything may take to come back after a fault.
const PATIENCE: Duration = Duration::from_secs(40);

#[expect(clippy::disallowed_methods, reason = "the one stopwatch of these tests")]
pub(crate) fn stopwatch() -> Instant {
    Instant::now()
}

/// Lets a fault last.
#[expect(clippy::disallowed_methods, reason = "the length of a fault")]
pub(crate) fn lasts(time: Duration) {
    std::thread::sleep(time);
}

/// Polls until there is something, and says what was missing if it never comes.
pub(crate) fn until<T>(mut look: impl FnMut() -> Result<T, String>) -> T {
    let started = stopwatch();
    loop {
        match look() {
            Ok(found) => return found,
            Err(missing) => assert!(started.elapsed() < PATIENCE, "it never happened: {missing}"),
        }
        lasts(Duration::from_millis(20));
    }
}
