//! A cache of builds whose tests are published.
//!
//! A build that is not published yet must not be cached: its next leader decides which tests count.
//! Entries expire, so that a build that was deleted is noticed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure_core::{ResourceKey, Token};

use crate::build::Build;

/// Time for which a build is cached.
const TTL: Duration = Duration::from_secs(5);
/// Maximum number of cached builds. When it is exceeded, all are forgotten.
const BUILDS_MAX: usize = 1_024;

/// Published builds by key.
#[derive(Default)]
pub(crate) struct ReadyBuilds(Mutex<HashMap<ResourceKey, Entry>>);

struct Entry {
    build: Arc<Build>,
    expires: BootInstant,
}

impl ReadyBuilds {
    /// Returns a build whose tests of this term are published.
    pub(crate) fn get(&self, key: &ResourceKey, term: Token) -> Option<Arc<Build>> {
        let builds = self.builds();
        let entry = builds.get(key).filter(|entry| !entry.expires.has_passed())?;
        let published = entry.build.status.published.as_ref();
        published.filter(|published| published.term == term)?;
        Some(Arc::clone(&entry.build))
    }

    /// Caches a build whose tests are published.
    pub(crate) fn insert(&self, build: Arc<Build>) {
        let mut builds = self.builds();
        if builds.len() >= BUILDS_MAX {
            builds.clear();
        }
        let expires = BootInstant::now() + TTL;
        builds.insert(build.key.clone(), Entry { build, expires });
    }

    fn builds(&self) -> MutexGuard<'_, HashMap<ResourceKey, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
