//! Dead letters: how many there are and how old the oldest is. One that nobody has looked at for an
//! hour is warned of.
//!
//! It must never do anything about them: that is for a person.

use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::{JobId, JobState, Millis};
use tenure_store::StoreError;
use tenure_store::store::{JobQuery, JobView, PAGE_MAX};

pub(super) const NAME: &str = "dead";

/// From this age on a dead letter is warned of.
const OLD_MS: u64 = 60 * 60 * 1_000;
/// Pages that one run reads at most. With more dead letters than that, age is not the problem.
const PAGES_MAX: usize = 20;

/// Watches the age of dead letters.
#[derive(Default)]
pub(super) struct Dead {
    /// The one that was warned of last.
    warned: Option<JobId>,
}

#[async_trait]
impl Duty for Dead {
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
            for shown in page.items {
                oldest = older(oldest, shown);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(self.judge(count, oldest.as_ref(), now))
    }
}

impl Dead {
    fn judge(&mut self, count: usize, oldest: Option<&JobView>, now: Millis) -> DutyReport {
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
                "dead letters wait for a person; see `tenure dead ls`"
            );
        }
        let minutes = age_ms / 60_000;
        let note = format!("the oldest, {operation} of {key}, is dead for {minutes} minutes");
        DutyReport { count, new: usize::from(new), note: Some(note) }
    }
}

fn older(known: Option<JobView>, shown: JobView) -> Option<JobView> {
    match known {
        Some(known) if known.job.ended_at <= shown.job.ended_at => Some(known),
        _ => Some(shown),
    }
}
