//! Resources that must not change now because a user's transaction is fenced on their tenures.
//!
//! Such transactions identify resources by the id of a shared advisory lock. The index from lock id
//! to resource is built when the first fence appears and maintained from then on, so that a batch
//! does not scan all live resources because of one fence.

#[cfg(any(test, feature = "postgres"))]
use std::collections::BTreeSet;
use std::collections::{HashMap, HashSet};

use tenure_core::ResourceKey;
use tenure_core::history::Chain;

/// Set of fenced resources.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fences {
    lock_ids: HashSet<i64>,
    /// Live resources by lock id; `None` until the first fence.
    keys_by_id: Option<HashMap<i64, ResourceKey>>,
}

/// Returns the id of the advisory lock that fences a resource.
fn lock_id(key: &ResourceKey) -> i64 {
    let digest = Chain::genesis(key).head.0;
    digest.iter().take(8).fold(0, |id, byte| id << 8 | i64::from(*byte))
}

impl Fences {
    /// Replaces the set of fenced lock ids.
    #[cfg(any(test, feature = "postgres"))]
    pub(crate) fn set(&mut self, lock_ids: Vec<i64>, live: &BTreeSet<ResourceKey>) {
        self.lock_ids = lock_ids.into_iter().collect();
        if !self.lock_ids.is_empty() && self.keys_by_id.is_none() {
            self.keys_by_id = Some(live.iter().map(|key| (lock_id(key), key.clone())).collect());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock_ids.is_empty()
    }

    /// Returns whether a resource is fenced.
    pub(crate) fn contains(&self, key: &ResourceKey) -> bool {
        !self.is_empty() && self.lock_ids.contains(&lock_id(key))
    }

    /// Returns the fenced resources that are live.
    #[cfg(any(test, feature = "postgres"))]
    pub(crate) fn live_keys(&self) -> Vec<ResourceKey> {
        let Some(keys_by_id) = &self.keys_by_id else { return Vec::new() };
        self.lock_ids.iter().filter_map(|id| keys_by_id.get(id)).cloned().collect()
    }

    /// Adds a resource that became live to the index.
    pub(crate) fn insert_live(&mut self, key: &ResourceKey) {
        if let Some(keys_by_id) = &mut self.keys_by_id {
            keys_by_id.insert(lock_id(key), key.clone());
        }
    }

    /// Removes a resource that is no longer live from the index.
    pub(crate) fn remove_live(&mut self, key: &ResourceKey) {
        if let Some(keys_by_id) = &mut self.keys_by_id {
            keys_by_id.remove(&lock_id(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::record::Tenure;
    use tenure_core::{LockName, Millis, Record, RequestId, SessionId, Token};

    use super::*;
    use crate::ledger::Ledger;

    fn key(n: usize) -> ResourceKey {
        format!("t/k/r{n}").parse().expect("a valid key")
    }

    #[test]
    fn the_index_follows_live_resources_after_the_first_fence() {
        let mut ledger = Ledger::default();
        let held = |key: &ResourceKey| {
            let mut record = Record::new(key);
            let (request, job) = (RequestId(1), None);
            let (lock, token, session) = (LockName::main(), Token(1), SessionId(1));
            let since = Millis(0);
            record.tenures.push(Tenure {
                lock,
                token,
                session,
                request,
                purpose: None,
                max_age_ms: None,
                since,
                job,
            });
            Box::new(record)
        };
        let lock_ids = || vec![lock_id(&key(1)), lock_id(&key(2)), lock_id(&key(3))];
        ledger.insert_record(&key(1), held(&key(1)), Millis(0));
        ledger.set_fences(lock_ids());
        assert_eq!(ledger.fences.live_keys(), [key(1)]);
        assert!(ledger.is_fenced(&key(2)), "a resource that is not live can be fenced");
        ledger.insert_record(&key(2), held(&key(2)), Millis(0));
        ledger.insert_record(&key(1), Box::new(Record::new(&key(1))), Millis(0));
        ledger.set_fences(lock_ids());
        assert_eq!(ledger.fences.live_keys(), [key(2)]);
        ledger.set_fences(Vec::new());
        assert!(ledger.fences.is_empty() && !ledger.is_fenced(&key(2)));
    }
}
