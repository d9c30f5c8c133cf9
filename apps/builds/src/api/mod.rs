//! HTTP API of builds: join, publish, reserve, acknowledge, report.
//!
//! Nodes in any language use these routes and those of sessions. Every rule about the queue is
//! here or in the engine; a node only runs tests.

mod join;
mod publish;
mod report;
mod reserve;
mod retry;

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use serde::Deserialize;
use tenure_app::extract::{Body, Idempotency, OnName, Params};
use tenure_app::openapi::{Conflict, NotFound, path, tenant};
use tenure_app::services::page_size;
use tenure_app::{Access, AppRoutes, Caller, Problem, Rule, Services};
use tenure_core::{Command, Outcome, ResourceKey, Role};
use tenure_store::store::ResourceQuery;
use tenure_wire::{ListResponse, schema};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, PartialSchema as _};
use utoipa_axum::routes;

use crate::LoadedBuilds;
use crate::build::{self, Build};
use crate::names::{self, BUILD, NODE, TEST};
use crate::wire::{
    AckRequest, AckResponse, BuildId, BuildInfo, BuildReportResponse, JoinRequest, JoinResponse,
    PUBLISH_BYTES_MAX, PublishRequest, PublishResponse, ReleaseNodeRequest, ReleaseNodeResponse,
    ReserveRequest, ReserveResponse, RetryRequest, RetryResponse,
};

/// Maximum size of a body with results: 256 of them, each with a test and a message.
const RESULTS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The routes.
pub(crate) fn routes() -> AppRoutes {
    let read = |path| Rule::read(path, Access::VIEWER);
    let write = |path, action| Rule::write("POST", path, Role::Worker, action);
    // History has every result, so the audit log need not have them.
    let routine = |path, action| Rule::routine(path, Role::Worker, action);
    AppRoutes::new("builds", "The tests of a CI build, spread over nodes")
        .route(routes!(list), [read("/v1/builds")])
        .route(routes!(show), [read("/v1/builds/{id}")])
        .route(routes!(join), [routine("/v1/builds/{id}/join", "build.join")])
        .route(routes!(publish), [write("/v1/builds/{id}/publish", "build.publish")])
        .route(routes!(reserve), [routine("/v1/builds/{id}/reserve", "build.reserve")])
        .route(routes!(ack), [routine("/v1/builds/{id}/ack", "build.ack")])
        .route(routes!(release), [write("/v1/builds/{id}/release", "build.release")])
        .route(routes!(retry), [write("/v1/builds/{id}/retry", "build.retry")])
        .route(routes!(report), [read("/v1/builds/{id}/report")])
}

/// Refuses jobs of builds and tests that are submitted through the general API: only a node that
/// joins a build creates one.
pub(crate) fn check_submit(key: &ResourceKey) -> Result<(), Problem> {
    if [BUILD, TEST, NODE].contains(&key.kind()) {
        let detail = "builds are created by `tenure build run`, or POST /v1/builds/{id}/join";
        return Err(Problem::new(409, "rejected", detail));
    }
    Ok(())
}

/// The caller and the build in the path.
pub(crate) struct OnBuild {
    pub(crate) caller: Caller,
    pub(crate) key: ResourceKey,
}

impl<S: Send + Sync> FromRequestParts<S> for OnBuild {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let OnName { caller, name } = OnName::from_request_parts(parts, state).await?;
        let key = build::key(&caller, &name)?;
        Ok(Self { caller, key })
    }
}

impl IntoParams for OnBuild {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let id = path("id", "The build", BuildId::schema());
        vec![id, tenant(schema::Tenant::schema())]
    }
}

/// Refuses an invalid name of a node.
fn check_worker(name: &str) -> Result<(), Problem> {
    names::check_worker(name).map_err(|why| Problem::invalid(&format!("worker: {why}")))
}

