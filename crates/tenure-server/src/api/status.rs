//! `/v1/status`: the deployment on one screen.

use axum::Json;
use axum::extract::State;
use tenure::status::summarize;
use tenure_wire::{AttentionInfo, StatusResponse};

use super::health::{CONFIG_CHECK, readiness_reasons};
use crate::ServerState;
use crate::janitor::verify;
use crate::metrics::in_time;
use tenure_app::openapi::Unavailable;
use tenure_app::{Caller, Problem};

/// Summarizes the deployment: counts of locks, jobs and workers, and what needs attention.
///
/// The counts are those of the tenant of the request, and up to a few seconds old. Conditions of
/// the server itself are shown only to keys of all tenants.
#[utoipa::path(
    get,
    path = "/v1/status",
    tag = "insight",
    operation_id = "status",
    params(Caller),
    responses(
        (status = 200, description = "Status of the deployment", body = StatusResponse),
        Unavailable
    )
)]
pub(super) async fn show(
    State(state): State<ServerState>,
    caller: Caller,
) -> Result<Json<StatusResponse>, Problem> {
    let store = state.services.store();
    let unavailable = || Problem::unavailable("the store does not answer");
    let (status, census) = state.metrics.census(store).await.ok_or_else(unavailable)?;
    let workers = in_time(store.reads().workers()).await.ok_or_else(unavailable)?;
    let mut answer = summarize(&caller.tenant, &status, &census, &workers);
    answer.uptime_ms = Some(u64::try_from(state.started.elapsed().as_millis()).unwrap_or(u64::MAX));
    if caller.bound_tenant().is_none() {
        let reasons = in_time(readiness_reasons(&state, &status)).await.ok_or_else(unavailable)?;
        answer.attention.extend(reasons.into_iter().map(attention));
    }
    Ok(Json(answer))
}

/// Converts a condition of the server. Some name the command that shows more.
fn attention(text: String) -> AttentionInfo {
    let named = [CONFIG_CHECK, verify::COMMAND].into_iter().find(|command| text.contains(command));
    let command = named.unwrap_or("tenure doctor");
    AttentionInfo { code: "readiness".to_owned(), text, command: command.to_owned() }
}
