//! Seeded random numbers (splitmix64), so that a failing run can be replayed exactly.
//!
//! The simulation has no other source of randomness: no hash order, no threads, no clock.

/// A deterministic random number generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns 128 bits, for ids.
    pub fn id(&mut self) -> u128 {
        (u128::from(self.bits()) << 64) | u128::from(self.bits())
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    /// Returns an index below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.bits() % (n as u64)).unwrap_or(0)
    }

    /// Returns true with a probability of `per_mille` in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.bits() % 1_000 < per_mille
    }

    /// Returns a clock drift of at most five percent, in parts per million.
    pub fn skew(&mut self) -> i64 {
        i64::try_from(self.within(0, 100_000)).unwrap_or(0) - 50_000
    }
}
