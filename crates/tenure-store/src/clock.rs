//! Store time: the abstraction through which stores read clocks.
//!
//! The store decides every expiry by its own clock. That clock starts at the wall clock (or at the
//! latest stored instant, if the wall clock went backwards) and then follows CLOCK_BOOTTIME, so
//! setting the wall clock while the server runs neither shortens nor lengthens a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tenure_core::Millis;

/// Clock of a store. Never goes backwards.
pub trait Clock: Send + Sync + 'static {
    /// Returns the store time.
    fn now(&self) -> Millis;
}

/// Clock of a store that runs in the server process.
#[derive(Debug)]
pub struct ServerClock {
    base: Millis,
    started: Duration,
}

impl ServerClock {
    /// Starts store time at the wall clock, but never before `latest`.
    #[must_use]
    pub fn starting_after(latest: Millis) -> Self {
        Self { base: wall_clock().max(latest), started: boottime() }
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Millis {
        let elapsed = boottime().saturating_sub(self.started);
        self.base.plus(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Returns the time since boot, including suspend.
fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).expect("time since boot is not negative")
}

#[expect(clippy::disallowed_methods, reason = "the only read of the wall clock, at start")]
fn wall_clock() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Clock that a test advances manually.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Advances the clock by `ms`.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        Millis(self.0.load(Ordering::SeqCst))
    }
}

/// Starts measuring elapsed time. Never used to decide an expiry.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the only place that starts a stopwatch")]
pub fn stopwatch() -> std::time::Instant {
    std::time::Instant::now()
}
