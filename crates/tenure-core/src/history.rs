//! History: what happened to a resource, in a chain that cannot be edited unseen.
//!
//! Each entry is one line of JSON. Its hash is `sha256(hash of the entry before, the line)`; the
//! chain of a resource begins with `sha256(key)`. A chain per resource, because one chain for all
//! would make every commit wait for every other. Anybody with a SHA-256 tool can check it by hand;
//! [`crate::verify`] does it and proves exclusivity from it.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::id::{JobId, RequestId, SessionId, hex};
use crate::job::{Asked, Begun, Failure, Job, Ran, Verdict};
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
        /// The job whose attempt began with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<Box<Begun>>,
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
        /// What the attempt came to that ended with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<Box<Ran>>,
    },
    /// A write with an old token was refused.
    Fenced {
        /// The old token.
        token: Token,
        /// What it wanted.
        verb: Text,
    },
    /// The resource is known from now on.
    Created {
        /// Its first state.
        state: Text,
    },
    /// What the resource should be like has changed.
    Specified {
        /// What it should be like, as JSON.
        spec: Text,
        /// Counts the changes.
        generation: u64,
        /// Who wants it so.
        by: Text,
    },
    /// The resource is forgotten, but for its tokens and its history.
    Deleted {
        /// Who wants it so.
        by: Text,
    },
    /// Nothing starts on the resource from now on.
    Paused {
        /// By whom and why.
        asked: Asked,
    },
    /// Things may start again.
    Resumed {
        /// By whom and why.
        asked: Asked,
    },
    /// A job entered the lane.
    Submitted {
        /// All of it.
        job: Box<Job>,
        /// Its place in the lane.
        place: usize,
        /// What the submit was answered.
        verdict: Verdict,
    },
    /// A submit got the id of a job that was there already.
    Attached {
        /// The job.
        id: JobId,
        /// The request.
        request: RequestId,
        /// Who wanted it.
        by: Text,
    },
    /// A waiting job lost its place to another.
    Superseded {
        /// The job.
        id: JobId,
        /// The one that took its place.
        followed_by: JobId,
    },
    /// A job that ran is asked to stop; one that waited is over.
    Cancelled {
        /// The job.
        id: JobId,
        /// By whom and why.
        asked: Asked,
    },
    /// A job in quarantine was made into another.
    Redriven {
        /// The dead job.
        id: JobId,
        /// The one that was made from it.
        followed_by: JobId,
        /// By whom and why.
        asked: Asked,
    },
    /// A job in quarantine was thrown away.
    Discarded {
        /// The dead job.
        id: JobId,
        /// By whom and why.
        asked: Asked,
    },
    /// A job ran without a tenure: the store was damaged. It is over.
    Incident {
        /// The job.
        id: JobId,
        /// What was found.
        error: Failure,
        /// The state of the resource from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<Text>,
    },
}

impl Event {
    /// The word for it, as people say it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Granted { job: None, .. } => "granted",
            Self::Granted { job: Some(_), .. } => "started",
            Self::Ended { job: Some(ran), .. } => ran.then.word(),
            Self::Ended { how, .. } => how.word(),
            Self::Fenced { .. } => "fenced",
            Self::Created { .. } => "created",
            Self::Specified { .. } => "specified",
            Self::Deleted { .. } => "deleted",
            Self::Paused { .. } => "paused",
            Self::Resumed { .. } => "resumed",
            Self::Submitted { .. } => "submitted",
            Self::Attached { .. } => "attached",
            Self::Superseded { .. } => "superseded",
            Self::Cancelled { .. } => "cancelled",
            Self::Redriven { .. } => "redriven",
            Self::Discarded { .. } => "discarded",
            Self::Incident { .. } => "incident",
        }
    }

    /// The token it is about, if it is about one.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Granted { token, .. }
            | Self::Ended { token, .. }
            | Self::Fenced { token, .. } => Some(*token),
            _ => None,
        }
    }

    /// Whether it may change any job of the lane, and not only the one that it is about.
    #[must_use]
    pub fn is_for_all(&self) -> bool {
        matches!(self, Self::Specified { .. } | Self::Paused { .. } | Self::Resumed { .. })
    }

    /// The job that came to be with it.
    #[must_use]
    pub fn submitted(&self) -> Option<JobId> {
        match self {
            Self::Submitted { job, .. } => Some(job.id),
            _ => None,
        }
    }

    /// The job it is about, if it is about one.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Granted { job, .. } => job.as_ref().map(|begun| begun.id),
            Self::Ended { job, .. } => job.as_ref().map(|ran| ran.id),
            Self::Submitted { job, .. } => Some(job.id),
            Self::Attached { id, .. }
            | Self::Superseded { id, .. }
            | Self::Cancelled { id, .. }
            | Self::Redriven { id, .. }
            | Self::Discarded { id, .. }
            | Self::Incident { id, .. } => Some(*id),
            Self::Fenced { .. }
            | Self::Created { .. }
            | Self::Specified { .. }
            | Self::Deleted { .. }
            | Self::Paused { .. }
            | Self::Resumed { .. } => None,
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

    /// Appends an event. The room is for the line in the making, so that it takes no more than it
    /// needs: many are kept until they are written.
    pub fn seal(&mut self, at: Millis, event: Event, room: &mut Vec<u8>) -> Sealed {
        let entry = Entry { n: self.n + 1, at, event };
        room.clear();
        serde_json::to_writer(&mut *room, &entry).expect("an event has no map with odd keys");
        let line = str::from_utf8(room).expect("JSON is text").to_owned();
        *self = self.after(&line);
        Sealed { n: self.n, at, line, hash: self.head }
    }

    /// The chain with one more line.
    #[must_use]
    pub fn after(&self, line: &str) -> Self {
        Self { n: self.n + 1, head: link(self.head, line) }
    }
}

/// 128 bits that only this text has.
#[must_use]
pub fn digest(text: &str) -> u128 {
    let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte))
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
            job: None,
        };
        let sealed = chain.seal(Millis(5), event.clone(), &mut Vec::new());
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
