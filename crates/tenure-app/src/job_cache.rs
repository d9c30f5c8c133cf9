//! A bounded cache of immutable facts about jobs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::JobId;

/// Maximum number of jobs in one cache.
const JOBS_MAX: usize = 100_000;

/// A cache of one immutable fact per job.
pub(crate) struct JobCache<T>(Mutex<HashMap<JobId, T>>);

impl<T> Default for JobCache<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> JobCache<T> {
    pub(crate) fn get(&self, id: JobId) -> Option<T> {
        self.map().get(&id).cloned()
    }

    pub(crate) fn insert(&self, id: JobId, fact: T) {
        let mut map = self.map();
        if map.len() >= JOBS_MAX {
            // Entries still in use are read again.
            map.clear();
        }
        map.insert(id, fact);
    }

    fn map(&self) -> MutexGuard<'_, HashMap<JobId, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_is_cleared() {
        let cache = JobCache::default();
        let id = |n: usize| JobId(n as u128);
        (0..JOBS_MAX).for_each(|n| cache.insert(id(n), n));
        assert_eq!((cache.get(id(0)), cache.map().len()), (Some(0), JOBS_MAX));
        cache.insert(id(JOBS_MAX), JOBS_MAX);
        assert_eq!((cache.get(id(0)), cache.map().len()), (None, 1));
        assert_eq!(cache.get(id(JOBS_MAX)), Some(JOBS_MAX));
    }
}
