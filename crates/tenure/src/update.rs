//! Updates of a resource by the holder of a job: its status and its timers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
#[cfg(feature = "worker")]
use tenure_core::StatusUpdate;
use tenure_core::{Millis, Text, TimerChange, TimerSetting};

/// An update of the status and the timers of a resource, applied in one step.
///
/// The holder of a job sends it with [`Context::update`](crate::Context::update), or with the
/// result of the attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "an update does nothing until it is sent"]
pub struct Update {
    merge: Option<Text>,
    timers: Vec<TimerChange>,
}

impl Update {
    /// Creates an update that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the merge patch (RFC 7396) for the status of the resource: an object whose members
    /// replace those of the status, and whose `null`s remove them.
    ///
    /// # Errors
    ///
    /// Fails if `patch` cannot be serialized as JSON.
    pub fn merge(mut self, patch: &impl Serialize) -> Result<Self, serde_json::Error> {
        self.merge = Some(serde_json::to_string(patch)?.into());
        Ok(self)
    }

    /// Sets or moves a timer: at `at`, or at once if that has passed, the engine submits
    /// `operation`.
    pub fn timer_at(self, operation: &str, at: SystemTime) -> Self {
        self.timer(operation, TimerSetting::At(millis(at)))
    }

    /// Sets or moves a timer: the engine submits `operation` after `delay`.
    pub fn timer_after(self, operation: &str, delay: Duration) -> Self {
        self.timer(operation, TimerSetting::After(whole_millis(delay)))
    }

    /// Removes the timer of an operation.
    pub fn remove_timer(self, operation: &str) -> Self {
        self.timer(operation, TimerSetting::Remove)
    }

    fn timer(mut self, operation: &str, setting: TimerSetting) -> Self {
        self.timers.retain(|change| *change.operation != *operation);
        self.timers.push(TimerChange { operation: operation.into(), setting });
        self
    }

    /// Returns the changes of timers.
    pub(crate) fn timers(&self) -> &[TimerChange] {
        &self.timers
    }

    /// Returns whether a status would be changed.
    pub(crate) fn has_merge(&self) -> bool {
        self.merge.is_some()
    }

    /// Converts to the model; `None` if it changes nothing.
    #[cfg(feature = "worker")]
    pub(crate) fn to_model(&self) -> Option<Box<StatusUpdate>> {
        let Self { merge, timers } = self.clone();
        (merge.is_some() || !timers.is_empty()).then(|| Box::new(StatusUpdate { merge, timers }))
    }
}

/// Returns an instant of store time.
pub(crate) fn millis(at: SystemTime) -> Millis {
    Millis(whole_millis(at.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

pub(crate) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
