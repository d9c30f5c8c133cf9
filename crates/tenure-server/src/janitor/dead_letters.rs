//! Dead letters: reports their number and the age of the oldest, and warns after an hour.
//!
//! It must never change them: redriving or discarding is for an operator.

use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::{JobId, JobState, Millis};
use tenure_store::StoreError;
use tenure_store::store::{JobQuery, JobView, PAGE_MAX};

pub(super) const NAME: &str = "dead";

/// Age at which a dead letter is warned about.
const OLD_MS: u64 = 60 * 60 * 1_000;
/// Maximum number of pages that one run reads.
const PAGES_MAX: usize = 20;

/// Warns about old dead letters.
#[derive(Default)]
pub(super) struct DeadLetters {
    /// The dead letter of the last warning.
    warned: Option<JobId>,
}

#[async_trait]
impl Duty for DeadLetters {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let now = cx.store().status().await?.now;
        let (mut count, mut oldest, mut after) = (0, None, None);
        for _ in 0..PAGES_MAX {
            let state = Some(JobState::Dead);
            let query = JobQuery { state, after, limit: PAGE_MAX, ..JobQuery::default() };
            let page = cx.store().reads().jobs(query).await?;
            count += page.items.len();
            for view in page.items {
                oldest = older(oldest, view);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(self.report(count, oldest.as_ref(), now))
    }
}

impl DeadLetters {
    fn report(&mut self, count: usize, oldest: Option<&JobView>, now: Millis) -> DutyReport {
        let Some(oldest) = oldest else {
            self.warned = None;
            return DutyReport::default();
        };
        let age_ms = now.since(oldest.job.ended_at.unwrap_or(now));
        let (id, key, operation) = (oldest.job.id, &oldest.key, &oldest.job.operation);
        let new = age_ms > OLD_MS && self.warned != Some(id);
        if new {
            self.warned = Some(id);
            tracing::warn!(
                dead = count, oldest = %id, resource = %key, %operation, age_ms,
                "old dead letters; see `tenure dead ls`"
            );
        }
        let minutes = age_ms / 60_000;
        let note = format!("the oldest, {operation} of {key}, is {minutes} minutes old");
        DutyReport { count, new: usize::from(new), note: Some(note) }
    }
}

fn older(oldest: Option<JobView>, view: JobView) -> Option<JobView> {
    match oldest {
        Some(oldest) if oldest.job.ended_at <= view.job.ended_at => Some(oldest),
        _ => Some(view),
    }
}
