//! History: the tamper-evident event log of a resource.
//!
//! Each entry is one line of JSON. Its hash is `sha256(hash of the previous entry, line)`; the
//! chain of a resource starts with `sha256(key)`. Chains are per resource because a global chain
//! would serialize all commits. Any SHA-256 tool can check a chain; [`crate::verify`] does so and
//! proves exclusivity from it.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::command::Precondition;
use crate::id::{JobId, RequestId, SessionId, hex};
use crate::job::{CompletedAttempt, Failure, Job, RequestedBy, StartedAttempt, Verdict};
use crate::key::{LockSet, ResourceKey, Text};
use crate::recent_submits::{PutDigest, SubmitDigest};
use crate::record::TenureEnd;
use crate::time::Millis;
use crate::token::Token;

/// An event in the history of a resource. The serialized form is stored and hashed: never change
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A tenure was granted.
    Granted {
        /// Locks of the tenure.
        locks: LockSet,
        /// Fencing token.
        token: Token,
        /// Session that holds it.
        session: SessionId,
        /// Name of the session.
        holder: Text,
        /// Purpose.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        purpose: Option<Text>,
        /// Age above which it is reported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_age_ms: Option<u64>,
        /// Request that acquired it.
        request: RequestId,
        /// Time spent waiting: in the queue or, for a job, since it could have started.
        waited_ms: u64,
        /// The attempt that started with it, for the tenure of a job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<Box<StartedAttempt>>,
    },
    /// A tenure, or some of its locks, ended.
    Ended {
        /// Locks that were freed.
        locks: LockSet,
        /// Fencing token.
        token: Token,
        /// How it ended.
        #[serde(flatten)]
        how: TenureEnd,
        /// The attempt that ended with it, for the tenure of a job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<Box<CompletedAttempt>>,
    },
    /// A write with a stale token was refused.
    Fenced {
        /// The stale token.
        token: Token,
        /// The refused operation.
        verb: Text,
    },
    /// The resource was created.
    Created {
        /// Initial state.
        state: Text,
    },
    /// The desired state changed.
    Specified {
        /// Desired state, as JSON.
        spec: Text,
        /// Generation of the desired state.
        generation: u64,
        /// Principal that requested it.
        by: Text,
        /// Request id of the put.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestId>,
        /// Digest of the rest of the put, if it has a request id; `None` in entries of versions
        /// without digests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<PutDigest>,
    },
    /// The holder of a job changed the status.
    Observed {
        /// Token of the job's tenure.
        token: Token,
        /// JSON merge patch (RFC 7396).
        merge: Text,
    },
    /// A timer was set, moved or removed.
    TimerSet {
        /// Operation that it submits.
        operation: Text,
        /// Instant at which it fires; `None` if it was removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due: Option<Millis>,
        /// Principal that requested it.
        by: Text,
    },
    /// A timer fired and was removed.
    TimerFired {
        /// Operation.
        operation: Text,
        /// Job that it submitted or attached to.
        id: JobId,
    },
    /// The submit of a timer was refused; it is repeated.
    TimerRefused {
        /// Operation.
        operation: Text,
        /// Why.
        error: Failure,
    },
    /// The resource was deleted. Its last token and its history remain.
    Deleted {
        /// Principal that requested it.
        by: Text,
    },
    /// The resource was paused.
    Paused {
        /// Who paused it, and why.
        #[serde(rename = "asked")]
        requested: RequestedBy,
    },
    /// The resource was resumed.
    Resumed {
        /// Who resumed it, and why.
        #[serde(rename = "asked")]
        requested: RequestedBy,
    },
    /// A job entered the lane.
    Submitted {
        /// The job.
        job: Box<Job>,
        /// Index in the lane.
        #[serde(rename = "place")]
        position: usize,
        /// Verdict of the submit.
        verdict: Verdict,
        /// Condition of the submit on the resource.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        precondition: Option<Precondition>,
    },
    /// A submit attached to an existing job.
    Attached {
        /// Job.
        id: JobId,
        /// Request id of the submit.
        request: RequestId,
        /// Principal that submitted.
        by: Text,
        /// Digest of what was submitted; `None` in entries of versions without digests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<SubmitDigest>,
    },
    /// A job failed because it had not started by its deadline.
    NotStarted {
        /// Job.
        id: JobId,
        /// Error.
        error: Failure,
    },
    /// A waiting job was replaced by another.
    Superseded {
        /// Job.
        id: JobId,
        /// Job that replaced it.
        followed_by: JobId,
    },
    /// A waiting job was cancelled, or a running one was requested to stop.
    Cancelled {
        /// Job.
        id: JobId,
        /// Who requested it, and why.
        #[serde(rename = "asked")]
        requested: RequestedBy,
    },
    /// A dead job was submitted again.
    Redriven {
        /// The dead job.
        id: JobId,
        /// The new job.
        followed_by: JobId,
        /// Who requested it, and why.
        #[serde(rename = "asked")]
        requested: RequestedBy,
    },
    /// A dead job was discarded.
    Discarded {
        /// The dead job.
        id: JobId,
        /// Who requested it, and why.
        #[serde(rename = "asked")]
        requested: RequestedBy,
    },
    /// An orphaned job was failed: it ran without a tenure because the store was damaged or
    /// restored.
    Incident {
        /// Job.
        id: JobId,
        /// Error.
        error: Failure,
        /// New state of the resource.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<Text>,
    },
}

