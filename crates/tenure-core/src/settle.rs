//! Settling a record, and the two writes that every change comes down to: a tenure begins, a tenure
//! ends.
//!
//! Here a lapsed session is ended in the very step that relies on it, and whoever is next in the
//! queue gets what became free in the same step. Who may ask for what is in [`crate::lock`].

use crate::canary::{Canary, planted};
use crate::history::Event;
use crate::id::{RequestId, SessionId};
use crate::key::{LockName, LockSet, Text};
use crate::lock::Turn;
use crate::outcome::TenureView;
use crate::record::{How, Recent, Tenure};
use crate::session::{Over, Standing};
use crate::token::Token;

impl Turn<'_> {
    /// Ends what dead sessions hold, drops who waits no more, hands over what became free.
    pub(crate) fn settle(&mut self) -> usize {
        let mut ended = 0;
        while let Some((token, how)) = self.first_dead() {
            self.end(token, None, &how);
            ended += 1;
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
                self.drop_waiter(at);
            } else {
                at += 1;
            }
        }
    }

    pub(crate) fn drop_waiter(&mut self, at: usize) {
        let waiter = self.record.queue.remove(at).expect("the place is within the queue");
        self.bond(waiter.session, false);
        self.dismiss(waiter.session);
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
            self.bond(waiter.session, false);
            let waited_ms = self.now.since(waiter.since);
            let (session, request) = (waiter.session, waiter.request);
            let view = self.grant(locks, session, request, &waiter.purpose, waited_ms);
            self.changes.granted.push(view);
        }
    }

    /// Whether locks are free and nobody in the queue wants them.
    pub(crate) fn obtainable(&self, locks: &LockSet) -> bool {
        let wanted = |lock: &LockName| self.record.queue.iter().any(|w| w.locks.contains(lock));
        let wanted = |lock: &LockName| !planted(Canary::WideStarves) && wanted(lock);
        let free = |lock: &LockName| self.record.tenure(lock).is_none() && !wanted(lock);
        if planted(Canary::SetTakenInPart) {
            return locks.iter().any(free);
        }
        locks.iter().all(free)
    }

    pub(crate) fn grant(
        &mut self,
        locks: LockSet,
        session: SessionId,
        request: RequestId,
        purpose: &Option<Text>,
        waited_ms: u64,
    ) -> TenureView {
        let last = if planted(Canary::TokenStartsAgain) && self.record.tenures.is_empty() {
            Token::default()
        } else {
            self.record.token
        };
        let token = last.next(self.incarnation);
        self.record.token = token;
        // Nearly every record has one tenure at most: no room is kept for more.
        self.record.tenures.reserve_exact(locks.size());
        for lock in &locks {
            let (lock, purpose) = (lock.clone(), purpose.clone());
            let since = self.now;
            self.record.tenures.push(Tenure { lock, token, session, request, purpose, since });
        }
        self.bond(session, true);
        let holder = self.begin(session);
        let purpose = purpose.clone();
        self.emit(Event::Granted { locks, token, session, holder, purpose, request, waited_ms });
        self.view_of(token)
    }

    /// A session of its own counts its time from the grant. Gives the name of the session.
    pub(crate) fn begin(&mut self, id: SessionId) -> Text {
        let Some(session) = self.sessions.get_mut(id) else { return "".into() };
        if session.solo {
            session.extend(self.now);
            self.changes.beats.push(id);
        }
        session.name.clone()
    }

    pub(crate) fn end(&mut self, token: Token, locks: Option<&LockSet>, how: &How) {
        let named = |lock: &LockName| locks.is_none_or(|locks| locks.contains(lock));
        let gone: Vec<Tenure> = self
            .record
            .tenures
            .extract_if(.., |tenure| tenure.token == token && named(&tenure.lock))
            .collect();
        let first = gone.first().expect("only a present tenure is ended");
        let (session, request) = (first.session, first.request);
        let names = gone.iter().map(|tenure| tenure.lock.clone()).collect();
        let locks = LockSet::new(names).expect("a grant has at least one lock and not too many");
        let at = self.now;
        self.record.remember(Recent { request, token, how: how.ending(), at });
        self.emit(Event::Ended { locks, token, how: how.clone() });
        if self.record.tenures.iter().all(|tenure| tenure.token != token) {
            self.bond(session, false);
            self.dismiss(session);
        }
    }
}
