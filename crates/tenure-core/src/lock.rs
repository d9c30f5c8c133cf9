//! Lock rules: acquire, renew, release, withdraw and break.
//!
//! Every command first *settles* the record: tenures of ended sessions end, expired waiters are
//! dropped, and free locks are granted to the next waiters. No decision sees an expired holder, and
//! the sweep only speeds up what the next command would do anyway.
//!
//! Each resource has one FIFO queue. A waiter that cannot be granted yet reserves its locks against
//! all waiters behind it, so that a request for many locks is not starved by requests for few.

use crate::canary::{Canary, planted};
use crate::command::{Acquire, Claimant, LockAction};
use crate::engine::{check_text, check_ttl, new_session};
use crate::history::Event;
use crate::id::{RequestId, SessionId};
use crate::job::RequestedBy;
use crate::key::{LockName, LockSet, Text};
use crate::limits;
use crate::metric_event::{GAVE_UP, MetricEvent};
use crate::outcome::{Outcome, TenureView};
use crate::record::{EndKind, RecentRequest, Tenure, TenureEnd, Waiter};
use crate::refusal::Refusal;
use crate::session::{ALL_TENANTS, Liveness, Session};
use crate::settle::GrantRequest;
use crate::step_context::StepContext;
use crate::token::Token;

/// A validated requester of locks.
enum Requester {
    Existing(SessionId),
    NewSolo(Session),
}

