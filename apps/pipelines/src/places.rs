//! Where a run of a pipeline begins: each of its resources is a place for one run.
//!
//! What is found here may be wrong a moment later, and that is no harm: the store decides, and a
//! trigger that finds a run where there was none gets its id.

use crate::declare::Pipeline;
use tenure_core::resource::Resource;
use tenure_core::{JobId, JobState, Refusal, RequestId, ResourceKey};
use tenure_store::Store;

use tenure_app::Problem;

/// A place for a run.
pub(crate) struct Spot {
    /// The resource.
    pub(crate) key: ResourceKey,
    /// The run that a trigger would get there.
    pub(crate) busy: Option<JobId>,
}

/// The place of an earlier sending of the same request, else a free one, else the last. A pipeline
/// with one place is not looked at unless somebody wants to know.
pub(crate) async fn spot(
    store: &dyn Store,
    pipeline: &Pipeline,
    request: RequestId,
    look: bool,
) -> Result<Spot, Problem> {
    let keys: Vec<ResourceKey> = pipeline.keys().collect();
    let last = keys.last().cloned().ok_or(Refusal::NoSuchResource)?;
    if !look && keys.len() == 1 {
        return Ok(Spot { key: last, busy: None });
    }
    let (mut free, mut busy) = (None, None);
    for key in &keys {
        let Some(shown) = store.reads().show(key).await? else {
            free.get_or_insert(key);
            continue;
        };
        // Somebody may hold its lock by hand.
        let held = !shown.tenures.is_empty();
        let Some(resource) = shown.record.resource else {
            if !held {
                free.get_or_insert(key);
            }
            continue;
        };
        if is_known(&resource, request) {
            return Ok(Spot { key: key.clone(), busy: None });
        }
        if resource.lane.is_empty() && !held {
            free.get_or_insert(key);
        }
        let going = resource.lane.iter().find(|job| job.state != JobState::Cancelling);
        busy = going.map(|job| job.id).or(busy);
    }
    match free {
        Some(key) => Ok(Spot { key: key.clone(), busy: None }),
        None => Ok(Spot { key: last, busy }),
    }
}

/// Whether an earlier sending of a request came there.
fn is_known(resource: &Resource, request: RequestId) -> bool {
    resource.lane.iter().any(|job| job.request == request)
        || resource.recent_submits.get(request).is_some()
}
