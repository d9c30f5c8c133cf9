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
