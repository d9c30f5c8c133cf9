//! Commands: everything that can be asked of the model.
//!
//! A command names at most one resource. What it needs from outside (ids, names, durations) comes
//! with it; what time it is, `step` is told.

use crate::id::{JobId, RequestId, SessionId};
use crate::key::{LockSet, ResourceKey, Text};
use crate::retry::Class;
use crate::time::Millis;
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
    /// Something on one resource and its lane.
    Resource {
        /// The resource.
        key: ResourceKey,
        /// What.
        action: ResourceAction,
    },
    /// Something on one job.
    Job {
        /// The job.
        id: JobId,
        /// What.
        action: JobAction,
    },
    /// A worker takes jobs that are ready.
    Claim(Claim),
}

impl Command {
    /// The resource it names, if any.
    #[must_use]
    pub fn key(&self) -> Option<&ResourceKey> {
        match self {
            Self::Lock { key, .. } | Self::Resource { key, .. } => Some(key),
            Self::Open { .. }
            | Self::Beat { .. }
            | Self::Close { .. }
            | Self::Lapse { .. }
            | Self::Forget { .. }
            | Self::Job { .. }
            | Self::Claim(_) => None,
        }
    }

    /// The job it names, if any.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        if let Self::Job { id, .. } = self { Some(*id) } else { None }
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

/// Something on one resource and its lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ResourceAction {
    /// Says what it should be like; makes it known when it was not.
    Put {
        /// What it should be like, as JSON.
        spec: Text,
        /// Who wants it so.
        by: Text,
    },
    /// Forgets it, when nothing is under way.
    Delete {
        /// Who wants it so.
        by: Text,
    },
    /// Lets nothing start on it until it is resumed.
    Pause {
        /// Who does it.
        by: Text,
        /// Why.
        reason: Text,
    },
    /// Lets things start again.
    Resume {
        /// Who does it.
        by: Text,
        /// Why.
        reason: Text,
    },
    /// Asks for an operation.
    Submit(Submit),
}

/// A request for an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Submit {
    /// Repeating the request gives the same answer.
    pub request: RequestId,
    /// The verb.
    pub operation: Text,
    /// Its arguments, as JSON.
    pub args: Option<Text>,
    /// Higher goes first within the tenant.
    pub priority: i32,
    /// Not before this instant of store time.
    pub run_at: Option<Millis>,
    /// Who wants it.
    pub by: Text,
}

/// Something on one job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobAction {
    /// The worker says what the attempt came to.
    Finish {
        /// The tenure of the attempt.
        token: Token,
        /// What it came to.
        finish: Finish,
    },
    /// The worker says how far it has come.
    Progress {
        /// The tenure of the attempt.
        token: Token,
        /// From 0 to 100.
        percent: u8,
        /// What it does now.
        message: Text,
    },
    /// The worker writes to the log of the attempt.
    Log {
        /// The tenure of the attempt.
        token: Token,
        /// Whole lines.
        text: Text,
    },
    /// Ends a job that waits, asks one that runs to stop.
    Cancel {
        /// Who wants it.
        by: Text,
        /// Why.
        reason: Text,
    },
    /// Makes a new job from one that is over.
    Retry {
        /// Repeating the request gives the same answer.
        request: RequestId,
        /// Who wants it.
        by: Text,
        /// Why.
        reason: Text,
    },
    /// Throws a dead job away.
    Discard {
        /// Who wants it.
        by: Text,
        /// Why.
        reason: Text,
    },
}

/// What an attempt came to, as its worker says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// Done.
    Ok {
        /// Another end state than the declared one.
        state: Option<Text>,
        /// What it gave, as JSON.
        result: Option<Text>,
    },
    /// Failed.
    Failed {
        /// For programs; the retry rule knows codes.
        code: Text,
        /// For people.
        message: Text,
        /// Whether trying again may help, if the worker knows.
        class: Option<Class>,
        /// Another end state than the declared one, should it be the last attempt.
        state: Option<Text>,
    },
    /// Stopped, as was asked.
    Cancelled,
    /// Given back unfinished: the worker is going away.
    HandBack,
}

/// A worker's wish for jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The worker.
    pub session: SessionId,
    /// Repeating the request gives the same jobs.
    pub request: RequestId,
    /// Of these kinds.
    pub kinds: Vec<Text>,
    /// At most so many.
    pub max: usize,
}
