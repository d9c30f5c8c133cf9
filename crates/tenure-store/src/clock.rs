//! Store time: the seam through which stores read clocks.
//!
//! The store decides every expiry by its own clock. That clock starts at the wall clock (or at the
//! last instant the store has seen, if the wall went backwards) and then follows CLOCK_BOOTTIME, so
//! a wall clock that is set while the server runs neither shortens nor lengthens a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tenure_core::Millis;

/// Says what time it is for a store. Never goes backwards.
pub trait Clock: Send + Sync + 'static {
    /// Store time.
    fn now(&self) -> Millis;
}

/// The clock of a store that is its own authority on time.
#[derive(Debug)]
pub struct ServerClock {
    base: Millis,
    started: Duration,
}

impl ServerClock {
    /// Starts store time at the wall clock, but never before `seen`.
    #[must_use]
    pub fn starting_after(seen: Millis) -> Self {
        Self { base: wall().max(seen), started: boottime() }
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Millis {
        let elapsed = boottime().saturating_sub(self.started);
        self.base.plus(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Time since boot, counting suspend.
fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).expect("time since boot is not negative")
}

#[expect(clippy::disallowed_methods, reason = "the one reading of the wall clock, at start")]
fn wall() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A clock that a test moves by hand.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Moves on by `ms`.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        Millis(self.0.load(Ordering::SeqCst))
    }
}

/// The start of a measurement. Never decides an expiry.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one start of stopwatches")]
pub fn stopwatch() -> std::time::Instant {
    std::time::Instant::now()
}
