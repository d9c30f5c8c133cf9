//! Who works, and what there is to work.

use axum::Json;
use axum::extract::State;
use tenure_core::Text;
use tenure_core::session::ALL_TENANTS;
use tenure_store::store::WorkerView;
use tenure_wire::{KindAnswer, ListAnswer, WorkerAnswer, WorkerJob};

use crate::ServerState;
use tenure_app::Caller;
use tenure_app::Problem;

/// Lists the sessions that ask for jobs.
#[utoipa::path(
    get,
    path = "/v1/workers",
    tag = "insight",
    operation_id = "list_workers",
    params(Caller),
    responses((status = 200, description = "All of them", body = ListAnswer<WorkerAnswer>))
)]
pub(super) async fn list(
    State(state): State<ServerState>,
    caller: Caller,
) -> Result<Json<ListAnswer<WorkerAnswer>>, Problem> {
    let workers = state.services.store().reads().workers().await?;
    // Who works for everybody works for this tenant, too.
    let here = |worker: &&WorkerView| *worker.tenant == *ALL_TENANTS || caller.sees(&worker.tenant);
    let items = workers.iter().filter(here).map(|worker| answer(worker, &caller)).collect();
    Ok(Json(ListAnswer { items, next: None }))
}

/// A worker, with those of its jobs that are the caller's.
fn answer(worker: &WorkerView, caller: &Caller) -> WorkerAnswer {
    let jobs = worker.jobs.iter().filter(|(key, _)| caller.sees(key.tenant()));
    WorkerAnswer {
        session: worker.session,
        tenant: worker.tenant.to_string(),
        name: worker.name.to_string(),
        kinds: worker.kinds.iter().map(Text::to_string).collect(),
        asked_ms: worker.asked_ms,
        expires_in_ms: worker.expires_in_ms,
        jobs: jobs
            .map(|(key, job)| WorkerJob {
                kind: key.kind().to_owned(),
                name: key.name().to_owned(),
                job: *job,
            })
            .collect(),
    }
}

/// Lists the kinds that are in force, with all defaults filled in.
#[utoipa::path(
    get,
    path = "/v1/kinds",
    tag = "insight",
    operation_id = "list_kinds",
    params(Caller),
    responses((status = 200, description = "All of them", body = ListAnswer<KindAnswer>))
)]
pub(super) async fn kinds(State(state): State<ServerState>) -> Json<ListAnswer<KindAnswer>> {
    let items = state.services.live.kinds().iter().map(|kind| KindAnswer::of(kind)).collect();
    Json(ListAnswer { items, next: None })
}