impl Event {
    /// Returns the event's name for display.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Granted { job: None, .. } => "granted",
            Self::Granted { job: Some(_), .. } => "started",
            Self::Ended { job: Some(completed), .. } => completed.job_state.as_str(),
            Self::Ended { how, .. } => how.as_str(),
            Self::Fenced { .. } => "fenced",
            Self::Created { .. } => "created",
            Self::Specified { .. } => "specified",
            Self::Observed { .. } => "observed",
            Self::TimerSet { due: Some(_), .. } => "timer_set",
            Self::TimerSet { due: None, .. } => "timer_removed",
            Self::TimerFired { .. } => "timer_fired",
            Self::TimerRefused { .. } => "timer_refused",
            Self::NotStarted { .. } => "not_started",
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

    /// Returns the token that the event refers to, if any.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Granted { token, .. }
            | Self::Ended { token, .. }
            | Self::Observed { token, .. }
            | Self::Fenced { token, .. } => Some(*token),
            _ => None,
        }
    }

    /// Returns `true` if the event may affect every job of the lane, not only [`Self::job`].
    #[must_use]
    pub fn affects_lane(&self) -> bool {
        matches!(self, Self::Specified { .. } | Self::Paused { .. } | Self::Resumed { .. })
    }

    /// Returns the job that the event created, if any.
    #[must_use]
    pub fn submitted_job(&self) -> Option<JobId> {
        match self {
            Self::Submitted { job, .. } => Some(job.id),
            _ => None,
        }
    }

    /// Returns the job that the event refers to, if any.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Granted { job, .. } => job.as_ref().map(|started| started.id),
            Self::Ended { job, .. } => job.as_ref().map(|completed| completed.id),
            Self::Submitted { job, .. } => Some(job.id),
            Self::Attached { id, .. }
            | Self::TimerFired { id, .. }
            | Self::NotStarted { id, .. }
            | Self::Superseded { id, .. }
            | Self::Cancelled { id, .. }
            | Self::Redriven { id, .. }
            | Self::Discarded { id, .. }
            | Self::Incident { id, .. } => Some(*id),
            Self::Fenced { .. }
            | Self::Created { .. }
            | Self::Specified { .. }
            | Self::Observed { .. }
            | Self::TimerSet { .. }
            | Self::TimerRefused { .. }
            | Self::Deleted { .. }
            | Self::Paused { .. }
            | Self::Resumed { .. } => None,
        }
    }
}

/// An entry of a resource's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Sequence number within the resource, from 1.
    pub n: u64,
    /// Store time.
    pub at: Millis,
    /// Event.
    #[serde(flatten)]
    pub event: Event,
}

impl Entry {
    /// Parses a line of history.
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

/// The head of a resource's hash chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chain {
    /// Number of the last entry; 0 if there is none.
    pub n: u64,
    /// Hash of the last entry.
    pub head: Hash,
}

/// A serialized entry with its hash, ready to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedEntry {
    /// Sequence number within the resource.
    pub n: u64,
    /// Store time.
    pub at: Millis,
    /// Entry as one line of JSON.
    pub line: String,
    /// Hash of this entry.
    pub hash: Hash,
}

impl Chain {
    /// Returns the chain of a resource without history.
    #[must_use]
    pub fn genesis(key: &ResourceKey) -> Self {
        Self { n: 0, head: Hash(Sha256::digest(key.as_str().as_bytes()).into()) }
    }

    /// Appends an event. Serializes into `buffer` first so that the line is allocated at its exact
    /// size: many lines are held until they are written.
    pub fn seal(&mut self, at: Millis, event: Event, buffer: &mut Vec<u8>) -> SealedEntry {
        let entry = Entry { n: self.n + 1, at, event };
        buffer.clear();
        serde_json::to_writer(&mut *buffer, &entry)
            .expect("an event has no map with non-string keys");
        let line = str::from_utf8(buffer).expect("JSON is text").to_owned();
        *self = self.after(&line);
        SealedEntry { n: self.n, at, line, hash: self.head }
    }

    /// Returns the chain extended by `line`.
    #[must_use]
    pub fn after(&self, line: &str) -> Self {
        Self { n: self.n + 1, head: chain_hash(self.head, line) }
    }
}

/// Returns the first 128 bits of the SHA-256 of `text`.
#[must_use]
pub fn digest(text: &str) -> u128 {
    let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte))
}

/// Returns the hash of `line` as the successor of the entry with hash `before`.
#[must_use]
pub fn chain_hash(before: Hash, line: &str) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(before.0);
    hasher.update(line.as_bytes());
    Hash(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_line_parses_to_the_same_entry() {
        let key = "t/k/n".parse().unwrap();
        let mut chain = Chain::genesis(&key);
        let event = Event::Ended {
            locks: crate::key::LockName::main().into(),
            token: Token(7),
            how: TenureEnd::Broken { by: "ann".into(), reason: "stuck".into() },
            job: None,
        };
        let sealed = chain.seal(Millis(5), event.clone(), &mut Vec::new());
        assert_eq!(Entry::parse(&sealed.line).unwrap(), Entry { n: 1, at: Millis(5), event });
        assert_eq!(sealed.hash, chain_hash(Chain::genesis(&key).head, &sealed.line));
    }

    #[test]
    fn hash_round_trips_through_text() {
        let hash = chain_hash(Hash([3; 32]), "x");
        assert_eq!(Hash::try_from(hash.to_string()), Ok(hash));
        assert!(Hash::try_from("zz".to_owned()).is_err());
    }
}
