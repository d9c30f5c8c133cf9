//! First come, first served: a grant never passes over an earlier waiter that wants one of its
//! locks.

use tenure_core::record::Waiter;
use tenure_core::{LockSet, Record, RequestId, ResourceKey};

/// Whether the grant of `locks` to `request`, somewhere between two states of a record, overtook
/// somebody who waited before and still waits.
pub fn nobody_overtaken(
    key: &ResourceKey,
    before: &Record,
    after: &Record,
    request: RequestId,
    locks: &LockSet,
) -> Result<(), String> {
    let ahead = before.queue.iter().take_while(|waiter| waiter.request != request);
    // Whoever let its wait run out and then asked again has lost its place: it waits since later.
    let same = |a: &Waiter, b: &Waiter| a.request == b.request && a.since == b.since;
    let waits = |waiter: &&Waiter| after.queue.iter().any(|w| same(w, waiter));
    let wants = |waiter: &&Waiter| waiter.locks.iter().any(|lock| locks.contains(lock));
    match ahead.filter(waits).find(wants) {
        Some(waiter) => {
            Err(format!("{key}: request {request} overtook {}, who came first", waiter.request))
        }
        None => Ok(()),
    }
}
