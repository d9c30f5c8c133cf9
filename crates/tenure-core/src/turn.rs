//! One command's turn at one record: what it sees, and the few writes that all rules share.
//!
//! The rules themselves are in [`crate::lock`] and [`crate::settle`] for locks, [`crate::submit`],
//! [`crate::attempt`] and [`crate::manage`] for jobs.

use std::collections::BTreeMap;

use crate::history::Event;
use crate::id::{JobId, SessionId};
use crate::job::Job;
use crate::key::ResourceKey;
use crate::kind::{Kind, Kinds, Operation};
use crate::outcome::TenureView;
use crate::record::Record;
use crate::session::{Bonds, Sessions};
use crate::time::Millis;
use crate::token::{Incarnation, Token};
use crate::world::Changes;

/// One command's turn at one record.
pub(crate) struct Turn<'a> {
    pub(crate) key: &'a ResourceKey,
    pub(crate) record: &'a mut Record,
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) bonds: &'a mut Bonds,
    pub(crate) changes: &'a mut Changes,
    pub(crate) kinds: &'a Kinds,
    /// Which resources the jobs that are not over belong to.
    pub(crate) whereabouts: &'a mut BTreeMap<JobId, ResourceKey>,
    pub(crate) incarnation: Incarnation,
    pub(crate) now: Millis,
    /// Whether the record changed.
    pub(crate) changed: bool,
    /// Whether it changed in a way that its history does not tell.
    pub(crate) untold: bool,
}

impl<'a> Turn<'a> {
    /// Makes a change and notes it in history.
    pub(crate) fn tell(&mut self, event: Event) {
        if let Event::Submitted { job, .. } = &event {
            self.whereabouts.insert(job.id, self.key.clone());
        }
        if let Some(job) = self.record.apply(&event, self.now) {
            self.part_with(job);
        }
        self.changes.events.push((self.key.clone(), self.now, event));
        self.changed = true;
    }

    /// A job is over and is kept elsewhere from now on.
    pub(crate) fn part_with(&mut self, job: Box<Job>) {
        self.whereabouts.remove(&job.id);
        self.changes.finished.push((self.key.clone(), job));
    }

    /// The kind of the resource, if it is declared.
    pub(crate) fn kind(&self) -> Option<&'a Kind> {
        self.kinds.get(self.key.kind()).map(|kind| &**kind)
    }

    /// An operation of the resource, if it is declared.
    pub(crate) fn operation(&self, name: &str) -> Option<&'a Operation> {
        self.kind()?.operations.get(name)
    }

    /// Tells the session behind a tenure, at its next heartbeat, that it was taken away, or that
    /// its job is asked to stop.
    pub(crate) fn notify(&mut self, token: Token, cancel: bool) {
        let Some(tenure) = self.record.tenures.iter().find(|t| t.token == token) else { return };
        let id = tenure.session;
        if let Some(session) = self.sessions.get_mut(id) {
            session.revoke(self.key.clone(), token, cancel);
            self.changes.sessions.push(id);
            self.changes.notified.push(id);
        }
    }

    /// The job that a tenure belongs to.
    pub(crate) fn job_of(&self, token: Token) -> Option<JobId> {
        self.record.tenures.iter().find(|tenure| tenure.token == token)?.job
    }

    /// Removes a session that was made for one acquire and has nothing left.
    pub(crate) fn dismiss(&mut self, id: SessionId) {
        if self.sessions.get(id).is_some_and(|session| session.solo) {
            self.sessions.remove(id);
            self.changes.sessions.push(id);
        }
    }

    pub(crate) fn beat(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.extend(self.now);
            self.changes.beats.push(id);
        }
    }

    pub(crate) fn view_of(&self, token: Token) -> TenureView {
        self.record
            .view(self.key, token, self.sessions, self.now)
            .expect("only a present tenure is looked at")
    }
}