impl StepContext<'_> {
    /// Applies a lock action to the settled record.
    pub(crate) fn apply_lock_action(&mut self, action: &LockAction, ended: usize) -> Outcome {
        let result = match action {
            LockAction::Acquire(acquire) => {
                self.acquire(acquire).inspect_err(|refusal| self.count_failed_acquire(refusal))
            }
            LockAction::Renew { token, ttl_ms } => self.renew(*token, *ttl_ms),
            LockAction::Release { token, locks, to } => {
                self.release(*token, locks.as_ref(), to.as_ref())
            }
            LockAction::Withdraw { request } => self.withdraw(*request),
            LockAction::Break { token, locks, by, reason, end_job } => {
                self.break_tenure(*token, locks.as_ref(), by, reason, *end_job)
            }
            LockAction::Settle => Ok(Outcome::Settled { ended }),
            LockAction::Forget { n } => self.forget(*n),
        };
        result.unwrap_or_else(Outcome::Refused)
    }

    fn acquire(&mut self, acquire: &Acquire) -> Result<Outcome, Refusal> {
        if let Claimant::Session(id) = acquire.claimant {
            // Before anything that answers from earlier copies of the request.
            self.sessions.check_tenant(id, acquire.tenant.as_ref())?;
        }
        if !planted(Canary::RepeatedIsNew)
            && let Some(response) = self.repeated_acquire(acquire)
        {
            return response;
        }
        Self::check_acquire(acquire)?;
        let claimant = self.resolve_claimant(acquire)?;
        if self.record.is_grantable(&acquire.locks) {
            let session = self.admit_session(claimant);
            let grant = GrantRequest {
                locks: acquire.locks.clone(),
                session,
                request: acquire.request,
                purpose: acquire.purpose.clone(),
                max_age_ms: acquire.max_age_ms,
                waited_ms: 0,
            };
            return Ok(Outcome::Granted(self.grant(grant, None)));
        }
        if acquire.wait_ms == 0 {
            return Err(self.held_refusal(&acquire.locks));
        }
        if self.record.queue.len() >= limits::WAITERS_MAX {
            return Err(Refusal::QueueFull);
        }
        let session = self.admit_session(claimant);
        self.enqueue(acquire, session);
        Ok(self.waiting_outcome(self.record.queue.len() - 1))
    }

    fn count_failed_acquire(&mut self, refusal: &Refusal) {
        self.changes.metric_events.push(refusal.failure(self.key));
    }

    fn check_acquire(acquire: &Acquire) -> Result<(), Refusal> {
        if let Some(purpose) = &acquire.purpose {
            check_text("purpose", purpose, limits::PURPOSE_BYTES_MAX)?;
        }
        if acquire.wait_ms > limits::WAIT_MS_MAX {
            let (got, max) = (acquire.wait_ms, limits::WAIT_MS_MAX);
            return Err(Refusal::Invalid(format!("wait_ms is {got}; it must be at most {max}")));
        }
        if let Some(got) = acquire.max_age_ms {
            let max = limits::LOCK_MAX_AGE_MS_MAX;
            if got == 0 || got > max {
                let why = format!("max_age_ms is {got}; it must be between 1 and {max}");
                return Err(Refusal::Invalid(why));
            }
        }
        Ok(())
    }

    /// Returns the response to an acquire that is known already.
    fn repeated_acquire(&mut self, acquire: &Acquire) -> Option<Result<Outcome, Refusal>> {
        let same_request = |tenure: &&Tenure| tenure.request == acquire.request;
        if let Some(tenure) = self.record.tenures.iter().find(same_request) {
            let same = self.same_claimant(acquire, tenure.session)
                && tenure.purpose == acquire.purpose
                && tenure.max_age_ms == acquire.max_age_ms
                && self.same_locks(acquire);
            let token = tenure.token;
            return Some(if same {
                Ok(self.granted_outcome(token))
            } else {
                Err(Refusal::RequestReused)
            });
        }
        if let Some(at) = self.record.queue.iter().position(|w| w.request == acquire.request) {
            return Some(self.repeat_wait(acquire, at));
        }
        let recent = self.record.recent.iter().find(|recent| recent.request == acquire.request)?;
        let (token, how) = (recent.token, Some(recent.how));
        Some(Err(Refusal::Lost { token, how, current: self.first_holder(&acquire.locks) }))
    }

    /// Returns `true` if the tenure of the request holds the requested locks, except for those that
    /// were released since.
    fn same_locks(&self, acquire: &Acquire) -> bool {
        let mut held = self.record.tenures.iter().filter(|t| t.request == acquire.request);
        if held.clone().count() == acquire.locks.size() {
            return held.all(|tenure| acquire.locks.contains(&tenure.lock));
        }
        // The end of a part of it is remembered like that of a whole tenure.
        held.all(|tenure| acquire.locks.contains(&tenure.lock))
            && self.record.recent.iter().any(|recent| recent.request == acquire.request)
    }

    fn same_claimant(&self, acquire: &Acquire, session: SessionId) -> bool {
        match &acquire.claimant {
            Claimant::Session(id) => session == *id,
            Claimant::Solo { name, .. } => {
                let found = self.sessions.get(session);
                session == SessionId(acquire.request.0)
                    && found.is_none_or(|session| session.name == *name)
            }
        }
    }

    /// Handles a repeated acquire that is still queued: extends its wait and renews its solo
    /// session.
    fn repeat_wait(&mut self, acquire: &Acquire, at: usize) -> Result<Outcome, Refusal> {
        let waiter = &self.record.queue[at];
        let session = waiter.session;
        let same = waiter.locks == acquire.locks
            && waiter.purpose == acquire.purpose
            && waiter.max_age_ms == acquire.max_age_ms;
        if !same || !self.same_claimant(acquire, session) {
            return Err(Refusal::RequestReused);
        }
        Self::check_acquire(acquire)?;
        let waiter = &mut self.record.queue[at];
        let until = self.now.plus(acquire.wait_ms);
        if until > waiter.until {
            waiter.until = until;
            self.unlogged = true;
        }
        if matches!(acquire.claimant, Claimant::Solo { .. }) {
            self.heartbeat(session);
        }
        Ok(self.waiting_outcome(at))
    }

    /// Resolves the session to acquire for. An existing one must be alive and act for the tenant; a
    /// solo session is built here and stored once it is granted or queued.
    fn resolve_claimant(&mut self, acquire: &Acquire) -> Result<Requester, Refusal> {
        match &acquire.claimant {
            Claimant::Session(id) => match self.sessions.check(*id, self.now) {
                Liveness::Alive(session) if session.acts_for(self.key.tenant()) => {
                    Ok(Requester::Existing(*id))
                }
                Liveness::Alive(_) => Err(Refusal::ForeignSession),
                Liveness::JustExpired => {
                    self.changes.sessions.push(*id);
                    Err(Refusal::SessionExpired)
                }
                Liveness::Ended(_) => Err(Refusal::SessionExpired),
            },
            Claimant::Solo { name, ttl_ms } => {
                let id = SessionId(acquire.request.0);
                if self.sessions.get(id).is_some() {
                    return Err(Refusal::RequestReused);
                }
                let tenant = self.key.tenant();
                let mut session = new_session(id, tenant, name, *ttl_ms, self.now)?;
                session.solo = true;
                Ok(Requester::NewSolo(session))
            }
        }
    }

    fn admit_session(&mut self, requester: Requester) -> SessionId {
        match requester {
            Requester::Existing(id) => id,
            Requester::NewSolo(session) => {
                let id = session.id;
                self.sessions.insert(session);
                self.changes.sessions.push(id);
                id
            }
        }
    }

    fn enqueue(&mut self, acquire: &Acquire, session: SessionId) {
        self.record.queue.push_back(Waiter {
            locks: acquire.locks.clone(),
            session,
            request: acquire.request,
            purpose: acquire.purpose.clone(),
            max_age_ms: acquire.max_age_ms,
            since: self.now,
            until: self.now.plus(acquire.wait_ms),
        });
        self.session_index.add(session, self.key);
        self.unlogged = true;
    }

    fn withdraw(&mut self, request: RequestId) -> Result<Outcome, Refusal> {
        if let Some(at) = self.record.queue.iter().position(|w| w.request == request) {
            self.drop_waiter(at, GAVE_UP);
            self.remember_withdrawn(request);
            self.promote_waiters();
            return Ok(Outcome::Withdrawn { released: None });
        }
        let tenure = self.record.tenures.iter().find(|tenure| tenure.request == request);
        match tenure.map(|tenure| (tenure.token, tenure.job)) {
            Some(_) if planted(Canary::WithdrawLeaks) => Ok(Outcome::Withdrawn { released: None }),
            Some((_, Some(job))) => Err(Refusal::TenureOfJob(job)),
            Some((token, None)) => {
                self.end_tenure(token, None, &TenureEnd::Released, None);
                self.promote_waiters();
                Ok(Outcome::Withdrawn { released: Some(token) })
            }
            None => {
                if !self.record.recent.iter().any(|recent| recent.request == request) {
                    self.remember_withdrawn(request);
                }
                Ok(Outcome::Withdrawn { released: None })
            }
        }
    }

    /// Remembers the request as withdrawn, so that a delayed copy of it is not granted.
    fn remember_withdrawn(&mut self, request: RequestId) {
        let (token, at) = (Token::default(), self.now);
        self.record.remember_request(RecentRequest { request, token, how: EndKind::Withdrawn, at });
        self.unlogged = true;
    }

    fn renew(&mut self, token: Token, ttl_ms: Option<u64>) -> Result<Outcome, Refusal> {
        let token = match self.record.tenures.first() {
            Some(current) if planted(Canary::RenewByName) => current.token,
            _ => token,
        };
        let Some(tenure) = self.record.tenures.iter().find(|tenure| tenure.token == token) else {
            return Err(self.refuse_stale(token, "renew"));
        };
        let id = tenure.session;
        let session = self.sessions.get(id).expect("settled: the session of a tenure is alive");
        if !session.solo && *session.tenant == *ALL_TENANTS {
            // This session also holds tenures of other tenants: knowing one of its tokens must not
            // suffice to keep it alive.
            let why =
                "the tenure belongs to a worker of all tenants; renew it by a session heartbeat";
            return Err(Refusal::Invalid(why.to_owned()));
        }
        if let Some(ttl_ms) = ttl_ms {
            self.change_ttl(id, ttl_ms)?;
        }
        self.heartbeat(id);
        Ok(Outcome::Renewed(self.tenure_view(token)))
    }

    fn change_ttl(&mut self, id: SessionId, ttl_ms: u64) -> Result<(), Refusal> {
        check_ttl(ttl_ms)?;
        let session = self.sessions.get_mut(id).expect("settled: the session of a tenure is alive");
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

    fn release(
        &mut self,
        token: Token,
        locks: Option<&LockSet>,
        to: Option<&Text>,
    ) -> Result<Outcome, Refusal> {
        let token = match self.record.tenures.first() {
            Some(current) if planted(Canary::ReleaseWithoutToken) => current.token,
            _ => token,
        };
        if planted(Canary::MissingOwnerIsMe) && self.record.tenures.is_empty() {
            return Ok(Outcome::Released { already: false });
        }
        if self.holds(token, locks) {
            if let Some(job) = self.job_of(token) {
                return Err(Refusal::TenureOfJob(job));
            }
            if let Some(to) = to {
                self.prefer_waiter(token, locks, to)?;
            }
            self.end_tenure(token, locks, &TenureEnd::Released, None);
            self.promote_waiters();
            return Ok(Outcome::Released { already: false });
        }
        match self.record.recent_end(token) {
            Some(recent) if recent.how == EndKind::Released => {
                Ok(Outcome::Released { already: true })
            }
            _ => Err(self.refuse_stale(token, "release")),
        }
    }

    /// Moves the waiter that `to` names to the front of the queue, so that it is granted the locks
    /// which the tenure is about to release. Refused if it could not be granted then.
    fn prefer_waiter(
        &mut self,
        token: Token,
        released: Option<&LockSet>,
        to: &Text,
    ) -> Result<(), Refusal> {
        let is_freed = |lock: &LockName| match self.record.tenure(lock) {
            Some(tenure) => {
                tenure.token == token && released.is_none_or(|released| released.contains(lock))
            }
            None => true,
        };
        let is_named = |id: SessionId| {
            let named = |session: &Session| session.name == *to;
            **to == *id.to_string() || self.sessions.get(id).is_some_and(named)
        };
        let can_take =
            |waiter: &Waiter| is_named(waiter.session) && waiter.locks.iter().all(is_freed);
        let Some(at) = self.record.queue.iter().position(can_take) else {
            return Err(Refusal::NotWaiting { to: to.clone() });
        };
        if at > 0 && !planted(Canary::TransferToNext) {
            let waiter = self.record.queue.remove(at).expect("found above");
            self.record.queue.push_front(waiter);
            self.unlogged = true;
        }
        Ok(())
    }

    /// Forgets the record: only the token floor of its kind remains.
    fn forget(&mut self, n: u64) -> Result<Outcome, Refusal> {
        let is_recent = |recent: &RecentRequest| self.now.since(recent.at) <= limits::RECENT_TTL_MS;
        let record = &self.record;
        // Events of this batch are not part of the chain yet.
        let has_new_events = || self.changes.events.iter().any(|(key, _, _)| key == self.key);
        if record.chain.n != n
            || has_new_events()
            || record.resource.is_some()
            || record.is_live()
            || record.recent.iter().any(is_recent)
            || record.recent_answers.any_fresh(self.now)
        {
            return Err(Refusal::InUse { job: None });
        }
        self.floors.raise(self.key, record.token);
        self.changes.forgotten.push((self.key.clone(), record.token));
        self.forgotten = true;
        Ok(Outcome::Forgotten)
    }

    fn break_tenure(
        &mut self,
        token: Token,
        locks: Option<&LockSet>,
        by: &Text,
        reason: &Text,
        end_job: bool,
    ) -> Result<Outcome, Refusal> {
        check_text("reason", reason, limits::REASON_BYTES_MAX)?;
        if reason.trim().is_empty() {
            return Err(Refusal::Invalid("a break needs a reason".to_owned()));
        }
        if self.holds(token, locks) {
            self.notify_holder(token, false);
            let job = self.job_of(token).filter(|_| end_job);
            // The holder is notified that the tenure is gone, so all of its locks end.
            self.lose_tenure(token, &TenureEnd::Broken { by: by.clone(), reason: reason.clone() });
            if let Some(job) = job {
                let (by, reason) = (by.clone(), reason.clone());
                self.request_cancel(job, RequestedBy { by, reason, at: self.now });
            }
            self.promote_waiters();
            return Ok(Outcome::Broken);
        }
        if self.record.recent_end(token).is_some_and(|recent| recent.how == EndKind::Broken) {
            return Ok(Outcome::Broken);
        }
        if self.holds(token, None) {
            return Err(locks_not_held(token));
        }
        let current = match locks {
            Some(locks) => self.first_holder(locks),
            None => self.record.tenures.first().map(|t| t.token).map(|t| self.tenure_view(t)),
        };
        Err(Refusal::NotCurrent { current })
    }

    /// Returns `true` if `token` holds all of `locks`, or any lock if `None`.
    fn holds(&self, token: Token, locks: Option<&LockSet>) -> bool {
        let holds_lock =
            |lock: &LockName| self.record.tenure(lock).is_some_and(|t| t.token == token);
        match locks {
            Some(locks) => locks.iter().all(holds_lock),
            None => self.record.tenures.iter().any(|tenure| tenure.token == token),
        }
    }

    /// Returns the refusal for a stale token. History records the first such write per token.
    pub(crate) fn refuse_stale(&mut self, token: Token, verb: &str) -> Refusal {
        let issued = token > Token::default() && token <= self.record.token;
        // A current token that names locks it does not hold is a mistake, but not stale.
        let stale = issued && !self.holds(token, None);
        if stale {
            self.changes.metric_events.push(MetricEvent::Fenced);
        }
        if stale && self.record.fenced != token {
            self.append_event(Event::Fenced { token, verb: verb.into() });
        }
        let how = self.record.recent_end(token).map(|recent| recent.how);
        let current = self.record.tenures.first().map(|tenure| tenure.token);
        Refusal::Lost { token, how, current: current.map(|token| self.tenure_view(token)) }
    }

    fn granted_outcome(&self, token: Token) -> Outcome {
        Outcome::Granted(self.tenure_view(token))
    }

    fn held_refusal(&self, locks: &LockSet) -> Refusal {
        Refusal::Held { by: self.first_holder(locks), queue_length: self.record.queue.len() }
    }

    fn waiting_outcome(&self, at: usize) -> Outcome {
        Outcome::Waiting {
            position: at + 1,
            queue_length: self.record.queue.len(),
            held_by: self.first_holder(&self.record.queue[at].locks),
        }
    }

    /// Returns the first tenure that holds one of `locks`.
    pub(crate) fn first_holder(&self, locks: &LockSet) -> Option<TenureView> {
        let tenure = locks.iter().find_map(|lock| self.record.tenure(lock))?;
        Some(self.tenure_view(tenure.token))
    }
}

fn locks_not_held(token: Token) -> Refusal {
    Refusal::Invalid(format!("the tenure with token {token} does not hold all of these locks"))
}
