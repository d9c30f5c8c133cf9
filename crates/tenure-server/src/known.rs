//! What never changes about a job, so that the store is asked for it once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::JobId;

/// Most jobs that are remembered.
const KNOWN_MAX: usize = 100_000;

/// Something about jobs that is remembered.
pub(crate) struct Known<T>(Mutex<HashMap<JobId, T>>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Known<T> {
    pub(crate) fn get(&self, id: JobId) -> Option<T> {
        self.map().get(&id).cloned()
    }

    pub(crate) fn note(&self, id: JobId, what: T) {
        let mut map = self.map();
        if map.len() >= KNOWN_MAX {
            // They are asked for again when they are needed.
            map.clear();
        }
        map.insert(id, what);
    }

    fn map(&self) -> MutexGuard<'_, HashMap<JobId, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_forgotten_all_at_once() {
        let known = Known::default();
        let id = |n: usize| JobId(n as u128);
        (0..KNOWN_MAX).for_each(|n| known.note(id(n), n));
        assert_eq!((known.get(id(0)), known.map().len()), (Some(0), KNOWN_MAX));
        known.note(id(KNOWN_MAX), KNOWN_MAX);
        assert_eq!((known.get(id(0)), known.map().len()), (None, 1));
        assert_eq!(known.get(id(KNOWN_MAX)), Some(KNOWN_MAX));
    }
}
