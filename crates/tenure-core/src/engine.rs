//! `step`: one command meets the world. Dispatch only; the rules are in [`crate::lock`] and below.

use std::collections::hash_map::Entry;

use crate::canary::{Canary, planted};
use crate::command::{Claim, Command, JobAction};
use crate::id::{JobId, SessionId};
use crate::key::{ResourceKey, Text};
use crate::limits;
use crate::outcome::{Assignment, Outcome};
use crate::record::{Record, Tenure};
use crate::refusal::Refusal;
use crate::session::{Over, Session, Standing};
use crate::time::Millis;
use crate::token::Token;
use crate::turn::Turn;
use crate::world::World;

/// Decides one command at store time `now`, changing the rows of `world`.
///
/// Time must not go backwards from one step to the next; the store sees to that.
pub fn step(world: &mut World, command: &Command, now: Millis) -> Outcome {
    match command {
        Command::Open { session, tenant, name, ttl_ms } => {
            open(world, *session, tenant, name, *ttl_ms, now)
        }
        Command::Beat { session, seen } => beat(world, *session, *seen, now),
        Command::Close { session } => close(world, *session),
        Command::Lapse { session } => lapse(world, *session, now),
        Command::Forget { session } => forget(world, *session),
        Command::Lock { key, action } => {
            visit(world, key, now, |turn, ended| turn.lock(action, ended))
        }
        Command::Resource { key, action } => {
            visit(world, key, now, |turn, _| turn.resource(action))
        }
        Command::Job { id, action } => on_job(world, *id, action, now),
        Command::Claim(claim) => take(world, claim, now).unwrap_or_else(Outcome::Refused),
    }
}

/// A turn at one record: it is settled first, so no decision is ever made beside a dead holder, and
/// it is seen afterwards what became ready.
fn visit<T>(
    world: &mut World,
    key: &ResourceKey,
    now: Millis,
    act: impl FnOnce(&mut Turn<'_>, usize) -> T,
) -> T {
    let (record, fresh) = match world.records.entry(key.clone()) {
        Entry::Occupied(known) => (known.into_mut(), false),
        Entry::Vacant(place) => (place.insert(Box::new(Record::new(key))), true),
    };
    let had_jobs = record.resource.is_some();
    let mut turn = Turn {
        key,
        record,
        sessions: &mut world.sessions,
        bonds: &mut world.bonds,
        changes: &mut world.changes,
        kinds: &world.kinds,
        whereabouts: &mut world.whereabouts,
        incarnation: world.incarnation,
        now,
        changed: false,
        untold: false,
    };
    let ended = turn.settle();
    let answer = act(&mut turn, ended);
    let (changed, untold) = (turn.changed, turn.untold);
    // Also when the resource was forgotten: a job of it may have ended in this very turn.
    let has_jobs = had_jobs || record.resource.is_some();
    if has_jobs && world.ready.note(key, record, &world.kinds, now) {
        world.changes.ready.push(key.clone());
    }
    if untold {
        world.changes.untold.push(key.clone());
    }
    if changed || untold {
        world.changes.records.push(key.clone());
    } else if fresh {
        world.records.remove(key);
    }
    answer
}

fn on_job(world: &mut World, id: JobId, action: &JobAction, now: Millis) -> Outcome {
    if let Some(key) = world.whereabouts.get(&id).cloned() {
        let outcome = visit(world, &key, now, |turn, _| {
            // Settling may have ended it a moment ago.
            turn.record.job(id).is_some().then(|| turn.live_job(id, action))
        });
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
    recall(world, id);
    let Some((key, mut job)) = world.past.remove(&id) else {
        return Outcome::Refused(Refusal::NoSuchJob);
    };
    let outcome = visit(world, &key, now, |turn, _| turn.past_job(&mut job, action));
    world.past.insert(id, (key, job));
    outcome
}

/// Finds a job that ended in this very batch.
fn recall(world: &mut World, id: JobId) {
    if world.past.contains_key(&id) {
        return;
    }
    let ended = world.changes.finished.iter().rfind(|(_, job)| job.id == id);
    if let Some((key, job)) = ended {
        world.past.insert(id, (key.clone(), job.clone()));
    }
}

/// A worker takes jobs that are ready.
fn take(world: &mut World, claim: &Claim, now: Millis) -> Result<Outcome, Refusal> {
    check_claim(claim)?;
    let tenant = match world.sessions.check(claim.session, now) {
        Standing::Alive(session) => {
            session.works(&claim.kinds, now);
            world.changes.beats.push(claim.session);
            session.tenant.clone()
        }
        Standing::JustLapsed => {
            world.changes.sessions.push(claim.session);
            return Err(Refusal::SessionOver);
        }
        Standing::Over(_) => return Err(Refusal::SessionOver),
    };
    if let Some(before) = claimed_before(world, claim, now) {
        return Ok(Outcome::Claimed(before));
    }
    wake(world, now);
    let mut assigned = Vec::new();
    while assigned.len() < claim.max
        && let Some(key) = world.ready.pick(&claim.kinds, &tenant, &world.kinds)
    {
        let (session, request) = (claim.session, claim.request);
        // What cannot start after all is not in the index any more after the visit.
        assigned.extend(visit(world, &key, now, |turn, _| turn.start(session, request)));
    }
    if let Some(session) = world.sessions.get_mut(claim.session)
        && !assigned.is_empty()
    {
        session.claimed(claim.request);
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

/// What an earlier sending of the same claim got and still has, if it got anything.
fn claimed_before(world: &mut World, claim: &Claim, now: Millis) -> Option<Vec<Assignment>> {
    if planted(Canary::RepeatedClaimIsNew) {
        return None;
    }
    let before = taken(world, claim, now);
    let session = world.sessions.get_mut(claim.session)?;
    if !before.is_empty() {
        // The store may have been restarted since: then this is news to it.
        session.claimed(claim.request);
    }
    session.has_claimed(claim.request).then_some(before)
}

/// The jobs that an earlier sending of the same claim got and that are not over.
fn taken(world: &mut World, claim: &Claim, now: Millis) -> Vec<Assignment> {
    let mine = |tenure: &&Tenure| {
        tenure.session == claim.session && tenure.request == claim.request && tenure.job.is_some()
    };
    let tokens = |key: &ResourceKey| {
        let tenures = world.records.get(key).map_or(&[][..], |record| &record.tenures);
        let mut tokens: Vec<Token> = tenures.iter().filter(mine).map(|t| t.token).collect();
        // One resource may have given it several jobs, and one job may hold several locks.
        tokens.dedup();
        (!tokens.is_empty()).then(|| (key.clone(), tokens))
    };
    let taken: Vec<_> = world.bonds.of(claim.session).filter_map(tokens).collect();
    let mut assigned = Vec::new();
    for (key, tokens) in taken {
        let of = |turn: &mut Turn<'_>, _| -> Vec<Assignment> {
            tokens.iter().filter_map(|token| turn.assignment(*token)).collect()
        };
        assigned.extend(visit(world, &key, now, of));
    }
    assigned
}

/// Looks again at the resources on which something is due by now. Says how many there were, and how
/// many tenures ended there.
pub fn wake(world: &mut World, now: Millis) -> (usize, usize) {
    let due = world.ready.due(now);
    let ended = due.iter().map(|key| visit(world, key, now, |_, ended| ended)).sum();
    (due.len(), ended)
}

/// Whether a time to live is within its bounds; the message names them.
pub(crate) fn check_ttl(ttl_ms: u64) -> Result<(), Refusal> {
    if (limits::TTL_MS_MIN..=limits::TTL_MS_MAX).contains(&ttl_ms) {
        return Ok(());
    }
    let (min, max) = (limits::TTL_MS_MIN, limits::TTL_MS_MAX);
    Err(Refusal::Invalid(format!("ttl_ms is {ttl_ms}; it must be between {min} and {max}")))
}

/// Whether a text is within its bound and fit for one line; the message names the field.
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

/// A new session, if its particulars are within bounds.
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
        solo: false,
        over: None,
        revoked: Vec::new(),
        revoked_n: 0,
        worker: None,
    })
}

