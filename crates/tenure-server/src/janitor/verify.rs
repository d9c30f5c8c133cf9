//! Verify: proves the history as it grows, as `tenure verify` does for all of it on demand.
//!
//! It remembers how far it has verified in memory of this server. After a restart, or on the next
//! server that runs it, it starts again from the beginning, in small steps with pauses in between.
//! It only reports: a violation stops nothing, because the history does not say which of two
//! holders is the right one.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport, Violations};
use tenure_core::verify::Problem;
use tenure_store::clock::stopwatch;
use tenure_store::verify::incremental::{IncrementalVerifier, REPORTED_MAX};
use tenure_store::{Store, StoreError};

pub(super) const NAME: &str = "verify";

/// Maximum time of one run, except for its last step; the next run continues.
const RUN_MAX: Duration = Duration::from_secs(10);
/// Maximum number of records that one run compares with the history.
const RECORDS_MAX: usize = 100;

/// What the duty has found on this server, for metrics and `/readyz`.
#[derive(Default)]
pub struct HistoryStatus(Mutex<State>);

#[derive(Clone, Default)]
struct State {
    violations: u64,
    first: Option<String>,
    unverified: Option<u64>,
}

impl HistoryStatus {
    /// Returns the number of violations found.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.state().violations
    }

    /// Returns the number of entries that were not verified after the last run; `None` before the
    /// first one.
    #[must_use]
    pub fn unverified(&self) -> Option<u64> {
        self.state().unverified
    }

    /// Describes the violations, without names: everyone can read it.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let count = self.violations();
        let places = if count == 1 { "place" } else { "places" };
        (count > 0).then(|| {
            format!(
                "the history contradicts itself in {count} {places}, which the log of this server \
                 names; run {COMMAND}"
            )
        })
    }

    fn note(&self) -> Option<String> {
        let State { violations, first, .. } = self.state().clone();
        first
            .map(|first| format!("contradictions of the history: {violations}, the first: {first}"))
    }

    fn add(&self, problems: &[Problem]) {
        let mut state = self.state();
        state.violations += problems.len() as u64;
        if state.first.is_none() {
            state.first = problems.first().map(ToString::to_string);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it is locked")
    }
}

/// The command that shows all violations.
pub(crate) const COMMAND: &str = "tenure verify";

/// Verifies the history.
pub(super) struct Verify {
    verifier: IncrementalVerifier,
    status: Arc<HistoryStatus>,
}

impl Verify {
    pub(super) fn new(status: Arc<HistoryStatus>) -> Self {
        Self { verifier: IncrementalVerifier::default(), status }
    }

    /// Verifies what is new, then compares some records. Returns the number of entries.
    async fn verify(&mut self, store: &dyn Store) -> Result<usize, StoreError> {
        self.verifier.check_incarnation(store).await?;
        let (run, mut entries, mut has_more) = (stopwatch(), 0, true);
        while has_more && run.elapsed() < RUN_MAX {
            let step = stopwatch();
            let checked = self.verifier.check_page(store).await?;
            entries += checked.entries;
            has_more = checked.has_more;
            // A pause as long as the step leaves half of the time to others.
            tokio::time::sleep(step.elapsed()).await;
        }
        if !has_more {
            entries += self.verifier.compare_records(store, RECORDS_MAX).await?.entries;
        }
        let unverified = self.verifier.unverified(store).await?;
        self.status.state().unverified = Some(unverified);
        Ok(entries)
    }

    /// Reports the violations that were found since the last call.
    fn report(&mut self, violations: &Violations) {
        let problems = self.verifier.take_problems();
        if problems.is_empty() {
            return;
        }
        for Problem { key, n, what } in &problems {
            tracing::error!(
                resource = %key, entry = n, violation = %what,
                "incident: the history contradicts itself; keep a copy of the store, and run \
                 tenure verify"
            );
        }
        self.status.add(&problems);
        violations.add(&problems);
        if self.verifier.is_full() {
            tracing::error!(
                violations = REPORTED_MAX,
                "incident: further contradictions of the history are not reported; run tenure \
                 verify"
            );
        }
    }
}

#[async_trait]
impl Duty for Verify {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let verified = self.verify(cx.store()).await;
        self.report(&cx.violations);
        let entries = verified?;
        Ok(DutyReport { note: self.status.note(), ..DutyReport::done(entries) })
    }
}
