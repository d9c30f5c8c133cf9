//! Resources: put, show, list, delete, pause, resume, explain.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::ETAG;
use serde::Deserialize;
use tenure_core::{Command, Outcome, Put, Refusal, ResourceAction, ResourceKey};
use tenure_store::store::{ResourceDetail, ResourceQuery};
use tenure_wire::request_schemas::RequiredReasonRequest;
use tenure_wire::{
    DeleteResourceResponse, ListResponse, PauseResponse, PutResourceRequest, PutResourceResponse,
    ReasonRequest, ResourceInfo, WhyResponse, schema, timer_changes,
};
use utoipa::IntoParams;

use crate::ServerState;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::{Body, DocumentBody, Idempotency, IfMatch, OnResource, Params, document};
use tenure_app::openapi::{Conflict, NotFound, PreconditionFailed};
use tenure_app::services::{group_filter, page_size};

/// Maximum number of waiting jobs shown with each resource of a list.
const QUEUE_LISTED: usize = 10;

/// Sets the spec of a resource.
#[utoipa::path(
    put,
    path = "/v1/resources/{kind}/{name}",
    tag = "resources",
    operation_id = "put_resource",
    params(OnResource, Idempotency, IfMatch),
    request_body = PutResourceRequest,
    responses(
        (status = 200, description = "The resource; its generation is the `ETag`",
            body = PutResourceResponse),
        NotFound, Conflict, PreconditionFailed
    )
)]
pub(super) async fn put(
    State(state): State<ServerState>,
    on: OnResource,
    key: Idempotency,
    IfMatch(precondition): IfMatch,
    Body(body): DocumentBody<PutResourceRequest>,
) -> Tagged<PutResourceResponse> {
    let put = Put {
        request: key.id_if_sent(on.key.as_str())?,
        precondition,
        timers: timer_changes(&body.timers).map_err(|why| Problem::invalid(&why))?,
        ..Put::new(document("spec", &body.spec)?, on.caller.name)
    };
    let command = Command::Resource { key: on.key.clone(), action: ResourceAction::Put(put) };
    let command = key.once_in_batch(on.key.as_str(), command)?;
    match state.services.submit(command).await? {
        Outcome::Put { job, snapshot: Some(resource), .. } => {
            // Not read back: another writer may have put another spec by now.
            let resource = ResourceInfo::new(&on.key, &resource, ResourceInfo::QUEUE_SHOWN);
            Ok((tag(&resource), Json(PutResourceResponse { resource, job })))
        }
        other => Err(Problem::unexpected(&other)),
    }
}

/// Shows a resource, its state and its jobs.
#[utoipa::path(
    get,
    path = "/v1/resources/{kind}/{name}",
    tag = "resources",
    operation_id = "show_resource",
    params(OnResource),
    responses(
        (status = 200, description = "The resource; its generation is the `ETag`",
            body = ResourceInfo),
        NotFound
    )
)]
pub(super) async fn show(State(state): State<ServerState>, on: OnResource) -> Tagged<ResourceInfo> {
    let resource = find(&state, &on.key).await?;
    Ok((tag(&resource), Json(resource)))
}

/// An answer with the generation of a resource as `ETag`.
pub(super) type Tagged<T> = Result<([(HeaderName, String); 1], Json<T>), Problem>;

/// Returns the `ETag` of a resource.
pub(super) fn tag(resource: &ResourceInfo) -> [(HeaderName, String); 1] {
    [(ETAG, format!("\"{}\"", resource.generation))]
}

async fn find(state: &ServerState, key: &ResourceKey) -> Result<ResourceInfo, Problem> {
    let resource = read(state, key).await?.and_then(|shown| shown.record.resource);
    let resource = resource.ok_or(Refusal::NoSuchResource)?;
    Ok(ResourceInfo::new(key, &resource, ResourceInfo::QUEUE_SHOWN))
}

async fn read(state: &ServerState, key: &ResourceKey) -> Result<Option<ResourceDetail>, Problem> {
    Ok(state.services.store().reads().show(key).await?)
}

/// Deletes the state and the spec of an idle resource.
#[utoipa::path(
    delete,
    path = "/v1/resources/{kind}/{name}",
    tag = "resources",
    operation_id = "delete_resource",
    params(OnResource, Idempotency, IfMatch),
    responses(
        (status = 200, description = "Deleted", body = DeleteResourceResponse),
        NotFound, Conflict, PreconditionFailed
    )
)]
pub(super) async fn delete(
    State(state): State<ServerState>,
    on: OnResource,
    key: Idempotency,
    IfMatch(precondition): IfMatch,
) -> Result<Json<DeleteResourceResponse>, Problem> {
    let action = ResourceAction::Delete { by: on.caller.name, precondition };
    let command = Command::Resource { key: on.key.clone(), action };
    state.services.submit(key.once(on.key.as_str(), command)?).await?;
    Ok(Json(DeleteResourceResponse { deleted: true }))
}

