//! The audit log.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure_store::audit::AuditFilter;
use tenure_wire::{AuditResponse, schema};
use utoipa::IntoParams;

use crate::ServerState;
use crate::audit::parse_since;
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
    /// Filter by the name of the caller, or the id of its key.
    who: Option<String>,
    /// Only entries since an instant, or within a duration such as `2h`.
    #[param(value_type = schema::Since, required = false, inline)]
    since: Option<String>,
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
}

/// Lists audit entries, newest first: mutations and refused requests. With several servers on one
/// database, those of workers are of the server that answers, all others of all servers; if those
/// of other servers cannot be read, `partial` says why.
#[utoipa::path(
    get,
    path = "/v1/audit",
    tag = "keys",
    operation_id = "audit",
    params(Caller, AuditParams),
    responses(
        (status = 200, description = "Audit entries", body = AuditResponse),
        NotFound
    )
)]
pub(super) async fn newest(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<AuditParams>,
    Params(named): Params<NamedTenant>,
) -> Result<Json<AuditResponse>, Problem> {
    // A key of all tenants sees all entries, or those of the tenant that it names.
    let tenant = caller.bound_tenant().cloned().or_else(|| named.only());
    let since = params.since.as_deref().map(parse_since).transpose();
    let filter = AuditFilter {
        since: since.map_err(|why| Problem::invalid(&why))?,
        tenant: tenant.map(|tenant| tenant.to_string()),
        who: params.who,
        action: params.action,
        limit: page_size(params.limit)?,
    };
    let found = state.audit.newest(filter, state.services.store()).await?;
    let off = || Problem::not_found("this server has no audit log: `audit` is off in its config");
    found.map(Json).ok_or_else(off)
}
