//! The OpenAPI document: the annotations of handlers, completed with what all operations share.
//!
//! A handler declares its own responses, including `NotFound` or `Conflict`. Each operation without
//! `security(())` requires a key and gets the refusals that `add_security` adds. Parameters of
//! extractors are in `tenure_app::openapi`.

use axum::http::Method;
use tenure_app::Apps;
use tenure_app::access::{Access, Rule};
use tenure_app::openapi::{PROBLEMS, response_ref};
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
            RFC 9457 problems with a stable `code`, documented at `/docs/errors/CODE`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    tags(
        (name = "locks", description = "Acquire, renew, release, withdraw, break and show locks"),
        (name = "sessions", description = "Liveness of a process: one heartbeat for all it holds"),
        (name = "jobs", description = "Submit, show, cancel, retry and discard jobs"),
        (name = "work", description = "For workers: claim, report progress, write logs, finish"),
        (name = "resources", description = "Put, show, pause, resume and delete resources"),
        (name = "batches", description = "Many requests in one"),
        (name = "dead letters", description = "Jobs that used up their attempts"),
        (name = "insight", description = "Workers, kinds, history, events, verification, janitor"),
        (name = "keys", description = "API keys and the audit log"),
        (name = "health", description = "Liveness, readiness and metrics of the server"),
        (name = "documents", description = "Documentation of this API, without a key"),
    ),
    components(schemas(wire::Problem))
)]
struct Base;

/// Returns the document that routes are added to, with the tags of `apps` after that of resources.
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

/// Adds what all operations share.
pub(crate) fn complete(mut document: OpenApi, rules: &Rules) -> OpenApi {
    let components = document.components.get_or_insert_default();
    for (status, name, description) in PROBLEMS {
        components.responses.insert(name.to_owned(), problem(status, description).into());
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
    let bearer = bearer.description(Some("Key as `Authorization: Bearer KEY`")).build();
    let key = ApiKeyValue::with_description("x-api-key", "Key as `x-api-key: KEY`");
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer));
    components.add_security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(key)));
    let all_optional = |name: &str| has_no_required_fields(components.schemas.get(name));
    let items = document.paths.paths.iter_mut();
    for (method, path, operation) in items.flat_map(|(path, item)| operations_mut(path, item)) {
        add_security(operation);
        operation.description = required_role(rules.get(&method, path));
        if let Some(RefOr::T(body)) = &mut operation.request_body {
            let optional = body_name(body).is_some_and(all_optional);
            body.required = Some(if optional { Required::False } else { Required::True });
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

/// Describes the key that a route requires.
fn required_role(rule: Option<&Rule>) -> Option<String> {
    match rule?.access {
        Access::Public => None,
        Access::Tenant(role) => Some(format!("Requires a key of role `{role}` or higher.")),
        Access::AllTenants(role) => Some(format!(
            "Requires a key of role `{role}` or higher that is not bound to a tenant."
        )),
    }
}

/// Adds the key requirement and its refusals, unless the operation declares its own security.
fn add_security(operation: &mut Operation) {
    if operation.security.is_some() {
        return;
    }
    let none: [String; 0] = [];
    let either = [BEARER, API_KEY].map(|scheme| SecurityRequirement::new(scheme, none.clone()));
    operation.security = Some(either.into());
    let has_body = operation.request_body.is_some();
    let body_problems: &[u16] = if has_body { &[408, 413] } else { &[] };
    for &status in [401, 403, 422, 429, 503].iter().chain(body_problems) {
        operation
            .responses
            .responses
            .entry(status.to_string())
            .or_insert_with(|| response_ref(status));
    }
}

/// Returns the schema name of a body.
fn body_name(body: &RequestBody) -> Option<&str> {
    let RefOr::T(content) = body.content.get("application/json")? else { return None };
    let RefOr::Ref(schema) = content.schema.as_ref()? else { return None };
    schema.ref_location.rsplit('/').next()
}

/// Returns whether `{}` is valid, so that the body, which defaults to it, may be omitted.
fn has_no_required_fields(schema: Option<&RefOr<Schema>>) -> bool {
    matches!(schema, Some(RefOr::T(Schema::Object(object))) if object.required.is_empty())
}

fn problem(status: u16, description: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let plain = ResponseBuilder::new()
        .description(description)
        .content("application/problem+json", content);
    match status {
        429 | 503 => plain.header("Retry-After", retry_after()).build(),
        _ => plain.build(),
    }
}

fn retry_after() -> Header {
    let seconds = ObjectBuilder::new().schema_type(Type::Integer);
    let mut header = Header::new(seconds);
    header.description = Some("Seconds to wait before a retry".to_owned());
    header
}
