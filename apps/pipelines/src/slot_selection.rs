//! Selection of the slot, that is the resource, on which a run starts.
//!
//! The selection is a hint and may be stale: the store decides, and a trigger that meets a run
//! attaches to it.

use crate::declare::Pipeline;
use tenure_core::resource::Resource;
use tenure_core::{JobId, JobState, RequestId, ResourceKey};
use tenure_store::{Store, StoreError};

/// The slot selected for a run.
pub(crate) struct SelectedSlot {
    /// Resource of the slot.
    pub(crate) key: ResourceKey,
    /// Run that a trigger would attach to there.
    pub(crate) busy: Option<JobId>,
}

/// Selects the slot that already has this request, else a free one, else the last one. The only
/// slot of a pipeline is returned without a read unless `find_busy` is set. `None` without slots.
pub(crate) async fn select_slot(
    store: &dyn Store,
    pipeline: &Pipeline,
    request: RequestId,
    find_busy: bool,
) -> Result<Option<SelectedSlot>, StoreError> {
    let keys: Vec<ResourceKey> = pipeline.keys().collect();
    let Some(last) = keys.last().cloned() else { return Ok(None) };
    if !find_busy && keys.len() == 1 {
        return Ok(Some(SelectedSlot { key: last, busy: None }));
    }
    let (mut free, mut busy) = (None, None);
    for key in &keys {
        let Some(detail) = store.reads().show(key).await? else {
            free.get_or_insert(key);
            continue;
        };
        // The lock may have been acquired manually.
        let held = !detail.tenures.is_empty();
        let Some(resource) = detail.record.resource else {
            if !held {
                free.get_or_insert(key);
            }
            continue;
        };
        if has_request(&resource, request) {
            return Ok(Some(SelectedSlot { key: key.clone(), busy: None }));
        }
        if resource.lane.is_empty() && !held {
            free.get_or_insert(key);
        }
        let active = resource.lane.iter().find(|job| job.state != JobState::Cancelling);
        busy = active.map(|job| job.id).or(busy);
    }
    Ok(Some(match free {
        Some(key) => SelectedSlot { key: key.clone(), busy: None },
        None => SelectedSlot { key: last, busy },
    }))
}

/// Returns whether a run of the pipeline is unfinished, or the request has already got a run.
pub(crate) async fn knows_run(
    store: &dyn Store,
    pipeline: &Pipeline,
    request: RequestId,
) -> Result<bool, StoreError> {
    for key in pipeline.keys() {
        let detail = store.reads().show(&key).await?;
        let resource = detail.and_then(|detail| detail.record.resource);
        if resource.is_some_and(|one| !one.lane.is_empty() || has_request(&one, request)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether the resource has already accepted the request.
fn has_request(resource: &Resource, request: RequestId) -> bool {
    resource.lane.iter().any(|job| job.request == request)
        || resource.recent_submits.get(request).is_some()
}
