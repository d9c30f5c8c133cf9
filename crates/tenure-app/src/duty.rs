//! Duties: store-only housekeeping that the janitor of the server repeats.

use std::time::Duration;

use async_trait::async_trait;
use tenure_store::{Committer, Store, StoreError};

use crate::live::Live;

/// Housekeeping that is repeated on one server of a fleet.
///
/// The janitor's lock saves work and protects nothing: running a duty twice, or on two servers at
/// once, must be harmless. The janitor's runtime has no I/O driver, so a duty talks to the store
/// and to nothing else; work that needs the network is a [`crate::Controller`].
#[async_trait]
pub trait Duty: Send {
    /// Name in metrics, logs and `GET /v1/janitor`.
    fn name(&self) -> &'static str;

    /// Interval between two runs.
    fn interval(&self) -> Duration;

    /// Runs it once. Must return soon: bound what one run does.
    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError>;
}

/// What a duty has at hand.
#[derive(Clone)]
pub struct DutyContext {
    /// The way to the store.
    pub committer: Committer,
    /// The live configuration.
    pub live: Live,
}

impl DutyContext {
    /// The store.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        self.committer.store()
    }
}

/// Result of one run of a duty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DutyReport {
    /// Number of things found or dealt with.
    pub count: usize,
    /// How many of them no earlier run has counted.
    pub new: usize,
    /// What an operator should know.
    pub note: Option<String>,
}

impl DutyReport {
    /// Reports `count` things that were dealt with and that no later run finds again.
    #[must_use]
    pub fn done(count: usize) -> Self {
        Self { count, new: count, note: None }
    }
}
