//! The rows that steps work on, and the changes a batch of steps has made.
//!
//! A store loads the rows that a batch needs, or keeps all live ones loaded, runs [`crate::step`]
//! and persists the [`Changes`].

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::history::{Event, SealedEntry};
use crate::id::{JobId, SessionId};
use crate::job::Job;
use crate::key::{ResourceKey, Text};
use crate::kind::Kinds;
use crate::map::Map;
use crate::metric_event::MetricEvent;
use crate::outcome::TenureView;
use crate::ready::ReadyIndex;
use crate::record::Record;
use crate::session::{SessionIndex, Sessions};
use crate::time::Millis;
use crate::token::{Incarnation, Token};
use crate::token_floors::TokenFloors;

/// The rows that steps read and write.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Incarnation of the store.
    pub incarnation: Incarnation,
    /// Session rows.
    pub sessions: Sessions,
    /// Resource records. A missing one counts as new, so a store loads records before it steps.
    pub records: Map<ResourceKey, Box<Record>>,
    /// Resources on which each session holds or waits, derived from the loaded records.
    pub session_index: SessionIndex,
    /// Resource of each unfinished job, derived from the loaded records.
    pub job_index: BTreeMap<JobId, ResourceKey>,
    /// Finished jobs that commands of this batch name. The store loads them beforehand.
    pub finished_jobs: Map<JobId, (ResourceKey, Box<Job>)>,
    /// Tokens above which those of new resources start.
    pub floors: TokenFloors,
    /// Loaded resources with a startable job.
    pub ready: ReadyIndex,
    /// Declared kinds.
    pub kinds: Arc<Kinds>,
    /// Changes since the store last took them.
    pub changes: Changes,
}

/// What a store must persist, and whom it should notify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changed records; may contain duplicates.
    pub records: Vec<ResourceKey>,
    /// Subset of `records` with changes that no event describes, so a replay does not restore them;
    /// may contain duplicates.
    pub unlogged: Vec<ResourceKey>,
    /// Records in which only progress or log size changed. A store that keeps records in memory has
    /// nothing to write.
    pub progressed: Vec<ResourceKey>,
    /// Sessions whose row changed or was removed; may contain duplicates.
    pub sessions: Vec<SessionId>,
    /// Sessions that were only renewed or polled for jobs; may contain duplicates.
    pub heartbeats: Vec<SessionId>,
    /// Events, in order.
    pub events: Vec<(ResourceKey, Millis, Event)>,
    /// Tenures granted from the wait queue, whose clients should be notified.
    pub granted: Vec<TenureView>,
    /// Forgotten resources, with their last tokens: their rows are deleted, and the floors stored.
    pub forgotten: Vec<(ResourceKey, Token)>,
    /// Jobs that finished, or were redriven or discarded.
    pub finished: Vec<(ResourceKey, Box<Job>)>,
    /// Log output to append.
    pub logs: Vec<LogChunk>,
    /// Resources that became ready, whose workers should claim again.
    pub ready: Vec<ResourceKey>,
    /// Sessions with a notice for their next heartbeat.
    pub notified: Vec<SessionId>,
    /// Metric events.
    pub metric_events: Vec<MetricEvent>,
}

/// A chunk of an attempt's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    /// Job.
    pub job: JobId,
    /// Number of the attempt.
    pub attempt: u32,
    /// Time of the write.
    pub at: Millis,
    /// Complete lines.
    pub text: Text,
}

impl World {
    /// Removes the record of a resource that another server has forgotten.
    pub fn forget(&mut self, key: &ResourceKey, token: Token) {
        self.remove_record(key);
        self.floors.raise(key, token);
    }

    /// Inserts or replaces the record of a resource. Returns `true` if the resource became ready.
    pub fn insert_record(&mut self, key: &ResourceKey, record: Box<Record>, now: Millis) -> bool {
        self.remove_record(key);
        for session in record.sessions() {
            self.session_index.add(session, key);
        }
        for job in record.lane() {
            self.job_index.insert(job.id, key.clone());
        }
        let ready = self.ready.update(key, &record, &self.kinds, now);
        self.records.insert(key.clone(), record);
        ready
    }

    /// Removes the record of a resource, to be [inserted](Self::insert_record) again after a
    /// change.
    pub fn remove_record(&mut self, key: &ResourceKey) -> Option<Box<Record>> {
        let record = self.records.remove(key)?;
        for session in record.sessions() {
            self.session_index.remove(session, key);
        }
        for job in record.lane() {
            self.job_index.remove(&job.id);
        }
        Some(record)
    }

    /// Replaces the declared kinds.
    pub fn declare(&mut self, kinds: Arc<Kinds>, now: Millis) {
        self.kinds = kinds;
        for (key, record) in &self.records {
            if self.ready.update(key, record, &self.kinds, now) {
                self.changes.ready.push(key.clone());
            }
        }
    }

    /// Prevents claims and due times from touching a resource until it is
    /// [included](Self::include_in_claims) again.
    pub fn exclude_from_claims(&mut self, key: &ResourceKey) {
        self.ready.exclude(key);
    }

    /// Reverts [`Self::exclude_from_claims`].
    pub fn include_in_claims(&mut self, key: &ResourceKey, now: Millis) {
        if let Some(record) = self.records.get(key) {
            self.ready.update(key, record, &self.kinds, now);
        }
    }

    /// Takes the changes since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Appends events to the history chains of their resources.
    pub fn seal(
        &mut self,
        events: Vec<(ResourceKey, Millis, Event)>,
    ) -> Vec<(ResourceKey, SealedEntry)> {
        let mut buffer = Vec::new();
        let seal = |(key, at, event): (ResourceKey, Millis, Event)| {
            let record = self.records.get_mut(&key).expect("events refer to loaded records");
            let sealed = record.chain.seal(at, event, &mut buffer);
            (key, sealed)
        };
        events.into_iter().map(seal).collect()
    }
}
