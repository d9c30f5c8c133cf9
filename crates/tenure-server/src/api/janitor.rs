//! What is seen of the janitor of this server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tenure::wire::JanitorAnswer;

use crate::App;

pub(super) async fn show(State(app): State<Arc<App>>) -> Json<JanitorAnswer> {
    Json(JanitorAnswer { items: app.janitor.duties(), here: app.janitor.here() })
}
