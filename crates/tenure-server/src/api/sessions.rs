//! Sessions of remote processes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use tenure::wire::{BeatBody, OpenBody, SessionAnswer};
use tenure_core::{Command, Outcome, SessionId};

use super::submit;
use crate::App;
use crate::auth::Caller;
use crate::extract::{Body, Idempotency};
use crate::problem::Problem;

pub(super) async fn open(
    State(app): State<Arc<App>>,
    caller: Caller,
    key: Idempotency,
    Body(body): Body<OpenBody>,
) -> Result<Json<SessionAnswer>, Problem> {
    let session = SessionId(key.id(&caller.tenant)?.0);
    let (tenant, name, ttl_ms) = (caller.tenant, body.name.into(), body.ttl_ms);
    let open = Command::Open { session, tenant: tenant.clone(), name, ttl_ms };
    let answer = alive(submit(&app, open).await?)?;
    app.whose.opened(session, &tenant);
    Ok(answer)
}

pub(super) async fn beat(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Body(body): Body<BeatBody>,
) -> Result<Json<SessionAnswer>, Problem> {
    let session = mine(&app, &caller, &id).await?;
    alive(submit(&app, Command::Beat { session, seen: body.seen }).await?)
}

pub(super) async fn close(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let session = mine(&app, &caller, &id).await?;
    submit(&app, Command::Close { session }).await?;
    Ok(Json(json!({ "closed": true })))
}

/// A session of the caller's tenant.
async fn mine(app: &App, caller: &Caller, id: &str) -> Result<SessionId, Problem> {
    let id = id.parse().map_err(|error| Problem::invalid(&error))?;
    app.whose.check_session(caller, id, app.committer.store().reads()).await?;
    Ok(id)
}

fn alive(outcome: Outcome) -> Result<Json<SessionAnswer>, Problem> {
    match outcome {
        Outcome::Alive { session, ttl_ms, revoked } => {
            let revoked = revoked.into_iter().map(Into::into).collect();
            Ok(Json(SessionAnswer { session, ttl_ms, revoked }))
        }
        other => Err(Problem::unexpected(&other)),
    }
}
