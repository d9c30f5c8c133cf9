//! `step`: one command meets the world. Dispatch only; the rules are in [`crate::lock`] and below.

use crate::canary::{Canary, planted};
use crate::command::Command;
use crate::id::SessionId;
use crate::key::Text;
use crate::limits;
use crate::lock::Turn;
use crate::outcome::Outcome;
use crate::record::Record;
use crate::refusal::Refusal;
use crate::session::{Over, Session, Standing};
use crate::time::Millis;
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
            let record =
                world.records.entry(key.clone()).or_insert_with(|| Box::new(Record::new(key)));
            let mut turn = Turn {
                key,
                record,
                sessions: &mut world.sessions,
                changes: &mut world.changes,
                incarnation: world.incarnation,
                now,
                changed: false,
                untold: false,
            };
            let outcome = turn.act(action);
            let (changed, untold, blank) = (turn.changed, turn.untold, turn.record.is_blank());
            if untold {
                world.changes.untold.push(key.clone());
            }
            if changed || untold {
                world.changes.records.push(key.clone());
            } else if blank {
                world.records.remove(key);
            }
            outcome
        }
    }
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
pub(crate) fn check_text(what: &str, text: &str, bytes_max: usize) -> Result<(), Refusal> {
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
