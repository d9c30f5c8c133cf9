//! Pieces of the OpenAPI document that handlers share: parameters of extractors, and responses.
//!
//! A handler that takes `OnResource` declares `params(OnResource)`; one that can refuse with 404 or
//! 409 lists `NotFound` or `Conflict` among its responses.

use std::collections::BTreeMap;

use tenure_wire::schema;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{Ref, RefOr, Required, Response, Schema};
use utoipa::{IntoParams, IntoResponses, PartialSchema};

use crate::caller::Caller;
use crate::extract::{Idempotency, IfMatch, OnJob, OnResource, OnSession};

type In = Option<ParameterIn>;

impl IntoParams for Caller {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        vec![tenant(schema::TenantOrAll::schema())]
    }
}

/// Declares the query parameter `tenant` of a route on something that belongs to one tenant.
pub struct OneTenant;

impl IntoParams for OneTenant {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        vec![tenant(schema::Tenant::schema())]
    }
}

impl IntoParams for OnResource {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        vec![
            path("kind", "The kind of the resource", schema::KindName::schema()),
            path("name", "The name of the resource", schema::ResourceName::schema()),
            tenant(schema::Tenant::schema()),
        ]
    }
}

impl IntoParams for OnJob {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        vec![path("id", "The job", schema::Id::schema()), tenant(schema::TenantOrAll::schema())]
    }
}

impl IntoParams for Idempotency {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        let description = "Repeating a request with the same key returns the same response";
        let schema = schema::IdempotencyKey::schema();
        vec![optional(ParameterIn::Header, "Idempotency-Key", description, schema)]
    }
}

impl IntoParams for IfMatch {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        let generation = "Only if the resource exists and its desired state has this generation";
        let absent = "Only if the resource does not exist";
        let header =
            |name, description, schema| optional(ParameterIn::Header, name, description, schema);
        vec![
            header("If-Match", generation, schema::Generation::schema()),
            header("If-None-Match", absent, schema::Any::schema()),
        ]
    }
}

impl IntoParams for OnSession {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        vec![path("id", "The session", schema::Id::schema()), tenant(schema::TenantOrAll::schema())]
    }
}

/// Describes the query parameter `tenant`.
#[must_use]
pub fn tenant(schema: RefOr<Schema>) -> Parameter {
    let description = "Tenant to act for; only a key of all tenants may choose it. By default the \
                       tenant of the key, or `default`";
    optional(ParameterIn::Query, "tenant", description, schema)
}

/// Describes a parameter of the path.
#[must_use]
pub fn path(name: &str, description: &str, schema: RefOr<Schema>) -> Parameter {
    parameter(ParameterIn::Path, name, description, schema).required(Required::True).build()
}

fn optional(place: ParameterIn, name: &str, description: &str, schema: RefOr<Schema>) -> Parameter {
    parameter(place, name, description, schema).required(Required::False).build()
}

fn parameter(
    place: ParameterIn,
    name: &str,
    description: &str,
    schema: RefOr<Schema>,
) -> ParameterBuilder {
    let parameter = ParameterBuilder::new().parameter_in(place).name(name);
    parameter.description(Some(description)).schema(Some(schema))
}

/// Problems that several operations respond with: status, name and meaning.
pub const PROBLEMS: [(u16, &str, &str); 11] = [
    (400, "BadRequest", "The request cannot be applied as a whole; nothing was changed"),
    (401, "Unauthenticated", "The key is missing or unknown"),
    (403, "Forbidden", "The role of the key is too low, or it is bound to another tenant"),
    (404, "NotFound", "The object does not exist"),
    (408, "Timeout", "The body did not arrive in time; nothing was changed"),
    (409, "Conflict", "The request conflicts with the current state; see `code` and `detail`"),
    (412, "PreconditionFailed", "The condition of the request does not hold"),
    (413, "TooLarge", "The body exceeds the limit of this route"),
    (422, "Invalid", "The input is invalid; `detail` names the field and the remedy"),
    (429, "RateLimited", "Too many requests with this key; retry later"),
    (503, "Unavailable", "The server cannot respond now; the request may or may not be applied"),
];

/// Returns a reference to the shared response of a status in [`PROBLEMS`].
#[must_use]
pub fn response_ref(status: u16) -> RefOr<Response> {
    let (_, name, _) = PROBLEMS.iter().find(|row| row.0 == status).expect("in the table");
    Ref::from_response_name(*name).into()
}

/// Defines responses for annotations: `responses(…, NotFound, Conflict)`.
macro_rules! problem_responses {
    ($($(#[$doc:meta])+ $name:ident = $status:literal;)+) => {$(
        $(#[$doc])+
        pub struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                BTreeMap::from([($status.to_string(), response_ref($status))])
            }
        }
    )+};
}

problem_responses! {
    /// The operation can respond with 404.
    NotFound = 404;
    /// The operation can respond with 409.
    Conflict = 409;
    /// The operation can respond with 400.
    BadRequest = 400;
    /// The operation can respond with 412.
    PreconditionFailed = 412;
    /// The operation can respond with 503. Operations that require a key always can.
    Unavailable = 503;
}
