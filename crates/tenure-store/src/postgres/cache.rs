//! Records that this process has seen last, so that they need not be read and parsed again.
//!
//! A record here counts only as long as the row, which is locked when it is asked, has the same
//! version. Nothing is ever decided by what is here alone.

use std::collections::HashMap;
use std::sync::Mutex;

use tenure_core::{Incarnation, Record, ResourceKey};

/// Most records that are kept. When there are more, all go: they come back as they are used.
const RECORDS_MAX: usize = 32_768;

/// A record, and the last line of history that its body in the row has in it.
pub(super) struct Known {
    pub(super) body_n: u64,
    pub(super) record: Box<Record>,
}

/// A record with the version of its row, in one life of the database: in the next one versions
/// may come again.
pub(super) struct Seen {
    pub(super) incarnation: Incarnation,
    pub(super) version: i64,
    pub(super) known: Known,
}

/// The records.
#[derive(Default)]
pub(super) struct Cache(Mutex<HashMap<ResourceKey, Seen>>);

impl Cache {
    /// Takes a record out: whoever changes it puts it back when the change is durable.
    pub(super) fn take(
        &self,
        key: &ResourceKey,
        incarnation: Incarnation,
        version: i64,
    ) -> Option<Known> {
        let seen = self.map().remove(key)?;
        (seen.incarnation == incarnation && seen.version == version).then_some(seen.known)
    }

    /// Looks at a record, whatever its version.
    pub(super) fn peek<T>(&self, key: &ResourceKey, look: impl FnOnce(&Record) -> T) -> Option<T> {
        self.map().get(key).map(|seen| look(&seen.known.record))
    }

    /// Puts records in.
    pub(super) fn put(&self, all: impl Iterator<Item = (ResourceKey, Seen)>) {
        let mut map = self.map();
        if map.len() > RECORDS_MAX {
            map.clear();
        }
        map.extend(all);
    }

    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<ResourceKey, Seen>> {
        self.0.lock().expect("nothing panics while it is locked")
    }
}
