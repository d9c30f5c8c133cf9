//! The duty `schedule`: triggers pipelines at their ticks.
//!
//! The request id of a trigger is derived from the tick, so that a second server, or the same one
//! after a restart, gets the existing run. A tick during a run attaches to it. A tick that is
//! processed too late is skipped: a nightly run does not start at noon. So is a tick before the
//! store knew the schedule; see `sightings`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::{Catalog, Pipeline, RUN};
use serde_json::Map;
use tenure_core::history::digest;
use tenure_core::{
    Command, Millis, Outcome, Refusal, RequestId, ResourceAction, ResourceKey, Submit, Verdict,
};
use tenure_store::StoreError;
use tenure_store::store::JobQuery;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};

use crate::precheck::{Check, Decision};
use crate::run_args::RunArgs;
use crate::schedule::Schedule;
use crate::slot_selection::{knows_run, select_slot};

use checks::Checks;

const NAME: &str = "schedule";

/// Time after which a tick that was not processed is skipped.
const TICK_DELAY_MAX_MS: u64 = 60_000;
/// Maximum number of recent runs searched for that of a tick.
const RECENT_RUNS_MAX: usize = 20;
/// Value of `trigger_by` of scheduled runs.
const TRIGGERED_BY: &str = "schedule";

/// Pause after which another server may have run the duty in between.
const TAKE_OVER_MS: u64 = 5_000;

/// Triggers pipelines at their ticks.
#[derive(Default)]
pub(crate) struct Schedules {
    /// Schedule and last processed tick of each pipeline.
    processed: BTreeMap<ResourceKey, Processed>,
    /// Store time of the last run of the duty.
    last_run: Option<Millis>,
    checks: Checks,
}

struct Processed {
    /// Text of the schedule.
    schedule: String,
    tick: Millis,
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
            return Ok(DutyReport::default());
        };
        let now = cx.store().status().await?.now;
        self.end_undeclared(cx, &catalog, now).await?;
        let mut triggered = 0;
        for pipeline in catalog.iter(None) {
            if let Some(schedule) = &pipeline.schedule {
                let created = self.process(cx, (&catalog, pipeline), schedule, now).await;
                let created = skip_failed(&pipeline.tenant, &pipeline.name, created)?;
                triggered += usize::from(created);
            }
        }
        self.last_run = Some(now);
        Ok(DutyReport::done(triggered))
    }
}

impl Schedules {
    /// Ends the sightings of schedules that are no longer declared. Searches the store if others
    /// may have changed it.
    async fn end_undeclared(
        &mut self,
        cx: &DutyContext,
        catalog: &Catalog,
        now: Millis,
    ) -> Result<(), StoreError> {
        if self.last_run.is_none_or(|last| now.since(last) > TAKE_OVER_MS) {
            sightings::end_undeclared(cx, catalog, now).await?;
        } else {
            let undeclared = |key: &&ResourceKey| !sightings::is_scheduled(catalog, key);
            for key in self.processed.keys().filter(undeclared) {
                sightings::end(cx, key, now).await?;
            }
        }
        self.processed.retain(|key, _| sightings::is_scheduled(catalog, key));
        Ok(())
    }

    /// Processes the last tick of a schedule, unless that is done. Returns whether it created a
    /// run.
    async fn process(
        &mut self,
        cx: &DutyContext,
        (catalog, pipeline): (&Arc<Catalog>, &Arc<Pipeline>),
        schedule: &Schedule,
        now: Millis,
    ) -> Result<bool, ScheduleError> {
        let (Some(last), Some(key)) = (schedule.last(now), pipeline.keys().next()) else {
            return Ok(false);
        };
        // A tick whose check runs comes first: ticks may be closer than a check takes.
        let checked = self.checks.tick(&key).filter(|tick| now.since(*tick) <= TICK_DELAY_MAX_MS);
        let tick = checked.unwrap_or(last);
        let before = self.processed.get(&key).filter(|before| before.schedule == schedule.text());
        let before = before.map(|before| before.tick);
        if before.is_some_and(|before| before >= tick) {
            return Ok(false);
        }
        let since = sightings::seen_since(cx, &key, schedule.text(), before, now).await?;
        let mut created = false;
        let (tenant_id, pipeline_id) = (&pipeline.tenant, &pipeline.name);
        let late_ms = now.since(tick);
        if tick > since && late_ms <= TICK_DELAY_MAX_MS {
            match self.decide(cx, (catalog, pipeline), &key, tick).await? {
                None => return Ok(false),
                Some(Decision::Start) => created = trigger(cx, pipeline, tick).await?,
                Some(Decision::Active(id)) => tracing::info!(%tenant_id, %pipeline_id,
                    external_id = %id, "the precheck of a tick found an active run"),
                // It is repeated until the tick is too late.
                Some(Decision::Refuse(why)) => {
                    tracing::warn!(%tenant_id, %pipeline_id, why, "the precheck of a tick failed");
                    return Ok(false);
                }
            }
        } else if before.is_some() {
            tracing::warn!(%tenant_id, %pipeline_id, late_ms, "tick missed; skipped");
        } else if since == now && late_ms <= TICK_DELAY_MAX_MS {
            tracing::warn!(%tenant_id, %pipeline_id, late_ms,
                "tick skipped: the store did not know the schedule");
        }
        self.checks.stop(&key);
        let schedule = schedule.text().to_owned();
        self.processed.insert(key, Processed { schedule, tick });
        Ok(created)
    }

