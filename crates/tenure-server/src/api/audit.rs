//! What was done on this server, and what was refused.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure::wire::{AuditLine, ListAnswer};

use super::page_size;
use crate::App;
use crate::audit::Wish;
use crate::auth::Caller;
use crate::extract::Params;
use crate::problem::Problem;

#[derive(Deserialize)]
pub(super) struct AuditParams {
    action: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn newest(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(params): Params<AuditParams>,
) -> Result<Json<ListAnswer<AuditLine>>, Problem> {
    // Without a tenant's name a key of all tenants means all of them here.
    let tenant = caller.bound().cloned();
    let wish = Wish { tenant, action: params.action, limit: page_size(params.limit)? };
    let found = app.audit.newest(wish).await;
    let found = found
        .map_err(|error| Problem::unavailable(&format!("the audit cannot be read: {error}")))?;
    let off = || Problem::not_found("this server keeps no audit: `audit` is off in its config");
    Ok(Json(ListAnswer { items: found.ok_or_else(off)?, next: None }))
}
