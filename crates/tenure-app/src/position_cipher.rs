//! Encryption of the positions that tenants see.
//!
//! Events of history and chunks of logs are numbered across all tenants, so two positions reveal
//! the activity of other tenants in between. A key that is bound to a tenant therefore sees
//! positions under a permutation keyed by the tenant, which only servers can invert.

use sha2::{Digest, Sha256};

/// Half the width of a position in bits: the two halves of a Feistel network.
const HALF_BITS: u32 = 24;
const HALF: u64 = (1 << HALF_BITS) - 1;
const ROUNDS: [u8; 4] = [0, 1, 2, 3];

/// Permutation of the positions of one tenant: a four-round Feistel network over 48 bits.
pub struct PositionCipher([u8; 32]);

impl PositionCipher {
    /// Creates the cipher of a tenant. `secret` is shared by all servers of the store.
    #[must_use]
    pub fn new(secret: &str, tenant: &str) -> Self {
        let mut hash = Sha256::new();
        for part in ["position", secret, tenant] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// Encrypts a position. Zero, the beginning, is a fixed point.
    #[must_use]
    pub fn encrypt(&self, position: u64) -> u64 {
        // The position that maps to zero takes the image of zero instead.
        match (position, self.permute(position)) {
            (0, _) => 0,
            (_, 0) => self.permute(0),
            (_, encrypted) => encrypted,
        }
    }

    /// Decrypts a position. A value that `encrypt` never returned gives an arbitrary position.
    #[must_use]
    pub fn decrypt(&self, encrypted: u64) -> u64 {
        match (encrypted, self.restore(encrypted)) {
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
    fn decrypt_inverts_encrypt_and_zero_is_a_fixed_point() {
        let cipher = PositionCipher::new("secret", "acme");
        let positions = (0..5_000).chain([1 << 40, (1 << 48) - 1]);
        let seen: HashSet<u64> = positions
            .map(|position| {
                let encrypted = cipher.encrypt(position);
                assert_eq!(cipher.decrypt(encrypted), position);
                assert_eq!(encrypted == 0, position == 0);
                encrypted
            })
            .collect();
        assert_eq!(seen.len(), 5_002, "it is injective");
    }

    #[test]
    fn tenants_see_different_positions_in_no_order() {
        let (a, b) = (PositionCipher::new("secret", "a"), PositionCipher::new("secret", "b"));
        assert!((1..100).any(|position| a.encrypt(position) != b.encrypt(position)));
        assert!(!(1..100).map(|position| a.encrypt(position)).is_sorted());
    }
}
