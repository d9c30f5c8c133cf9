//! Since when the schedules of pipelines are known to the store.
//!
//! A sighting is the desired state of the first slot of a pipeline: its schedule, and the store
//! time at which a server first saw it. A tick before that does not run, on any server, now or
//! after a restart. When a schedule is no longer declared, its sighting ends; a later one counts as
//! new. An equal Put changes nothing, and a sighting is written only when a schedule changes.

use serde::{Deserialize, Serialize};
use tenure_app::DutyContext;
use tenure_core::{Command, Millis, Outcome, Put, ResourceAction, ResourceKey};
use tenure_store::StoreError;
use tenure_store::store::{PAGE_MAX, ResourceQuery};

use super::{ScheduleError, TRIGGERED_BY, skip_failed};
use crate::{Catalog, KIND, slots};

/// A schedule that the store knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sighting {
    /// Text of the schedule; `None` if it is no longer declared.
    schedule: Option<String>,
    /// Store time at which this was first seen, in milliseconds.
    since_ms: u64,
}

/// Returns since when the store knows the schedule of a pipeline: from `now` on if it is new or
/// has changed. A lost sighting is restored from `before`, the last tick that this process has
/// processed.
pub(super) async fn seen_since(
    cx: &DutyContext,
    key: &ResourceKey,
    schedule: &str,
    before: Option<Millis>,
    now: Millis,
) -> Result<Millis, ScheduleError> {
    let detail = cx.store().reads().show(key).await?;
    let resource = detail.and_then(|detail| detail.record.resource);
    let known = resource.and_then(|resource| parse(resource.spec.as_deref()));
    match known {
        Some(known) if known.schedule.as_deref() == Some(schedule) => Ok(Millis(known.since_ms)),
        Some(_) => put(cx, key, Some(schedule), now).await,
        None => {
            if before.is_some() {
                let (tenant_id, pipeline_id) = (key.tenant(), key.name());
                tracing::warn!(tenant_id, pipeline_id, "the store has lost the schedule; restored");
            }
            put(cx, key, Some(schedule), before.unwrap_or(now)).await
        }
    }
}

/// Ends the sightings of all schedules that are no longer declared.
pub(super) async fn end_undeclared(
    cx: &DutyContext,
    catalog: &Catalog,
    now: Millis,
) -> Result<(), StoreError> {
    let kind = Some(KIND.into());
    let mut query = ResourceQuery { kind, limit: PAGE_MAX, ..ResourceQuery::default() };
    loop {
        let page = cx.store().reads().resources(query.clone()).await?;
        for view in page.items {
            let known = parse(view.resource.spec.as_deref());
            if known.is_some_and(|known| known.schedule.is_some())
                && !is_scheduled(catalog, &view.key)
            {
                end(cx, &view.key, now).await?;
            }
        }
        query.after = page.next;
        if query.after.is_none() {
            return Ok(());
        }
    }
}

/// Ends the sighting of a schedule that is no longer declared.
pub(super) async fn end(
    cx: &DutyContext,
    key: &ResourceKey,
    now: Millis,
) -> Result<(), StoreError> {
    let ended = put(cx, key, None, now).await.map(drop);
    skip_failed(key.tenant(), key.name(), ended)
}

/// Returns whether a schedule is declared for a pipeline.
pub(super) fn is_scheduled(catalog: &Catalog, key: &ResourceKey) -> bool {
    let pipeline = catalog.get(key.tenant(), slots::pipeline(key.name()));
    pipeline.is_some_and(|pipeline| pipeline.schedule.is_some())
}

fn parse(spec: Option<&str>) -> Option<Sighting> {
    serde_json::from_str(spec?).ok()
}

/// Writes a sighting. Returns its time.
async fn put(
    cx: &DutyContext,
    key: &ResourceKey,
    schedule: Option<&str>,
    since: Millis,
) -> Result<Millis, ScheduleError> {
    let sighting = Sighting { schedule: schedule.map(str::to_owned), since_ms: since.0 };
    let spec = serde_json::to_string(&sighting).expect("no map with keys that are not texts");
    let action = ResourceAction::Put(Put::new(spec.into(), TRIGGERED_BY.into()));
    match cx.committer.submit(Command::Resource { key: key.clone(), action }).await? {
        Outcome::Put { .. } => Ok(since),
        other => Err(ScheduleError::Pipeline(format!("the schedule cannot be stored: {other:?}"))),
    }
}
