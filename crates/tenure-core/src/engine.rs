//! [`step`]: applies one command to the world.
//!
//! Rules for sessions and claims are in this file. Commands on a record are dispatched to
//! [`crate::lock`], `submit.rs`, `attempt.rs` and `manage.rs`.

use std::collections::hash_map::Entry;

use crate::canary::{Canary, planted};
use crate::command::{Claim, Command, JobAction};
use crate::id::{JobId, SessionId};
use crate::key::{ResourceKey, Text};
use crate::limits;
use crate::outcome::{Assignment, Outcome};
use crate::recent_answers::step_once;
use crate::record::Tenure;
use crate::refusal::Refusal;
use crate::session::{ALL_TENANTS, Liveness, Session, SessionEnd};
use crate::step_context::StepContext;
use crate::time::Millis;
use crate::token::Token;
use crate::world::World;

/// Decides one command at store time `now` and updates the rows of `world`.
///
/// `now` must not decrease from one step to the next; the store ensures that.
pub fn step(world: &mut World, command: &Command, now: Millis) -> Outcome {
    match command {
        Command::Open { session, tenant, name, ttl_ms } => {
            open_session(world, *session, tenant, name, *ttl_ms, now)
        }
        Command::Heartbeat { session, seen, tenant } => {
            match world.sessions.check_tenant(*session, tenant.as_ref()) {
                Err(refusal) if !planted(Canary::ForeignTenantHeartbeats) => {
                    Outcome::Refused(refusal)
                }
                _ => heartbeat(world, *session, *seen, now),
            }
        }
        Command::Close { session, tenant } => {
            match world.sessions.check_tenant(*session, tenant.as_ref()) {
                Err(refusal) => Outcome::Refused(refusal),
                Ok(()) => close_session(world, *session),
            }
        }
        Command::Expire { session } => expire_session(world, *session, now),
        Command::Forget { session } => forget_session(world, *session),
        Command::Lock { key, action } => {
            with_record(world, key, now, |ctx, ended| ctx.apply_lock_action(action, ended))
        }
        Command::Resource { key, action } => {
            with_record(world, key, now, |ctx, _| ctx.apply_resource_action(action))
        }
        Command::Job { id, action } => step_job(world, *id, action, now),
        Command::Claim(claim) => claim_jobs(world, claim, now).unwrap_or_else(Outcome::Refused),
        Command::Once { request, command } => {
            let key = command.key().cloned();
            let key = key.or_else(|| resource_of_job(world, command.job()?));
            match key {
                Some(key) => step_once(world, &key, *request, command, now),
                None => step(world, command, now),
            }
        }
    }
}

/// Returns the resource of a job that is loaded.
fn resource_of_job(world: &mut World, id: JobId) -> Option<ResourceKey> {
    if let Some(key) = world.job_index.get(&id) {
        return Some(key.clone());
    }
    load_finished(world, id);
    world.finished_jobs.get(&id).map(|(key, _)| key.clone())
}

