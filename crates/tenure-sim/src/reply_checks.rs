//! Checks of lock replies against history: a reply matches what the server did, and a delivered
//! reply is durable.

use tenure_core::{
    Acquire, Claimant, Command, LockAction, Outcome, Refusal, RequestId, ResourceKey, SessionId,
    TenureView, Token,
};

use crate::faults::OTHER_TENANT;
use crate::history_model::{ModelState, ModelTenure};
use crate::message::{Peer, Reply};
use crate::oracle::{CheckResult, Oracle};
use crate::server::Applied;

impl Oracle {
    /// Checks that a reply matches history as of the applied batch.
    pub(crate) fn check_reply(&mut self, reply: &Reply, applied: &Applied) -> CheckResult {
        if reply.outcome == Outcome::Refused(Refusal::RequestReused) {
            return Err(format!("a repeated request was rejected as reused: {:?}", reply.command));
        }
        if is_of_stranger(&reply.command)
            && reply.outcome != Outcome::Refused(Refusal::SessionExpired)
        {
            let Reply { command, outcome, .. } = reply;
            return Err(format!("a caller of another tenant got {outcome:?} for {command:?}"));
        }
        match &*reply.command {
            Command::Heartbeat { session, .. }
                if matches!(reply.outcome, Outcome::Alive { .. }) =>
            {
                self.check_was_alive(*session, applied)
            }
            Command::Lock { key, action } => {
                if matches!(reply.outcome, Outcome::Withdrawn { .. }) {
                    self.history.record_end(key);
                }
                check_lock_reply(&self.history.now, key, action, &reply.outcome, applied.number)
            }
            _ => self.check_job_reply(reply, applied),
        }
    }

    /// Checks that a delivered reply is durable.
    pub fn check_acknowledged(&mut self, reply: &Reply) -> CheckResult {
        self.answers.check(reply)?;
        let Command::Lock { key, action } = &*reply.command else {
            return self.check_job_acknowledged(reply);
        };
        let model = &self.history.durable;
        let durable = match (action, &reply.outcome) {
            (LockAction::Acquire(acquire), Outcome::Granted(view)) => {
                check_granted_to(model, key, acquire, view).is_ok()
            }
            (LockAction::Release { token, .. }, Outcome::Released { .. })
            | (LockAction::Break { token, .. }, Outcome::Broken)
            | (_, Outcome::Withdrawn { released: Some(token) }) => {
                model.tenure(key, *token).is_some_and(|tenure| tenure.end.is_some())
            }
            _ => true,
        };
        if durable {
            return Ok(());
        }
        let Reply { outcome, .. } = reply;
        Err(format!("reply {outcome:?} about {key} reached {:?} but is not durable", reply.to))
    }
}

/// Returns whether the sender is bound to a tenant that has no sessions.
fn is_of_stranger(command: &Command) -> bool {
    let tenant = match command {
        Command::Heartbeat { tenant, .. } | Command::Close { tenant, .. } => tenant,
        Command::Claim(claim) => &claim.tenant,
        Command::Lock { action: LockAction::Acquire(acquire), .. } => &acquire.tenant,
        _ => return false,
    };
    tenant.as_deref() == Some(OTHER_TENANT)
}

fn check_lock_reply(
    model: &ModelState,
    key: &ResourceKey,
    action: &LockAction,
    outcome: &Outcome,
    batch: u64,
) -> CheckResult {
    match (action, outcome) {
        (LockAction::Acquire(acquire), Outcome::Granted(view)) => {
            let tenure = check_granted_to(model, key, acquire, view)?;
            check_not_ended_before(tenure, key, view.token, batch)
        }
        (LockAction::Renew { token, .. }, Outcome::Renewed(view)) => {
            check_renewed(model, key, *token, view, batch)
        }
        (LockAction::Release { token, .. }, Outcome::Released { already }) => {
            check_released(model, key, *token, *already, batch)
        }
        (
            LockAction::Release { token, locks: None, .. } | LockAction::Renew { token, .. },
            Outcome::Refused(Refusal::Lost { .. }),
        ) => check_lost(model, key, *token),
        (LockAction::Withdraw { request }, Outcome::Withdrawn { .. }) => {
            check_withdrawn(model, key, *request)
        }
        (LockAction::Break { token, .. }, Outcome::Broken) => {
            let tenure = model.tenure(key, *token);
            match tenure.is_some_and(ModelTenure::is_broken) {
                true => Ok(()),
                false => Err(format!("token {token} of {key} was reported broken but is not")),
            }
        }
        _ => Ok(()),
    }
}

fn check_granted_to<'a>(
    model: &'a ModelState,
    key: &ResourceKey,
    acquire: &Acquire,
    view: &TenureView,
) -> Result<&'a ModelTenure, String> {
    let session = match acquire.claimant {
        Claimant::Session(id) => id,
        Claimant::Solo { .. } => SessionId(acquire.request.0),
    };
    let token = view.token;
    match model.tenure(key, token) {
        Some(tenure) if tenure.session == session && tenure.request == acquire.request => {
            Ok(tenure)
        }
        Some(_) => Err(format!("token {token} of {key} was acknowledged to another request")),
        None => Err(format!("token {token} of {key} was acknowledged but never granted")),
    }
}

/// Checks that the tenure had not ended before this batch.
fn check_not_ended_before(
    tenure: &ModelTenure,
    key: &ResourceKey,
    token: Token,
    batch: u64,
) -> CheckResult {
    let earlier_end = tenure.end.as_ref().filter(|(_, when)| !tenure.is_active() && *when < batch);
    match earlier_end {
        None => Ok(()),
        Some((how, _)) => {
            Err(format!("token {token} of {key} was accepted after {}", how.as_str()))
        }
    }
}

fn check_renewed(
    model: &ModelState,
    key: &ResourceKey,
    token: Token,
    view: &TenureView,
    batch: u64,
) -> CheckResult {
    if view.token != token {
        let other = view.token;
        return Err(format!("renewal of token {token} of {key} renewed token {other}"));
    }
    match model.tenure(key, token) {
        Some(tenure) => check_not_ended_before(tenure, key, token, batch),
        None => Err(format!("token {token} of {key} was renewed but never granted")),
    }
}

fn check_released(
    model: &ModelState,
    key: &ResourceKey,
    token: Token,
    already: bool,
    batch: u64,
) -> CheckResult {
    match model.tenure(key, token).and_then(|tenure| tenure.end.as_ref()) {
        Some((_, when)) if already || *when == batch => Ok(()),
        _ => Err(format!("token {token} of {key} was reported released but was not")),
    }
}

fn check_lost(model: &ModelState, key: &ResourceKey, token: Token) -> CheckResult {
    match model.tenure(key, token).is_some_and(ModelTenure::is_active) {
        true => Err(format!("the current token {token} of {key} was refused")),
        false => Ok(()),
    }
}

fn check_withdrawn(model: &ModelState, key: &ResourceKey, request: RequestId) -> CheckResult {
    let token = model.token_of_request(key, request);
    match token.filter(|token| model.tenure(key, *token).is_some_and(ModelTenure::is_active)) {
        Some(token) => Err(format!("a withdrawn request still holds {key} with token {token}")),
        None => Ok(()),
    }
}

/// Returns the index and the epoch of the holder that a reply is for.
#[must_use]
pub fn holder_of(reply: &Reply) -> Option<(usize, u64)> {
    match reply.to {
        Peer::Holder { index, epoch } => Some((index, epoch)),
        Peer::Operator => None,
    }
}
