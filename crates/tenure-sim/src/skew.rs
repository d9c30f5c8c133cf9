//! Clocks of simulated machines: each has its own speed and its own boot.
//!
//! True time is the simulator's and counts microseconds; nobody but the oracle may look at it. A
//! machine sees it through a [`Skewed`] clock.

use tenure::clock::BootInstant;

/// One second of true time.
pub const SECOND: u64 = 1_000_000;
/// One millisecond of true time.
pub const MS: u64 = 1_000;

/// A clock that runs a little fast or slow and began at some boot.
#[derive(Clone, Debug)]
pub struct Skewed {
    boot_ns: u64,
    ppm: i64,
    /// True time during which it stood still; only a planted bug makes it do so.
    stood_us: u64,
}

impl Skewed {
    /// A clock whose speed differs by `ppm` millionths.
    #[must_use]
    pub fn new(boot_ns: u64, ppm: i64) -> Self {
        Self { boot_ns, ppm, stood_us: 0 }
    }

    fn scale(&self, true_us: u64) -> u128 {
        let speed = u128::try_from(1_000_000 + self.ppm).unwrap_or(1_000_000);
        u128::from(true_us.saturating_sub(self.stood_us)) * speed
    }

    /// What it shows at a true time.
    #[must_use]
    pub fn show(&self, true_us: u64) -> BootInstant {
        let ns = u64::try_from(self.scale(true_us) / 1_000).unwrap_or(u64::MAX);
        BootInstant::from_nanos(self.boot_ns + ns)
    }

    /// Whole milliseconds that it counts from the true time `from` to `to`.
    #[must_use]
    pub fn elapsed_ms(&self, from: u64, to: u64) -> u64 {
        let ns = self.scale(to).saturating_sub(self.scale(from)) / 1_000;
        u64::try_from(ns / 1_000_000).unwrap_or(u64::MAX)
    }

    /// The true time at which it shows `at`.
    #[must_use]
    pub fn when(&self, at: BootInstant) -> u64 {
        let speed = u128::try_from(1_000_000 + self.ppm).unwrap_or(1_000_000);
        let ns = u128::from(at.as_nanos().saturating_sub(self.boot_ns));
        let us = (ns * 1_000).div_ceil(speed);
        u64::try_from(us).unwrap_or(u64::MAX).saturating_add(self.stood_us)
    }

    /// It stood still for so long.
    pub fn stand_still(&mut self, true_us: u64) {
        self.stood_us += true_us;
    }
}
