//! Overdue attempts: warns once about each attempt that runs longer than its limit.
//!
//! It must never end one. The worker enforces the limit; one that does not, but still sends
//! heartbeats, is alive, and ending its attempt would let a second one run beside it.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::{JobId, JobState, Millis};
use tenure_store::StoreError;
use tenure_store::store::{JobQuery, JobView, PAGE_MAX};

pub(super) const NAME: &str = "overdue";

/// Warns about attempts past their limit.
#[derive(Default)]
pub(super) struct Overdue {
    /// Running attempts that were warned about.
    warned: BTreeSet<(JobId, u32)>,
}

#[async_trait]
impl Duty for Overdue {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let now = cx.store().status().await?.now;
        let mut overdue_now = BTreeSet::new();
        let mut new = 0;
        for state in [JobState::Running, JobState::Cancelling] {
            let mut after = None;
            loop {
                let query =
                    JobQuery { state: Some(state), after, limit: PAGE_MAX, ..<_>::default() };
                let page = cx.store().reads().jobs(query).await?;
                for view in &page.items {
                    let Some((attempt, late)) = overdue(view, cx, now) else { continue };
                    overdue_now.insert((view.job.id, attempt));
                    if !self.warned.contains(&(view.job.id, attempt)) {
                        new += 1;
                        warn(view, attempt, late);
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        // Drops ended attempts, so the set is bounded by the running ones.
        self.warned = overdue_now;
        Ok(DutyReport { count: self.warned.len(), new, note: None })
    }
}

/// Returns the running attempt with its age and its limit, if it is past the limit.
fn overdue(view: &JobView, cx: &DutyContext, now: Millis) -> Option<(u32, (u64, u64))> {
    let attempt = view.job.attempts.last().filter(|attempt| attempt.ended_at.is_none())?;
    let kinds = cx.live.get().kinds;
    let kind = kinds.get(view.key.kind())?;
    let limit_ms = kind.limit_ms(&view.key, kind.operations.get(&view.job.operation)?)?;
    let age_ms = now.since(attempt.started_at);
    (age_ms > limit_ms).then_some((attempt.n, (age_ms, limit_ms)))
}

fn warn(view: &JobView, attempt: u32, (age_ms, limit_ms): (u64, u64)) {
    let worker = view.job.attempts.last().map_or("", |attempt| &attempt.worker);
    tracing::warn!(
        job = %view.job.id, resource = %view.key, operation = %view.job.operation, attempt,
        worker, age_ms, limit_ms,
        "attempt is past its limit and its worker has not stopped it; check the worker"
    );
}
