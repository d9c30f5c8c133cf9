//! What extractors take from a request, described: a handler that takes `On` says `params(On)`.

use tenure::wire::schema;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{RefOr, Required, Schema};
use utoipa::{IntoParams, PartialSchema};

use crate::auth::Caller;
use crate::extract::{Idempotency, On, OnJob, OnKey, OnPipeline, OnSession};

type In = Option<ParameterIn>;

impl IntoParams for Caller {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        vec![tenant(schema::TenantOrAll::schema())]
    }
}

impl IntoParams for On {
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

impl IntoParams for OnPipeline {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        let says = "The name of the pipeline";
        let name = path("pipeline_id", says, schema::PipelineName::schema());
        vec![name, tenant(schema::Tenant::schema())]
    }
}

impl IntoParams for Idempotency {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        let says = "The same key with the same request gives the same answer";
        vec![optional(ParameterIn::Header, "Idempotency-Key", says, schema::RequestKey::schema())]
    }
}

impl IntoParams for OnSession {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        vec![path("id", "The session", schema::Id::schema()), tenant(schema::TenantOrAll::schema())]
    }
}

impl IntoParams for OnKey {
    fn into_params(_: impl Fn() -> In) -> Vec<Parameter> {
        let says = "The id of the key";
        vec![path("id", says, schema::KeyId::schema()), tenant(schema::TenantOrAll::schema())]
    }
}

fn tenant(schema: RefOr<Schema>) -> Parameter {
    let says = "Act for this tenant, with a key of all tenants; that of the key, or `default`, \
                when nothing is said";
    optional(ParameterIn::Query, "tenant", says, schema)
}

fn path(name: &str, says: &str, schema: RefOr<Schema>) -> Parameter {
    parameter(ParameterIn::Path, name, says, schema).required(Required::True).build()
}

fn optional(place: ParameterIn, name: &str, says: &str, schema: RefOr<Schema>) -> Parameter {
    parameter(place, name, says, schema).required(Required::False).build()
}

fn parameter(
    place: ParameterIn,
    name: &str,
    says: &str,
    schema: RefOr<Schema>,
) -> ParameterBuilder {
    let parameter = ParameterBuilder::new().parameter_in(place).name(name);
    parameter.description(Some(says)).schema(Some(schema))
}
