//! What was done on this server, and what was refused.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure_wire::{AuditLine, ListAnswer, schema};
use utoipa::IntoParams;

use crate::ServerState;
use crate::audit::Wish;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::Params;
use tenure_app::openapi::NotFound;
use tenure_app::services::page_size;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditParams {
    /// Only this, such as `lock.break`.
    action: Option<String>,
    /// At most so many.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
}

/// Lists what was done on this server, and what was refused, newest first.
#[utoipa::path(
    get,
    path = "/v1/audit",
    tag = "keys",
    operation_id = "audit",
    params(Caller, AuditParams),
    responses((status = 200, description = "Lines", body = ListAnswer<AuditLine>), NotFound)
)]
pub(super) async fn newest(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<AuditParams>,
) -> Result<Json<ListAnswer<AuditLine>>, Problem> {
    // Without a tenant's name a key of all tenants means all of them here.
    let tenant = caller.bound_tenant().cloned();
    let wish = Wish { tenant, action: params.action, limit: page_size(params.limit)? };
    let found = state.audit.newest(wish).await;
    let found = found
        .map_err(|error| Problem::unavailable(&format!("the audit cannot be read: {error}")))?;
    let off = || Problem::not_found("this server keeps no audit: `audit` is off in its config");
    Ok(Json(ListAnswer { items: found.ok_or_else(off)?, next: None }))
}