/// Returns the configured app, unless the app is not configured.
fn loaded(services: &Services) -> Result<Arc<LoadedBuilds>, Problem> {
    services.live.app::<LoadedBuilds>().ok_or_else(|| {
        Problem::not_found(
            "builds are not enabled on this server; add the table [builds] to its tenure.toml, \
             which may be empty",
        )
    })
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Paging {
    /// Maximum number of items. Defaults to 100.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// Value of `next` of the previous page.
    #[param(value_type = schema::ResourcePath, required = false, inline)]
    cursor: Option<String>,
}

/// Lists builds by id.
#[utoipa::path(
    get,
    path = "/v1/builds",
    tag = "builds",
    operation_id = "list_builds",
    params(Caller, Paging),
    responses((status = 200, description = "A page", body = ListResponse<BuildInfo>))
)]
async fn list(
    State(services): State<Services>,
    caller: Caller,
    Params(paging): Params<Paging>,
) -> Result<Json<ListResponse<BuildInfo>>, Problem> {
    let after: Option<ResourceKey> = paging
        .cursor
        .map(|cursor| cursor.parse())
        .transpose()
        .map_err(|error| Problem::invalid(&format!("cursor: {error}")))?;
    let query = ResourceQuery {
        tenant: caller.only_tenant(),
        kind: Some(BUILD.into()),
        after,
        limit: page_size(paging.limit)?,
        ..ResourceQuery::default()
    };
    let page = services.store().reads().resources(query).await?;
    let mut items = Vec::with_capacity(page.items.len());
    for view in &page.items {
        if let Some(build) = Build::find(&services, &view.key).await? {
            items.push(build.info(&services).await?);
        }
    }
    Ok(Json(ListResponse { items, next: page.next.map(|key| key.to_string()) }))
}

/// Shows a build.
#[utoipa::path(
    get,
    path = "/v1/builds/{id}",
    tag = "builds",
    operation_id = "show_build",
    params(OnBuild),
    responses((status = 200, description = "The build", body = BuildInfo), NotFound)
)]
async fn show(State(services): State<Services>, on: OnBuild) -> Result<Json<BuildInfo>, Problem> {
    let build = Build::load(&services, &on.key).await?;
    Ok(Json(build.info(&services).await?))
}

/// Joins a build: creates it if it does not exist, stands for election, waits for the tests.
#[utoipa::path(
    post,
    path = "/v1/builds/{id}/join",
    tag = "builds",
    operation_id = "join_build",
    params(OnBuild, Idempotency),
    request_body = JoinRequest,
    responses(
        (status = 200, description = "The role of the node", body = JoinResponse),
        NotFound, Conflict
    )
)]
async fn join(
    State(services): State<Services>,
    on: OnBuild,
    key: Idempotency,
    Body(body): Body<JoinRequest>,
) -> Result<Json<JoinResponse>, Problem> {
    check_worker(&body.worker)?;
    let app = loaded(&services)?;
    let request = key.id(on.key.as_str())?;
    Ok(Json(join::Join { services, on, app, request }.run(&body).await?))
}

/// Publishes tests on behalf of the leader.
#[utoipa::path(
    post,
    path = "/v1/builds/{id}/publish",
    tag = "builds",
    operation_id = "publish_tests",
    params(OnBuild),
    request_body = PublishRequest,
    responses(
        (status = 200, description = "The tests are stored", body = PublishResponse),
        NotFound, Conflict
    )
)]
async fn publish(
    State(services): State<Services>,
    on: OnBuild,
    Body(body): Body<PublishRequest, PUBLISH_BYTES_MAX>,
) -> Result<Json<PublishResponse>, Problem> {
    Ok(Json(publish::publish(&services, &on, &body).await?))
}

