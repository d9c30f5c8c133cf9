//! The context of one command on one record, with the operations that all rules share.
//!
//! The rules are in [`crate::lock`] and [`crate::settle`] for locks, and in [`crate::submit`],
//! [`crate::attempt`] and [`crate::manage`] for jobs.

use std::collections::BTreeMap;

use crate::history::Event;
use crate::id::{JobId, SessionId};
use crate::job::Job;
use crate::key::ResourceKey;
use crate::kind::{Kind, Kinds, Operation};
use crate::outcome::TenureView;
use crate::record::Record;
use crate::session::{SessionIndex, Sessions};
use crate::time::Millis;
use crate::token::{Incarnation, Token};
use crate::token_floors::TokenFloors;
use crate::world::Changes;

/// The context of one command on one record.
pub(crate) struct StepContext<'a> {
    pub(crate) key: &'a ResourceKey,
    pub(crate) record: &'a mut Record,
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) session_index: &'a mut SessionIndex,
    pub(crate) changes: &'a mut Changes,
    pub(crate) kinds: &'a Kinds,
    /// Resource of each unfinished job.
    pub(crate) job_index: &'a mut BTreeMap<JobId, ResourceKey>,
    pub(crate) floors: &'a mut TokenFloors,
    pub(crate) incarnation: Incarnation,
    pub(crate) now: Millis,
    /// Whether the record changed.
    pub(crate) changed: bool,
    /// Whether the record is forgotten.
    pub(crate) forgotten: bool,
    /// Whether the record changed in a way that no event describes.
    pub(crate) unlogged: bool,
}

impl<'a> StepContext<'a> {
    /// Applies an event to the record and appends it to history.
    pub(crate) fn append_event(&mut self, event: Event) {
        if let Event::Submitted { job, .. } = &event {
            self.job_index.insert(job.id, self.key.clone());
        }
        if let Some(job) = self.record.apply(&event, self.now) {
            self.retire_job(job);
        }
        self.changes.events.push((self.key.clone(), self.now, event));
        self.changed = true;
    }

    /// Moves a finished job out of the record.
    pub(crate) fn retire_job(&mut self, job: Box<Job>) {
        self.job_index.remove(&job.id);
        self.changes.finished.push((self.key.clone(), job));
    }

    /// Returns the kind of the resource, if it is declared.
    pub(crate) fn kind(&self) -> Option<&'a Kind> {
        self.kinds.get(self.key.kind()).map(|kind| &**kind)
    }

    /// Returns an operation of the resource's kind, if it is declared.
    pub(crate) fn operation(&self, name: &str) -> Option<&'a Operation> {
        self.kind()?.operations.get(name)
    }

    /// Queues a notice for the next heartbeat of the holder: the tenure was taken away or, with
    /// `cancel`, its job is requested to stop.
    pub(crate) fn notify_holder(&mut self, token: Token, cancel: bool) {
        let Some(tenure) = self.record.tenures.iter().find(|t| t.token == token) else { return };
        let id = tenure.session;
        if let Some(session) = self.sessions.get_mut(id) {
            session.revoke(self.key.clone(), token, cancel);
            self.changes.sessions.push(id);
            self.changes.notified.push(id);
        }
    }

    /// Returns the job that a tenure belongs to.
    pub(crate) fn job_of(&self, token: Token) -> Option<JobId> {
        self.record.tenures.iter().find(|tenure| tenure.token == token)?.job
    }

    /// Removes a solo session that holds nothing any more.
    pub(crate) fn remove_solo_session(&mut self, id: SessionId) {
        if self.sessions.get(id).is_some_and(|session| session.solo) {
            self.sessions.remove(id);
            self.changes.sessions.push(id);
        }
    }

    pub(crate) fn heartbeat(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.extend(self.now);
            self.changes.heartbeats.push(id);
        }
    }

    pub(crate) fn tenure_view(&self, token: Token) -> TenureView {
        self.record
            .view(self.key, token, self.sessions, self.kinds, self.now)
            .expect("only current tenures are viewed")
    }
}
