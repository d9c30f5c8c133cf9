//! What is seen of the janitor of this server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tenure::wire::JanitorAnswer;

use crate::App;
use crate::auth::Caller;

/// Shows the duties of the janitor and how late they are.
#[utoipa::path(
    get,
    path = "/v1/janitor",
    tag = "insight",
    operation_id = "show_janitor",
    params(Caller),
    responses((status = 200, description = "The duties", body = JanitorAnswer))
)]
pub(super) async fn show(State(app): State<Arc<App>>) -> Json<JanitorAnswer> {
    Json(JanitorAnswer { items: app.janitor.duties(), here: app.janitor.here() })
}
