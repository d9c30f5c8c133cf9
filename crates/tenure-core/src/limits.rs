//! Limits of the engine.
//!
//! Every queue, name and loop is bounded; those bounds that callers can run into are listed here.
//! Exceeding one returns a refusal that names it, and each has a test at its boundary.

/// Maximum length of a tenant name, in bytes.
pub const TENANT_BYTES_MAX: usize = 63;
/// Maximum length of a kind name, in bytes.
pub const KIND_BYTES_MAX: usize = 63;
/// Maximum length of a resource name, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Maximum length of a lock name, in bytes.
pub const LOCK_BYTES_MAX: usize = 63;
/// Maximum number of locks in one acquire.
pub const LOCK_SET_MAX: usize = 16;

/// Maximum length of a session name or a principal, in bytes.
pub const SESSION_NAME_BYTES_MAX: usize = 128;
/// Maximum length of a tenure's purpose, in bytes.
pub const PURPOSE_BYTES_MAX: usize = 256;
/// Maximum length of a reason (break, pause, resume, cancel, retry, discard), in bytes.
pub const REASON_BYTES_MAX: usize = 512;

/// Minimum time to live of a session. A shorter one could expire during one slow disk flush.
pub const TTL_MS_MIN: u64 = 1_000;
/// Maximum time to live of a session: one day. Longer work sends heartbeats.
pub const TTL_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Minimum interval between the heartbeats of a session.
pub const HEARTBEAT_INTERVAL_MS_MIN: u64 = 100;
/// Minimum number of heartbeats per time to live: one may be lost.
pub const HEARTBEATS_PER_TTL_MIN: u32 = 2;
/// Maximum wait of an acquire: one day.
pub const WAIT_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Maximum age above which a held lock can be reported: 366 days.
pub const LOCK_MAX_AGE_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;

/// Maximum number of waiters in the queue of one resource.
pub const WAITERS_MAX: usize = 1_024;
/// Maximum number of ended requests that a resource remembers to answer retries.
pub const RECENT_REQUESTS_MAX: usize = 16;
/// Time for which they are remembered. Longer than any client retries a request.
pub const RECENT_TTL_MS: u64 = 10 * 60 * 1_000;
/// Maximum number of unacknowledged lost tenures of a session. One more ends the session, which
/// reports all of them as lost.
pub const REVOCATIONS_MAX: usize = 256;

/// Maximum number of kinds.
pub const KINDS_MAX: usize = 1_024;
/// Maximum time from TERM to KILL of a command after a cancel: one day.
pub const CANCEL_GRACE_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Maximum number of states of a kind.
pub const STATES_MAX: usize = 64;
/// Maximum number of operations of a kind.
pub const OPERATIONS_MAX: usize = 64;
/// Maximum length of a state name, in bytes.
pub const STATE_BYTES_MAX: usize = 63;
/// Maximum length of an operation name, in bytes.
pub const OPERATION_BYTES_MAX: usize = 63;

/// Maximum number of queued and running jobs of one resource.
pub const LANE_MAX: usize = 1_000;
/// Maximum number of attempts that a retry rule may allow.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// Maximum number of attempts that a job keeps in detail; the latest ones are kept.
pub const ATTEMPTS_KEPT: usize = 10;
/// Maximum number of submits that a resource remembers to answer retries, for up to
/// [`RECENT_TTL_MS`].
pub const RECENT_SUBMITS_MAX: usize = 256;
/// Maximum number of requests with an idempotency key, in [`RECENT_TTL_MS`], of which a resource
/// remembers the answer. One more is refused, because a repetition could not be recognised.
pub const RECENT_ANSWERS_MAX: usize = 1_024;
/// Maximum size of these answers, as JSON, in bytes. Beyond it only the request is remembered, and
/// a repetition is refused.
pub const RECENT_ANSWERS_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of a job's arguments, as JSON, in bytes.
pub const ARGS_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of a job's result, as JSON, in bytes.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of a resource's status, and of one merge patch for it, as JSON, in bytes.
pub const STATUS_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of timers of one resource.
pub const TIMERS_MAX: usize = 16;
/// Interval at which the refused submit of a timer is repeated.
pub const TIMER_RETRY_MS: u64 = 60_000;
/// Maximum number of consecutive attempts of a job that are deferred without being counted.
pub const DEFERRALS_MAX: u32 = 100;
/// Maximum delay that a worker may ask for before the next attempt: 366 days.
pub const DELAY_MS_MAX: u64 = RUN_AHEAD_MS_MAX;
/// Maximum number of token floors; when it is exceeded, all are merged into one.
pub const TOKEN_FLOORS_MAX: usize = 4_096;
/// Maximum stale margin of a kind: one day.
pub const STALE_MARGIN_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Maximum size of a resource's desired state, as JSON, in bytes.
pub const SPEC_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of a failure code, in bytes.
pub const CODE_BYTES_MAX: usize = 64;
/// Maximum length of a failure or progress message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1_024;
/// Maximum priority of a job; the minimum is its negation.
pub const PRIORITY_MAX: i32 = 1_000;
/// Maximum time that a job may be scheduled ahead: 366 days.
pub const RUN_AHEAD_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;
/// Maximum number of jobs taken by one claim.
pub const CLAIM_MAX: usize = 256;
/// Maximum number of kinds named by one claim.
pub const CLAIM_KINDS_MAX: usize = 256;
/// Maximum number of tenants, counted once per kind, that a claim considers for one job. If all of
/// them have more urgent jobs in other kinds, the first one is served nevertheless.
pub const CLAIM_TENANTS_MAX: usize = 1_024;
/// Maximum number of claims that a session remembers, so that a late retry takes no further jobs.
pub const CLAIMS_KEPT: usize = 16;
/// Maximum size of one write to a log, in bytes.
pub const LOG_CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Maximum log size of one attempt, in bytes. Further output is dropped, which the log states.
pub const LOG_BYTES_MAX: u64 = 1024 * 1024;

/// Pause between two batches or sweeps of a store after which every session is renewed.
pub const STALL_MS: u64 = 2_000;

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
/// Environment variables with credentials of Tenure. No command gets them.
pub const CREDENTIAL_VARIABLES: [&str; 3] = ["TENURE_KEY", "TENURE_STORE", "TENURE_ADMIN_KEY_FILE"];
