//! Fencing tokens.
//!
//! A token is strictly greater than that of every earlier tenure of its lock. This holds across
//! restores from a backup, because a restored store starts a new [`Incarnation`] whose tokens lie
//! above all that an older one could have issued.
//!
//! Tokens stay below 2^53 for the first two million incarnations, so that every JSON parser
//! represents them exactly.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of low bits that count within one incarnation.
const PER_INCARNATION_BITS: u32 = 32;

/// Number of the store's incarnation: 0 if it was never restored.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// Returns whether the sessions of an earlier incarnation end. After a restore or a fail-over
    /// their locks may have been released and granted to others before the state was lost.
    #[must_use]
    pub fn ends_sessions_of(self, earlier: Self) -> bool {
        self != earlier
    }

    /// Returns the next incarnation.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Fencing token of a tenure. Zero means that nothing was granted yet.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Token(pub u64);

impl Token {
    /// Returns the next token, issued by `incarnation`.
    #[must_use]
    pub fn next(self, incarnation: Incarnation) -> Self {
        let floor = u64::from(incarnation.0) << PER_INCARNATION_BITS;
        Self(self.0.max(floor) + 1)
    }

    /// Returns `true` if an earlier incarnation issued the token.
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
    fn tokens_start_at_one_in_a_store_that_was_never_restored() {
        assert_eq!(Token::default().next(Incarnation(0)), Token(1));
        assert_eq!(Token(1).next(Incarnation(0)), Token(2));
    }

    #[test]
    fn new_incarnation_issues_tokens_above_all_older_ones() {
        let forgotten = Token(4_000_000_000);
        let after_restore = Token(7).next(Incarnation(1));
        assert!(after_restore > forgotten);
        assert!(after_restore.0 < 1 << 53);
    }
}
