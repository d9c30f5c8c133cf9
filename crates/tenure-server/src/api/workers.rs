//! Workers and declared kinds.

use axum::Json;
use axum::extract::State;
use tenure_core::Text;
use tenure_core::session::ALL_TENANTS;
use tenure_store::store::WorkerView;
use tenure_wire::{KindInfo, ListResponse, WorkerInfo, WorkerJobInfo};

use crate::ServerState;
use tenure_app::Caller;
use tenure_app::Problem;

/// Lists workers: the sessions that claim jobs.
#[utoipa::path(
    get,
    path = "/v1/workers",
    tag = "insight",
    operation_id = "list_workers",
    params(Caller),
    responses((status = 200, description = "All workers", body = ListResponse<WorkerInfo>))
)]
pub(super) async fn list(
    State(state): State<ServerState>,
    caller: Caller,
) -> Result<Json<ListResponse<WorkerInfo>>, Problem> {
    let workers = state.services.store().reads().workers().await?;
    // A worker of all tenants also works for the caller's.
    let visible =
        |worker: &&WorkerView| *worker.tenant == *ALL_TENANTS || caller.sees(&worker.tenant);
    let items = workers.iter().filter(visible).map(|worker| answer(worker, &caller)).collect();
    Ok(Json(ListResponse { items, next: None }))
}

/// Converts a worker, with only those of its jobs that the caller may see.
fn answer(worker: &WorkerView, caller: &Caller) -> WorkerInfo {
    let jobs = worker.jobs.iter().filter(|(key, _)| caller.sees(key.tenant()));
    WorkerInfo {
        session: worker.session,
        tenant: worker.tenant.to_string(),
        name: worker.name.to_string(),
        kinds: worker.kinds.iter().map(Text::to_string).collect(),
        age_ms: worker.age_ms,
        asked_ms: worker.asked_ms,
        expires_in_ms: worker.expires_in_ms,
        jobs: jobs
            .map(|(key, job)| WorkerJobInfo {
                kind: key.kind().to_owned(),
                name: key.name().to_owned(),
                job: *job,
            })
            .collect(),
    }
}

/// Lists the declared kinds, with all defaults filled in.
#[utoipa::path(
    get,
    path = "/v1/kinds",
    tag = "insight",
    operation_id = "list_kinds",
    params(Caller),
    responses((status = 200, description = "All kinds", body = ListResponse<KindInfo>))
)]
pub(super) async fn kinds(State(state): State<ServerState>) -> Json<ListResponse<KindInfo>> {
    let items = state.services.live.kinds().iter().map(|kind| KindInfo::new(kind)).collect();
    Json(ListResponse { items, next: None })
}
