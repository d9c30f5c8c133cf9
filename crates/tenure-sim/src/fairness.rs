//! FIFO fairness: a grant never overtakes an earlier waiter that wants one of its locks.

use tenure_core::record::Waiter;
use tenure_core::{LockSet, Record, RequestId, ResourceKey};

/// Checks that a grant of `locks` to `request` between two states of a record did not overtake an
/// earlier waiter that still waits.
pub fn check_fifo(
    key: &ResourceKey,
    before: &Record,
    after: &Record,
    request: RequestId,
    locks: &LockSet,
) -> Result<(), String> {
    let ahead = before.queue.iter().take_while(|waiter| waiter.request != request);
    // A waiter that timed out and asked again has lost its place: its `since` is later.
    let same = |a: &Waiter, b: &Waiter| a.request == b.request && a.since == b.since;
    let waits = |waiter: &&Waiter| after.queue.iter().any(|w| same(w, waiter));
    let wants = |waiter: &&Waiter| waiter.locks.iter().any(|lock| locks.contains(lock));
    match ahead.filter(waits).find(wants) {
        Some(waiter) => {
            Err(format!("{key}: request {request} overtook earlier {}", waiter.request))
        }
        None => Ok(()),
    }
}
