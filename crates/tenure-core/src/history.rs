//! History: what happened to a resource, in a chain that cannot be edited unseen.
//!
//! Each entry is one line of JSON. Its hash is `sha256(hash of the entry before, the line)`; the
//! chain of a resource begins with `sha256(key)`. A chain per resource, because one chain for all
//! would make every commit wait for every other. Anybody with a SHA-256 tool can check it by hand;
//! [`crate::verify`] does it and proves exclusivity from it.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::id::{RequestId, SessionId, hex};
use crate::key::{LockSet, ResourceKey, Text};
use crate::record::How;
use crate::time::Millis;
use crate::token::Token;

/// Something that happened to a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A tenure began.
    Granted {
        /// Of these locks, together.
        locks: LockSet,
        /// With this fencing number.
        token: Token,
        /// Held by this session.
        session: SessionId,
        /// The name of the session.
        holder: Text,
        /// What for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        purpose: Option<Text>,
        /// The request that got it.
        request: RequestId,
        /// How long it had waited in the queue.
        waited_ms: u64,
    },
    /// A tenure ended.
    Ended {
        /// Of these locks.
        locks: LockSet,
        /// With this fencing number.
        token: Token,
        /// In this way.
        #[serde(flatten)]
        how: How,
    },
    /// A write with an old token was refused.
    Fenced {
        /// The old token.
        token: Token,
        /// What it wanted.
        verb: Text,
    },
}

impl Event {
    /// The word for it, as people say it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Granted { .. } => "granted",
            Self::Ended { how, .. } => how.word(),
            Self::Fenced { .. } => "fenced",
        }
    }

    /// The token it is about.
    #[must_use]
    pub fn token(&self) -> Token {
        match self {
            Self::Granted { token, .. }
            | Self::Ended { token, .. }
            | Self::Fenced { token, .. } => *token,
        }
    }
}

/// One line of history: the event, its number in the chain of its resource, and the store's time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts the entries of the resource from 1.
    pub n: u64,
    /// Store time.
    pub at: Millis,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

impl Entry {
    /// Reads a line back.
    pub fn parse(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }
}

/// A SHA-256 hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Hash(pub [u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(hex(&mut [0; 64], &self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(hex(&mut [0; 64], &self.0))
    }
}

impl TryFrom<String> for Hash {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let mut bytes = [0; 32];
        let digit = |at: usize| text.get(at..at + 2).and_then(|d| u8::from_str_radix(d, 16).ok());
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = digit(2 * i).ok_or_else(|| format!("{text:?} is not a hash"))?;
        }
        if text.len() == 64 { Ok(Self(bytes)) } else { Err(format!("{text:?} is not a hash")) }
    }
}

/// The end of a resource's history: how many entries there are and the hash of the last.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chain {
    /// The number of the last entry, 0 before the first.
    pub n: u64,
    /// The hash of the last entry.
    pub head: Hash,
}

/// A line of history with its hash, ready to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The number in the chain.
    pub n: u64,
    /// Store time.
    pub at: Millis,
    /// The line.
    pub line: String,
    /// The hash of the line and all before it.
    pub hash: Hash,
}

impl Chain {
    /// The chain of a resource before anything happened.
    #[must_use]
    pub fn genesis(key: &ResourceKey) -> Self {
        Self { n: 0, head: Hash(Sha256::digest(key.as_str().as_bytes()).into()) }
    }

    /// Appends an event.
    pub fn seal(&mut self, at: Millis, event: Event) -> Sealed {
        let entry = Entry { n: self.n + 1, at, event };
        let line = serde_json::to_string(&entry).expect("an event has no map with odd keys");
        self.n = entry.n;
        self.head = link(self.head, &line);
        Sealed { n: self.n, at, line, hash: self.head }
    }
}

/// The hash of `line` after `before`.
#[must_use]
pub fn link(before: Hash, line: &str) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(before.0);
    hasher.update(line.as_bytes());
    Hash(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_as_what_was_sealed() {
        let key = "t/k/n".parse().unwrap();
        let mut chain = Chain::genesis(&key);
        let event = Event::Ended {
            locks: crate::key::LockName::main().into(),
            token: Token(7),
            how: How::Broken { by: "ann".into(), reason: "stuck".into() },
        };
        let sealed = chain.seal(Millis(5), event.clone());
        assert_eq!(Entry::parse(&sealed.line).unwrap(), Entry { n: 1, at: Millis(5), event });
        assert_eq!(sealed.hash, link(Chain::genesis(&key).head, &sealed.line));
    }

    #[test]
    fn a_hash_survives_a_round_trip_through_text() {
        let hash = link(Hash([3; 32]), "x");
        assert_eq!(Hash::try_from(hash.to_string()), Ok(hash));
        assert!(Hash::try_from("zz".to_owned()).is_err());
    }
}
