//! Locks: acquire, renew, release, withdraw, break, show, list.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use futures_util::FutureExt as _;
use serde::Deserialize;
use tenure_core::session::ALL_TENANTS;
use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockName, LockSet, Outcome, RequestId, ResourceKey,
};
use tenure_store::Committer;
use tenure_store::store::TenureQuery;
use tenure_wire::request_schemas::AcquireRequestSchema;
use tenure_wire::{
    AcquireRequest, BreakRequest, BreakResponse, ListResponse, Locks, ReasonRequest,
    ReleaseRequest, ReleaseResponse, RenewRequest, ResourceLocksResponse, TenureInfo,
    WithdrawRequest, WithdrawResponse, schema,
};
use tokio::sync::OwnedMutexGuard;
use utoipa::IntoParams;

use crate::ServerState;
use crate::in_flight::{Answer, Registration, shutting_down};
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::Services;
use tenure_app::extract::{Body, Idempotency, OnResource, Params};
use tenure_app::openapi::{Conflict, NotFound};
use tenure_app::services::{group_filter, page_size};

/// Acquires locks of a resource, or waits for them.
#[utoipa::path(
    post,
    path = "/v1/locks/{kind}/{name}/acquire",
    tag = "locks",
    operation_id = "acquire_lock",
    params(OnResource, Idempotency),
    request_body = AcquireRequestSchema,
    responses((status = 200, description = "The tenure", body = TenureInfo), Conflict)
)]
pub(super) async fn acquire(
    State(state): State<ServerState>,
    on: OnResource,
    key: Idempotency,
    Body(body): Body<AcquireRequest>,
) -> Result<Json<TenureInfo>, Problem> {
    let timeout = body.poll_ms.map_or(Duration::MAX, Duration::from_millis);
    let acquire = acquire_request(&on.caller, body, key.id(on.key.as_str())?)?;
    let outcome = if acquire.wait_ms == 0 {
        let action = LockAction::Acquire(acquire);
        state.services.committer.submit(Command::Lock { key: on.key, action }).await?
    } else {
        wait(&state, &on.key, &acquire, timeout).await?
    };
    match outcome {
        Outcome::Granted(view) => Ok(Json(TenureInfo::new(&view))),
        Outcome::Waiting { position, queue_length, held_by } => {
            Err(Problem::waiting(position, queue_length, held_by.as_ref()))
        }
        Outcome::Refused(refusal) => Err(refusal.into()),
        other => Err(Problem::unexpected(&other)),
    }
}

/// Waits until the locks are granted, the request times out or the server shuts down. The first
/// copy of a request determines how long the answer is held back.
async fn wait(
    state: &ServerState,
    key: &ResourceKey,
    acquire: &Acquire,
    timeout: Duration,
) -> Result<Outcome, Problem> {
    // With the tenant, so that a caller that will be refused joins no one else.
    let scope = format!("{}/{key}", acquire.tenant.as_deref().unwrap_or(ALL_TENANTS));
    // A repeated request may wait for another time: it waits for the rest of it.
    let action = LockAction::Acquire(Acquire { wait_ms: 0, ..acquire.clone() });
    let command = Command::Lock { key: key.clone(), action };
    let (services, key, acquire) = (state.services.clone(), key.clone(), acquire.clone());
    let execution = state.in_flight.join(&scope, acquire.request, command, |registration| {
        wait_for_grant(services, key, acquire, timeout, registration).boxed()
    })?;
    Ok(execution.await?)
}

async fn wait_for_grant(
    services: Services,
    key: ResourceKey,
    acquire: Acquire,
    timeout: Duration,
    registration: Registration,
) -> Answer {
    let lock = registration.lock().await;
    let mut pending = WithdrawOnDrop(Some(PendingAcquire {
        committer: services.committer.clone(),
        key: key.clone(),
        request: acquire.request,
        // A grant to a session can still be fetched by its owner after a disconnect.
        solo: matches!(acquire.claimant, Claimant::Solo { .. }),
        registration,
        lock,
    }));
    let outcome = tokio::select! {
        outcome = services.committer.acquire(&key, &acquire, timeout) => outcome,
        () = services.closing.cancelled() => Err(shutting_down()),
    };
    // Answered: the next request may continue the wait.
    pending.0 = None;
    outcome
}