/// Acknowledges results, and reserves the next tests.
#[utoipa::path(
    post,
    path = "/v1/builds/{id}/reserve",
    tag = "builds",
    operation_id = "reserve_tests",
    params(OnBuild, Idempotency),
    request_body = ReserveRequest,
    responses(
        (status = 200, description = "The tests, possibly none", body = ReserveResponse),
        NotFound, Conflict
    )
)]
async fn reserve(
    State(services): State<Services>,
    on: OnBuild,
    key: Idempotency,
    Body(body): Body<ReserveRequest, RESULTS_BYTES_MAX>,
) -> Result<Json<ReserveResponse>, Problem> {
    check_worker(&body.worker)?;
    let request = key.id(&body.session.to_string())?;
    Ok(Json(reserve::reserve(&services, &on, request, &body).await?))
}

/// Acknowledges results.
#[utoipa::path(
    post,
    path = "/v1/builds/{id}/ack",
    tag = "builds",
    operation_id = "acknowledge_tests",
    params(OnBuild),
    request_body = AckRequest,
    responses(
        (status = 200, description = "What became of each test", body = AckResponse),
        NotFound, Conflict
    )
)]
async fn ack(
    State(services): State<Services>,
    on: OnBuild,
    Body(body): Body<AckRequest, RESULTS_BYTES_MAX>,
) -> Result<Json<AckResponse>, Problem> {
    check_worker(&body.worker)?;
    Ok(Json(reserve::ack(&services, &on, &body).await?))
}

/// Ends the sessions of a node that is known to be dead: other nodes get its tests at once.
#[utoipa::path(
    post,
    path = "/v1/builds/{id}/release",
    tag = "builds",
    operation_id = "release_node",
    params(OnBuild),
    request_body = ReleaseNodeRequest,
    responses(
        (status = 200, description = "The sessions are ended", body = ReleaseNodeResponse),
        NotFound, Conflict
    )
)]
async fn release(
    State(services): State<Services>,
    on: OnBuild,
    Body(body): Body<ReleaseNodeRequest>,
) -> Result<Json<ReleaseNodeResponse>, Problem> {
    check_worker(&body.worker)?;
    let build = Build::load(&services, &on.key).await?;
    let mut released = 0;
    for node in build.nodes(&services).await? {
        if *node.holder == *body.worker {
            let tenant = on.caller.bound_tenant().cloned();
            let close = Command::Close { session: node.session, tenant };
            match services.submit(close).await? {
                Outcome::Closed => released += 1,
                other => return Err(Problem::unexpected(&other)),
            }
        }
    }
    if released == 0 {
        let worker = &body.worker;
        let detail =
            format!("no node {worker} works on this build; `tenure build status` lists them");
        return Err(Problem::not_found(&detail));
    }
    Ok(Json(ReleaseNodeResponse { released }))
}

/// Runs failed tests again.
#[utoipa::path(
    post,
    path = "/v1/builds/{id}/retry",
    tag = "builds",
    operation_id = "retry_tests",
    params(OnBuild),
    request_body = RetryRequest,
    responses(
        (status = 200, description = "The tests are queued", body = RetryResponse),
        NotFound, Conflict
    )
)]
async fn retry(
    State(services): State<Services>,
    on: OnBuild,
    Body(body): Body<RetryRequest>,
) -> Result<Json<RetryResponse>, Problem> {
    body.worker.as_deref().map_or(Ok(()), check_worker)?;
    let tests = retry::retry(&services, &on, body.worker.as_deref()).await?;
    Ok(Json(RetryResponse { tests }))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ReportParams {
    /// Whether all tests are listed. By default those that failed, were flaky or were lost.
    #[param(required = false, inline)]
    all: Option<bool>,
}

/// Reports the results of a build.
#[utoipa::path(
    get,
    path = "/v1/builds/{id}/report",
    tag = "builds",
    operation_id = "report_build",
    params(OnBuild, ReportParams),
    responses((status = 200, description = "The results", body = BuildReportResponse), NotFound)
)]
async fn report(
    State(services): State<Services>,
    on: OnBuild,
    Params(params): Params<ReportParams>,
) -> Result<Json<BuildReportResponse>, Problem> {
    let build = Build::load(&services, &on.key).await?;
    Ok(Json(report::report(&services, &build, params.all.unwrap_or(false)).await?))
}
