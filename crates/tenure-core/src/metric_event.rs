//! Metric events: what steps did, for counters and histograms.
//!
//! They carry what neither history events nor outcomes contain: how long a tenure was held, the
//! operation of an attempt, an acquire that failed, each of many fenced writes. A step emits them
//! where the data is at hand, so that observers need no state of their own. The engine never reads
//! them, and a replay emits none.

use crate::job::AttemptOutcome;
use crate::key::{ResourceKey, Text};
use crate::record::EndKind;

/// An observation made by a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricEvent {
    /// A tenure was granted.
    Granted {
        /// Resource.
        key: ResourceKey,
        /// Time spent waiting: in the queue or, for a job, since it could have started.
        waited_ms: u64,
    },
    /// An acquire failed.
    AcquireFailed {
        /// Resource.
        key: ResourceKey,
        /// Reason or code of the refusal, or [`GAVE_UP`].
        reason: &'static str,
    },
    /// A submit attached to an existing job.
    Attached {
        /// Resource.
        key: ResourceKey,
    },
    /// The last lock of a tenure was released.
    TenureEnded {
        /// Resource.
        key: ResourceKey,
        /// Operation, for the tenure of a job.
        operation: Option<Text>,
        /// Time the tenure was held.
        held_ms: u64,
        /// How it ended.
        how: EndKind,
    },
    /// An attempt ended.
    AttemptEnded {
        /// Resource.
        key: ResourceKey,
        /// Operation.
        operation: Text,
        /// Outcome.
        outcome: AttemptOutcome,
        /// Machine-readable failure code.
        code: Option<Text>,
    },
    /// A job failed because it had not started by its deadline.
    NotStarted {
        /// Resource.
        key: ResourceKey,
        /// Operation.
        operation: Text,
    },
    /// A write with a stale token was refused. Emitted every time, whereas history records the
    /// first.
    Fenced,
}

/// Failure reason of an acquire whose wait timed out or was withdrawn.
pub const GAVE_UP: &str = "gave_up";
