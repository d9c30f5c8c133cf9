//! The audit log of this server.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure_wire::{AuditEntry, ListResponse, schema};
use utoipa::IntoParams;

use crate::ServerState;
use crate::audit::AuditQuery;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::Params;
use tenure_app::openapi::NotFound;
use tenure_app::services::page_size;

use super::NamedTenant;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditParams {
    /// Filter by action, such as `lock.break`.
    action: Option<String>,
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
}

/// Lists audit entries of this server, newest first: mutations and refused requests.
#[utoipa::path(
    get,
    path = "/v1/audit",
    tag = "keys",
    operation_id = "audit",
    params(Caller, AuditParams),
    responses(
        (status = 200, description = "Audit entries", body = ListResponse<AuditEntry>),
        NotFound
    )
)]
pub(super) async fn newest(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<AuditParams>,
    Params(named): Params<NamedTenant>,
) -> Result<Json<ListResponse<AuditEntry>>, Problem> {
    // A key of all tenants sees all entries, or those of the tenant that it names.
    let tenant = caller.bound_tenant().cloned().or_else(|| named.only());
    let query = AuditQuery { tenant, action: params.action, limit: page_size(params.limit)? };
    let found = state.audit.newest(query).await;
    let found = found
        .map_err(|error| Problem::unavailable(&format!("cannot read the audit log: {error}")))?;
    let off = || Problem::not_found("this server has no audit log: `audit` is off in its config");
    Ok(Json(ListResponse { items: found.ok_or_else(off)?, next: None }))
}
