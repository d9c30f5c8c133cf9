//! Answers against history: what the server says is what it did, and what was said is durable.

use tenure_core::{
    Acquire, Claimant, Command, LockAction, Outcome, Refusal, RequestId, ResourceKey, SessionId,
    TenureView, Token,
};

use crate::books::{Facts, Told};
use crate::message::{Peer, Reply};
use crate::oracle::{Oracle, Verdict};
use crate::server::Applied;

impl Oracle {
    /// An answer is what history says, as the server sees it.
    pub(crate) fn answer_fits(&mut self, reply: &Reply, applied: &Applied) -> Verdict {
        if reply.outcome == Outcome::Refused(Refusal::RequestReused) {
            return Err(format!("a repeated request was taken for another: {:?}", reply.command));
        }
        match &*reply.command {
            Command::Beat { session, .. } if matches!(reply.outcome, Outcome::Alive { .. }) => {
                self.was_alive(*session, applied)
            }
            Command::Lock { key, action } => {
                if matches!(reply.outcome, Outcome::Withdrawn { .. }) {
                    self.books.remembers(key);
                }
                lock_answer_fits(&self.books.now, key, action, &reply.outcome, applied.n)
            }
            _ => self.job_answer_fits(reply, applied.n),
        }
    }

    /// An answer that reaches somebody is durable.
    pub fn acknowledged(&self, reply: &Reply) -> Verdict {
        let Command::Lock { key, action } = &*reply.command else {
            return self.job_acknowledged(reply);
        };
        let facts = &self.books.durable;
        let durable = match (action, &reply.outcome) {
            (LockAction::Acquire(ask), Outcome::Granted(view)) => {
                granted_to(facts, key, ask, view).is_ok()
            }
            (LockAction::Release { token, .. }, Outcome::Released { .. })
            | (LockAction::Break { token, .. }, Outcome::Broken)
            | (_, Outcome::Withdrawn { released: Some(token) }) => {
                facts.tenure(key, *token).is_some_and(|told| told.end.is_some())
            }
            _ => true,
        };
        if durable {
            return Ok(());
        }
        let Reply { outcome, .. } = reply;
        Err(format!("the answer {outcome:?} about {key} reached {:?} but is not durable", reply.to))
    }
}

fn lock_answer_fits(
    facts: &Facts,
    key: &ResourceKey,
    action: &LockAction,
    outcome: &Outcome,
    batch: u64,
) -> Verdict {
    match (action, outcome) {
        (LockAction::Acquire(ask), Outcome::Granted(view)) => {
            let told = granted_to(facts, key, ask, view)?;
            lasted(told, key, view.token, batch)
        }
        (LockAction::Renew { token, .. }, Outcome::Renewed(view)) => {
            renewed(facts, key, *token, view, batch)
        }
        (LockAction::Release { token, .. }, Outcome::Released { already }) => {
            released(facts, key, *token, *already, batch)
        }
        (
            LockAction::Release { token, locks: None } | LockAction::Renew { token, .. },
            Outcome::Refused(Refusal::Lost { .. }),
        ) => refused(facts, key, *token),
        (LockAction::Withdraw { request }, Outcome::Withdrawn { .. }) => {
            withdrawn(facts, key, *request)
        }
        (LockAction::Break { token, .. }, Outcome::Broken) => {
            let told = facts.tenure(key, *token);
            match told.is_some_and(Told::broken) {
                true => Ok(()),
                false => Err(format!("token {token} of {key} was said to be broken and is not")),
            }
        }
        _ => Ok(()),
    }
}

fn granted_to<'a>(
    facts: &'a Facts,
    key: &ResourceKey,
    ask: &Acquire,
    view: &TenureView,
) -> Result<&'a Told, String> {
    let session = match ask.claimant {
        Claimant::Session(id) => id,
        Claimant::Solo { .. } => SessionId(ask.request.0),
    };
    let token = view.token;
    match facts.tenure(key, token) {
        Some(told) if told.session == session && told.request == ask.request => Ok(told),
        Some(_) => Err(format!("token {token} of {key} was acknowledged to somebody else")),
        None => Err(format!("token {token} of {key} was acknowledged but never granted")),
    }
}

/// The tenure had not ended before this batch.
fn lasted(told: &Told, key: &ResourceKey, token: Token, batch: u64) -> Verdict {
    let over = told.end.as_ref().filter(|(_, when)| !told.lasts() && *when < batch);
    match over {
        None => Ok(()),
        Some((how, _)) => Err(format!("token {token} of {key} served although {}", how.word())),
    }
}

fn renewed(
    facts: &Facts,
    key: &ResourceKey,
    token: Token,
    view: &TenureView,
    batch: u64,
) -> Verdict {
    if view.token != token {
        let other = view.token;
        return Err(format!("the renewal of token {token} of {key} renewed token {other}"));
    }
    match facts.tenure(key, token) {
        Some(told) => lasted(told, key, token, batch),
        None => Err(format!("token {token} of {key} was renewed but never granted")),
    }
}

fn released(facts: &Facts, key: &ResourceKey, token: Token, already: bool, batch: u64) -> Verdict {
    match facts.tenure(key, token).and_then(|told| told.end.as_ref()) {
        Some((_, when)) if already || *when == batch => Ok(()),
        _ => Err(format!("token {token} of {key} was said to be released and was not")),
    }
}

fn refused(facts: &Facts, key: &ResourceKey, token: Token) -> Verdict {
    match facts.tenure(key, token).is_some_and(Told::lasts) {
        true => Err(format!("the present token {token} of {key} was refused")),
        false => Ok(()),
    }
}

fn withdrawn(facts: &Facts, key: &ResourceKey, request: RequestId) -> Verdict {
    let token = facts.of_request(key, request);
    match token.filter(|token| facts.tenure(key, *token).is_some_and(Told::lasts)) {
        Some(token) => Err(format!("a withdrawn request still holds {key} with token {token}")),
        None => Ok(()),
    }
}

/// Whether a reply is for a holder.
#[must_use]
pub fn holder_of(reply: &Reply) -> Option<(usize, u64)> {
    match reply.to {
        Peer::Holder { at, life } => Some((at, life)),
        Peer::Operator => None,
    }
}
