//! Properties that every step in every state must satisfy.

use std::collections::BTreeMap;

use tenure_core::history::Event;
use tenure_core::record::{RecentRequest, TenureEnd};
use tenure_core::verify::Verifier;
use tenure_core::{
    Claimant, Command, LockAction, LockName, Outcome, Record, Refusal, RequestId, SessionId, Token,
    invariants, limits,
};
use tenure_sim::fairness::check_fifo;

use crate::jobs;
use crate::state::{OTHER_TENANT, State, StepResult, TTL_MS, key};

type CheckResult = Result<(), String>;

/// Applies a command, checks all properties of the step, and returns the state after it.
pub(crate) fn check_step(before: &State, command: &Command) -> Result<State, String> {
    let mut result = before.step(command);
    let world = result.after.world();
    invariants::check_record(&key(), &result.after.record, &world)?;
    if result.outcome == Outcome::Forgotten {
        return check_forgotten(before, command, result);
    }
    invariants::check_forward(&key(), &before.record, &result.after.record)?;
    check_margin(before, &result)?;
    record_renewal(command, &mut result);
    check_events_match_tenures(&before.record, &result)?;
    check_grants(before, command, &mut result)?;
    check_ended_sessions_stay_ended(before, command, &result)?;
    check_stale_token_is_noop(before, command, &result)?;
    check_other_tenant_is_refused(before, command, &result)?;
    check_idempotent(command, &result)?;
    jobs::check_step(before, command, &mut result)?;
    Ok(result.after)
}

/// Checks that the events lead from the tenures before to the tenures after, and that each is
/// valid in its place.
fn check_events_match_tenures(before: &Record, result: &StepResult) -> CheckResult {
    let tenures = |record: &Record| -> BTreeMap<LockName, Token> {
        record.tenures.iter().map(|tenure| (tenure.lock.clone(), tenure.token)).collect()
    };
    let (mut held, mut last) = (tenures(before), before.token);
    for event in &result.events {
        match event {
            Event::Granted { locks, token, .. } => {
                let taken = locks.iter().any(|lock| held.insert(lock.clone(), *token).is_some());
                if taken || *token <= last {
                    return Err(format!("token {token} is granted over another"));
                }
                last = *token;
            }
            Event::Ended { locks, token, .. } => {
                let held_all = locks.iter().all(|lock| held.remove(lock) == Some(*token));
                if !held_all {
                    return Err(format!("token {token} ends without a grant"));
                }
            }
            Event::Fenced { token, .. } if held.values().any(|holder| holder == token) => {
                return Err(format!("the current token {token} is fenced"));
            }
            _ => {}
        }
    }
    match held == tenures(&result.after.record) {
        true => Ok(()),
        false => Err("history does not lead to the record".to_owned()),
    }
}

/// Checks that no ended session is granted anything, no request is granted twice, and no waiter is
/// overtaken.
fn check_grants(before: &State, command: &Command, result: &mut StepResult) -> CheckResult {
    let transferred = check_transfer(command, result)?;
    for event in &result.events {
        jobs::forget_handed_back(event, before, &mut result.after.granted);
        let Event::Granted { session, request, token, locks, .. } = event else { continue };
        if !before.alive(*session) && !opens(command, *session) {
            return Err(format!("token {token} is granted to ended session {session}"));
        }
        if result.after.granted.contains(request) {
            return Err(format!("request {request} gets a second tenure"));
        }
        if *token <= result.after.last_token {
            let last = result.after.last_token;
            return Err(format!("token {token} is granted after token {last}"));
        }
        result.after.last_token = *token;
        result.after.granted.push(*request);
        result.after.granted.sort_unstable();
        if transferred != Some(*request) {
            check_fifo(&key(), &before.record, &result.after.record, *request, locks)?;
        }
    }
    Ok(())
}