fn open(
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
            beat(world, id, 0, now)
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

fn beat(world: &mut World, id: SessionId, seen: u64, now: Millis) -> Outcome {
    if planted(Canary::BeatRevives)
        && let Some(session) = world.sessions.get_mut(id)
    {
        session.over = None;
        session.extend(now);
    }
    match world.sessions.check(id, now) {
        Standing::Alive(session) => {
            session.extend(now);
            let touched = session.seen(seen);
            let (ttl_ms, revoked) = (session.ttl_ms, session.revoked.clone());
            world.changes.beats.push(id);
            if touched {
                world.changes.sessions.push(id);
            }
            Outcome::Alive { session: id, ttl_ms, revoked }
        }
        Standing::JustLapsed => {
            world.changes.sessions.push(id);
            Outcome::Refused(Refusal::SessionOver)
        }
        Standing::Over(_) => Outcome::Refused(Refusal::SessionOver),
    }
}

fn close(world: &mut World, id: SessionId) -> Outcome {
    if let Some(session) = world.sessions.get_mut(id)
        && session.over.is_none()
    {
        session.over = Some(Over::Closed);
        world.changes.sessions.push(id);
    }
    Outcome::Closed
}

fn lapse(world: &mut World, id: SessionId, now: Millis) -> Outcome {
    match world.sessions.check(id, now) {
        Standing::Alive(_) => Outcome::Refused(Refusal::StillAlive),
        Standing::JustLapsed => {
            world.changes.sessions.push(id);
            Outcome::Closed
        }
        Standing::Over(_) => Outcome::Closed,
    }
}

fn forget(world: &mut World, id: SessionId) -> Outcome {
    match world.sessions.get(id) {
        Some(session) if session.over.is_none() => Outcome::Refused(Refusal::StillAlive),
        Some(_) => {
            world.sessions.remove(id);
            world.changes.sessions.push(id);
            Outcome::Closed
        }
        None => Outcome::Closed,
    }
}
