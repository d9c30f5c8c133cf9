//! Retention: prunes jobs, logs, history and resources past their retention time.
//!
//! It works in small steps with pauses in between, so that the store's writer is never blocked for
//! long. The store folds pruned history into one checkpoint per resource, so `verify` still holds.

use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_store::StoreError;
use tenure_store::clock::stopwatch;
use tenure_store::store::Retention;

pub(super) const NAME: &str = "retention";

/// Maximum number of jobs, of events, and of resources that one step prunes.
const ROWS_MAX: usize = 500;
/// Maximum number of steps of one run; the next run continues.
const STEPS_MAX: usize = 2_000;

/// Prunes the store.
pub(super) struct RetentionDuty;

#[async_trait]
impl Duty for RetentionDuty {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let mut pruned_rows = 0;
        for _ in 0..STEPS_MAX {
            let keep = cx.live.get().retention;
            let keep = Retention {
                jobs_ms: keep.jobs_ms,
                dead_ms: keep.dead_ms,
                history_ms: keep.history_ms,
                rows_max: ROWS_MAX,
            };
            let step = stopwatch();
            let pruned = cx.store().prune(keep).await?;
            let counts = [pruned.jobs, pruned.lines, pruned.resources];
            pruned_rows += counts.iter().sum::<usize>();
            if counts.iter().all(|count| *count < ROWS_MAX) {
                break;
            }
            // A pause as long as the step leaves half of the writer's time to others.
            tokio::time::sleep(step.elapsed()).await;
        }
        Ok(DutyReport::done(pruned_rows))
    }
}
