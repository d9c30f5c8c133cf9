//! Orphans: running jobs without a tenure.
//!
//! The engine never creates one, but a restored or damaged store can contain them, and nothing else
//! would end them. The core repairs a record whenever it settles it: the job ends with
//! `LOCK_STATE_LOST`, its resource gets its failed state, and an incident is recorded in history.
//! This duty settles each record with a running job; healthy records do not change.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::retry::LOCK_STATE_LOST;
use tenure_core::{Command, JobId, JobState, LockAction, ResourceKey};
use tenure_store::StoreError;
use tenure_store::store::{JobQuery, JobView};

pub(super) const NAME: &str = "orphans";

/// Number of records settled in one batch: a bound on the delay of other batches.
const PAGE_SIZE: usize = 250;

/// Settles records with running jobs.
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
                let query =
                    JobQuery { state: Some(state), after, limit: PAGE_SIZE, ..<_>::default() };
                let page = cx.store().reads().jobs(query.clone()).await?;
                settle(&page.items, cx).await?;
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

async fn settle(running: &[JobView], cx: &DutyContext) -> Result<(), StoreError> {
    let keys: BTreeSet<&ResourceKey> = running.iter().map(|view| &view.key).collect();
    let command =
        |key: &ResourceKey| Command::Lock { key: key.clone(), action: LockAction::Settle };
    if !keys.is_empty() {
        cx.store().apply(keys.into_iter().map(command).collect()).await?;
    }
    Ok(())
}

/// Counts the jobs that were running before they were settled and were repaired.
async fn count_incidents(
    before: &[JobView],
    query: JobQuery,
    cx: &DutyContext,
) -> Result<usize, StoreError> {
    if before.is_empty() {
        return Ok(0);
    }
    let after = cx.store().reads().jobs(query).await?;
    let running: BTreeSet<JobId> = after.items.iter().map(|view| view.job.id).collect();
    let mut incidents = 0;
    for stopped in before.iter().filter(|view| !running.contains(&view.job.id)) {
        let id = stopped.job.id;
        let Some(view) = cx.store().reads().job(id).await? else { continue };
        if view.job.error.as_ref().is_some_and(|error| &*error.code == LOCK_STATE_LOST) {
            incidents += 1;
            tracing::error!(
                job = %id, resource = %view.key, operation = %view.job.operation,
                "orphaned job ended: it ran without a lock; check its effects"
            );
        }
    }
    Ok(incidents)
}
