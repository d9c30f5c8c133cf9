//! Status of the janitor of this server.

use axum::Json;
use axum::extract::State;
use tenure_wire::JanitorResponse;

use crate::ServerState;
use tenure_app::Caller;

/// Shows the duties of the janitor of this server and their lag.
#[utoipa::path(
    get,
    path = "/v1/janitor",
    tag = "insight",
    operation_id = "show_janitor",
    params(Caller),
    responses((status = 200, description = "The duties", body = JanitorResponse))
)]
pub(super) async fn show(State(state): State<ServerState>) -> Json<JanitorResponse> {
    Json(JanitorResponse { items: state.janitor.duties(), here: state.janitor.holds_lock() })
}
