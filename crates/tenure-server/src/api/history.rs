//! History, and its verification.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure_store::store::{HistoryQuery, HistoryRow};
use tenure_store::verify::verify_tenant;
use tenure_wire::{HistoryEntry, ListResponse, VerifyResponse, schema};
use utoipa::IntoParams;

use crate::ServerState;
use crate::auth::PositionCipher;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::{OnResource, Params};
use tenure_app::services::page_size;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Paging {
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// `next` of the previous page.
    #[param(value_type = schema::Uint64, required = false, inline)]
    cursor: Option<u64>,
}

/// Lists the history of a resource, newest first.
#[utoipa::path(
    get,
    path = "/v1/resources/{kind}/{name}/history",
    tag = "resources",
    operation_id = "list_resource_history",
    params(OnResource, Paging),
    responses((status = 200, description = "A page of events", body = ListResponse<HistoryEntry>))
)]
pub(super) async fn of_resource(
    State(state): State<ServerState>,
    on: OnResource,
    Params(paging): Params<Paging>,
) -> Result<Json<ListResponse<HistoryEntry>>, Problem> {
    let limit = page_size(paging.limit)?;
    let before = state.decrypt_position(&on.caller, paging.cursor);
    let query = HistoryQuery::Of { key: on.key, before, limit };
    page(&state, &on.caller, query, limit).await
}

/// Lists the history of all resources, newest first.
#[utoipa::path(
    get,
    path = "/v1/history",
    tag = "insight",
    operation_id = "list_history",
    params(Caller, Paging),
    responses((status = 200, description = "A page of events", body = ListResponse<HistoryEntry>))
)]
pub(super) async fn newest(
    State(state): State<ServerState>,
    caller: Caller,
    Params(paging): Params<Paging>,
) -> Result<Json<ListResponse<HistoryEntry>>, Problem> {
    let limit = page_size(paging.limit)?;
    let before = state.decrypt_position(&caller, paging.cursor);
    let query = HistoryQuery::Newest { tenant: caller.only_tenant(), before, limit };
    page(&state, &caller, query, limit).await
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

async fn page(
    state: &ServerState,
    caller: &Caller,
    query: HistoryQuery,
    limit: usize,
) -> Result<Json<ListResponse<HistoryEntry>>, Problem> {
    let lines = state.services.store().reads().history(query).await?;
    let cipher = state.position_cipher(caller);
    let full = lines.len() == limit;
    let lines = lines.into_iter().map(|line| answer(line, cipher.as_ref()));
    let items = lines.collect::<Result<Vec<_>, _>>()?;
    let next = items.last().filter(|_| full).map(|line| line.position.to_string());
    Ok(Json(ListResponse { items, next }))
}

/// Converts an event for a caller. Positions count across all tenants, so a tenant sees them
/// encrypted.
pub(super) fn answer(
    line: HistoryRow,
    cipher: Option<&PositionCipher>,
) -> Result<HistoryEntry, Problem> {
    let HistoryRow { position, key, text, hash } = line;
    let shown = cipher.map_or(position, |cipher| cipher.encrypt(position));
    let entry = HistoryEntry::new(shown, key.clone(), text, hash.to_string());
    entry.map_err(|error| {
        Problem::unavailable(&format!("cannot parse entry {position} of {key}: {error}"))
    })
}
