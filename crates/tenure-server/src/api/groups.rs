//! Groups of resources: counts.

use axum::Json;
use axum::extract::State;
use tenure_app::Problem;
use tenure_app::extract::OnResource;
use tenure_app::openapi::{NotFound, OneTenant};
use tenure_core::Refusal;
use tenure_wire::{GroupInfo, schema};

use crate::ServerState;

/// Counts the unfinished jobs of a group.
#[utoipa::path(
    get,
    path = "/v1/groups/{kind}/{group}",
    tag = "resources",
    operation_id = "show_group",
    params(
        ("kind" = schema::KindName, Path, description = "The kind of the resources"),
        ("group" = schema::ResourceName, Path, description = "The group"),
        OneTenant
    ),
    responses((status = 200, description = "The counts", body = GroupInfo), NotFound)
)]
pub(super) async fn show(
    State(state): State<ServerState>,
    on: OnResource,
) -> Result<Json<GroupInfo>, Problem> {
    let (tenant, kind, group) = (on.key.tenant(), on.key.kind(), on.key.name());
    let kinds = state.services.live.kinds();
    let declared = kinds.get(kind);
    let declared = declared.ok_or_else(|| Refusal::NotDeclared(format!("the kind {kind}")))?;
    if !declared.grouped {
        let detail = format!("the kind {kind} has no groups; declare it with grouped = true");
        return Err(Problem::invalid(&detail));
    }
    let reads = state.services.store().reads();
    let counts = reads.group(tenant.into(), kind.into(), group.into()).await?;
    Ok(Json(GroupInfo::new(tenant, kind, group, counts)))
}