/// Runs `act` on one record. The record is settled first, so that no decision sees an expired
/// holder, and the ready index is updated afterwards.
fn with_record<T>(
    world: &mut World,
    key: &ResourceKey,
    now: Millis,
    act: impl FnOnce(&mut StepContext<'_>, usize) -> T,
) -> T {
    let (record, is_new) = match world.records.entry(key.clone()) {
        Entry::Occupied(entry) => (entry.into_mut(), false),
        Entry::Vacant(entry) => (entry.insert(world.floors.new_record(key)), true),
    };
    let existed = record.resource.is_some();
    let mut ctx = StepContext {
        key,
        record,
        sessions: &mut world.sessions,
        session_index: &mut world.session_index,
        changes: &mut world.changes,
        kinds: &world.kinds,
        job_index: &mut world.job_index,
        floors: &mut world.floors,
        incarnation: world.incarnation,
        now,
        changed: false,
        forgotten: false,
        unlogged: false,
    };
    let ended = ctx.settle();
    let result = act(&mut ctx, ended);
    if ctx.changed && !ctx.forgotten {
        // What refused the submit of a timer may be gone.
        ctx.fire_timers();
    }
    let (changed, unlogged, forgotten) = (ctx.changed, ctx.unlogged, ctx.forgotten);
    if forgotten {
        world.records.remove(key);
        return result;
    }
    // Also after a delete: a job of the resource may have ended in this step.
    let exists = existed || record.resource.is_some();
    if exists && world.ready.update(key, record, &world.kinds, now) {
        world.changes.ready.push(key.clone());
    }
    if unlogged {
        world.changes.unlogged.push(key.clone());
    }
    if changed || unlogged {
        world.changes.records.push(key.clone());
    } else if is_new {
        world.records.remove(key);
    }
    result
}

fn step_job(world: &mut World, id: JobId, action: &JobAction, now: Millis) -> Outcome {
    if let Some(key) = world.job_index.get(&id).cloned() {
        let outcome = with_record(world, &key, now, |ctx, _| {
            // Settling may have finished the job.
            ctx.record.job(id).is_some().then(|| ctx.apply_to_live_job(id, action))
        });
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
    load_finished(world, id);
    let Some((key, mut job)) = world.finished_jobs.remove(&id) else {
        return Outcome::Refused(Refusal::NoSuchJob);
    };
    let outcome =
        with_record(world, &key, now, |ctx, _| ctx.apply_to_finished_job(&mut job, action));
    world.finished_jobs.insert(id, (key, job));
    outcome
}

/// Makes a job that finished in this batch available to later commands of the batch.
fn load_finished(world: &mut World, id: JobId) {
    if world.finished_jobs.contains_key(&id) {
        return;
    }
    let ended = world.changes.finished.iter().rfind(|(_, job)| job.id == id);
    if let Some((key, job)) = ended {
        world.finished_jobs.insert(id, (key.clone(), job.clone()));
    }
}

/// Claims ready jobs for a worker.
fn claim_jobs(world: &mut World, claim: &Claim, now: Millis) -> Result<Outcome, Refusal> {
    world.sessions.check_tenant(claim.session, claim.tenant.as_ref())?;
    check_claim(claim)?;
    let tenant = match world.sessions.check(claim.session, now) {
        Liveness::Alive(session) => {
            session.record_poll(&claim.kinds, now);
            world.changes.heartbeats.push(claim.session);
            session.tenant.clone()
        }
        Liveness::JustExpired => {
            world.changes.sessions.push(claim.session);
            return Err(Refusal::SessionExpired);
        }
        Liveness::Ended(_) => return Err(Refusal::SessionExpired),
    };
    if claim.only.as_ref().is_some_and(|only| *tenant != **only.tenant() && *tenant != *ALL_TENANTS)
    {
        return Err(Refusal::ForeignSession);
    }
    if let Some(before) = repeated_claim(world, claim, now)? {
        return Ok(Outcome::Claimed(before));
    }
    process_due(world, now);
    let mut assigned = Vec::new();
    while assigned.len() < claim.max
        && let Some(key) = world.ready.pick(claim, &tenant, &world.kinds)
    {
        let (session, request) = (claim.session, claim.request);
        // A job that cannot start after all has left the ready index when `with_record` returns.
        assigned.extend(with_record(world, &key, now, |ctx, _| ctx.start(session, request)));
    }
    if let Some(session) = world.sessions.get_mut(claim.session)
        && !assigned.is_empty()
    {
        session.record_claim(claim);
    }
    Ok(Outcome::Claimed(assigned))
}

fn check_claim(claim: &Claim) -> Result<(), Refusal> {
    if !(1..=limits::CLAIM_MAX).contains(&claim.max) {
        let (got, max) = (claim.max, limits::CLAIM_MAX);
        return Err(Refusal::Invalid(format!("max is {got}; it must be between 1 and {max}")));
    }
    if !(1..=limits::CLAIM_KINDS_MAX).contains(&claim.kinds.len()) {
        let (got, max) = (claim.kinds.len(), limits::CLAIM_KINDS_MAX);
        return Err(Refusal::Invalid(format!("{got} kinds; name between 1 and {max}")));
    }
    Ok(())
}

/// Returns the live jobs that an earlier copy of the same claim took, if it took any. Refuses a
/// claim that asks for something else under the same id.
fn repeated_claim(
    world: &mut World,
    claim: &Claim,
    now: Millis,
) -> Result<Option<Vec<Assignment>>, Refusal> {
    if planted(Canary::RepeatedClaimIsNew) {
        return Ok(None);
    }
    let known = world.sessions.get(claim.session).and_then(|s| s.find_claim(claim));
    if known.is_some_and(|recent| !recent.is_same_as(claim)) {
        return Err(Refusal::RequestReused);
    }
    let assigned = current_assignments(world, claim, now);
    if known.is_some() {
        return Ok(Some(assigned));
    }
    if assigned.is_empty() {
        return Ok(None);
    }
    // A restarted store has lost the session's list of claims. What is left is compared.
    if assigned.len() > claim.max || !assigned.iter().all(|job| claim.covers(&job.tenure.key)) {
        return Err(Refusal::RequestReused);
    }
    if let Some(session) = world.sessions.get_mut(claim.session) {
        session.record_claim(claim);
    }
    Ok(Some(assigned))
}

/// Returns the unfinished jobs that an earlier copy of the same claim took.
fn current_assignments(world: &mut World, claim: &Claim, now: Millis) -> Vec<Assignment> {
    let of_claim = |tenure: &&Tenure| {
        tenure.session == claim.session && tenure.request == claim.request && tenure.job.is_some()
    };
    let tokens = |key: &ResourceKey| {
        let tenures = world.records.get(key).map_or(&[][..], |record| &record.tenures);
        let mut tokens: Vec<Token> = tenures.iter().filter(of_claim).map(|t| t.token).collect();
        // One claim may take several jobs of a resource, and one job may hold several locks.
        tokens.dedup();
        (!tokens.is_empty()).then(|| (key.clone(), tokens))
    };
    let held: Vec<_> = world.session_index.resources_of(claim.session).filter_map(tokens).collect();
    let mut assigned = Vec::new();
    for (key, tokens) in held {
        let assignments = |ctx: &mut StepContext<'_>, _| -> Vec<Assignment> {
            tokens.iter().filter_map(|token| ctx.assignment(*token)).collect()
        };
        assigned.extend(with_record(world, &key, now, assignments));
    }
    assigned
}

/// Revisits the resources on which something has become due. Returns their number and the number of
/// tenures that ended there.
pub fn process_due(world: &mut World, now: Millis) -> (usize, usize) {
    let due = world.ready.take_due(now);
    let ended = due.iter().map(|key| with_record(world, key, now, |_, ended| ended)).sum();
    (due.len(), ended)
}

/// Checks that a time to live is within its limits.
pub(crate) fn check_ttl(ttl_ms: u64) -> Result<(), Refusal> {
    if (limits::TTL_MS_MIN..=limits::TTL_MS_MAX).contains(&ttl_ms) {
        return Ok(());
    }
    let (min, max) = (limits::TTL_MS_MIN, limits::TTL_MS_MAX);
    Err(Refusal::Invalid(format!("ttl_ms is {ttl_ms}; it must be between {min} and {max}")))
}

/// Checks that `text` is within its limit and has no control characters; the error names `what`.
pub fn check_text(what: &str, text: &str, bytes_max: usize) -> Result<(), Refusal> {
    if text.len() > bytes_max {
        let got = text.len();
        let why = format!("the {what} has {got} bytes; at most {bytes_max} are allowed");
        return Err(Refusal::Invalid(why));
    }
    if text.chars().any(char::is_control) {
        return Err(Refusal::Invalid(format!("the {what} has control characters")));
    }
    Ok(())
}

fn check_session(name: &str, ttl_ms: u64) -> Result<(), Refusal> {
    check_text("session name", name, limits::SESSION_NAME_BYTES_MAX)?;
    if name.is_empty() {
        return Err(Refusal::Invalid("the session name is empty".to_owned()));
    }
    check_ttl(ttl_ms)
}

/// Builds a new session after checking its name and time to live.
pub(crate) fn new_session(
    id: SessionId,
    tenant: &str,
    name: &Text,
    ttl_ms: u64,
    now: Millis,
) -> Result<Session, Refusal> {
    check_session(name, ttl_ms)?;
    Ok(Session {
        id,
        tenant: tenant.into(),
        name: name.clone(),
        ttl_ms,
        opened_at: now,
        expires_at: now.plus(ttl_ms),
        margin_ms: 0,
        solo: false,
        ended: None,
        revoked: Vec::new(),
        revocation_count: 0,
        worker: None,
    })
}

fn open_session(
    world: &mut World,
    id: SessionId,
    tenant: &Text,
    name: &Text,
    ttl_ms: u64,
    now: Millis,
) -> Outcome {
    if let Some(session) = world.sessions.get(id) {
        return if session.tenant != *tenant {
            Outcome::Refused(Refusal::ForeignSession)
        } else if session.name != *name || session.ttl_ms != ttl_ms {
            Outcome::Refused(Refusal::RequestReused)
        } else {
            heartbeat(world, id, 0, now)
        };
    }
    match new_session(id, tenant, name, ttl_ms, now) {
        Err(refusal) => Outcome::Refused(refusal),
        Ok(session) => {
            world.sessions.insert(session);
            world.changes.sessions.push(id);
            Outcome::Alive { session: id, ttl_ms, revoked: Vec::new() }
        }
    }
}

fn heartbeat(world: &mut World, id: SessionId, seen: u64, now: Millis) -> Outcome {
    if planted(Canary::HeartbeatRevives)
        && let Some(session) = world.sessions.get_mut(id)
    {
        session.ended = None;
        session.extend(now);
    }
    match world.sessions.check(id, now) {
        Liveness::Alive(session) => {
            session.extend(now);
            let acknowledged = session.acknowledge_revocations(seen);
            let (ttl_ms, revoked) = (session.ttl_ms, session.revoked.clone());
            world.changes.heartbeats.push(id);
            if acknowledged {
                world.changes.sessions.push(id);
            }
            Outcome::Alive { session: id, ttl_ms, revoked }
        }
        Liveness::JustExpired => {
            world.changes.sessions.push(id);
            Outcome::Refused(Refusal::SessionExpired)
        }
        Liveness::Ended(_) => Outcome::Refused(Refusal::SessionExpired),
    }
}

fn close_session(world: &mut World, id: SessionId) -> Outcome {
    if let Some(session) = world.sessions.get_mut(id)
        && session.ended.is_none()
    {
        session.ended = Some(SessionEnd::Closed);
        world.changes.sessions.push(id);
    }
    Outcome::Closed
}

fn expire_session(world: &mut World, id: SessionId, now: Millis) -> Outcome {
    match world.sessions.check(id, now) {
        Liveness::Alive(_) => Outcome::Refused(Refusal::StillAlive),
        Liveness::JustExpired => {
            world.changes.sessions.push(id);
            Outcome::Closed
        }
        Liveness::Ended(_) => Outcome::Closed,
    }
}

fn forget_session(world: &mut World, id: SessionId) -> Outcome {
    match world.sessions.get(id) {
        Some(session) if session.ended.is_none() => Outcome::Refused(Refusal::StillAlive),
        Some(_) => {
            world.sessions.remove(id);
            world.changes.sessions.push(id);
            Outcome::Closed
        }
        None => Outcome::Closed,
    }
}
