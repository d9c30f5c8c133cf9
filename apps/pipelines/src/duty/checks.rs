//! Prechecks of scheduled runs.
//!
//! The runtime of the janitor has no I/O and a duty must return soon, so a check runs on another
//! runtime, and later runs of the duty look for its end.

use std::collections::BTreeMap;

use tenure_core::{Millis, ResourceKey};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::precheck::{Check, Decision};

/// Running checks, at most one for each pipeline.
pub(super) struct Checks {
    /// Runtime in which the duty was created.
    runtime: Option<Handle>,
    running: BTreeMap<ResourceKey, RunningCheck>,
}

struct RunningCheck {
    tick: Millis,
    task: JoinHandle<Decision>,
}

impl Default for Checks {
    fn default() -> Self {
        Self { runtime: Handle::try_current().ok(), running: BTreeMap::new() }
    }
}

impl Checks {
    /// Returns the tick whose check runs or has ended.
    pub(super) fn tick(&self, key: &ResourceKey) -> Option<Millis> {
        self.running.get(key).map(|running| running.tick)
    }

    /// Stops the check of a pipeline, if one runs.
    pub(super) fn stop(&mut self, key: &ResourceKey) {
        if let Some(running) = self.running.remove(key) {
            running.task.abort();
        }
    }

    /// Returns the decision of the check for a tick; starts the check if it is not running.
    pub(super) async fn poll(
        &mut self,
        key: &ResourceKey,
        tick: Millis,
        check: impl FnOnce() -> Check,
    ) -> Option<Decision> {
        match self.running.remove(key) {
            Some(running) if running.tick == tick && running.task.is_finished() => {
                let failed = |error: tokio::task::JoinError| Decision::Refuse(error.to_string());
                return Some(running.task.await.unwrap_or_else(failed));
            }
            Some(running) if running.tick == tick => {
                self.running.insert(key.clone(), running);
                return None;
            }
            Some(earlier) => earlier.task.abort(),
            None => {}
        }
        let Some(runtime) = &self.runtime else {
            return Some(Decision::Refuse("this process has no runtime for it".to_owned()));
        };
        let task = runtime.spawn(check().run());
        self.running.insert(key.clone(), RunningCheck { tick, task });
        None
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.running.values().for_each(|running| running.task.abort());
    }
}
