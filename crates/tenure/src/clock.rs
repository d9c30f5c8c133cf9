//! Instants that account for suspended machines.
//!
//! A lease keeps running while the machine of its holder is suspended. `CLOCK_MONOTONIC`, and with
//! it [`std::time::Instant`], stands still during suspend, so a holder that measures with it would
//! overestimate its lease after resume. `CLOCK_BOOTTIME` runs during suspend and cannot be set, so
//! every deadline of a lease is a [`BootInstant`].
//!
//! Never compare instants of two machines: each counts from its own boot. A [`BootInstant`] is not
//! a wall time either.
//!
//! See `exec/watchdog.rs`, which kills a command by this clock.

use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Maximum duration of one sleep on the runtime's timers, which stand still during suspend.
pub const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Instant on the `CLOCK_BOOTTIME` of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// Returns the current instant.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).expect("the time since boot is not negative");
        let nanos = u32::try_from(now.tv_nsec).expect("the kernel keeps nanoseconds below 10^9");
        Self(Duration::new(seconds, nanos))
    }

    /// Creates the instant `nanos` nanoseconds after boot.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// Returns the nanoseconds since boot, saturating at `u64::MAX`.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the time elapsed since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time left until this instant, or zero if it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.saturating_duration_since(Self::now())
    }

    /// Returns whether this instant has passed.
    #[must_use]
    pub fn has_passed(self) -> bool {
        Self::now() >= self
    }
}

/// Saturates at the largest representable instant.
impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}

/// Saturates at boot.
impl Sub<Duration> for BootInstant {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(rhs))
    }
}

/// Sleeps until `at`. After a suspend it returns at most [`SLEEP_MAX`] late.
pub async fn sleep_until(at: BootInstant) {
    while !at.has_passed() {
        tokio::time::sleep(at.remaining().min(SLEEP_MAX)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_passes() {
        let first = BootInstant::now();
        assert!(first.has_passed());
        assert!(BootInstant::now() >= first);
        assert!(!(first + Duration::from_secs(3600)).has_passed());
    }

    #[test]
    fn arithmetic_saturates() {
        let end = BootInstant::from_nanos(u64::MAX) + Duration::MAX;
        assert_eq!(end.as_nanos(), u64::MAX);
        assert_eq!((BootInstant::from_nanos(5) - Duration::MAX).as_nanos(), 0);
        let early = BootInstant::from_nanos(1);
        assert_eq!(early.saturating_duration_since(end), Duration::ZERO);
    }

    #[test]
    fn nanoseconds_round_trip() {
        let now = BootInstant::now();
        assert_eq!(BootInstant::from_nanos(now.as_nanos()), now);
    }
}
