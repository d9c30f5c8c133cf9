//! Duties: periodic housekeeping within the store, run by the janitor of the server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::verify::Problem;
use tenure_store::{Committer, Store, StoreError};

use crate::live::Live;

/// Periodic housekeeping on one server of a fleet.
///
/// The janitor's lock only saves work: running a duty twice, or on two servers at once, must be
/// harmless. The janitor's runtime has no I/O driver, so a duty can use only the store; work that
/// needs the network is a [`crate::Controller`].
#[async_trait]
pub trait Duty: Send {
    /// Returns the name in metrics, logs and `GET /v1/janitor`.
    fn name(&self) -> &'static str;

    /// Returns the interval between two runs.
    fn interval(&self) -> Duration;

    /// Runs the duty once. Must return soon: bound the work of one run.
    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError>;
}

/// Context of a duty.
#[derive(Clone)]
pub struct DutyContext {
    /// Committer of the store.
    pub committer: Committer,
    /// The live configuration.
    pub live: Live,
    /// Contradictions of the history that were found by this server.
    pub violations: Violations,
}

impl DutyContext {
    /// Creates a context.
    #[must_use]
    pub fn new(committer: Committer, live: Live) -> Self {
        Self { committer, live, violations: Violations::default() }
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        self.committer.store()
    }
}

/// Contradictions of the history that the continuous verification has found on this server. After a
/// restart it finds them again.
#[derive(Clone, Default)]
pub struct Violations(Arc<Mutex<Vec<Problem>>>);

impl Violations {
    /// Maximum number of contradictions that are kept.
    pub const MAX: usize = 1_000;

    /// Adds contradictions, up to the maximum.
    pub fn add(&self, problems: &[Problem]) {
        let mut all = self.0.lock().expect("nothing panics while it is locked");
        let left = Self::MAX.saturating_sub(all.len());
        all.extend(problems.iter().take(left).cloned());
    }

    /// Returns those of one kind of resources.
    #[must_use]
    pub fn of_kind(&self, kind: &str) -> Vec<Problem> {
        let all = self.0.lock().expect("nothing panics while it is locked");
        all.iter().filter(|problem| problem.key.kind() == kind).cloned().collect()
    }
}

/// Result of one run of a duty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DutyReport {
    /// Number of items found or handled.
    pub count: usize,
    /// Number of those that no earlier run has counted.
    pub new: usize,
    /// Note for an operator.
    pub note: Option<String>,
}

impl DutyReport {
    /// Creates a report of `count` handled items, which no later run finds again.
    #[must_use]
    pub fn done(count: usize) -> Self {
        Self { count, new: count, note: None }
    }
}
