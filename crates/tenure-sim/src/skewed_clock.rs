//! Clocks of simulated machines: each has its own drift and boot time.
//!
//! True time is the simulator's and counts microseconds; only the oracle may read it. A machine
//! reads a [`SkewedClock`].

use tenure::clock::BootInstant;

/// One second of true time.
pub const SECOND: u64 = 1_000_000;
/// One millisecond of true time.
pub const MS: u64 = 1_000;

/// A boot clock that runs slightly fast or slow.
#[derive(Clone, Debug)]
pub struct SkewedClock {
    boot_ns: u64,
    ppm: i64,
    /// True time during which it was stopped; only a planted bug stops it.
    stopped_us: u64,
}

impl SkewedClock {
    /// Creates a clock with a drift of `ppm` parts per million.
    #[must_use]
    pub fn new(boot_ns: u64, ppm: i64) -> Self {
        Self { boot_ns, ppm, stopped_us: 0 }
    }

    fn scale(&self, true_us: u64) -> u128 {
        let speed = u128::try_from(1_000_000 + self.ppm).unwrap_or(1_000_000);
        u128::from(true_us.saturating_sub(self.stopped_us)) * speed
    }

    /// Returns the reading at a true time.
    #[must_use]
    pub fn read(&self, true_us: u64) -> BootInstant {
        let ns = u64::try_from(self.scale(true_us) / 1_000).unwrap_or(u64::MAX);
        BootInstant::from_nanos(self.boot_ns + ns)
    }

    /// Returns the whole milliseconds it counts from true time `from` to `to`.
    #[must_use]
    pub fn elapsed_ms(&self, from: u64, to: u64) -> u64 {
        let ns = self.scale(to).saturating_sub(self.scale(from)) / 1_000;
        u64::try_from(ns / 1_000_000).unwrap_or(u64::MAX)
    }

    /// Returns the true time at which it reads `at`.
    #[must_use]
    pub fn true_time_of(&self, at: BootInstant) -> u64 {
        let speed = u128::try_from(1_000_000 + self.ppm).unwrap_or(1_000_000);
        let ns = u128::from(at.as_nanos().saturating_sub(self.boot_ns));
        let us = (ns * 1_000).div_ceil(speed);
        u64::try_from(us).unwrap_or(u64::MAX).saturating_add(self.stopped_us)
    }

    /// Stops the clock for `true_us`.
    pub fn stop_for(&mut self, true_us: u64) {
        self.stopped_us += true_us;
    }
}
