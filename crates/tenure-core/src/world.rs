//! The rows at hand, and what a batch of steps has changed in them.
//!
//! A store fills a world with the rows that a batch needs (or keeps all live ones in it), lets
//! [`crate::step`] loose on it, and takes the [`Changes`] to write them down.

use std::collections::HashMap;

use crate::history::{Event, Sealed};
use crate::id::SessionId;
use crate::key::ResourceKey;
use crate::outcome::TenureView;
use crate::record::Record;
use crate::session::Sessions;
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
    pub records: HashMap<ResourceKey, Box<Record>>,
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
    /// Sessions whose row changed or is gone; one may be named more than once.
    pub sessions: Vec<SessionId>,
    /// Sessions of which only the time to live was renewed.
    pub beats: Vec<SessionId>,
    /// What happened, in order.
    pub events: Vec<(ResourceKey, Millis, Event)>,
    /// What requests were granted when they left the queue: their clients should be told.
    pub granted: Vec<TenureView>,
    /// Sessions that began (`true`) or ceased to hold or want something of a resource.
    pub bonds: Vec<(SessionId, ResourceKey, bool)>,
}

impl World {
    /// Takes what has changed, leaving nothing noted.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Chains events to the history of their resources.
    pub fn seal(
        &mut self,
        events: Vec<(ResourceKey, Millis, Event)>,
    ) -> Vec<(ResourceKey, Sealed)> {
        let seal = |(key, at, event): (ResourceKey, Millis, Event)| {
            let record = self.records.get_mut(&key).expect("an event is about a record at hand");
            let sealed = record.chain.seal(at, event);
            (key, sealed)
        };
        events.into_iter().map(seal).collect()
    }
}
