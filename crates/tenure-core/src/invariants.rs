//! Invariants of the engine, as predicates over its rows.
//!
//! All suites (properties, model check, simulation, conformance) check the same predicates. Each
//! looks at one world, or at a record before and after a step; `Err` describes the violation.

use crate::id::SessionId;
use crate::key::{LockName, ResourceKey};
use crate::limits;
use crate::record::{Record, Tenure};
use crate::time::Millis;
use crate::world::World;

/// Checks every record of `world`.
pub fn check_all(world: &World) -> Result<(), String> {
    world.records.iter().try_for_each(|(key, record)| check_record(key, record, world))
}

/// Checks one record.
pub fn check_record(key: &ResourceKey, record: &Record, world: &World) -> Result<(), String> {
    exclusive(key, record)?;
    tokens_within_bounds(key, record)?;
    within_limits(key, record)?;
    no_waiter_for_free_locks(key, record)?;
    sessions_exist(key, record, world)?;
    jobs_within_bounds(key, record, world)?;
    running_iff_held(key, record)
}

/// Invariants 4 and 6: a job runs if and only if it has a tenure, and finished jobs leave the lane.
pub fn running_iff_held(key: &ResourceKey, record: &Record) -> Result<(), String> {
    for job in record.lane() {
        let of_job = |tenure: &&Tenure| tenure.job == Some(job.id);
        let held = record.tenures.iter().find(of_job).map(|tenure| tenure.token);
        if held != job.token() {
            let (id, state) = (job.id, job.state.as_str());
            return Err(format!("{key}: job {id} is {state} and its tenure is {held:?}"));
        }
        if job.state.is_finished() {
            return Err(format!("{key}: job {} is finished and still in the lane", job.id));
        }
    }
    let orphaned = |tenure: &&Tenure| tenure.job.is_some_and(|job| record.job(job).is_none());
    match record.tenures.iter().find(orphaned) {
        Some(tenure) => Err(format!("{key}: token {} belongs to a finished job", tenure.token)),
        None => Ok(()),
    }
}

/// Jobs of a lane are indexed by id, and none exceeds the attempts that its retry rule allows.
pub fn jobs_within_bounds(key: &ResourceKey, record: &Record, world: &World) -> Result<(), String> {
    let kind = world.kinds.get(key.kind());
    for job in record.lane() {
        let max = kind.and_then(|kind| {
            let operation = kind.operations.get(&job.operation)?;
            Some(kind.retry(key, operation).attempts)
        });
        let max = max.unwrap_or(u32::MAX);
        if job.attempt > max {
            return Err(format!("{key}: job {} is at attempt {}/{max}", job.id, job.attempt));
        }
        if world.job_index.get(&job.id) != Some(key) {
            return Err(format!("{key}: job {} cannot be found by its id", job.id));
        }
    }
    Ok(())
}

/// Invariant 1: a lock has at most one tenure.
pub fn exclusive(key: &ResourceKey, record: &Record) -> Result<(), String> {
    let mut locks: Vec<&LockName> = record.tenures.iter().map(|tenure| &tenure.lock).collect();
    locks.sort_unstable();
    match locks.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{key}#{} has two tenures", pair[0])),
        None => Ok(()),
    }
}

/// Invariant 2, within one record: no tenure has a token above the last one issued.
pub fn tokens_within_bounds(key: &ResourceKey, record: &Record) -> Result<(), String> {
    match record.tenures.iter().find(|tenure| tenure.token > record.token) {
        Some(tenure) => Err(format!("{key} has token {} beyond the last one", tenure.token)),
        None => Ok(()),
    }
}

/// Queues and caches are within their limits.
pub fn within_limits(key: &ResourceKey, record: &Record) -> Result<(), String> {
    let resource = record.resource.as_ref();
    if record.queue.len() > limits::WAITERS_MAX
        || record.recent.len() > limits::RECENT_REQUESTS_MAX
        || record.recent_answers.len() > limits::RECENT_ANSWERS_MAX
        || record.lane().len() > limits::LANE_MAX
        || resource.is_some_and(|resource| resource.timers.len() > limits::TIMERS_MAX)
        || resource
            .is_some_and(|resource| resource.recent_submits.len() > limits::RECENT_SUBMITS_MAX)
    {
        return Err(format!("{key} exceeds a limit"));
    }
    Ok(())
}

/// Direct hand-over: a waiter whose locks are neither held nor reserved by an earlier waiter has
/// been granted.
pub fn no_waiter_for_free_locks(key: &ResourceKey, record: &Record) -> Result<(), String> {
    let mut reserved: Vec<&LockName> = Vec::new();
    for waiter in &record.queue {
        let blocked = |lock: &LockName| record.tenure(lock).is_some() || reserved.contains(&lock);
        if !waiter.locks.iter().any(blocked) {
            return Err(format!("{key}: request {} waits for free locks", waiter.request));
        }
        reserved.extend(waiter.locks.iter());
    }
    Ok(())
}

/// Invariant 6: every tenure and waiter has a session row. The row of an ended session is marked,
/// so that the next step settles the record.
pub fn sessions_exist(key: &ResourceKey, record: &Record, world: &World) -> Result<(), String> {
    let holders = record.tenures.iter().map(|tenure| tenure.session);
    let waiters = record.queue.iter().map(|waiter| waiter.session);
    let missing = |id: &SessionId| world.sessions.get(*id).is_none();
    match holders.chain(waiters).find(missing) {
        Some(id) => Err(format!("{key} is held or wanted by session {id}, which does not exist")),
        None => Ok(()),
    }
}

/// Invariant 6, after a sweep at `now`: no ended session holds or waits for anything.
pub fn check_swept(world: &World, now: Millis) -> Result<(), String> {
    for (key, record) in &world.records {
        let holders = record.tenures.iter().map(|tenure| tenure.session);
        let waiters = record.queue.iter().map(|waiter| waiter.session);
        let ended = |id: &SessionId| !world.sessions.get(*id).is_some_and(|s| s.is_alive(now));
        if let Some(id) = holders.chain(waiters).find(ended) {
            return Err(format!("{key} is still held or wanted by session {id}, which is over"));
        }
    }
    Ok(())
}

/// Invariant 2 and append-only history, between two versions of a record.
pub fn check_forward(key: &ResourceKey, before: &Record, after: &Record) -> Result<(), String> {
    if after.token < before.token {
        return Err(format!("{key}: the last token went from {} to {}", before.token, after.token));
    }
    if after.chain.n < before.chain.n {
        return Err(format!("{key}: history lost entries"));
    }
    for tenure in &after.tenures {
        let same = |old: &&Tenure| {
            old.lock == tenure.lock && old.token == tenure.token && old.session == tenure.session
        };
        if tenure.token <= before.token && !before.tenures.iter().any(|old| same(&old)) {
            return Err(format!("{key}: token {} was given out twice", tenure.token));
        }
    }
    Ok(())
}