/// Checks that a planned transfer grants to the named session at once. Returns the request.
fn check_transfer(command: &Command, result: &StepResult) -> Result<Option<RequestId>, String> {
    let Command::Lock { action: LockAction::Release { token, to: Some(to), .. }, .. } = command
    else {
        return Ok(None);
    };
    if result.outcome != (Outcome::Released { already: false }) {
        return Ok(None);
    }
    let released = |event: &Event| matches!(event, Event::Ended { token: t, .. } if t == token);
    let next = result.events.windows(2).filter(|pair| released(&pair[0])).map(|pair| &pair[1]);
    let mut granted = next.filter_map(|event| match event {
        Event::Granted { session, request, .. } if session.to_string() == **to => Some(*request),
        _ => None,
    });
    let request = granted.next();
    request.map(Some).ok_or_else(|| format!("token {token} was not transferred to {to}"))
}

/// Checks that only an idle resource was forgotten, at its last entry, whose requests are too old
/// to be repeated.
fn check_forgotten(
    before: &State,
    command: &Command,
    mut result: StepResult,
) -> Result<State, String> {
    let Command::Lock { action: LockAction::Forget { n }, .. } = command else {
        return Err(format!("{command:?} forgot the resource"));
    };
    let record = &settle(before).record;
    let is_recent = |recent: &RecentRequest| before.now.since(recent.at) <= limits::RECENT_TTL_MS;
    if *n != before.record.chain.n
        || !record.tenures.is_empty()
        || !record.queue.is_empty()
        || record.resource.is_some()
        || record.recent.iter().any(is_recent)
    {
        return Err(format!("it was forgotten at entry {n} although it is in use: {record:?}"));
    }
    result.after.granted.clear();
    Ok(result.after)
}

/// Checks that no tenure expires before the time to live and the stale margin have passed since
/// its session was renewed.
fn check_margin(before: &State, result: &StepResult) -> CheckResult {
    let kind = before.kinds.get(key().kind());
    let held_ms = TTL_MS + kind.map_or(0, |kind| kind.stale_margin_ms);
    for event in &result.events {
        let Event::Ended { token, how: TenureEnd::Expired, .. } = event else { continue };
        let tenure = before.record.tenures.iter().find(|tenure| tenure.token == *token);
        let renewed_at = tenure.and_then(|tenure| before.renewed_at.get(&tenure.session));
        if let Some(after_ms) = renewed_at.map(|at| before.now.since(*at))
            && after_ms < held_ms
        {
            return Err(format!("token {token} expired {after_ms} ms after its renewal"));
        }
    }
    Ok(())
}

/// Records that a command renewed its session.
fn record_renewal(command: &Command, result: &mut StepResult) {
    let renewed = match (command, &result.outcome) {
        (
            Command::Open { session, .. } | Command::Heartbeat { session, .. },
            Outcome::Alive { .. },
        ) => Some(*session),
        (_, Outcome::Renewed(view)) => Some(view.session),
        _ => None,
    };
    if let Some(session) = renewed {
        result.after.renewed_at.insert(session, result.after.now);
    }
}

/// Returns whether the command opens that session: a waiter whose solo session expired may repeat
/// its request, which opens a new session.
fn opens(command: &Command, session: SessionId) -> bool {
    let Command::Lock { action: LockAction::Acquire(ask), .. } = command else { return false };
    matches!(ask.claimant, Claimant::Solo { .. }) && ask.request.0 == session.0
}

/// Checks that an ended session is never alive again, and that its heartbeat is refused.
fn check_ended_sessions_stay_ended(
    before: &State,
    command: &Command,
    result: &StepResult,
) -> CheckResult {
    let had_ended = |id: SessionId| before.session(id).is_some() && !before.alive(id);
    let revived = |id: SessionId| had_ended(id) && !opens(command, id);
    let revived = result.after.sessions.iter().find(|s| revived(s.id) && s.is_alive(before.now));
    if let Some(session) = revived {
        return Err(format!("ended session {} was revived", session.id));
    }
    match command {
        Command::Heartbeat { session, .. } if !before.alive(*session) => match result.outcome {
            Outcome::Refused(_) => Ok(()),
            _ => Err(format!("the heartbeat of ended session {session} was accepted")),
        },
        _ => Ok(()),
    }
}