/// A request that waits for its locks.
struct PendingAcquire {
    committer: Committer,
    key: ResourceKey,
    request: RequestId,
    solo: bool,
    registration: Registration,
    lock: OwnedMutexGuard<()>,
}

/// Withdraws a request without a session when the clients of all its copies have disconnected.
struct WithdrawOnDrop(Option<PendingAcquire>);

impl Drop for WithdrawOnDrop {
    fn drop(&mut self) {
        if let Some(waiting) = self.0.take().filter(|waiting| waiting.solo) {
            tokio::spawn(waiting.withdraw());
        }
    }
}

impl PendingAcquire {
    async fn withdraw(self) {
        let action = LockAction::Withdraw { request: self.request };
        let command = Command::Lock { key: self.key, action };
        if !self.registration.is_superseded()
            && let Err(error) = self.committer.submit(command).await
        {
            tracing::debug!(%error, "cannot withdraw; its session will expire");
        }
        // Lets the next execution proceed.
        drop(self.lock);
    }
}

fn acquire_request(
    caller: &Caller,
    body: AcquireRequest,
    request: RequestId,
) -> Result<Acquire, Problem> {
    let claimant = match (body.session, body.holder, body.ttl_ms) {
        (Some(session), None, None) => Claimant::Session(session),
        (None, Some(name), Some(ttl_ms)) => Claimant::Solo { name: name.into(), ttl_ms },
        _ => {
            let detail = "give either `session`, or both `holder` and `ttl_ms`";
            return Err(Problem::invalid(&detail));
        }
    };
    Ok(Acquire {
        locks: locks(body.lock.as_ref())?.unwrap_or_else(|| LockName::main().into()),
        claimant,
        request,
        wait_ms: body.wait_ms.unwrap_or(0),
        purpose: body.purpose.map(Into::into),
        max_age_ms: body.max_age_ms,
        tenant: caller.bound_tenant().cloned(),
    })
}

fn locks(locks: Option<&Locks>) -> Result<Option<LockSet>, Problem> {
    locks.map(Locks::to_set).transpose().map_err(|error| Problem::invalid(&error))
}

/// Renews a tenure that was acquired without a session.
#[utoipa::path(
    post,
    path = "/v1/locks/{kind}/{name}/renew",
    tag = "locks",
    operation_id = "renew_lock",
    params(OnResource),
    request_body = RenewRequest,
    responses((status = 200, description = "The tenure", body = TenureInfo), Conflict)
)]
pub(super) async fn renew(
    State(state): State<ServerState>,
    on: OnResource,
    Body(body): Body<RenewRequest>,
) -> Result<Json<TenureInfo>, Problem> {
    locks(body.lock.as_ref())?;
    let action = LockAction::Renew { token: body.token, ttl_ms: body.ttl_ms };
    match state.services.submit(Command::Lock { key: on.key, action }).await? {
        Outcome::Renewed(view) => Ok(Json(TenureInfo::new(&view))),
        other => Err(Problem::unexpected(&other)),
    }
}

/// Releases a tenure; the next waiter is granted the lock before the response.
#[utoipa::path(
    post,
    path = "/v1/locks/{kind}/{name}/release",
    tag = "locks",
    operation_id = "release_lock",
    params(OnResource),
    request_body = ReleaseRequest,
    responses((status = 200, description = "Released", body = ReleaseResponse), Conflict)
)]
pub(super) async fn release(
    State(state): State<ServerState>,
    on: OnResource,
    Body(body): Body<ReleaseRequest>,
) -> Result<Json<ReleaseResponse>, Problem> {
    let (token, to) = (body.token, body.to.map(Into::into));
    let action = LockAction::Release { token, locks: locks(body.lock.as_ref())?, to };
    match state.services.submit(Command::Lock { key: on.key, action }).await? {
        Outcome::Released { already } => Ok(Json(ReleaseResponse { released: true, already })),
        other => Err(Problem::unexpected(&other)),
    }
}