/// Pauses a resource: no operation starts on it.
#[utoipa::path(
    post,
    path = "/v1/resources/{kind}/{name}/pause",
    tag = "resources",
    operation_id = "pause_resource",
    params(OnResource, Idempotency),
    request_body = RequiredReasonRequest,
    responses(
        (status = 200, description = "Paused", body = PauseResponse),
        NotFound, Conflict
    )
)]
pub(super) async fn pause(
    State(state): State<ServerState>,
    on: OnResource,
    key: Idempotency,
    Body(body): Body<ReasonRequest>,
) -> Result<Json<PauseResponse>, Problem> {
    let reason = on.caller.required_reason(body)?;
    let action = ResourceAction::Pause { by: on.caller.name, reason };
    submit_pause(&state, on.key, &key, action).await
}

/// Resumes a resource: operations start on it again.
#[utoipa::path(
    post,
    path = "/v1/resources/{kind}/{name}/resume",
    tag = "resources",
    operation_id = "resume_resource",
    params(OnResource, Idempotency),
    request_body = ReasonRequest,
    responses(
        (status = 200, description = "Resumed", body = PauseResponse),
        NotFound, Conflict
    )
)]
pub(super) async fn resume(
    State(state): State<ServerState>,
    on: OnResource,
    key: Idempotency,
    Body(body): Body<ReasonRequest>,
) -> Result<Json<PauseResponse>, Problem> {
    let reason = on.caller.optional_reason(body)?;
    let action = ResourceAction::Resume { by: on.caller.name, reason };
    submit_pause(&state, on.key, &key, action).await
}

async fn submit_pause(
    state: &ServerState,
    key: ResourceKey,
    idempotency: &Idempotency,
    action: ResourceAction,
) -> Result<Json<PauseResponse>, Problem> {
    let command = Command::Resource { key: key.clone(), action };
    match state.services.submit(idempotency.once(key.as_str(), command)?).await? {
        Outcome::Paused(paused) => Ok(Json(PauseResponse { paused })),
        other => Err(Problem::unexpected(&other)),
    }
}

/// Explains what a resource waits for.
#[utoipa::path(
    get,
    path = "/v1/resources/{kind}/{name}/why",
    tag = "resources",
    operation_id = "why_resource",
    params(OnResource),
    responses((status = 200, description = "What it waits for", body = WhyResponse), NotFound)
)]
pub(super) async fn why(
    State(state): State<ServerState>,
    on: OnResource,
) -> Result<Json<WhyResponse>, Problem> {
    let explained = state.services.store().reads().explain_resource(&on.key).await?;
    let (job, why) = explained.ok_or(Refusal::NoSuchResource)?;
    Ok(Json(WhyResponse::new(job, &why)))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Filter by kind.
    #[param(value_type = String, required = false, inline)]
    kind: Option<String>,
    /// Filter by state.
    #[param(value_type = String, required = false, inline)]
    state: Option<String>,
    /// Filter by group; requires `kind`.
    #[param(value_type = String, required = false, inline)]
    group: Option<String>,
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// `next` of the previous page.
    #[param(value_type = schema::ResourcePath, required = false, inline)]
    cursor: Option<String>,
}

/// Lists resources, ordered by name.
#[utoipa::path(
    get,
    path = "/v1/resources",
    tag = "resources",
    operation_id = "list_resources",
    params(Caller, ListParams),
    responses(
        (status = 200, description = "A page of resources", body = ListResponse<ResourceInfo>)
    )
)]
pub(super) async fn list(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Json<ListResponse<ResourceInfo>>, Problem> {
    let after = params.cursor.map(|cursor| cursor.parse()).transpose();
    let query = ResourceQuery {
        tenant: caller.only_tenant(),
        kind: params.kind.clone().map(Into::into),
        state: params.state.map(Into::into),
        after: after.map_err(|error| Problem::invalid(&format!("cursor: {error}")))?,
        limit: page_size(params.limit)?,
        group: group_filter(params.group, &params.kind)?,
    };
    let page = state.services.store().reads().resources(query).await?;
    let items = page.items.iter();
    let items = items.map(|shown| ResourceInfo::new(&shown.key, &shown.resource, QUEUE_LISTED));
    Ok(Json(ListResponse { items: items.collect(), next: page.next.map(String::from) }))
}
