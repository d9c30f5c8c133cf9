//! Settling a record, and the two writes that every change comes down to: a tenure begins, a tenure
//! ends.
//!
//! Here a lapsed session is ended in the very step that relies on it, and whoever is next in the
//! queue gets what became free in the same step. Who may ask for what is in [`crate::lock`].

use crate::canary::{Canary, planted};
use crate::fact::{Fact, GAVE_UP};
use crate::history::Event;
use crate::id::{RequestId, SessionId};
use crate::job::{Begun, Ran};
use crate::key::{LockName, LockSet, Text};
use crate::outcome::TenureView;
use crate::record::{How, Tenure, Waiter};
use crate::session::{Over, Standing};
use crate::token::Token;
use crate::turn::Turn;

impl Turn<'_> {
    /// Ends what dead sessions hold, drops who waits no more, hands over what became free.
    pub(crate) fn settle(&mut self) -> usize {
        let mut ended = 0;
        while let Some((token, how)) = self.first_dead() {
            self.lose(token, &how);
            ended += 1;
        }
        if self.record.resource.is_some() {
            ended += self.mend();
        }
        self.drop_dead_waiters();
        if !self.record.queue.is_empty() {
            self.promote();
        }
        ended
    }

    pub(crate) fn first_dead(&mut self) -> Option<(Token, How)> {
        for at in 0..self.record.tenures.len() {
            let (id, token) = (self.record.tenures[at].session, self.record.tenures[at].token);
            if let Some(over) = self.over(id) {
                let how = if over == Over::Closed { How::Closed } else { How::Expired };
                return Some((token, how));
            }
        }
        None
    }

    /// How a session is over, ending it here and now when it has lapsed.
    pub(crate) fn over(&mut self, id: SessionId) -> Option<Over> {
        match self.sessions.check(id, self.now) {
            Standing::Alive(_) => None,
            Standing::JustLapsed => {
                self.changes.sessions.push(id);
                Some(Over::Lapsed)
            }
            Standing::Over(over) => Some(over),
        }
    }

    pub(crate) fn drop_dead_waiters(&mut self) {
        let mut at = 0;
        while at < self.record.queue.len() {
            let (id, until) = (self.record.queue[at].session, self.record.queue[at].until);
            let dead = !planted(Canary::DeadWaiterGranted) && self.over(id).is_some();
            if dead || until <= self.now {
                self.drop_waiter(at, if dead { SESSION_OVER } else { GAVE_UP });
            } else {
                at += 1;
            }
        }
    }

    /// A request leaves the queue with nothing.
    pub(crate) fn drop_waiter(&mut self, at: usize, reason: &'static str) {
        let waiter = self.record.queue.remove(at).expect("the place is within the queue");
        self.bonds.remove(waiter.session, self.key);
        self.dismiss(waiter.session);
        self.changes.facts.push(Fact::Failed { key: self.key.clone(), reason });
        self.untold = true;
    }

    /// Grants, in the order of the queue, everything that can be had now.
    pub(crate) fn promote(&mut self) {
        if planted(Canary::ReleaseWakesNobody) {
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
            let waiter = self.record.queue.remove(at).expect("the place is within the queue");
            self.untold = true;
            self.bonds.remove(waiter.session, self.key);
            let waited_ms = self.now.since(waiter.since);
            let Waiter { session, request, purpose, .. } = waiter;
            let view = self.grant(Wish { locks, session, request, purpose, waited_ms }, None);
            self.changes.granted.push(view);
        }
    }

    /// A tenure begins.
    pub(crate) fn grant(&mut self, wish: Wish, job: Option<Box<Begun>>) -> TenureView {
        let last = if planted(Canary::TokenStartsAgain) && self.record.tenures.is_empty() {
            Token::default()
        } else {
            self.record.token
        };
        let token = last.next(self.incarnation);
        let Wish { locks, session, request, purpose, waited_ms } = wish;
        self.bonds.add(session, self.key);
        self.changes.facts.push(Fact::Granted { key: self.key.clone(), waited_ms });
        let holder = self.begin(session);
        self.tell(Event::Granted {
            locks,
            token,
            session,
            holder,
            purpose,
            request,
            waited_ms,
            job,
        });
        self.view_of(token)
    }

    /// A session of its own counts its time from the grant. Gives the name of the session.
    fn begin(&mut self, id: SessionId) -> Text {
        let Some(session) = self.sessions.get_mut(id) else { return "".into() };
        if session.solo {
            session.extend(self.now);
            self.changes.beats.push(id);
        }
        session.name.clone()
    }

    /// A tenure ends against its holder's will; so does the attempt of its job.
    pub(crate) fn lose(&mut self, token: Token, how: &How) {
        let ran = self.job_of(token).and_then(|job| self.lost_attempt(job, token, how));
        self.end(token, None, how, ran);
    }

    /// A tenure ends, or some of its locks.
    pub(crate) fn end(
        &mut self,
        token: Token,
        locks: Option<&LockSet>,
        how: &How,
        job: Option<Box<Ran>>,
    ) {
        let named = |lock: &LockName| locks.is_none_or(|locks| locks.contains(lock));
        let gone = |tenure: &&Tenure| tenure.token == token && named(&tenure.lock);
        let gone: Vec<&Tenure> = self.record.tenures.iter().filter(gone).collect();
        let first = *gone.first().expect("only a present tenure is ended");
        let (session, since) = (first.session, first.since);
        let names = gone.iter().map(|tenure| tenure.lock.clone()).collect();
        let locks = LockSet::new(names).expect("a grant has at least one lock and not too many");
        let again = job.as_ref().is_some_and(|ran| self.may_have_changed(ran));
        let operation = job.as_ref().and_then(|ran| self.tried(ran));
        if let Some(ran) = &job {
            self.close_attempt(ran, session, token);
        }
        self.tell(Event::Ended { locks, token, how: how.clone(), job });
        if again {
            self.reconcile();
        }
        if self.record.tenures.iter().all(|tenure| tenure.token != token) {
            let (key, held_ms) = (self.key.clone(), self.now.since(since));
            self.changes.facts.push(Fact::Ended { key, operation, held_ms, how: how.ending() });
            self.bonds.remove(session, self.key);
            self.dismiss(session);
        }
    }

    /// Notes what an attempt came to. Gives its operation.
    fn tried(&mut self, ran: &Ran) -> Option<Text> {
        let operation = self.record.job(ran.id)?.operation.clone();
        self.changes.facts.push(Fact::Tried {
            key: self.key.clone(),
            operation: operation.clone(),
            outcome: ran.outcome,
            code: ran.error.as_ref().map(|error| error.code.clone()),
        });
        Some(operation)
    }
}

/// Why a request of a dead session went away: the reason of the refusal that it would meet.
const SESSION_OVER: &str = "session_over";

/// What a tenure is to be.
pub(crate) struct Wish {
    pub(crate) locks: LockSet,
    pub(crate) session: SessionId,
    pub(crate) request: RequestId,
    pub(crate) purpose: Option<Text>,
    pub(crate) waited_ms: u64,
}