    /// Decides whether a tick starts a run; `None` while its precheck runs.
    async fn decide(
        &mut self,
        cx: &DutyContext,
        (catalog, pipeline): (&Arc<Catalog>, &Arc<Pipeline>),
        key: &ResourceKey,
        tick: Millis,
    ) -> Result<Option<Decision>, StoreError> {
        let request = tick_request(pipeline, tick);
        if pipeline.precheck.is_none() || knows_run(cx.store(), pipeline, request).await? {
            return Ok(Some(Decision::Start));
        }
        let check = || Check {
            catalog: Arc::clone(catalog),
            pipeline: Arc::clone(pipeline),
            parameters: pipeline.fill(&Map::new()).unwrap_or_default(),
            scheduled_at: Some(tenure_wire::instant(tick)),
            pass_env: cx.live.get().pass_env,
        };
        Ok(self.checks.poll(key, tick, check).await)
    }
}

/// Why the schedule of a pipeline was not processed.
enum ScheduleError {
    /// The store cannot be used, which stops all schedules.
    Outage(StoreError),
    /// Something that concerns this pipeline only.
    Pipeline(String),
}

impl From<StoreError> for ScheduleError {
    fn from(error: StoreError) -> Self {
        if error.is_retryable() { Self::Outage(error) } else { Self::Pipeline(error.to_string()) }
    }
}

/// Logs a failure that concerns one pipeline, so that the others continue. Returns outages.
fn skip_failed<T: Default>(
    tenant_id: &str,
    pipeline_id: &str,
    result: Result<T, ScheduleError>,
) -> Result<T, StoreError> {
    match result {
        Ok(done) => Ok(done),
        Err(ScheduleError::Outage(error)) => Err(error),
        Err(ScheduleError::Pipeline(why)) => {
            tracing::warn!(tenant_id, pipeline_id, why, "schedule not processed; retrying");
            Ok(T::default())
        }
    }
}

/// Returns the request id of the trigger of a tick.
fn tick_request(pipeline: &Pipeline, tick: Millis) -> RequestId {
    let Pipeline { tenant, name, .. } = pipeline;
    RequestId(digest(&format!("{tenant}/{name} at {}", tick.0)))
}

/// Triggers the run of a tick. Returns whether it created one.
async fn trigger(cx: &DutyContext, pipeline: &Pipeline, tick: Millis) -> Result<bool, StoreError> {
    let (tenant, name) = (&pipeline.tenant, &pipeline.name);
    let request = tick_request(pipeline, tick);
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
    let Some(slot) = select_slot(cx.store(), pipeline, request, false).await? else {
        return skip(&"the pipeline has no slots");
    };
    let submit = Submit {
        request,
        operation: RUN.into(),
        args: Some(tenure_wire::to_document(&RunArgs::of_tick(parameters, tick).into_json())),
        priority: 0,
        run_at: None,
        by: TRIGGERED_BY.into(),
        precondition: None,
    };
    let command = Command::Resource { key: slot.key, action: ResourceAction::Submit(submit) };
    match cx.committer.submit(command).await? {
        Outcome::Submitted { verdict, job, .. } => {
            tracing::info!(tenant_id = %tenant, pipeline_id = %name, pipeline_logging_id = %job,
                verdict = verdict.as_str(), "run triggered by schedule");
            Ok(verdict != Verdict::Attached)
        }
        // It attached earlier, with other defaults.
        Outcome::Refused(Refusal::RequestReused) => Ok(false),
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

mod checks;
mod sightings;
#[cfg(test)]
mod tests;
