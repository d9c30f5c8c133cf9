//! Positions as tenants see them.
//!
//! Lines of history and pieces of logs are numbered across all tenants. Whoever sees two numbers
//! knows how much happened in between, to whomever. So a key that is bound to a tenant sees numbers
//! that mean nothing to it: a permutation of its own, which only servers can undo.

use sha2::{Digest, Sha256};

/// Numbers have so many bits, half of them on each side.
const HALF_BITS: u32 = 24;
const HALF: u64 = (1 << HALF_BITS) - 1;
const ROUNDS: [u8; 4] = [0, 1, 2, 3];

/// What one tenant sees in place of positions.
pub struct Veil([u8; 32]);

impl Veil {
    /// The veil of a tenant, from what servers share.
    #[must_use]
    pub fn new(secret: &str, tenant: &str) -> Self {
        let mut hash = Sha256::new();
        for part in ["position", secret, tenant] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// What is seen in place of a position. The beginning stays what it is.
    #[must_use]
    pub fn hide(&self, position: u64) -> u64 {
        // Whatever would look like the beginning gets what the beginning would look like.
        match (position, self.permute(position)) {
            (0, _) => 0,
            (_, 0) => self.permute(0),
            (_, hidden) => hidden,
        }
    }

    /// The position behind what was seen; nothing sensible for what nobody was shown.
    #[must_use]
    pub fn show(&self, hidden: u64) -> u64 {
        match (hidden, self.restore(hidden)) {
            (0, _) => 0,
            (_, 0) => self.restore(0),
            (_, position) => position,
        }
    }

    fn permute(&self, number: u64) -> u64 {
        let halves = (number >> HALF_BITS & HALF, number & HALF);
        let (left, right) =
            ROUNDS.iter().fold(halves, |(left, right), n| (right, left ^ self.mix(*n, right)));
        left << HALF_BITS | right
    }

    fn restore(&self, number: u64) -> u64 {
        let halves = (number >> HALF_BITS & HALF, number & HALF);
        let (left, right) =
            ROUNDS.iter().rev().fold(halves, |(left, right), n| (right ^ self.mix(*n, left), left));
        left << HALF_BITS | right
    }

    fn mix(&self, round: u8, half: u64) -> u64 {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update([round]);
        hash.update(half.to_le_bytes());
        let bytes: [u8; 32] = hash.finalize().into();
        bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)) & HALF
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_is_hidden_is_found_again_and_the_beginning_stays() {
        let veil = Veil::new("secret", "acme");
        let positions = (0..5_000).chain([1 << 40, (1 << 48) - 1]);
        let seen: HashSet<u64> = positions
            .map(|position| {
                let hidden = veil.hide(position);
                assert_eq!(veil.show(hidden), position);
                assert_eq!(hidden == 0, position == 0);
                hidden
            })
            .collect();
        assert_eq!(seen.len(), 5_002, "each is seen as another");
    }

    #[test]
    fn tenants_see_different_numbers_and_no_order() {
        let (a, b) = (Veil::new("secret", "a"), Veil::new("secret", "b"));
        assert!((1..100).any(|position| a.hide(position) != b.hide(position)));
        assert!(!(1..100).map(|position| a.hide(position)).is_sorted());
    }
}