fn settle(state: &State) -> State {
    state.step(&Command::Lock { key: key(), action: LockAction::Settle }).after
}

/// Checks that a command with a stale token is refused and changes nothing.
fn check_stale_token_is_noop(
    before: &State,
    command: &Command,
    result: &StepResult,
) -> CheckResult {
    let Command::Lock { action, .. } = command else { return Ok(()) };
    let (LockAction::Renew { token, .. }
    | LockAction::Release { token, .. }
    | LockAction::Break { token, .. }) = action
    else {
        return check_withdrawn_holds_nothing(action, result);
    };
    let settled = settle(before);
    if settled.record.tenures.iter().any(|tenure| tenure.token == *token) {
        return Ok(());
    }
    let after = &result.after;
    let same = settled.sessions == after.sessions
        && settled.record.tenures == after.record.tenures
        && settled.record.queue == after.record.queue;
    let accepted =
        matches!(result.outcome, Outcome::Renewed(_) | Outcome::Released { already: false });
    match same && !accepted {
        true => Ok(()),
        false => Err(format!("stale token {token} was accepted: {:?}", result.outcome)),
    }
}

/// Checks that a caller that is bound to another tenant is refused and changes nothing.
fn check_other_tenant_is_refused(
    before: &State,
    command: &Command,
    result: &StepResult,
) -> CheckResult {
    let tenant = match command {
        Command::Heartbeat { tenant, .. } | Command::Close { tenant, .. } => tenant,
        Command::Lock { action: LockAction::Acquire(acquire), .. } => &acquire.tenant,
        _ => return Ok(()),
    };
    if tenant.as_deref() != Some(OTHER_TENANT) {
        return Ok(());
    }
    let expected = if command.key().is_some() { settle(before) } else { before.clone() };
    let after = &result.after;
    let same = expected.sessions == after.sessions
        && expected.record.tenures == after.record.tenures
        && expected.record.queue == after.record.queue;
    match same && result.outcome == Outcome::Refused(Refusal::SessionExpired) {
        true => Ok(()),
        false => Err(format!("a caller of another tenant got {:?}", result.outcome)),
    }
}

fn check_withdrawn_holds_nothing(action: &LockAction, result: &StepResult) -> CheckResult {
    let LockAction::Withdraw { request } = action else { return Ok(()) };
    match result.after.record.tenures.iter().any(|tenure| tenure.request == *request) {
        true => Err(format!("withdrawn request {request} still holds something")),
        false => Ok(()),
    }
}

/// Checks that a repeated command gets the same reply and changes nothing.
fn check_idempotent(command: &Command, result: &StepResult) -> CheckResult {
    let Command::Lock { action, .. } = command else { return Ok(()) };
    let again = result.after.step(command);
    let same = match (&result.outcome, &again.outcome) {
        (Outcome::Granted(first), Outcome::Granted(second)) => first.token == second.token,
        (first, second) => std::mem::discriminant(first) == std::mem::discriminant(second),
    };
    let unchanged = result.after.record.tenures == again.after.record.tenures;
    match same && unchanged {
        true => Ok(()),
        false => Err(format!("{action:?} gave {:?}, then {:?}", result.outcome, again.outcome)),
    }
}

/// Checks that the verifier accepts the history of this state and finds the record consistent.
pub(crate) fn verify(state: &State) -> CheckResult {
    let mut lines = Vec::new();
    let mut node = state.history.as_ref();
    while let Some(entry) = node {
        lines.push(&entry.line);
        node = entry.before.as_ref();
    }
    let mut verifier = Verifier::default();
    lines.iter().rev().for_each(|line| verifier.check_line(&key(), &line.line, line.hash));
    verifier.compare(&key(), &state.record);
    match verifier.finish().problems.first() {
        Some(problem) => Err(problem.to_string()),
        None => Ok(()),
    }
}
