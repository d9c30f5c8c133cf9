//! Keys: create, list, revoke, whoami.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use tenure_core::session::ALL_TENANTS;
use tenure_core::{Millis, Text, limits};
use tenure_store::ApiKey;
use tenure_wire::request_schemas::RequiredReasonRequest;
use tenure_wire::{
    CreateKeyRequest, CreateKeyResponse, KeyInfo, ListResponse, ReasonRequest, WhoamiResponse,
    instant, schema,
};

use crate::ServerState;
use crate::auth::guard::check_tenant;
use crate::auth::keys::NewKey;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::{Body, Idempotency, OnName, Params};
use tenure_app::openapi::{Conflict, NotFound};

use super::NamedTenant;

/// Shows the name, tenant and role of the key of this request.
#[utoipa::path(
    get,
    path = "/v1/whoami",
    tag = "keys",
    operation_id = "whoami",
    params(Caller),
    responses((status = 200, description = "The key, its tenant and role", body = WhoamiResponse))
)]
pub(super) async fn whoami(
    State(state): State<ServerState>,
    caller: Caller,
    headers: HeaderMap,
) -> Json<WhoamiResponse> {
    let signed_in = state.signed_in(&headers);
    Json(WhoamiResponse {
        name: caller.name.to_string(),
        key: caller.key.as_ref().map(Text::to_string),
        tenant: caller.tenant.to_string(),
        role: caller.role,
        csrf: signed_in.map(|signed_in| signed_in.csrf),
    })
}

/// Creates a key, which is shown only in this response.
#[utoipa::path(
    post,
    path = "/v1/keys",
    tag = "keys",
    operation_id = "create_key",
    params(Caller, Idempotency),
    request_body = CreateKeyRequest,
    responses((status = 201, description = "The key", body = CreateKeyResponse), Conflict)
)]
pub(super) async fn create(
    State(state): State<ServerState>,
    caller: Caller,
    request: Idempotency,
    Body(body): Body<CreateKeyRequest>,
) -> Result<(StatusCode, Json<CreateKeyResponse>), Problem> {
    caller.required_reason(ReasonRequest { reason: body.reason })?;
    let max = limits::SESSION_NAME_BYTES_MAX;
    let name = body.name.trim();
    if name.is_empty() || name.len() > max || name.chars().any(|c| c.is_control() || c == '/') {
        let detail = format!("name must have 1 to {max} bytes on one line, without a slash");
        return Err(Problem::invalid(&detail));
    }
    let tenant = body.tenant.map_or_else(|| caller.tenant.clone(), Text::from);
    if caller.bound_tenant().is_some_and(|bound| *bound != tenant) {
        let detail = "a key that is bound to a tenant can only create keys of that tenant";
        return Err(Problem::new(403, "forbidden", detail));
    }
    if *tenant != *ALL_TENANTS {
        check_tenant(&tenant)?;
    }
    caller.audit.tenant.set(tenant.clone()).ok();
    let request = request.id(&format!("key of {}", caller.key_tenant))?;
    let (name, by) = (name.into(), caller.name);
    let (role, expires_in_ms) = (body.role, body.expires_in_ms);
    let new_key = NewKey { request, name, tenant, role, expires_in_ms, by };
    let (stored, secret) = state.keys.create(new_key);
    let ring = state.services.store().key_ring();
    if !ring.add(stored.clone()).await? {
        let detail = "this request has already created a key, which is not shown again: revoke it \
                      and create another with a new Idempotency-Key; or the store has the maximum \
                      number of keys";
        return Err(Problem::new(409, "conflict", detail));
    }
    state.keys.refresh(state.services.store()).await?;
    let key = answer(&stored, state.keys.now());
    Ok((StatusCode::CREATED, Json(CreateKeyResponse { secret, key })))
}

/// Lists the keys of the tenant, without their secrets.
#[utoipa::path(
    get,
    path = "/v1/keys",
    tag = "keys",
    operation_id = "list_keys",
    params(Caller),
    responses((status = 200, description = "All keys", body = ListResponse<KeyInfo>))
)]
pub(super) async fn list(
    State(state): State<ServerState>,
    caller: Caller,
    Params(named): Params<NamedTenant>,
) -> Result<Json<ListResponse<KeyInfo>>, Problem> {
    let (all, tenant) = (state.services.store().key_ring().all().await?, named.only());
    let now = state.keys.now();
    let is_listed = |key: &&ApiKey| {
        sees(&caller, key) && tenant.as_ref().is_none_or(|tenant| *tenant == key.tenant)
    };
    let items = all.iter().filter(is_listed).map(|key| answer(key, now)).collect();
    Ok(Json(ListResponse { items, next: None }))
}

/// Revokes a key. Other servers refuse it within seconds.
#[utoipa::path(
    post,
    path = "/v1/keys/{id}/revoke",
    tag = "keys",
    operation_id = "revoke_key",
    params(("id" = inline(schema::KeyId), Path, description = "The id of the key"), Caller),
    request_body = RequiredReasonRequest,
    responses((status = 200, description = "The revoked key", body = KeyInfo), NotFound)
)]
pub(super) async fn revoke(
    State(state): State<ServerState>,
    OnName { caller, name: id }: OnName,
    Body(body): Body<ReasonRequest>,
) -> Result<Json<KeyInfo>, Problem> {
    let reason = caller.required_reason(body)?;
    let not_found = || Problem::not_found("no such key; `tenure key ls` lists all");
    let ring = state.services.store().key_ring();
    let find = async || -> Result<ApiKey, Problem> {
        let all = ring.all().await?;
        let found = all.into_iter().find(|key| *key.id == *id && sees(&caller, key));
        found.ok_or_else(not_found)
    };
    caller.audit.tenant.set(find().await?.tenant).ok();
    let by = format!("{}: {reason}", caller.name);
    ring.revoke(&id, state.keys.now(), &by).await?;
    state.keys.refresh(state.services.store()).await?;
    Ok(Json(answer(&find().await?, state.keys.now())))
}

/// Returns whether the caller may see a key. Only keys of all tenants see keys of all tenants.
fn sees(caller: &Caller, key: &ApiKey) -> bool {
    caller.bound_tenant().is_none_or(|bound| *bound == key.tenant)
}

fn answer(key: &ApiKey, now: Millis) -> KeyInfo {
    let ended = key.revoked_at.is_some() || key.expires_at.is_some_and(|at| at <= now);
    KeyInfo {
        id: key.id.to_string(),
        name: key.name.to_string(),
        tenant: key.tenant.to_string(),
        role: key.role,
        good: !ended,
        created_at: instant(key.created_at),
        created_by: key.created_by.to_string(),
        expires_at: key.expires_at.map(instant),
        used_at: key.used_at.map(instant),
        revoked_at: key.revoked_at.map(instant),
        revoked_by: key.revoked_by.as_ref().map(Text::to_string),
    }
}
