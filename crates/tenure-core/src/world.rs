//! The rows at hand, and what a batch of steps has changed in them.
//!
//! A store fills a world with the rows that a batch needs (or keeps all live ones in it), lets
//! [`crate::step`] loose on it, and takes the [`Changes`] to write them down.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fact::Fact;
use crate::history::{Event, Sealed};
use crate::id::{JobId, SessionId};
use crate::job::Job;
use crate::key::{ResourceKey, Text};
use crate::kind::Kinds;
use crate::map::Map;
use crate::outcome::TenureView;
use crate::ready::Ready;
use crate::record::Record;
use crate::session::{Bonds, Sessions};
use crate::time::Millis;
use crate::token::Incarnation;

/// The rows that steps read and write.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The life of the store between two restores.
    pub incarnation: Incarnation,
    /// The session rows.
    pub sessions: Sessions,
    /// The resource records. One that is missing here is new: a store loads before it steps.
    pub records: Map<ResourceKey, Box<Record>>,
    /// What the sessions hold or want, as the records at hand say.
    pub bonds: Bonds,
    /// The resources of the jobs at hand that are not over.
    pub whereabouts: BTreeMap<JobId, ResourceKey>,
    /// Jobs that are over and that a command of this batch names: a store loads them before.
    pub past: Map<JobId, (ResourceKey, Box<Job>)>,
    /// The resources at hand that are ready to be worked.
    pub ready: Ready,
    /// What resources can be, and what can be done to them.
    pub kinds: Arc<Kinds>,
    /// What steps have changed since the store last took it.
    pub changes: Changes,
}

/// What must be written down, and who should look again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Records that changed; one may be named more than once.
    pub records: Vec<ResourceKey>,
    /// Those of them that changed in a way that the events do not tell; likewise.
    pub untold: Vec<ResourceKey>,
    /// Records of which only how far an attempt has come changed: whoever keeps them in memory has
    /// nothing to write.
    pub moved: Vec<ResourceKey>,
    /// Sessions whose row changed or is gone; one may be named more than once.
    pub sessions: Vec<SessionId>,
    /// Sessions of which only the time to live was renewed, or that asked for jobs: likewise.
    pub beats: Vec<SessionId>,
    /// What happened, in order.
    pub events: Vec<(ResourceKey, Millis, Event)>,
    /// What requests were granted when they left the queue: their clients should be told.
    pub granted: Vec<TenureView>,
    /// Jobs that are over, or that somebody dealt with after they were.
    pub finished: Vec<(ResourceKey, Box<Job>)>,
    /// Pieces of logs to append.
    pub logs: Vec<LogPiece>,
    /// Resources that became ready: workers should ask again.
    pub ready: Vec<ResourceKey>,
    /// Sessions that a heartbeat would tell something.
    pub notified: Vec<SessionId>,
    /// What to count.
    pub facts: Vec<Fact>,
}

/// A piece of the log of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// The job.
    pub job: JobId,
    /// The number of the attempt.
    pub attempt: u32,
    /// When it was written.
    pub at: Millis,
    /// Whole lines.
    pub text: Text,
}

impl World {
    /// Puts in the record of a resource that was kept elsewhere, or changed elsewhere. Says whether
    /// the resource became ready by that.
    pub fn admit(&mut self, key: &ResourceKey, record: Box<Record>, now: Millis) -> bool {
        self.take(key);
        for session in record.sessions() {
            self.bonds.add(session, key);
        }
        for job in record.lane() {
            self.whereabouts.insert(job.id, key.clone());
        }
        let ready = self.ready.note(key, &record, &self.kinds, now);
        self.records.insert(key.clone(), record);
        ready
    }

    /// Takes out the record of a resource, to be [put in](Self::admit) again after a change.
    pub fn take(&mut self, key: &ResourceKey) -> Option<Box<Record>> {
        let record = self.records.remove(key)?;
        for session in record.sessions() {
            self.bonds.remove(session, key);
        }
        for job in record.lane() {
            self.whereabouts.remove(&job.id);
        }
        Some(record)
    }

    /// Says what resources can be from now on.
    pub fn declare(&mut self, kinds: Arc<Kinds>, now: Millis) {
        self.kinds = kinds;
        for (key, record) in &self.records {
            if self.ready.note(key, record, &self.kinds, now) {
                self.changes.ready.push(key.clone());
            }
        }
    }

    /// Sees to it that nothing starts on a resource and nothing comes due there by itself, until it
    /// is [shown](Self::show) again.
    pub fn hide(&mut self, key: &ResourceKey) {
        self.ready.hide(key);
    }

    /// Looks at a resource again that was hidden.
    pub fn show(&mut self, key: &ResourceKey, now: Millis) {
        if let Some(record) = self.records.get(key) {
            self.ready.note(key, record, &self.kinds, now);
        }
    }

    /// Takes what has changed, leaving nothing noted.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Chains events to the history of their resources.
    pub fn seal(
        &mut self,
        events: Vec<(ResourceKey, Millis, Event)>,
    ) -> Vec<(ResourceKey, Sealed)> {
        let mut room = Vec::new();
        let seal = |(key, at, event): (ResourceKey, Millis, Event)| {
            let record = self.records.get_mut(&key).expect("an event is about a record at hand");
            let sealed = record.chain.seal(at, event, &mut room);
            (key, sealed)
        };
        events.into_iter().map(seal).collect()
    }
}
