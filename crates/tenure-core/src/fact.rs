//! Facts: what steps did, for those who count.
//!
//! Events tell what happened to a resource and are kept; facts are what is lost when only events
//! and outcomes are looked at: for how long a tenure was held, which operation an attempt was of,
//! that a request went away with nothing, each of many refused writes. They are noted where the
//! step knows them, so nobody has to remember grants to know how long they lasted. Nothing may ever
//! be decided by them, and a replay makes none.

use crate::job::AttemptOutcome;
use crate::key::{ResourceKey, Text};
use crate::record::Ending;

/// Something that a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A tenure began.
    Granted {
        /// The resource.
        key: ResourceKey,
        /// How long it had waited: in the queue, or, for a job, since it could have started.
        waited_ms: u64,
    },
    /// A request for locks went away with nothing.
    Failed {
        /// The resource.
        key: ResourceKey,
        /// The reason or code of the refusal, or [`GAVE_UP`].
        reason: &'static str,
    },
    /// A submit got the id of a job that was there already.
    Joined {
        /// The resource.
        key: ResourceKey,
    },
    /// All of a tenure is over.
    Ended {
        /// The resource.
        key: ResourceKey,
        /// The operation, for the tenure of a job.
        operation: Option<Text>,
        /// For how long it was held.
        held_ms: u64,
        /// How it ended.
        how: Ending,
    },
    /// An attempt at a job is over.
    Tried {
        /// The resource.
        key: ResourceKey,
        /// The verb.
        operation: Text,
        /// How it ended.
        outcome: AttemptOutcome,
        /// Why it failed, for programs.
        code: Option<Text>,
    },
    /// A write with an old token was refused; each time, while history notes the first.
    Fenced,
}

/// A request waited in vain: its wait ran out, or it was withdrawn.
pub const GAVE_UP: &str = "gave_up";
