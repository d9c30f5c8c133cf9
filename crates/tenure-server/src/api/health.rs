//! `/healthz`: the process answers. `/readyz`: so does its store, and who should be looked at.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tenure::wire::ReadyAnswer;
use tenure_store::StoreError;

use crate::problem::Problem;
use crate::{App, janitor};

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
        reasons: reasons(&app).await?,
    }))
}

/// A janitor that is late, or that nobody is, is no reason to send requests elsewhere: each server
/// answers as well as any. It is a reason for a person to look.
async fn reasons(app: &App) -> Result<Vec<String>, StoreError> {
    let mut reasons = app.janitor.late();
    if !app.janitor.here() {
        let shown = app.committer.store().reads().show(&janitor::resource()).await?;
        if shown.is_none_or(|shown| shown.tenures.is_empty()) {
            reasons.push("no server does the janitor's work at the moment".to_owned());
        }
    }
    Ok(reasons)
}
