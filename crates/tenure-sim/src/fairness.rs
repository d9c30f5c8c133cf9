//! Fairness: a grant never overtakes an earlier waiter that wants one of its locks, and a job never
//! overtakes one in backoff that holds the lane or reserves its locks.

use tenure_core::kind::Backoff;
use tenure_core::record::Waiter;
use tenure_core::{Job, JobId, JobState, Kind, LockSet, Millis, Record, RequestId, ResourceKey};

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

/// Checks that the start of a job with `locks` between two states of a record did not overtake a
/// job ahead of it that was in backoff before and still is at `now`.
pub fn check_backoff_order(
    key: &ResourceKey,
    (before, after): (&Record, &Record),
    kind: &Kind,
    (started, locks): (JobId, &LockSet),
    now: Millis,
) -> Result<(), String> {
    let lane = if before.job(started).is_some() { before.lane() } else { after.lane() };
    if lane.iter().all(|job| job.id != started) {
        return Ok(());
    }
    let in_backoff = |job: &Job| job.state == JobState::Backoff && job.due > now;
    let rests =
        |id: JobId| before.job(id).is_some_and(in_backoff) && after.job(id).is_some_and(in_backoff);
    let blocks = |job: &&Job| match kind.backoff {
        Backoff::Hold => true,
        Backoff::Pass => false,
        Backoff::Reserve => kind
            .operations
            .get(&job.operation)
            .is_some_and(|operation| operation.locks.iter().any(|lock| locks.contains(lock))),
    };
    let ahead = lane.iter().map(|job| &**job).take_while(|job| job.id != started);
    match ahead.filter(|job| rests(job.id)).find(blocks) {
        Some(job) => Err(format!("{key}: job {started} overtook job {} in backoff", job.id)),
        None => Ok(()),
    }
}
