//! The OpenAPI document: what the annotations of the handlers say, and what holds for all of them.
//!
//! A handler says what is its own: its answer, and `NotFound` or `Conflict` if it refuses so. Each
//! operation that does not say `security(())` needs a key, and so can be refused in the ways that
//! `guard` adds. What handlers take from a request is described in `tenure_app::openapi`.

use axum::http::Method;
use tenure_app::Apps;
use tenure_app::access::{Access, Rule};
use tenure_app::openapi::{PROBLEMS, refer};
use tenure_wire as wire;
use utoipa::OpenApi as _;
use utoipa::openapi::path::Operation;
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ContentBuilder, Header, OpenApi, PathItem, Ref, RefOr, Required, Response, ResponseBuilder,
    SecurityRequirement,
};

use crate::auth::access::Rules;

const BEARER: &str = "bearer";
const API_KEY: &str = "api_key";

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
        (name = "dead letters", description = "Jobs that used up their attempts"),
        (name = "insight", description = "Who works, what is declared, what happened, the proof"),
        (name = "keys", description = "Who may ask, for whom and for what; and what they did"),
        (name = "health", description = "For those who watch over the server; no key is needed"),
        (name = "documents", description = "About this API; no key is needed"),
    ),
    components(schemas(wire::Problem))
)]
struct Base;

/// The document that routes are added to, with the tags of `apps` after that of resources.
pub(crate) fn base(apps: &Apps) -> OpenApi {
    let mut document = Base::openapi();
    let tags = document.tags.get_or_insert_default();
    let of_apps = apps.iter().filter_map(|app| app.routes().tag);
    let of_apps = of_apps.map(|(name, description)| {
        TagBuilder::new().name(name).description(Some(description)).build()
    });
    let after = tags.iter().position(|tag| tag.name == "resources").map_or(tags.len(), |at| at + 1);
    tags.splice(after..after, of_apps);
    document
}

/// Adds what holds for all operations.
pub(crate) fn complete(mut document: OpenApi, rules: &Rules) -> OpenApi {
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
        operation.description = needs(rules.get(&method, path));
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
    match rule?.access {
        Access::Public => None,
        Access::Tenant(role) => Some(format!("It needs a key of role `{role}` or higher.")),
        Access::AllTenants(role) => {
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
