//! Timers of a resource: set, move, remove.

use axum::Json;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use tenure_app::extract::{Body, Idempotency, IfMatch};
use tenure_app::openapi::{Conflict, NotFound, OneTenant, PreconditionFailed};
use tenure_app::{Caller, Problem};
use tenure_core::{
    Command, Outcome, Precondition, ResourceAction, ResourceKey, Text, TimerChange, TimerSetting,
};
use tenure_wire::{ResourceInfo, TimerRequest, schema};

use super::resources::{Tagged, tag};
use crate::ServerState;

/// The caller, the resource and the operation in the path.
pub(super) struct OnTimer {
    caller: Caller,
    key: ResourceKey,
    operation: Text,
}

impl<S: Send + Sync> FromRequestParts<S> for OnTimer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = Path::<(String, String, String)>::from_request_parts(parts, state).await;
        let Path((kind, name, operation)) = path.map_err(|error| Problem::invalid(&error))?;
        let key = caller.resource(&kind, &name)?;
        Ok(Self { caller, key, operation: operation.into() })
    }
}

/// Sets or moves the timer of an operation.
#[utoipa::path(
    put,
    path = "/v1/resources/{kind}/{name}/timers/{operation}",
    tag = "resources",
    operation_id = "set_timer",
    params(
        ("kind" = schema::KindName, Path, description = "The kind of the resource"),
        ("name" = schema::ResourceName, Path, description = "The name of the resource"),
        ("operation" = String, Path, description = "The operation to submit"),
        OneTenant, Idempotency, IfMatch
    ),
    request_body = TimerRequest,
    responses(
        (status = 200, description = "The resource", body = ResourceInfo),
        NotFound, Conflict, PreconditionFailed
    )
)]
pub(super) async fn set(
    State(state): State<ServerState>,
    on: OnTimer,
    key: Idempotency,
    IfMatch(precondition): IfMatch,
    Body(body): Body<TimerRequest>,
) -> Tagged<ResourceInfo> {
    let setting = body.to_setting().map_err(|why| Problem::invalid(&why))?;
    change(&state, on, &key, setting, precondition).await
}

/// Removes the timer of an operation, if there is one.
#[utoipa::path(
    delete,
    path = "/v1/resources/{kind}/{name}/timers/{operation}",
    tag = "resources",
    operation_id = "remove_timer",
    params(
        ("kind" = schema::KindName, Path, description = "The kind of the resource"),
        ("name" = schema::ResourceName, Path, description = "The name of the resource"),
        ("operation" = String, Path, description = "The operation to submit"),
        OneTenant, Idempotency, IfMatch
    ),
    responses(
        (status = 200, description = "The resource", body = ResourceInfo),
        NotFound, Conflict, PreconditionFailed
    )
)]
pub(super) async fn remove(
    State(state): State<ServerState>,
    on: OnTimer,
    key: Idempotency,
    IfMatch(precondition): IfMatch,
) -> Tagged<ResourceInfo> {
    change(&state, on, &key, TimerSetting::Remove, precondition).await
}

async fn change(
    state: &ServerState,
    on: OnTimer,
    key: &Idempotency,
    setting: TimerSetting,
    precondition: Option<Precondition>,
) -> Tagged<ResourceInfo> {
    let timers = vec![TimerChange { operation: on.operation, setting }];
    let action = ResourceAction::SetTimers { timers, by: on.caller.name, precondition };
    let command = Command::Resource { key: on.key.clone(), action };
    match state.services.submit(key.once(on.key.as_str(), command)?).await? {
        Outcome::TimersSet { snapshot: Some(resource) } => {
            let resource = ResourceInfo::new(&on.key, &resource, ResourceInfo::QUEUE_SHOWN);
            Ok((tag(&resource), Json(resource)))
        }
        other => Err(Problem::unexpected(&other)),
    }
}
