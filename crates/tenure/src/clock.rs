//! Instants that are honest about suspended machines.
//!
//! A lease runs on while the machine of its holder sleeps. `CLOCK_MONOTONIC`, and with it
//! [`std::time::Instant`], stands still during a suspend, so a holder that measures with it wakes
//! up believing that its lease is young. `CLOCK_BOOTTIME` also runs during suspend and is never
//! set by anybody, so every deadline of a lease is a [`BootInstant`].
//!
//! Never compare a [`BootInstant`] of one machine with one of another: each counts from its own
//! boot. It never is a wall time either.
//!
//! Next: `exec/watchdog.rs`, which kills a command by this clock.

use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long a sleep on this clock may trust the runtime's timers, which stand still in a suspend.
pub const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A point on `CLOCK_BOOTTIME` of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// The present.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).expect("the time since boot is not negative");
        let nanos = u32::try_from(now.tv_nsec).expect("the kernel keeps nanoseconds below 10^9");
        Self(Duration::new(seconds, nanos))
    }

    /// The instant that many nanoseconds after boot.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// Nanoseconds since boot; everything after the year 584 of this machine counts as that year.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time that passed from `earlier` to here, zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time left until here, zero if it passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.saturating_duration_since(Self::now())
    }

    /// Whether this instant is reached.
    #[must_use]
    pub fn has_passed(self) -> bool {
        Self::now() >= self
    }
}

/// Saturating: a deadline too far to be counted is as good as none.
impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}

/// Saturating at the boot.
impl Sub<Duration> for BootInstant {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(rhs))
    }
}

/// Sleeps until `at`; after a suspend it returns at most [`SLEEP_MAX`] late.
pub async fn sleep_until(at: BootInstant) {
    while !at.has_passed() {
        tokio::time::sleep(at.remaining().min(SLEEP_MAX)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes() {
        let first = BootInstant::now();
        assert!(first.has_passed());
        assert!(BootInstant::now() >= first);
        assert!(!(first + Duration::from_secs(3600)).has_passed());
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        let end = BootInstant::from_nanos(u64::MAX) + Duration::MAX;
        assert_eq!(end.as_nanos(), u64::MAX);
        assert_eq!((BootInstant::from_nanos(5) - Duration::MAX).as_nanos(), 0);
        let early = BootInstant::from_nanos(1);
        assert_eq!(early.saturating_duration_since(end), Duration::ZERO);
    }

    #[test]
    fn nanoseconds_survive_the_round_trip() {
        let now = BootInstant::now();
        assert_eq!(BootInstant::from_nanos(now.as_nanos()), now);
    }
}
