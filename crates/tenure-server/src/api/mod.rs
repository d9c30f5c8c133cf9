//! The routes. One file for each noun; what handlers share is here.

mod audit;
mod claims;
mod dead;
mod documents;
pub(crate) mod events;
mod health;
mod history;
mod janitor;
mod jobs;
mod keys;
mod locks;
mod logs;
mod metrics;
mod pipelines;
mod resources;
mod sessions;
pub(crate) mod signin;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use tenure_core::{Command, JobId, Outcome, Refusal};
use tenure_store::store::JobShown;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::auth::guard::guard;
use crate::problem::Problem;
use crate::{App, openapi, request_id, security};

/// The longest that an answer is held back; whoever wants to wait longer asks again.
const WAIT_MS_MAX: u64 = 60_000;

/// All routes of the server.
pub fn router(app: Arc<App>) -> Router {
    let secure = app.secure;
    let (router, _) = routes().split_for_parts();
    // The same again beside the general API; `access` knows both.
    let (pipelines, _) = of_pipelines().split_for_parts();
    router
        .nest("/v1", pipelines)
        .route_layer(from_fn_with_state(Arc::clone(&app), guard))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn(move |request, next| security::headers(secure, request, next)))
        .layer(from_fn(request_id::give))
        .layer(from_fn_with_state(Arc::clone(&app), crate::metrics::measure))
        .with_state(app)
}

/// What the routes are, for people and for programs.
pub(crate) fn document() -> OpenApi {
    openapi::complete(routes().into_openapi())
}

/// The same as `openapi.json` in the repository, to the byte.
#[must_use]
pub fn document_text() -> String {
    document().to_pretty_json().expect("it is made of texts and numbers") + "\n"
}

/// Each handler says its path and its method itself; those of one path are named together.
fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(openapi::base())
        .merge(of_locks())
        .routes(routes!(sessions::open))
        .routes(routes!(sessions::close))
        .routes(routes!(sessions::beat))
        .merge(of_jobs())
        .merge(of_resources())
        .merge(of_pipelines())
        .routes(routes!(dead::list))
        .routes(routes!(dead::redrive))
        .routes(routes!(dead::discard))
        .routes(routes!(workers::list))
        .routes(routes!(workers::kinds))
        .routes(routes!(janitor::show))
        .routes(routes!(history::newest))
        .routes(routes!(history::verify))
        .routes(routes!(events::stream))
        .routes(routes!(keys::whoami))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(audit::newest))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::metrics))
        .routes(routes!(documents::openapi))
        .routes(routes!(documents::page))
        .routes(routes!(documents::error))
        .route("/docs/style.css", get(documents::style))
        .route("/", get(signin::home))
        .route("/signin", get(signin::page).post(signin::sign_in))
        .route("/signout", post(signin::sign_out))
}

fn of_locks() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(locks::list))
        .routes(routes!(locks::show))
        .routes(routes!(locks::acquire))
        .routes(routes!(locks::renew))
        .routes(routes!(locks::release))
        .routes(routes!(locks::withdraw))
        .routes(routes!(locks::break_by))
}

fn of_resources() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(resources::list))
        .routes(routes!(resources::show, resources::put, resources::delete))
        .routes(routes!(jobs::submit))
        .routes(routes!(resources::pause))
        .routes(routes!(resources::resume))
        .routes(routes!(resources::why))
        .routes(routes!(history::of_resource))
}

fn of_jobs() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(jobs::list))
        .routes(routes!(claims::claim))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::why))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::discard))
        .routes(routes!(claims::progress))
        .routes(routes!(claims::finish))
        .routes(routes!(logs::read, claims::log))
}

fn of_pipelines() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(pipelines::list))
        .routes(routes!(pipelines::trigger))
        .routes(routes!(pipelines::runs))
        .routes(routes!(pipelines::show, pipelines::cancel))
        .routes(routes!(pipelines::locks))
        .routes(routes!(pipelines::release))
}

async fn no_route() -> Problem {
    Problem::not_found("there is no such route; the API is under /v1")
}

async fn no_method(method: Method) -> Problem {
    Problem::no_method(&method)
}

/// Sends a command; a refusal becomes a problem.
async fn submit(app: &App, command: Command) -> Result<Outcome, Problem> {
    match app.committer.submit(command).await? {
        Outcome::Refused(refusal) => Err(refusal.into()),
        outcome => Ok(outcome),
    }
}

/// A job, if it is there for the caller: those of other tenants are not.
async fn find(app: &App, caller: &Caller, id: JobId) -> Result<JobShown, Problem> {
    let shown = app.committer.store().reads().job(id).await?;
    let seen = shown.filter(|shown| caller.sees(shown.key.tenant()));
    seen.ok_or_else(|| Refusal::NoSuchJob.into())
}

/// Refuses a job that is not there for the caller.
async fn check(app: &App, caller: &Caller, id: JobId) -> Result<(), Problem> {
    app.whose.check_job(caller, id, app.committer.store().reads()).await
}

/// How long an answer may be held back.
fn wait(wait_ms: Option<u64>) -> Duration {
    Duration::from_millis(wait_ms.unwrap_or(0).min(WAIT_MS_MAX))
}

/// The size of a page: what was asked for, within bounds.
fn page_size(limit: Option<usize>) -> Result<usize, Problem> {
    match limit.unwrap_or(100) {
        limit @ 1..=tenure_store::store::PAGE_MAX => Ok(limit),
        limit => {
            let max = tenure_store::store::PAGE_MAX;
            Err(Problem::invalid(&format!("limit is {limit}; it must be between 1 and {max}")))
        }
    }
}

/// Where a page of jobs begins.
fn job_cursor(cursor: Option<String>) -> Result<Option<JobId>, Problem> {
    let cursor = cursor.map(|cursor| cursor.parse()).transpose();
    cursor.map_err(|error| Problem::invalid(&format!("cursor: {error}")))
}
