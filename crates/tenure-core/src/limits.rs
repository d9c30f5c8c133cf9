//! Every bound of the model, in one place.
//!
//! A queue, a name or a loop without an entry here is a defect. Where a bound is reached the caller
//! gets a refusal that names it; each bound has a test that stands on it.

/// Longest tenant name, in bytes.
pub const TENANT_BYTES_MAX: usize = 63;
/// Longest kind name, in bytes.
pub const KIND_BYTES_MAX: usize = 63;
/// Longest resource name, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Longest lock name, in bytes.
pub const LOCK_BYTES_MAX: usize = 63;
/// Most locks that one acquire may ask for together.
pub const LOCK_SET_MAX: usize = 16;

/// Longest name of a session, in bytes.
pub const SESSION_NAME_BYTES_MAX: usize = 128;
/// Longest purpose of a tenure, in bytes.
pub const PURPOSE_BYTES_MAX: usize = 256;
/// Longest reason of a break, in bytes.
pub const REASON_BYTES_MAX: usize = 512;

/// Shortest time to live of a session. Below this, one slow flush of a disk would end it.
pub const TTL_MS_MIN: u64 = 1_000;
/// Longest time to live of a session: a day. Longer work renews.
pub const TTL_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Longest time an acquire may wait in the queue: a day.
pub const WAIT_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

/// Most waiters in the queue of one resource.
pub const WAITERS_MAX: usize = 1_024;
/// Most answers that a resource remembers for late repetitions of a request.
pub const RECENT_MAX: usize = 16;
/// How long a resource remembers them. Longer than any client keeps repeating one request.
pub const RECENT_MS: u64 = 10 * 60 * 1_000;
/// Most unseen revocations a session carries; one more ends the session, which says "all lost".
pub const REVOKED_MAX: usize = 256;

/// Most kinds that may be declared.
pub const KINDS_MAX: usize = 1_024;
/// Most states of a kind.
pub const STATES_MAX: usize = 64;
/// Most operations of a kind.
pub const OPERATIONS_MAX: usize = 64;
/// Longest name of a state, in bytes.
pub const STATE_BYTES_MAX: usize = 63;
/// Longest name of an operation, in bytes.
pub const OPERATION_BYTES_MAX: usize = 63;

/// Most jobs that are queued or run on one resource.
pub const LANE_MAX: usize = 1_000;
/// Most attempts that a retry rule may allow.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// Most attempts that a job remembers in detail: the latest.
pub const ATTEMPTS_KEPT: usize = 10;
/// Most submits that a resource remembers for late repetitions, for up to [`RECENT_MS`].
pub const ANSWERED_MAX: usize = 256;
/// Longest arguments of a job, as JSON, in bytes.
pub const ARGS_BYTES_MAX: usize = 64 * 1024;
/// Longest result of a job, as JSON, in bytes.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;
/// Longest desired state of a resource, as JSON, in bytes.
pub const SPEC_BYTES_MAX: usize = 64 * 1024;
/// Longest code of a failure, in bytes.
pub const CODE_BYTES_MAX: usize = 64;
/// Longest message of a failure or of progress, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1_024;
/// Highest priority of a job, and the lowest with a minus.
pub const PRIORITY_MAX: i32 = 1_000;
/// How far ahead a job may be scheduled: a year.
pub const RUN_AHEAD_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;
/// Most jobs that one claim may take.
pub const CLAIM_MAX: usize = 256;
/// Most kinds that one claim may name.
pub const CLAIM_KINDS_MAX: usize = 256;
/// Most claims that a session remembers, so that a late repetition takes nothing.
pub const CLAIMS_KEPT: usize = 16;
/// Longest piece of a log that is written at once, in bytes.
pub const LOG_PIECE_BYTES_MAX: usize = 64 * 1024;
/// Longest log of one attempt, in bytes; what comes after is dropped, and the log says so.
pub const LOG_BYTES_MAX: u64 = 1024 * 1024;

/// Maximum number of rows in one page of a list.
pub const PAGE_MAX: usize = 1_000;

/// Maximum number of jobs that one worker runs at once.
pub const WORKER_SLOTS_MAX: usize = 4_096;
/// Default time to live of a worker's session. Over HTTP, a third of it bounds how late a job
/// learns that it was cancelled.
pub const WORKER_TTL_MS_DEFAULT: u64 = 15_000;
/// Default time that running jobs get to finish when their worker shuts down.
pub const WORKER_DRAIN_MS_DEFAULT: u64 = 30_000;
/// Minimum time to live of a session under which a command is supervised: below it the watchdog
/// could not stop the command before the lock expires.
pub const SUPERVISED_TTL_MS_MIN: u64 = 3_000;
