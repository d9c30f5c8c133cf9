//! Controllers of apps, and the process that runs each.

use axum::Json;
use axum::extract::State;
use tenure_app::Problem;
use tenure_app::controller::resource;
use tenure_wire::{ControllerInfo, ListResponse, TenureInfo};

use crate::ServerState;

/// Lists the controllers of the installed apps with their holders.
#[utoipa::path(
    get,
    path = "/v1/controllers",
    tag = "insight",
    operation_id = "list_controllers",
    responses((status = 200, description = "All controllers", body = ListResponse<ControllerInfo>))
)]
pub(super) async fn list(
    State(state): State<ServerState>,
) -> Result<Json<ListResponse<ControllerInfo>>, Problem> {
    let mut items = Vec::new();
    for app in state.apps.iter() {
        for controller in app.controllers() {
            let key = resource(controller.name())?;
            let detail = state.services.store().reads().show(&key).await?;
            let tenure = detail.and_then(|detail| detail.tenures.into_iter().next());
            items.push(ControllerInfo {
                name: controller.name().to_owned(),
                app: app.name().to_owned(),
                tenure: tenure.as_ref().map(TenureInfo::new),
            });
        }
    }
    Ok(Json(ListResponse { items, next: None }))
}
