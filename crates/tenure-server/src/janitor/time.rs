//! Store time as the janitor knows it, without asking the store each time.
//!
//! It is for showing and for ages of minutes. It must never decide whether a session is alive.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure_core::Millis;
use tenure_store::Store;
use tenure_store::clock::stopwatch;

/// How long a reading is trusted. A suspend puts it off by its length for at most this long.
const TRUSTED: Duration = Duration::from_secs(10);

/// The last reading of the store's clock.
#[derive(Default)]
pub(super) struct Time(Mutex<Option<(Millis, Instant)>>);

impl Time {
    /// Store time now; nothing while the store has never answered.
    pub(super) async fn now(&self, store: &dyn Store) -> Option<Millis> {
        let known = *self.reading();
        if let Some((_, at)) = known
            && at.elapsed() < TRUSTED
        {
            return known.map(since);
        }
        let at = stopwatch();
        match store.status().await {
            Ok(status) => {
                *self.reading() = Some((status.now, at));
                Some(status.now)
            }
            Err(_) => known.map(since),
        }
    }

    fn reading(&self) -> std::sync::MutexGuard<'_, Option<(Millis, Instant)>> {
        self.0.lock().expect("nothing panics while it is locked")
    }
}

fn since((now, at): (Millis, Instant)) -> Millis {
    now.plus(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
}
