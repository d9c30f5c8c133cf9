//! The schedules of pipelines: triggers each at its ticks.
//!
//! The request of a trigger is made from the tick, so a second server, or the same one after a
//! restart, gets the run that is there. A tick that finds a run going on attaches to it. One that
//! nobody could see to in time is left out: what should have run at night does not run at noon.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Catalog, Pipeline, RUN};
use serde_json::{Map, Value};
use tenure_core::history::digest;
use tenure_core::{
    Command, Millis, Outcome, RequestId, ResourceAction, ResourceKey, Submit, Verdict,
};
use tenure_store::StoreError;
use tenure_store::store::JobQuery;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};

use crate::places::spot;

const NAME: &str = "schedule";

/// How late a tick may be seen to.
const LATE_MAX_MS: u64 = 60_000;
/// Most runs that are looked at to know whether a tick has had its own.
const LOOK_BACK: usize = 20;
/// What such runs are triggered by.
const BY: &str = "schedule";

/// Triggers pipelines at their ticks.
#[derive(Default)]
pub(crate) struct Schedules {
    /// The schedule of each pipeline and its last tick that was seen to, by tenant and name.
    seen: BTreeMap<(String, String), (String, Millis)>,
    /// Whether it has looked once. What is declared later has no tick that anybody missed.
    looked: bool,
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
            self.looked = true;
            return Ok(DutyReport::default());
        };
        let scheduled: Vec<_> = catalog.iter(None).filter(|one| one.schedule.is_some()).collect();
        if scheduled.is_empty() {
            self.looked = true;
            return Ok(DutyReport::default());
        }
        let now = cx.store().status().await?.now;
        let (mut triggered, mut seen) = (0, BTreeMap::new());
        for pipeline in scheduled {
            let Some(schedule) = &pipeline.schedule else { continue };
            let Some(tick) = schedule.last(now) else { continue };
            let of = (pipeline.tenant.clone(), pipeline.name.clone());
            // One that was changed is another one.
            let before = self.seen.get(&of).filter(|(text, _)| text == schedule.text());
            let before = before.map(|(_, tick)| *tick);
            if before.is_none_or(|before| before < tick) {
                let declared_now = self.looked && before.is_none();
                if now.since(tick) <= LATE_MAX_MS && !declared_now {
                    triggered += usize::from(trigger(cx, pipeline, tick).await?);
                } else if before.is_some() {
                    tracing::warn!(tenant_id = %pipeline.tenant, pipeline_id = %pipeline.name,
                        late_ms = now.since(tick), "a tick was missed and is left out");
                }
            }
            seen.insert(of, (schedule.text().to_owned(), tick));
        }
        self.seen = seen;
        self.looked = true;
        Ok(DutyReport::done(triggered))
    }
}

/// Triggers a run for a tick, and says whether it began one.
async fn trigger(cx: &DutyContext, pipeline: &Pipeline, tick: Millis) -> Result<bool, StoreError> {
    let (tenant, name) = (&pipeline.tenant, &pipeline.name);
    let request = RequestId(digest(&format!("{tenant}/{name} at {}", tick.0)));
    for key in pipeline.keys() {
        if had_its_run(cx, key, request).await? {
            return Ok(false);
        }
    }
    let refused = |why: &dyn std::fmt::Debug| {
        tracing::error!(tenant_id = %tenant, pipeline_id = %name, ?why, "a tick came to nothing");
        Ok(false)
    };
    let parameters = match pipeline.fill(&Map::new()) {
        Ok(parameters) => parameters,
        Err(why) => return refused(&why),
    };
    let key = match spot(cx.store(), pipeline, request, false).await {
        Ok(spot) => spot.key,
        Err(problem) => return Err(StoreError::unavailable(format!("{problem:?}"))),
    };
    let ask = Submit {
        request,
        operation: RUN.into(),
        args: Some(tenure_wire::document(&Value::Object(parameters))),
        priority: 0,
        run_at: None,
        by: BY.into(),
    };
    let command = Command::Resource { key, action: ResourceAction::Submit(ask) };
    match cx.committer.submit(command).await? {
        Outcome::Submitted { verdict, job } => {
            tracing::info!(tenant_id = %tenant, pipeline_id = %name, pipeline_logging_id = %job,
                verdict = verdict.as_str(), "triggered by its schedule");
            Ok(verdict != Verdict::Attached)
        }
        other => refused(&other),
    }
}

/// Whether a request has made a run already, also one that is over.
async fn had_its_run(
    cx: &DutyContext,
    key: ResourceKey,
    request: RequestId,
) -> Result<bool, StoreError> {
    let query = JobQuery {
        tenant: Some(key.tenant().into()),
        kind: Some(key.kind().into()),
        name: Some(key.name().into()),
        limit: LOOK_BACK,
        ..JobQuery::default()
    };
    let page = cx.store().reads().jobs(query).await?;
    Ok(page.items.iter().any(|shown| shown.job.request == request))
}

#[cfg(test)]
mod tests;
