//! Status of the janitor of this server.

use axum::Json;
use axum::extract::State;
use tenure_wire::JanitorAnswer;

use crate::ServerState;
use tenure_app::Caller;

/// Shows the duties of the janitor of this server and their lag.
#[utoipa::path(
    get,
    path = "/v1/janitor",
    tag = "insight",
    operation_id = "show_janitor",
    params(Caller),
    responses((status = 200, description = "The duties", body = JanitorAnswer))
)]
pub(super) async fn show(State(state): State<ServerState>) -> Json<JanitorAnswer> {
    Json(JanitorAnswer { items: state.janitor.duties(), here: state.janitor.holds_lock() })
}
