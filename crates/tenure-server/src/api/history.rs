//! History, and its verification.

use axum::Json;
use axum::extract::State;
use tenure_store::store::HistoryQuery;
use tenure_store::verify::verify_tenant;
use tenure_wire::{HistoryEntry, ListResponse, VerifyResponse};

use crate::ServerState;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::{OnResource, Params};
use tenure_app::pages::HistoryParams;

/// Lists the history of a resource, newest first.
#[utoipa::path(
    get,
    path = "/v1/resources/{kind}/{name}/history",
    tag = "resources",
    operation_id = "list_resource_history",
    params(OnResource, HistoryParams),
    responses((status = 200, description = "A page of events", body = ListResponse<HistoryEntry>))
)]
pub(super) async fn of_resource(
    State(state): State<ServerState>,
    on: OnResource,
    Params(params): Params<HistoryParams>,
) -> Result<Json<ListResponse<HistoryEntry>>, Problem> {
    let OnResource { caller, key } = on;
    let query = |before, limit| HistoryQuery::Of { key, before, limit };
    Ok(Json(state.services.history_page(&caller, &params, query).await?))
}

/// Lists the history of all resources, newest first.
#[utoipa::path(
    get,
    path = "/v1/history",
    tag = "insight",
    operation_id = "list_history",
    params(Caller, HistoryParams),
    responses((status = 200, description = "A page of events", body = ListResponse<HistoryEntry>))
)]
pub(super) async fn newest(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<HistoryParams>,
) -> Result<Json<ListResponse<HistoryEntry>>, Problem> {
    let tenant = caller.only_tenant();
    let query = |before, limit| HistoryQuery::Newest { tenant, before, limit };
    Ok(Json(state.services.history_page(&caller, &params, query).await?))
}

/// Verifies exclusivity from the whole history, or lists the contradictions.
#[utoipa::path(
    get,
    path = "/v1/verify",
    tag = "insight",
    operation_id = "verify",
    params(Caller),
    responses((status = 200, description = "The result", body = VerifyResponse))
)]
pub(super) async fn verify(
    State(state): State<ServerState>,
    caller: Caller,
) -> Result<Json<VerifyResponse>, Problem> {
    // A key of all tenants verifies all tenants at once.
    let tenant = caller.bound_tenant().map(|tenant| &**tenant);
    let report = verify_tenant(state.services.store(), tenant).await?;
    Ok(Json(VerifyResponse {
        ok: report.problems.is_empty(),
        resources: report.resources,
        entries: report.entries,
        grants: report.grants,
        problems: report.problems.iter().map(ToString::to_string).collect(),
    }))
}
