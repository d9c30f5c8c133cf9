//! Overdue attempts: warns of each that has run for longer than its limit, once.
//!
//! It must never end one. A limit is for the worker to keep, and a worker that keeps none but
//! still beats is alive: whoever kills the living because they are slow makes two of them.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::{JobId, JobState, Millis};
use tenure_store::StoreError;
use tenure_store::store::{JobQuery, JobView, PAGE_MAX};

pub(super) const NAME: &str = "overdue";

/// Warns of attempts past their limit.
#[derive(Default)]
pub(super) struct Overdue {
    /// Attempts that were warned of and are still under way.
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
        let mut over = BTreeSet::new();
        let mut new = 0;
        for state in [JobState::Running, JobState::Cancelling] {
            let mut after = None;
            loop {
                let query =
                    JobQuery { state: Some(state), after, limit: PAGE_MAX, ..<_>::default() };
                let page = cx.store().reads().jobs(query).await?;
                for shown in &page.items {
                    let Some((attempt, late)) = overdue(shown, cx, now) else { continue };
                    over.insert((shown.job.id, attempt));
                    if !self.warned.contains(&(shown.job.id, attempt)) {
                        new += 1;
                        warn(shown, attempt, late);
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        // What is over is forgotten, so that this never holds more than runs now.
        self.warned = over;
        Ok(DutyReport { count: self.warned.len(), new, note: None })
    }
}

/// The attempt that is under way, with its age and its limit, if it is past it.
fn overdue(shown: &JobView, cx: &DutyContext, now: Millis) -> Option<(u32, (u64, u64))> {
    let attempt = shown.job.attempts.last().filter(|attempt| attempt.ended_at.is_none())?;
    let kinds = cx.live.get().kinds;
    let kind = kinds.get(shown.key.kind())?;
    let limit_ms = kind.limit_ms(&shown.key, kind.operations.get(&shown.job.operation)?)?;
    let age_ms = now.since(attempt.started_at);
    (age_ms > limit_ms).then_some((attempt.n, (age_ms, limit_ms)))
}

fn warn(shown: &JobView, attempt: u32, (age_ms, limit_ms): (u64, u64)) {
    let worker = shown.job.attempts.last().map_or("", |attempt| &attempt.worker);
    tracing::warn!(
        job = %shown.job.id, resource = %shown.key, operation = %shown.job.operation, attempt,
        worker, age_ms, limit_ms,
        "an attempt is past its limit and its worker has not stopped it; look at the worker"
    );
}
