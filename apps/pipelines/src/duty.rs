//! The duty `schedule`: triggers pipelines at their ticks.
//!
//! The request id of a trigger is derived from the tick, so that a second server, or the same one
//! after a restart, gets the existing run. A tick during a run attaches to it. A tick that is
//! processed too late is skipped: a nightly run does not start at noon.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Catalog, Pipeline, RUN};
use serde_json::Map;
use tenure_core::history::digest;
use tenure_core::{
    Command, Millis, Outcome, RequestId, ResourceAction, ResourceKey, Submit, Verdict,
};
use tenure_store::StoreError;
use tenure_store::store::JobQuery;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};

use crate::run_args::RunArgs;
use crate::slot_selection::select_slot;

const NAME: &str = "schedule";

/// Time after which a tick that was not processed is skipped.
const TICK_DELAY_MAX_MS: u64 = 60_000;
/// Maximum number of recent runs searched for that of a tick.
const RECENT_RUNS_MAX: usize = 20;
/// Value of `trigger_by` of scheduled runs.
const TRIGGERED_BY: &str = "schedule";

/// Triggers pipelines at their ticks.
#[derive(Default)]
pub(crate) struct Schedules {
    /// Schedule and last processed tick of each pipeline, by tenant and name.
    processed: BTreeMap<(String, String), (String, Millis)>,
    /// Whether it has run before. A pipeline declared later starts with its next tick.
    initialized: bool,
}

#[async_trait]
impl Duty for Schedules {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let Some(catalog) = cx.live.app::<Catalog>() else {
            self.initialized = true;
            return Ok(DutyReport::default());
        };
        let scheduled: Vec<_> = catalog.iter(None).filter(|one| one.schedule.is_some()).collect();
        if scheduled.is_empty() {
            self.initialized = true;
            return Ok(DutyReport::default());
        }
        let now = cx.store().status().await?.now;
        let (mut triggered, mut processed) = (0, BTreeMap::new());
        for pipeline in scheduled {
            let Some(schedule) = &pipeline.schedule else { continue };
            let Some(tick) = schedule.last(now) else { continue };
            let id = (pipeline.tenant.clone(), pipeline.name.clone());
            // A changed schedule counts as a new one.
            let before = self.processed.get(&id).filter(|(text, _)| text == schedule.text());
            let before = before.map(|(_, tick)| *tick);
            if before.is_none_or(|before| before < tick) {
                let is_new = self.initialized && before.is_none();
                if now.since(tick) <= TICK_DELAY_MAX_MS && !is_new {
                    triggered += usize::from(trigger(cx, pipeline, tick).await?);
                } else if before.is_some() {
                    tracing::warn!(tenant_id = %pipeline.tenant, pipeline_id = %pipeline.name,
                        late_ms = now.since(tick), "tick missed; skipped");
                }
            }
            processed.insert(id, (schedule.text().to_owned(), tick));
        }
        self.processed = processed;
        self.initialized = true;
        Ok(DutyReport::done(triggered))
    }
}

/// Triggers the run of a tick. Returns whether it created one.
async fn trigger(cx: &DutyContext, pipeline: &Pipeline, tick: Millis) -> Result<bool, StoreError> {
    let (tenant, name) = (&pipeline.tenant, &pipeline.name);
    let request = RequestId(digest(&format!("{tenant}/{name} at {}", tick.0)));
    for key in pipeline.keys() {
        if has_run(cx, key, request).await? {
            return Ok(false);
        }
    }
    let skip = |why: &dyn std::fmt::Debug| {
        tracing::error!(tenant_id = %tenant, pipeline_id = %name, ?why, "tick failed");
        Ok(false)
    };
    let parameters = match pipeline.fill(&Map::new()) {
        Ok(parameters) => parameters,
        Err(why) => return skip(&why),
    };
    let key = match select_slot(cx.store(), pipeline, request, false).await {
        Ok(slot) => slot.key,
        Err(problem) => return Err(StoreError::unavailable(format!("{problem:?}"))),
    };
    let submit = Submit {
        request,
        operation: RUN.into(),
        args: Some(tenure_wire::to_document(&RunArgs::of_tick(parameters, tick).into_json())),
        priority: 0,
        run_at: None,
        by: TRIGGERED_BY.into(),
    };
    let command = Command::Resource { key, action: ResourceAction::Submit(submit) };
    match cx.committer.submit(command).await? {
        Outcome::Submitted { verdict, job, .. } => {
            tracing::info!(tenant_id = %tenant, pipeline_id = %name, pipeline_logging_id = %job,
                verdict = verdict.as_str(), "run triggered by schedule");
            Ok(verdict != Verdict::Attached)
        }
        other => skip(&other),
    }
}

/// Returns whether a request has already created a run, including a finished one.
async fn has_run(
    cx: &DutyContext,
    key: ResourceKey,
    request: RequestId,
) -> Result<bool, StoreError> {
    let query = JobQuery {
        tenant: Some(key.tenant().into()),
        kind: Some(key.kind().into()),
        name: Some(key.name().into()),
        limit: RECENT_RUNS_MAX,
        ..JobQuery::default()
    };
    let page = cx.store().reads().jobs(query).await?;
    Ok(page.items.iter().any(|view| view.job.request == request))
}

#[cfg(test)]
mod tests;
