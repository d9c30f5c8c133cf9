//! The rules of locks: one turn at one record.
//!
//! Every turn first *settles* the record: tenures of dead sessions end, dead waiters go, and
//! whoever is next gets what is free. So no decision is ever made beside a dead holder, and the
//! sweep only makes happen soon what would happen anyway.
//!
//! The queue is one per resource, first come first served. A waiter that cannot be served yet
//! reserves what it wants from all behind it, so a request for several locks is never starved by
//! small ones.

use crate::canary::{Canary, planted};
use crate::command::{Acquire, Claimant, LockAction};
use crate::engine::{check_text, check_ttl, new_session};
use crate::fact::{Fact, GAVE_UP};
use crate::history::Event;
use crate::id::{RequestId, SessionId};
use crate::key::{LockName, LockSet, Text};
use crate::limits;
use crate::outcome::{Outcome, TenureView};
use crate::record::{Ending, How, Recent, Tenure, Waiter};
use crate::refusal::Refusal;
use crate::session::{ALL_TENANTS, Session, Standing};
use crate::settle::Wish;
use crate::token::Token;
use crate::turn::Turn;

/// Whoever asks for locks, found fit to hold them.
enum Asker {
    Known(SessionId),
    Solo(Session),
}

impl Turn<'_> {
    /// Does what the command says. The record is settled.
    pub(crate) fn lock(&mut self, action: &LockAction, ended: usize) -> Outcome {
        let result = match action {
            LockAction::Acquire(acquire) => {
                self.acquire(acquire).inspect_err(|refusal| self.failed(refusal))
            }
            LockAction::Renew { token, ttl_ms } => self.renew(*token, *ttl_ms),
            LockAction::Release { token, locks } => self.release(*token, locks.as_ref()),
            LockAction::Withdraw { request } => self.withdraw(*request),
            LockAction::Break { token, locks, by, reason } => {
                self.break_by(*token, locks.as_ref(), by, reason)
            }
            LockAction::Settle => Ok(Outcome::Settled { ended }),
        };
        result.unwrap_or_else(Outcome::Refused)
    }

    fn acquire(&mut self, ask: &Acquire) -> Result<Outcome, Refusal> {
        if !planted(Canary::RepeatedIsNew)
            && let Some(answer) = self.answered(ask)
        {
            return answer;
        }
        Self::check_acquire(ask)?;
        let claimant = self.claimant(ask)?;
        if self.record.obtainable(&ask.locks) {
            let session = self.admit(claimant);
            let (locks, purpose) = (ask.locks.clone(), ask.purpose.clone());
            let wish = Wish { locks, session, request: ask.request, purpose, waited_ms: 0 };
            return Ok(Outcome::Granted(self.grant(wish, None)));
        }
        if ask.wait_ms == 0 {
            return Err(self.held(&ask.locks));
        }
        if self.record.queue.len() >= limits::WAITERS_MAX {
            return Err(Refusal::QueueFull);
        }
        let session = self.admit(claimant);
        self.enqueue(ask, session);
        Ok(self.waiting(self.record.queue.len() - 1))
    }

    fn failed(&mut self, refusal: &Refusal) {
        self.changes.facts.push(refusal.failure(self.key));
    }

    fn check_acquire(ask: &Acquire) -> Result<(), Refusal> {
        if let Some(purpose) = &ask.purpose {
            check_text("purpose", purpose, limits::PURPOSE_BYTES_MAX)?;
        }
        if ask.wait_ms > limits::WAIT_MS_MAX {
            let (got, max) = (ask.wait_ms, limits::WAIT_MS_MAX);
            return Err(Refusal::Invalid(format!("wait_ms is {got}; it must be at most {max}")));
        }
        Ok(())
    }

    /// The answer to a request that was seen before, if it was.
    fn answered(&mut self, ask: &Acquire) -> Option<Result<Outcome, Refusal>> {
        let mine = |tenure: &&Tenure| tenure.request == ask.request;
        if let Some(tenure) = self.record.tenures.iter().find(mine) {
            let same = Self::same_claimant(ask, tenure.session) && ask.locks.contains(&tenure.lock);
            let token = tenure.token;
            return Some(if same { Ok(self.granted(token)) } else { Err(Refusal::RequestReused) });
        }
        if let Some(at) = self.record.queue.iter().position(|w| w.request == ask.request) {
            return Some(self.still_waiting(ask, at));
        }
        let recent = self.record.recent.iter().find(|recent| recent.request == ask.request)?;
        let (token, how) = (recent.token, Some(recent.how));
        Some(Err(Refusal::Lost { token, how, current: self.first_of(&ask.locks) }))
    }

    fn same_claimant(ask: &Acquire, session: SessionId) -> bool {
        session
            == match ask.claimant {
                Claimant::Session(id) => id,
                Claimant::Solo { .. } => SessionId(ask.request.0),
            }
    }

    /// A waiter asks again: it may go on waiting, and one with a session of its own stays alive by
    /// it.
    fn still_waiting(&mut self, ask: &Acquire, at: usize) -> Result<Outcome, Refusal> {
        let (locks, session) = (&self.record.queue[at].locks, self.record.queue[at].session);
        if *locks != ask.locks || !Self::same_claimant(ask, session) {
            return Err(Refusal::RequestReused);
        }
        Self::check_acquire(ask)?;
        let waiter = &mut self.record.queue[at];
        let until = self.now.plus(ask.wait_ms);
        if until > waiter.until {
            waiter.until = until;
            self.untold = true;
        }
        if matches!(ask.claimant, Claimant::Solo { .. }) {
            self.beat(session);
        }
        Ok(self.waiting(at))
    }

    /// Whoever asks: a session must live and be the tenant's own; a solo one is made, to be
    /// admitted when it gets something.
    fn claimant(&mut self, ask: &Acquire) -> Result<Asker, Refusal> {
        match &ask.claimant {
            Claimant::Session(id) => match self.sessions.check(*id, self.now) {
                Standing::Alive(session) if session.acts_for(self.key.tenant()) => {
                    Ok(Asker::Known(*id))
                }
                Standing::Alive(_) => Err(Refusal::ForeignSession),
                Standing::JustLapsed => {
                    self.changes.sessions.push(*id);
                    Err(Refusal::SessionOver)
                }
                Standing::Over(_) => Err(Refusal::SessionOver),
            },
            Claimant::Solo { name, ttl_ms } => {
                let id = SessionId(ask.request.0);
                if self.sessions.get(id).is_some() {
                    return Err(Refusal::RequestReused);
                }
                let tenant = self.key.tenant();
                let mut session = new_session(id, tenant, name, *ttl_ms, self.now)?;
                session.solo = true;
                Ok(Asker::Solo(session))
            }
        }
    }

    fn admit(&mut self, asker: Asker) -> SessionId {
        match asker {
            Asker::Known(id) => id,
            Asker::Solo(session) => {
                let id = session.id;
                self.sessions.insert(session);
                self.changes.sessions.push(id);
                id
            }
        }
    }

    fn enqueue(&mut self, ask: &Acquire, session: SessionId) {
        self.record.queue.push_back(Waiter {
            locks: ask.locks.clone(),
            session,
            request: ask.request,
            purpose: ask.purpose.clone(),
            since: self.now,
            until: self.now.plus(ask.wait_ms),
        });
        self.bonds.add(session, self.key);
        self.untold = true;
    }

    fn withdraw(&mut self, request: RequestId) -> Result<Outcome, Refusal> {
        if let Some(at) = self.record.queue.iter().position(|w| w.request == request) {
            self.drop_waiter(at, GAVE_UP);
            self.forget_later(request);
            self.promote();
            return Ok(Outcome::Withdrawn { released: None });
        }
        let tenure = self.record.tenures.iter().find(|tenure| tenure.request == request);
        match tenure.map(|tenure| (tenure.token, tenure.job)) {
            Some(_) if planted(Canary::WithdrawLeaks) => Ok(Outcome::Withdrawn { released: None }),
            Some((_, Some(job))) => Err(Refusal::JobsTenure(job)),
            Some((token, None)) => {
                self.end(token, None, &How::Released, None);
                self.promote();
                Ok(Outcome::Withdrawn { released: Some(token) })
            }
            None => {
                if !self.record.recent.iter().any(|recent| recent.request == request) {
                    self.forget_later(request);
                }
                Ok(Outcome::Withdrawn { released: None })
            }
        }
    }

    /// The request itself may still be on its way: remembered as withdrawn, it gets nothing.
    fn forget_later(&mut self, request: RequestId) {
        let (token, at) = (Token::default(), self.now);
        self.record.remember(Recent { request, token, how: Ending::Withdrawn, at });
        self.untold = true;
    }

    fn renew(&mut self, token: Token, ttl_ms: Option<u64>) -> Result<Outcome, Refusal> {
        let token = match self.record.tenures.first() {
            Some(current) if planted(Canary::RenewByName) => current.token,
            _ => token,
        };
        let Some(tenure) = self.record.tenures.iter().find(|tenure| tenure.token == token) else {
            return Err(self.lost(token, "renew"));
        };
        let id = tenure.session;
        let session = self.sessions.get(id).expect("settled: the session of a tenure lives");
        if !session.solo && *session.tenant == *ALL_TENANTS {
            // It holds for others, too: whoever knows one of its tokens must not keep it alive.
            let why =
                "the tenure belongs to a worker of all tenants; its session is beaten instead";
            return Err(Refusal::Invalid(why.to_owned()));
        }
        if let Some(ttl_ms) = ttl_ms {
            self.change_ttl(id, ttl_ms)?;
        }
        self.beat(id);
        Ok(Outcome::Renewed(self.view_of(token)))
    }

    fn change_ttl(&mut self, id: SessionId, ttl_ms: u64) -> Result<(), Refusal> {
        check_ttl(ttl_ms)?;
        let session = self.sessions.get_mut(id).expect("settled: the session of a tenure lives");
        if !session.solo {
            let why = "the tenure belongs to a session; its ttl_ms is fixed when it is opened";
            return Err(Refusal::Invalid(why.to_owned()));
        }
        if session.ttl_ms != ttl_ms {
            session.ttl_ms = ttl_ms;
            self.changes.sessions.push(id);
        }
        Ok(())
    }

    fn release(&mut self, token: Token, locks: Option<&LockSet>) -> Result<Outcome, Refusal> {
        let token = match self.record.tenures.first() {
            Some(current) if planted(Canary::ReleaseWithoutToken) => current.token,
            _ => token,
        };
        if planted(Canary::MissingOwnerIsMe) && self.record.tenures.is_empty() {
            return Ok(Outcome::Released { already: false });
        }
        if self.has(token, locks) {
            if let Some(job) = self.job_of(token) {
                return Err(Refusal::JobsTenure(job));
            }
            self.end(token, locks, &How::Released, None);
            self.promote();
            return Ok(Outcome::Released { already: false });
        }
        match self.record.ended(token) {
            Some(recent) if recent.how == Ending::Released => {
                Ok(Outcome::Released { already: true })
            }
            _ => Err(self.lost(token, "release")),
        }
    }

    fn break_by(
        &mut self,
        token: Token,
        locks: Option<&LockSet>,
        by: &Text,
        reason: &Text,
    ) -> Result<Outcome, Refusal> {
        check_text("reason", reason, limits::REASON_BYTES_MAX)?;
        if reason.trim().is_empty() {
            return Err(Refusal::Invalid("a break needs a reason".to_owned()));
        }
        if self.has(token, locks) {
            self.notify(token, false);
            // Its holder learns that the tenure is over, so all of it is.
            self.lose(token, &How::Broken { by: by.clone(), reason: reason.clone() });
            self.promote();
            return Ok(Outcome::Broken);
        }
        if self.record.ended(token).is_some_and(|recent| recent.how == Ending::Broken) {
            return Ok(Outcome::Broken);
        }
        if self.has(token, None) {
            return Err(not_its_locks(token));
        }
        let current = match locks {
            Some(locks) => self.first_of(locks),
            None => self.record.tenures.first().map(|t| t.token).map(|t| self.view_of(t)),
        };
        Err(Refusal::NotCurrent { current })
    }

    /// Whether `token` holds all of `locks`, or anything when none are named.
    fn has(&self, token: Token, locks: Option<&LockSet>) -> bool {
        let holds = |lock: &LockName| self.record.tenure(lock).is_some_and(|t| t.token == token);
        match locks {
            Some(locks) => locks.iter().all(holds),
            None => self.record.tenures.iter().any(|tenure| tenure.token == token),
        }
    }

    /// The refusal for a stale token; history notes the first such write of each token.
    pub(crate) fn lost(&mut self, token: Token, verb: &str) -> Refusal {
        let issued = token > Token::default() && token <= self.record.token;
        // A present token that named locks it does not have was wrong, but not stale.
        let stale = issued && !self.has(token, None);
        if stale {
            self.changes.facts.push(Fact::Fenced);
        }
        if stale && self.record.fenced != token {
            self.tell(Event::Fenced { token, verb: verb.into() });
        }
        let how = self.record.ended(token).map(|recent| recent.how);
        let current = self.record.tenures.first().map(|tenure| tenure.token);
        Refusal::Lost { token, how, current: current.map(|token| self.view_of(token)) }
    }

    fn granted(&self, token: Token) -> Outcome {
        Outcome::Granted(self.view_of(token))
    }

    fn held(&self, locks: &LockSet) -> Refusal {
        Refusal::Held { by: self.first_of(locks), queue_length: self.record.queue.len() }
    }

    fn waiting(&self, at: usize) -> Outcome {
        Outcome::Waiting {
            position: at + 1,
            queue_length: self.record.queue.len(),
            held_by: self.first_of(&self.record.queue[at].locks),
        }
    }

    /// The tenure that stands in the way of `locks`.
    pub(crate) fn first_of(&self, locks: &LockSet) -> Option<TenureView> {
        let tenure = locks.iter().find_map(|lock| self.record.tenure(lock))?;
        Some(self.view_of(tenure.token))
    }
}

fn not_its_locks(token: Token) -> Refusal {
    Refusal::Invalid(format!("the tenure with token {token} does not hold all of these locks"))
}
