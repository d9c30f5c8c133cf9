//! `/healthz`: the process answers. `/readyz`: so does its store.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tenure::wire::ReadyAnswer;

use crate::App;
use crate::problem::Problem;

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(app): State<Arc<App>>) -> Result<Json<ReadyAnswer>, Problem> {
    if app.closing.is_cancelled() {
        return Err(Problem::unavailable("the server is shutting down"));
    }
    let status = app.committer.store().status().await?;
    Ok(Json(ReadyAnswer {
        ready: true,
        store: status.store.to_owned(),
        safety: status.safety.as_str().to_owned(),
        incarnation: status.incarnation.0,
        sessions: status.sessions,
        live: status.live,
    }))
}
