//! Commands: everything that can be asked of the model.
//!
//! A command names at most one resource. What it needs from outside (ids, names, durations) comes
//! with it; what time it is, `step` is told.

use crate::id::{RequestId, SessionId};
use crate::key::{LockSet, ResourceKey, Text};
use crate::token::Token;

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Begins a session; repeating it is harmless.
    Open {
        /// Drawn by whoever opens it.
        session: SessionId,
        /// Whose it is.
        tenant: Text,
        /// What people call the process.
        name: Text,
        /// How long it lives without a heartbeat.
        ttl_ms: u64,
    },
    /// The heartbeat: renews everything the session holds.
    Beat {
        /// The session.
        session: SessionId,
        /// The last revocation its process knows of.
        seen: u64,
    },
    /// Ends a session by its own wish; what it still holds is settled.
    Close {
        /// The session.
        session: SessionId,
    },
    /// The sweep's guarded write: ends the session if it has lapsed.
    Lapse {
        /// The session.
        session: SessionId,
    },
    /// The sweep's last word: drops the row of an ended session behind which nothing is left.
    Forget {
        /// The session.
        session: SessionId,
    },
    /// Something on the locks of one resource.
    Lock {
        /// The resource.
        key: ResourceKey,
        /// What.
        action: LockAction,
    },
}

impl Command {
    /// The resource it is about, if any.
    #[must_use]
    pub fn key(&self) -> Option<&ResourceKey> {
        match self {
            Self::Lock { key, .. } => Some(key),
            Self::Open { .. }
            | Self::Beat { .. }
            | Self::Close { .. }
            | Self::Lapse { .. }
            | Self::Forget { .. } => None,
        }
    }
}

/// Something on the locks of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LockAction {
    /// Takes locks, or waits for them.
    Acquire(Acquire),
    /// Renews the session behind a tenure.
    Renew {
        /// The tenure.
        token: Token,
        /// Another time to live, for a tenure with a session of its own.
        ttl_ms: Option<u64>,
    },
    /// Gives locks back.
    Release {
        /// The tenure.
        token: Token,
        /// Only these of its locks; all when nothing is named.
        locks: Option<LockSet>,
    },
    /// Takes a request back: it leaves the queue, and what it was granted meanwhile is released.
    Withdraw {
        /// The request.
        request: RequestId,
    },
    /// Ends a tenure against its holder's will.
    Break {
        /// The tenure, exactly.
        token: Token,
        /// Locks that it must hold, to be sure; the whole tenure ends.
        locks: Option<LockSet>,
        /// Who does it.
        by: Text,
        /// Why.
        reason: Text,
    },
    /// The sweep's step: ends what dead sessions hold, drops who waits no more, hands over.
    Settle,
}

/// A request for locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    /// All or none of these.
    pub locks: LockSet,
    /// For whom.
    pub claimant: Claimant,
    /// Repeating the request gives the same tenure.
    pub request: RequestId,
    /// How long it may wait in the queue; zero for not at all.
    pub wait_ms: u64,
    /// What for.
    pub purpose: Option<Text>,
}

/// For whom locks are taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claimant {
    /// A session that was opened before.
    Session(SessionId),
    /// Nobody yet: a session of its own is made, with the id of the request.
    Solo {
        /// What people call the holder.
        name: Text,
        /// How long the tenure lives without a renewal.
        ttl_ms: u64,
    },
}
