//! What may never happen, as predicates over the rows.
//!
//! Every suite (properties, model check, simulation, conformance) asks the same questions. A
//! question here is about one world, or about a world before and after a step; `Err` says what
//! broke.

use crate::id::SessionId;
use crate::key::{LockName, ResourceKey};
use crate::limits;
use crate::record::{Record, Tenure};
use crate::time::Millis;
use crate::world::World;

/// Asks every question about one world at `now`, after a step on every record or a sweep.
pub fn all(world: &World) -> Result<(), String> {
    world.records.iter().try_for_each(|(key, record)| of_record(key, record, world))
}

/// Asks every question about one record.
pub fn of_record(key: &ResourceKey, record: &Record, world: &World) -> Result<(), String> {
    exclusive(key, record)?;
    tokens_within_bounds(key, record)?;
    bounded(key, record)?;
    nobody_waits_for_free_locks(key, record)?;
    everybody_has_a_session(key, record, world)?;
    jobs_within_bounds(key, record, world)?;
    running_means_held(key, record)
}

/// Invariants 4 and 6: a job runs if and only if a tenure is its own, and no job outlives its last
/// attempt.
pub fn running_means_held(key: &ResourceKey, record: &Record) -> Result<(), String> {
    for job in record.lane() {
        let of_job = |tenure: &&Tenure| tenure.job == Some(job.id);
        let held = record.tenures.iter().find(of_job).map(|tenure| tenure.token);
        if held != job.token() {
            let (id, state) = (job.id, job.state.word());
            return Err(format!("{key}: job {id} is {state} and its tenure is {held:?}"));
        }
        if job.state.is_over() {
            return Err(format!("{key}: job {} is over and still in the lane", job.id));
        }
    }
    let stray = |tenure: &&Tenure| tenure.job.is_some_and(|job| record.job(job).is_none());
    match record.tenures.iter().find(stray) {
        Some(tenure) => Err(format!("{key}: token {} belongs to a job that is over", tenure.token)),
        None => Ok(()),
    }
}

/// The jobs of a lane are found by their ids, and none has had more attempts than its rule allows.
pub fn jobs_within_bounds(key: &ResourceKey, record: &Record, world: &World) -> Result<(), String> {
    let kind = world.kinds.get(key.kind());
    for job in record.lane() {
        let most = kind.and_then(|kind| {
            let operation = kind.operations.get(&job.operation)?;
            Some(kind.retry(key, operation).attempts)
        });
        let most = most.unwrap_or(u32::MAX);
        if job.attempt > most {
            return Err(format!("{key}: job {} is at attempt {}/{most}", job.id, job.attempt));
        }
        if world.whereabouts.get(&job.id) != Some(key) {
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

/// Invariant 2, within one record: no tenure has a token that was never given out.
pub fn tokens_within_bounds(key: &ResourceKey, record: &Record) -> Result<(), String> {
    match record.tenures.iter().find(|tenure| tenure.token > record.token) {
        Some(tenure) => Err(format!("{key} has token {} beyond the last one", tenure.token)),
        None => Ok(()),
    }
}

/// Every queue has a bound.
pub fn bounded(key: &ResourceKey, record: &Record) -> Result<(), String> {
    let resource = record.resource.as_ref();
    if record.queue.len() > limits::WAITERS_MAX
        || record.recent.len() > limits::RECENT_MAX
        || record.lane().len() > limits::LANE_MAX
        || resource.is_some_and(|resource| resource.answered.len() > limits::ANSWERED_MAX)
    {
        return Err(format!("{key} outgrew a bound"));
    }
    Ok(())
}

/// Direct hand-over: whoever could have its locks has them; nobody is reserved for but from the
/// front.
pub fn nobody_waits_for_free_locks(key: &ResourceKey, record: &Record) -> Result<(), String> {
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

/// Invariant 6: behind every tenure and waiter there is a session row; an ended one is marked so
/// that the next step settles it.
pub fn everybody_has_a_session(
    key: &ResourceKey,
    record: &Record,
    world: &World,
) -> Result<(), String> {
    let holders = record.tenures.iter().map(|tenure| tenure.session);
    let waiters = record.queue.iter().map(|waiter| waiter.session);
    let missing = |id: &SessionId| world.sessions.get(*id).is_none();
    match holders.chain(waiters).find(missing) {
        Some(id) => Err(format!("{key} is held or wanted by session {id}, which is not there")),
        None => Ok(()),
    }
}

/// Invariant 6, after a sweep at `now`: nothing is held or wanted by the dead.
pub fn swept(world: &World, now: Millis) -> Result<(), String> {
    for (key, record) in &world.records {
        let holders = record.tenures.iter().map(|tenure| tenure.session);
        let waiters = record.queue.iter().map(|waiter| waiter.session);
        let dead = |id: &SessionId| !world.sessions.get(*id).is_some_and(|s| s.alive(now));
        if let Some(id) = holders.chain(waiters).find(dead) {
            return Err(format!("{key} is still held or wanted by session {id}, which is over"));
        }
    }
    Ok(())
}

/// Invariant 2 and the append-only history, between two states of one record.
pub fn forward(key: &ResourceKey, before: &Record, after: &Record) -> Result<(), String> {
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
