//! Settling a record, and the two writes behind most changes: granting and ending a tenure.
//!
//! An expired session is ended in the step that relies on it, and freed locks are granted to the
//! next waiter in the same step. [`crate::lock`] decides who may request what.

use crate::canary::{Canary, planted};
use crate::history::Event;
use crate::id::{JobId, RequestId, SessionId};
use crate::job::{CompletedAttempt, Failure, Job, StartedAttempt};
use crate::key::{LockName, LockSet, Text};
use crate::lane::start_by;
use crate::metric_event::{GAVE_UP, MetricEvent};
use crate::outcome::TenureView;
use crate::record::{Tenure, TenureEnd, Waiter};
use crate::retry::NOT_STARTED;
use crate::session::{Liveness, SessionEnd};
use crate::step_context::StepContext;
use crate::token::Token;
use crate::why::HumanDuration;

impl StepContext<'_> {
    /// Ends tenures of ended sessions, drops expired waiters and grants free locks to the next
    /// ones. Returns the number of tenures that ended.
    pub(crate) fn settle(&mut self) -> usize {
        let mut ended = 0;
        while let Some((token, how)) = self.first_expired_tenure() {
            self.lose_tenure(token, &how);
            ended += 1;
        }
        if self.record.resource.is_some() {
            ended += self.repair();
            self.fail_unstarted();
            self.fire_timers();
        }
        self.drop_expired_waiters();
        if !self.record.queue.is_empty() {
            self.promote_waiters();
        }
        ended
    }

    /// Fails jobs that have not started by their deadline.
    fn fail_unstarted(&mut self) {
        let Some(kind) = self.kind().filter(|_| !planted(Canary::StartDeadlineIgnored)) else {
            return;
        };
        if self.record.next_start_deadline(kind).is_none_or(|deadline| deadline > self.now) {
            return;
        }
        let missed = |job: &&Job| start_by(job, kind).is_some_and(|by| by <= self.now);
        let lane = self.record.lane().iter().map(|job| &**job);
        let missed: Vec<(JobId, Text)> =
            lane.filter(missed).map(|job| (job.id, job.operation.clone())).collect();
        for (id, operation) in missed {
            let limit_ms = kind.operations.get(&operation).and_then(|o| o.start_deadline_ms);
            let limit = HumanDuration(limit_ms.unwrap_or(0));
            let message = format!("{operation} had not started after {limit}").into();
            let error = Failure { code: NOT_STARTED.into(), message };
            self.append_event(Event::NotStarted { id, error });
            let key = self.key.clone();
            self.changes.metric_events.push(MetricEvent::NotStarted { key, operation });
        }
    }

    pub(crate) fn first_expired_tenure(&mut self) -> Option<(Token, TenureEnd)> {
        for at in 0..self.record.tenures.len() {
            let (id, token) = (self.record.tenures[at].session, self.record.tenures[at].token);
            if let Some(end) = self.session_end(id) {
                let how =
                    if end == SessionEnd::Closed { TenureEnd::Closed } else { TenureEnd::Expired };
                return Some((token, how));
            }
        }
        None
    }

    /// Returns how a session ended, ending it now if it has expired.
    pub(crate) fn session_end(&mut self, id: SessionId) -> Option<SessionEnd> {
        match self.sessions.check(id, self.now) {
            Liveness::Alive(_) => None,
            Liveness::JustExpired => {
                self.changes.sessions.push(id);
                Some(SessionEnd::Expired)
            }
            Liveness::Ended(end) => Some(end),
        }
    }

    pub(crate) fn drop_expired_waiters(&mut self) {
        let mut at = 0;
        while at < self.record.queue.len() {
            let (id, until) = (self.record.queue[at].session, self.record.queue[at].until);
            let expired = !planted(Canary::DeadWaiterGranted) && self.session_end(id).is_some();
            if expired || until <= self.now {
                self.drop_waiter(at, if expired { SESSION_EXPIRED } else { GAVE_UP });
            } else {
                at += 1;
            }
        }
    }

    /// Removes a waiter without granting it.
    pub(crate) fn drop_waiter(&mut self, at: usize, reason: &'static str) {
        let waiter = self.record.queue.remove(at).expect("the index is within the queue");
        self.session_index.remove(waiter.session, self.key);
        self.remove_solo_session(waiter.session);
        self.changes
            .metric_events
            .push(MetricEvent::AcquireFailed { key: self.key.clone(), reason });
        self.unlogged = true;
    }

    /// Grants, in queue order, every request that can be granted now.
    pub(crate) fn promote_waiters(&mut self) {
        if planted(Canary::ReleaseWakesNoWaiter) {
            return;
        }
        let mut reserved: Vec<LockName> = Vec::new();
        let mut at = 0;
        while at < self.record.queue.len() {
            let locks = self.record.queue[at].locks.clone();
            let held = |lock: &LockName| self.record.tenure(lock).is_some();
            if locks.iter().any(|lock| reserved.contains(lock) || held(lock)) {
                if !planted(Canary::WideStarves) {
                    reserved.extend(locks.iter().cloned());
                }
                at += 1;
                continue;
            }
            let waiter = self.record.queue.remove(at).expect("the index is within the queue");
            self.unlogged = true;
            self.session_index.remove(waiter.session, self.key);
            let waited_ms = self.now.since(waiter.since);
            let Waiter { session, request, purpose, max_age_ms, .. } = waiter;
            let grant = GrantRequest { locks, session, request, purpose, max_age_ms, waited_ms };
            let view = self.grant(grant, None);
            self.changes.granted.push(view);
        }
    }

    /// Grants a tenure.
    pub(crate) fn grant(
        &mut self,
        request: GrantRequest,
        job: Option<Box<StartedAttempt>>,
    ) -> TenureView {
        let last = if planted(Canary::TokenStartsAgain) && self.record.tenures.is_empty() {
            Token::default()
        } else {
            self.record.token
        };
        let token = last.next(self.incarnation);
        let GrantRequest { locks, session, request, purpose, max_age_ms, waited_ms } = request;
        self.session_index.add(session, self.key);
        self.changes.metric_events.push(MetricEvent::Granted { key: self.key.clone(), waited_ms });
        let holder = self.start_session_clock(session);
        self.append_event(Event::Granted {
            locks,
            token,
            session,
            holder,
            purpose,
            max_age_ms,
            request,
            waited_ms,
            job,
        });
        self.tenure_view(token)
    }

    /// Starts the clock of a solo session at the grant, and adds the stale margin of the kind.
    /// Returns the name of the session.
    fn start_session_clock(&mut self, id: SessionId) -> Text {
        let kind = self.kind().filter(|_| !planted(Canary::MarginIgnored));
        let margin_ms = kind.map_or(0, |kind| kind.stale_margin_ms);
        let Some(session) = self.sessions.get_mut(id) else { return "".into() };
        if session.margin_ms < margin_ms {
            session.expires_at = session.expires_at.plus(margin_ms - session.margin_ms);
            session.margin_ms = margin_ms;
            self.changes.sessions.push(id);
        }
        if session.solo {
            session.extend(self.now);
            self.changes.heartbeats.push(id);
        }
        session.name.clone()
    }

    /// Ends a tenure against the will of its holder, and the attempt of its job with it.
    pub(crate) fn lose_tenure(&mut self, token: Token, how: &TenureEnd) {
        let completed = self.job_of(token).and_then(|job| self.lost_attempt(job, token, how));
        self.end_tenure(token, None, how, completed);
    }

    /// Ends a tenure, or some of its locks.
    pub(crate) fn end_tenure(
        &mut self,
        token: Token,
        locks: Option<&LockSet>,
        how: &TenureEnd,
        job: Option<Box<CompletedAttempt>>,
    ) {
        let named = |lock: &LockName| locks.is_none_or(|locks| locks.contains(lock));
        let ended = |tenure: &&Tenure| tenure.token == token && named(&tenure.lock);
        let ended: Vec<&Tenure> = self.record.tenures.iter().filter(ended).collect();
        let first = *ended.first().expect("only current tenures are ended");
        let (session, since) = (first.session, first.since);
        let names = ended.iter().map(|tenure| tenure.lock.clone()).collect();
        let locks = LockSet::new(names).expect("a grant has at least one lock and not too many");
        let reconcile = job.as_ref().is_some_and(|completed| self.needs_reconcile(completed));
        let operation = job.as_ref().and_then(|completed| self.count_attempt(completed));
        if let Some(completed) = &job {
            self.update_worker_session(completed, session, token);
        }
        self.append_event(Event::Ended { locks, token, how: how.clone(), job });
        if reconcile {
            self.reconcile();
        }
        if self.record.tenures.iter().all(|tenure| tenure.token != token) {
            let (key, held_ms) = (self.key.clone(), self.now.since(since));
            self.changes.metric_events.push(MetricEvent::TenureEnded {
                key,
                operation,
                held_ms,
                how: how.kind(),
            });
            self.session_index.remove(session, self.key);
            self.remove_solo_session(session);
        }
    }

    /// Emits the metric event of an ended attempt. Returns its operation.
    fn count_attempt(&mut self, completed: &CompletedAttempt) -> Option<Text> {
        let operation = self.record.job(completed.id)?.operation.clone();
        self.changes.metric_events.push(MetricEvent::AttemptEnded {
            key: self.key.clone(),
            operation: operation.clone(),
            outcome: completed.outcome,
            code: completed.error.as_ref().map(|error| error.code.clone()),
        });
        Some(operation)
    }
}

/// Failure reason of a waiter whose session ended; equals [`crate::Refusal::reason`] of that
/// refusal.
const SESSION_EXPIRED: &str = "session_over";

/// A tenure to be granted.
pub(crate) struct GrantRequest {
    pub(crate) locks: LockSet,
    pub(crate) session: SessionId,
    pub(crate) request: RequestId,
    pub(crate) purpose: Option<Text>,
    pub(crate) max_age_ms: Option<u64>,
    pub(crate) waited_ms: u64,
}
