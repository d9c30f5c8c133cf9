//! Cached store time, for display and for ages of minutes.
//!
//! It must never decide whether a session is alive.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure_core::Millis;
use tenure_store::Store;
use tenure_store::clock::stopwatch;

/// Time after which the clock is read again, and so the longest that a suspend can distort it.
const READING_MAX_AGE: Duration = Duration::from_secs(10);

/// The last reading of the store's clock.
#[derive(Default)]
pub(super) struct StoreClock(Mutex<Option<(Millis, Instant)>>);

impl StoreClock {
    /// Returns store time; `None` until the store has answered once.
    pub(super) async fn now(&self, store: &dyn Store) -> Option<Millis> {
        let last = *self.reading();
        if let Some((_, at)) = last
            && at.elapsed() < READING_MAX_AGE
        {
            return last.map(extrapolate);
        }
        let at = stopwatch();
        match store.status().await {
            Ok(status) => {
                *self.reading() = Some((status.now, at));
                Some(status.now)
            }
            Err(_) => last.map(extrapolate),
        }
    }

    fn reading(&self) -> std::sync::MutexGuard<'_, Option<(Millis, Instant)>> {
        self.0.lock().expect("nothing panics while it is locked")
    }
}

/// Adds the time since the reading.
fn extrapolate((now, at): (Millis, Instant)) -> Millis {
    now.plus(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
}
