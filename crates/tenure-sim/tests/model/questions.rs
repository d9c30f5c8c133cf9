//! What must be true of every step in every state.

use std::collections::BTreeMap;

use tenure_core::history::Event;
use tenure_core::verify::Verifier;
use tenure_core::{
    Claimant, Command, LockAction, LockName, Outcome, Record, SessionId, Token, invariants,
};
use tenure_sim::fair::nobody_overtaken;

use crate::jobs;
use crate::state::{Done, State, key};

type Verdict = Result<(), String>;

/// Takes a step, asks everything about it, and gives the state after it.
pub(crate) fn ask(before: &State, command: &Command) -> Result<State, String> {
    let mut done = before.done(command);
    let world = done.after.world();
    invariants::of_record(&key(), &done.after.record, &world)?;
    invariants::forward(&key(), &before.record, &done.after.record)?;
    history_says_the_same(&before.record, &done)?;
    grants_go_to_the_living_once(before, command, &mut done)?;
    the_dead_stay_dead(before, command, &done)?;
    stale_tokens_change_nothing(before, command, &done)?;
    again_is_the_same(command, &done)?;
    jobs::ask(before, command, &mut done)?;
    Ok(done.after)
}

/// The events lead from the tenures before to the tenures after, and each is allowed where it
/// stands.
fn history_says_the_same(before: &Record, done: &Done) -> Verdict {
    let tenures = |record: &Record| -> BTreeMap<LockName, Token> {
        record.tenures.iter().map(|tenure| (tenure.lock.clone(), tenure.token)).collect()
    };
    let (mut held, mut last) = (tenures(before), before.token);
    for event in &done.events {
        match event {
            Event::Granted { locks, token, .. } => {
                let taken = locks.iter().any(|lock| held.insert(lock.clone(), *token).is_some());
                if taken || *token <= last {
                    return Err(format!("token {token} is granted over another"));
                }
                last = *token;
            }
            Event::Ended { locks, token, .. } => {
                let theirs = locks.iter().all(|lock| held.remove(lock) == Some(*token));
                if !theirs {
                    return Err(format!("token {token} ends without having begun"));
                }
            }
            Event::Fenced { token, .. } if held.values().any(|holder| holder == token) => {
                return Err(format!("the present token {token} is fenced off"));
            }
            _ => {}
        }
    }
    match held == tenures(&done.after.record) {
        true => Ok(()),
        false => Err("history does not lead to the record".to_owned()),
    }
}

/// Nobody dead is granted anything, no request gets a second tenure, nobody is overtaken.
fn grants_go_to_the_living_once(before: &State, command: &Command, done: &mut Done) -> Verdict {
    for event in &done.events {
        jobs::give_back(event, before, &mut done.after.granted);
        let Event::Granted { session, request, token, locks, .. } = event else { continue };
        if !before.alive(*session) && !makes(command, *session) {
            return Err(format!("token {token} goes to session {session}, which is dead"));
        }
        if done.after.granted.contains(request) {
            return Err(format!("request {request} gets a second tenure"));
        }
        done.after.granted.push(*request);
        done.after.granted.sort_unstable();
        nobody_overtaken(&key(), &before.record, &done.after.record, *request, locks)?;
    }
    Ok(())
}

/// Whether the command makes that session: a request that waited with a session of its own and let
/// it lapse may ask again, and begins anew.
fn makes(command: &Command, session: SessionId) -> bool {
    let Command::Lock { action: LockAction::Acquire(ask), .. } = command else { return false };
    matches!(ask.claimant, Claimant::Solo { .. }) && ask.request.0 == session.0
}

/// A session that is over is never alive again, and its heartbeat is refused.
fn the_dead_stay_dead(before: &State, command: &Command, done: &Done) -> Verdict {
    let dead = |id: SessionId| before.session(id).is_some() && !before.alive(id);
    let back = |id: SessionId| dead(id) && !makes(command, id);
    let back = done.after.sessions.iter().find(|s| back(s.id) && s.alive(before.now));
    if let Some(session) = back {
        return Err(format!("session {} came back", session.id));
    }
    match command {
        Command::Beat { session, .. } if !before.alive(*session) => match done.outcome {
            Outcome::Refused(_) => Ok(()),
            _ => Err(format!("the heartbeat of dead session {session} was taken")),
        },
        _ => Ok(()),
    }
}

fn settled(state: &State) -> State {
    state.done(&Command::Lock { key: key(), action: LockAction::Settle }).after
}

/// What is written with a token that is not current is refused and moves nothing.
fn stale_tokens_change_nothing(before: &State, command: &Command, done: &Done) -> Verdict {
    let Command::Lock { action, .. } = command else { return Ok(()) };
    let (LockAction::Renew { token, .. }
    | LockAction::Release { token, .. }
    | LockAction::Break { token, .. }) = action
    else {
        return withdrawn_holds_nothing(action, done);
    };
    let anyway = settled(before);
    if anyway.record.tenures.iter().any(|tenure| tenure.token == *token) {
        return Ok(());
    }
    let after = &done.after;
    let same = anyway.sessions == after.sessions
        && anyway.record.tenures == after.record.tenures
        && anyway.record.queue == after.record.queue;
    let taken = matches!(done.outcome, Outcome::Renewed(_) | Outcome::Released { already: false });
    match same && !taken {
        true => Ok(()),
        false => Err(format!("stale token {token} was served: {:?}", done.outcome)),
    }
}

fn withdrawn_holds_nothing(action: &LockAction, done: &Done) -> Verdict {
    let LockAction::Withdraw { request } = action else { return Ok(()) };
    match done.after.record.tenures.iter().any(|tenure| tenure.request == *request) {
        true => Err(format!("withdrawn request {request} still holds something")),
        false => Ok(()),
    }
}

/// A command that comes twice is answered alike and moves nothing the second time.
fn again_is_the_same(command: &Command, done: &Done) -> Verdict {
    let Command::Lock { action, .. } = command else { return Ok(()) };
    let again = done.after.done(command);
    let same = match (&done.outcome, &again.outcome) {
        (Outcome::Granted(first), Outcome::Granted(second)) => first.token == second.token,
        (first, second) => std::mem::discriminant(first) == std::mem::discriminant(second),
    };
    let still = done.after.record.tenures == again.after.record.tenures;
    match same && still {
        true => Ok(()),
        false => Err(format!("{action:?} gave {:?}, then {:?}", done.outcome, again.outcome)),
    }
}

/// The verifier accepts the history that led here, and finds the same in the record.
pub(crate) fn verify(state: &State) -> Verdict {
    let mut lines = Vec::new();
    let mut past = state.past.as_ref();
    while let Some(node) = past {
        lines.push(&node.line);
        past = node.before.as_ref();
    }
    let mut verifier = Verifier::default();
    lines.iter().rev().for_each(|line| verifier.line(&key(), &line.line, line.hash));
    verifier.compare(&key(), &state.record);
    match verifier.finish().problems.first() {
        Some(problem) => Err(problem.to_string()),
        None => Ok(()),
    }
}
