//! Fencing tokens.
//!
//! A token is strictly greater than that of every earlier tenure of its lock, for ever: also when
//! the store was restored from a backup, because a restored store begins a new [`Incarnation`],
//! whose tokens lie above all that an older one could have given out.
//!
//! Tokens stay below 2^53 for the first two million incarnations, so that every JSON reader keeps
//! them exact.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Tokens that one incarnation of a store can give to one resource before it reaches into the next.
const PER_INCARNATION_BITS: u32 = 32;

/// The life of a store between two restores: 0 for a store that was never restored.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// The incarnation after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The fencing number of a tenure. Zero is no token: nothing was granted yet.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Token(pub u64);

impl Token {
    /// The token after `self`, given out by `incarnation`.
    #[must_use]
    pub fn next(self, incarnation: Incarnation) -> Self {
        let floor = u64::from(incarnation.0) << PER_INCARNATION_BITS;
        Self(self.0.max(floor) + 1)
    }

    /// Whether an earlier incarnation of the store than this one gave it out.
    #[must_use]
    pub fn is_before(self, incarnation: Incarnation) -> bool {
        self.0 >> PER_INCARNATION_BITS < u64::from(incarnation.0)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_count_from_one_in_a_store_that_was_never_restored() {
        assert_eq!(Token::default().next(Incarnation(0)), Token(1));
        assert_eq!(Token(1).next(Incarnation(0)), Token(2));
    }

    #[test]
    fn a_new_incarnation_is_above_everything_the_old_one_could_give() {
        let forgotten = Token(4_000_000_000);
        let after_restore = Token(7).next(Incarnation(1));
        assert!(after_restore > forgotten);
        assert!(after_restore.0 < 1 << 53);
    }
}