/// Withdraws a waiting request, or releases the locks it was granted meanwhile.
#[utoipa::path(
    post,
    path = "/v1/locks/{kind}/{name}/withdraw",
    tag = "locks",
    operation_id = "withdraw_lock",
    params(OnResource),
    request_body = WithdrawRequest,
    responses((status = 200, description = "Withdrawn", body = WithdrawResponse), Conflict)
)]
pub(super) async fn withdraw(
    State(state): State<ServerState>,
    on: OnResource,
    Body(body): Body<WithdrawRequest>,
) -> Result<Json<WithdrawResponse>, Problem> {
    let action = LockAction::Withdraw {
        request: state.services.request_id(&on.caller, &body.request, on.key.as_str())?,
    };
    match state.services.submit(Command::Lock { key: on.key, action }).await? {
        Outcome::Withdrawn { released } => {
            Ok(Json(WithdrawResponse { withdrawn: true, token: released }))
        }
        other => Err(Problem::unexpected(&other)),
    }
}

/// Breaks the tenure of another holder, by its exact token.
#[utoipa::path(
    post,
    path = "/v1/locks/{kind}/{name}/break",
    tag = "locks",
    operation_id = "break_lock",
    params(OnResource),
    request_body = BreakRequest,
    responses((status = 200, description = "Broken", body = BreakResponse), Conflict)
)]
pub(super) async fn break_lock(
    State(state): State<ServerState>,
    on: OnResource,
    Body(body): Body<BreakRequest>,
) -> Result<Json<BreakResponse>, Problem> {
    let (token, locks) = (body.token, locks(body.lock.as_ref())?);
    let reason = on.caller.required_reason(ReasonRequest { reason: Some(body.reason) })?;
    let by = on.caller.name;
    let action = LockAction::Break { token, locks, by, reason, end_job: body.end_job };
    state.services.submit(Command::Lock { key: on.key, action }).await?;
    Ok(Json(BreakResponse { broken: true }))
}

/// Shows the holders and waiters of the locks of a resource.
#[utoipa::path(
    get,
    path = "/v1/locks/{kind}/{name}",
    tag = "locks",
    operation_id = "show_locks",
    params(OnResource),
    responses((status = 200, description = "The locks", body = ResourceLocksResponse), NotFound)
)]
pub(super) async fn show(
    State(state): State<ServerState>,
    on: OnResource,
) -> Result<Json<ResourceLocksResponse>, Problem> {
    let shown = state.services.store().reads().show(&on.key).await?;
    let not_found = || Problem::not_found("no such resource: it was never locked");
    let shown = shown.ok_or_else(not_found)?;
    let (token, queue, now) = (shown.record.token, &shown.queue, shown.context.now);
    Ok(Json(ResourceLocksResponse::new(&on.key, token, &shown.tenures, queue, now)))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Filter by kind.
    #[param(value_type = String, required = false, inline)]
    kind: Option<String>,
    /// Filter by name.
    #[param(value_type = String, required = false, inline)]
    name: Option<String>,
    /// Filter by holder.
    #[param(value_type = String, required = false, inline)]
    holder: Option<String>,
    /// Filter by group; requires `kind`.
    #[param(value_type = String, required = false, inline)]
    group: Option<String>,
    /// Only `true` is supported: free locks are not listed.
    #[param(value_type = schema::OnlyTrue, required = false, inline)]
    held: Option<bool>,
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// `next` of the previous page.
    #[param(value_type = schema::ResourcePath, required = false, inline)]
    cursor: Option<String>,
}

/// Lists held locks, ordered by resource.
#[utoipa::path(
    get,
    path = "/v1/locks",
    tag = "locks",
    operation_id = "list_locks",
    params(Caller, ListParams),
    responses((status = 200, description = "A page of held locks", body = ListResponse<TenureInfo>))
)]
pub(super) async fn list(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Json<ListResponse<TenureInfo>>, Problem> {
    if params.held == Some(false) {
        let detail = "held=false is not supported: only held locks are listed; GET the lock of \
                      one resource instead";
        return Err(Problem::invalid(&detail));
    }
    let after = params.cursor.map(|cursor| cursor.parse()).transpose();
    let query = TenureQuery {
        tenant: caller.only_tenant(),
        kind: params.kind.clone().map(Into::into),
        name: params.name.map(Into::into),
        holder: params.holder.map(Into::into),
        after: after.map_err(|error| Problem::invalid(&error))?,
        limit: page_size(params.limit)?,
        group: group_filter(params.group, &params.kind)?,
    };
    let page = state.services.store().reads().tenures(query).await?;
    let items = page.items.iter().flat_map(TenureInfo::per_lock).collect();
    Ok(Json(ListResponse { items, next: page.next.map(String::from) }))
}
