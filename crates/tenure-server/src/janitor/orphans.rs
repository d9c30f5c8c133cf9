//! Orphans: running jobs without a tenure.
//!
//! No step makes one; a restored or damaged store can have them, and nothing would ever end them.
//! The core mends a record whenever it is visited: the job ends with `LOCK_STATE_LOST`, its
//! resource gets its failed state, and history has an incident. This duty sees to it that each
//! record with a running job is visited. It decides nothing, and changes nothing for the healthy.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::retry::LOCK_STATE_LOST;
use tenure_core::{Command, JobId, JobState, LockAction, ResourceKey};
use tenure_store::StoreError;
use tenure_store::store::{JobQuery, JobView};

pub(super) const NAME: &str = "orphans";

/// Records that are visited at once, so that nobody else's batch waits long.
const PAGE: usize = 250;

/// Visits records with running jobs.
pub(super) struct Orphans;

#[async_trait]
impl Duty for Orphans {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(30)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let mut incidents = 0;
        for state in [JobState::Running, JobState::Cancelling] {
            let mut after = None;
            loop {
                let query = JobQuery { state: Some(state), after, limit: PAGE, ..<_>::default() };
                let page = cx.store().reads().jobs(query.clone()).await?;
                visit(&page.items, cx).await?;
                incidents += count_incidents(&page.items, query, cx).await?;
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(DutyReport::done(incidents))
    }
}

async fn visit(running: &[JobView], cx: &DutyContext) -> Result<(), StoreError> {
    let keys: BTreeSet<&ResourceKey> = running.iter().map(|shown| &shown.key).collect();
    let settle = |key: &ResourceKey| Command::Lock { key: key.clone(), action: LockAction::Settle };
    if !keys.is_empty() {
        cx.store().apply(keys.into_iter().map(settle).collect()).await?;
    }
    Ok(())
}

/// Looks at those that ran before the visit and do not run after it.
async fn count_incidents(
    before: &[JobView],
    query: JobQuery,
    cx: &DutyContext,
) -> Result<usize, StoreError> {
    if before.is_empty() {
        return Ok(0);
    }
    let after = cx.store().reads().jobs(query).await?;
    let still: BTreeSet<JobId> = after.items.iter().map(|shown| shown.job.id).collect();
    let mut incidents = 0;
    for gone in before.iter().filter(|shown| !still.contains(&shown.job.id)) {
        let id = gone.job.id;
        let Some(shown) = cx.store().reads().job(id).await? else { continue };
        if shown.job.error.as_ref().is_some_and(|error| &*error.code == LOCK_STATE_LOST) {
            incidents += 1;
            tracing::error!(
                job = %id, resource = %shown.key, operation = %shown.job.operation,
                "a job ran without a lock and was ended; look at what it has done"
            );
        }
    }
    Ok(incidents)
}
