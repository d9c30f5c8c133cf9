//! Identifiers of 128 random bits, written as 32 hexadecimal digits.
//!
//! They are drawn outside (this crate has no randomness) and are never reused: a session that is
//! not found is over, whatever its name was.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

use crate::time::Millis;

/// A text that is not 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id is 32 hexadecimal digits, not {0:?}")]
pub struct BadId(String);

/// Writes bytes as hexadecimal digits: ids and hashes are in every line of history.
pub(crate) fn hex<'a>(digits: &'a mut [u8], bytes: &[u8]) -> &'a str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    std::str::from_utf8(digits).expect("digits are ASCII")
}

fn parse(text: &str) -> Result<u128, BadId> {
    let plain = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !plain {
        return Err(BadId(text.chars().take(64).collect()));
    }
    u128::from_str_radix(text, 16).map_err(|_| BadId(text.to_owned()))
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(hex(&mut [0; 32], &self.0.to_be_bytes()))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(hex(&mut [0; 32], &self.0.to_be_bytes()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                parse(text).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;
            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }
    };
}

id! {
    /// One process's liveness in the store.
    SessionId
}
id! {
    /// One request, however often it is sent: repeating it gives the same answer.
    RequestId
}
id! {
    /// One job. The first 48 bits are the instant of its submit, so ids sort by time; the rest is
    /// a hash of its resource and of the request that made it.
    JobId
}

impl JobId {
    const RANDOM_BITS: u32 = 80;

    /// An id of this instant, with the last bits of `request`.
    #[must_use]
    pub fn new(now: Millis, request: RequestId) -> Self {
        Self(Self::first_at(now).0 | (request.0 & ((1 << Self::RANDOM_BITS) - 1)))
    }

    /// The lowest id that a job of this instant can have.
    #[must_use]
    pub fn first_at(at: Millis) -> Self {
        Self(u128::from(at.0 & 0xffff_ffff_ffff) << Self::RANDOM_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_a_round_trip_through_text() {
        let id = SessionId(0x0123_4567_89ab_cdef);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().len(), 32);
    }

    #[test]
    fn jobs_sort_by_the_time_of_their_submit() {
        let early = JobId::new(Millis(1_000), RequestId(u128::MAX));
        let late = JobId::new(Millis(1_001), RequestId(0));
        assert!(early < late);
        assert_eq!(late, JobId::first_at(Millis(1_001)));
    }

    #[test]
    fn what_is_not_32_hex_digits_is_refused() {
        for bad in
            ["", "1", "g".repeat(32).as_str(), "+".repeat(32).as_str(), "0".repeat(33).as_str()]
        {
            assert!(bad.parse::<RequestId>().is_err(), "{bad:?} was taken");
        }
    }
}
