//! Retention: drops jobs, logs and history that are older than they have to be kept.
//!
//! It goes in small steps with rests in between, so that the store's writer is never away for long.
//! What pruned history proved is folded into one row for each resource by the store, so `verify`
//! still holds.

use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_store::StoreError;
use tenure_store::clock::stopwatch;
use tenure_store::store::Retention;

pub(super) const NAME: &str = "retention";

/// Rows of each kind that one step drops at most.
const ROWS_MAX: usize = 500;
/// Steps of one run at most; the next run goes on.
const STEPS_MAX: usize = 2_000;

/// Drops what is old.
pub(super) struct Retain;

#[async_trait]
impl Duty for Retain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let mut dropped = 0;
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
            dropped += pruned.jobs + pruned.lines;
            if pruned.jobs < ROWS_MAX && pruned.lines < ROWS_MAX {
                break;
            }
            // As long a rest as the step took leaves others half of the writer.
            tokio::time::sleep(step.elapsed()).await;
        }
        Ok(DutyReport::done(dropped))
    }
}
