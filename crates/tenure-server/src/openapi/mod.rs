//! The OpenAPI document: what the annotations of the handlers say, and what holds for all of them.
//!
//! A handler says what is its own: its answer, and `NotFound` or `Conflict` if it refuses so. Each
//! operation that does not say `security(())` needs a key, and so can be refused in the ways that
//! `guard` adds. `params` describes what handlers take from a request.

mod params;

use std::collections::BTreeMap;

use axum::http::Method;
use tenure::wire;
use utoipa::openapi::path::Operation;
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, Header, OpenApi, PathItem, Ref, RefOr, Required, Response, ResponseBuilder,
    SecurityRequirement,
};
use utoipa::{IntoResponses, OpenApi as _};

use crate::auth::access::{self, Rule, Who};

const BEARER: &str = "bearer";
const API_KEY: &str = "api_key";

/// Problems that more than one operation answers with: status, name and what it means.
const PROBLEMS: [(u16, &str, &str); 9] = [
    (401, "Unauthenticated", "There is no key, or it is not known"),
    (403, "Forbidden", "The role of the key is too low, or it belongs to another tenant"),
    (404, "NotFound", "There is no such thing"),
    (408, "Timeout", "The body did not come in time; nothing happened"),
    (409, "Conflict", "It does not fit the present state; `code` and the facts say why"),
    (413, "TooLarge", "The body is longer than this route reads"),
    (422, "Invalid", "The input is wrong; `detail` names the field and the remedy"),
    (429, "RateLimited", "Too many requests with this key; ask again later"),
    (503, "Unavailable", "Nobody can say yes now; what was asked may or may not have happened"),
];

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "One operation at a time on a resource, even when workers crash, freeze or \
            are started twice. Durations are milliseconds, instants RFC 3339 in UTC. Errors are \
            RFC 9457 problems with a stable `code`, which has a page of its own.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    tags(
        (name = "locks", description = "Taken, renewed, given back, broken and looked at"),
        (name = "sessions", description = "The liveness of a process: one beat for all it holds"),
        (name = "jobs", description = "Asked for, looked at, decided about"),
        (name = "work", description = "For workers: claim, tell, finish"),
        (name = "resources", description = "Put, looked at, paused, resumed, forgotten"),
        (name = "pipelines", description = "One run for each tenant and pipeline; also under /v1"),
        (name = "dead letters", description = "Jobs that used up their attempts"),
        (name = "insight", description = "Who works, what is declared, what happened, the proof"),
        (name = "keys", description = "Who may ask, for whom and for what; and what they did"),
        (name = "health", description = "For those who watch over the server; no key is needed"),
        (name = "documents", description = "About this API; no key is needed"),
    ),
    components(schemas(wire::Problem))
)]
struct Base;

/// What the routes are added to.
pub(crate) fn base() -> OpenApi {
    Base::openapi()
}

/// Adds what holds for all operations.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    let components = document.components.get_or_insert_default();
    for (status, name, says) in PROBLEMS {
        components.responses.insert(name.to_owned(), problem(status, says).into());
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
    let bearer = bearer.description(Some("A key, as `Authorization: Bearer KEY`")).build();
    let key = ApiKeyValue::with_description("x-api-key", "A key, as `x-api-key: KEY`");
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer));
    components.add_security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(key)));
    let empty = |name: &str| may_be_empty(components.schemas.get(name));
    let items = document.paths.paths.iter_mut();
    for (method, path, operation) in items.flat_map(|(path, item)| operations_mut(path, item)) {
        guard(operation);
        operation.description = needs(access::rule(&method, path));
        if let Some(RefOr::T(body)) = &mut operation.request_body {
            let may_be_missing = body_name(body).is_some_and(empty);
            body.required = Some(if may_be_missing { Required::False } else { Required::True });
        }
    }
    document
}

fn operations_mut<'a>(
    path: &'a str,
    item: &'a mut PathItem,
) -> impl Iterator<Item = (Method, &'a str, &'a mut Operation)> {
    let all = [
        (Method::GET, &mut item.get),
        (Method::PUT, &mut item.put),
        (Method::POST, &mut item.post),
        (Method::DELETE, &mut item.delete),
    ];
    all.into_iter().filter_map(move |(method, operation)| Some((method, path, operation.as_mut()?)))
}

/// Which key a route needs, in words.
fn needs(rule: Option<&Rule>) -> Option<String> {
    match rule?.who {
        Who::Anybody => None,
        Who::Tenant(role) => Some(format!("It needs a key of role `{role}` or higher.")),
        Who::All(role) => {
            Some(format!("It needs a key of role `{role}` or higher that is bound to no tenant."))
        }
    }
}

/// An operation needs a key and can be refused, unless it says that it is open to all.
fn guard(operation: &mut Operation) {
    if operation.security.is_some() {
        return;
    }
    let none: [String; 0] = [];
    let either = [BEARER, API_KEY].map(|scheme| SecurityRequirement::new(scheme, none.clone()));
    operation.security = Some(either.into());
    let input = operation.request_body.is_some();
    let of_input: &[u16] = if input { &[408, 413] } else { &[] };
    for &status in [401, 403, 422, 429, 503].iter().chain(of_input) {
        operation.responses.responses.entry(status.to_string()).or_insert_with(|| refer(status));
    }
}

/// The name of the schema of a body.
fn body_name(body: &RequestBody) -> Option<&str> {
    let RefOr::T(content) = body.content.get("application/json")? else { return None };
    let RefOr::Ref(schema) = content.schema.as_ref()? else { return None };
    schema.ref_location.rsplit('/').next()
}

/// No body counts as `{}`, so it may be missing where that would do.
fn may_be_empty(schema: Option<&RefOr<Schema>>) -> bool {
    matches!(schema, Some(RefOr::T(Schema::Object(object))) if object.required.is_empty())
}

fn refer(status: u16) -> RefOr<Response> {
    let (_, name, _) = PROBLEMS.iter().find(|known| known.0 == status).expect("it is in the table");
    Ref::from_response_name(*name).into()
}

fn problem(status: u16, says: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let plain =
        ResponseBuilder::new().description(says).content("application/problem+json", content);
    match status {
        429 | 503 => plain.header("Retry-After", retry_after()).build(),
        _ => plain.build(),
    }
}

fn retry_after() -> Header {
    let seconds = ObjectBuilder::new().schema_type(Type::Integer);
    let mut header = Header::new(seconds);
    header.description = Some("Ask again after so many seconds".to_owned());
    header
}

/// Sets of responses for annotations: `responses(…, NotFound, Conflict)`.
macro_rules! refusals {
    ($($(#[$doc:meta])+ $name:ident = $status:literal;)+) => {$(
        $(#[$doc])+
        pub(crate) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                BTreeMap::from([($status.to_string(), refer($status))])
            }
        }
    )+};
}

refusals! {
    /// There may be no such thing.
    NotFound = 404;
    /// The present state may not allow it.
    Conflict = 409;
    /// For operations that need no key: those that do have it anyhow.
    Unavailable = 503;
}
