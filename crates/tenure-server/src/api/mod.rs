//! The routes. One file for each noun; what handlers share is here.

mod audit;
mod claims;
mod dead;
pub(crate) mod events;
mod health;
mod history;
mod janitor;
mod jobs;
mod keys;
mod locks;
mod logs;
mod metrics;
mod resources;
mod sessions;
pub(crate) mod signin;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{delete, get, post};
use tenure_core::{Command, JobId, Outcome, Refusal};
use tenure_store::store::JobShown;

use crate::auth::Caller;
use crate::auth::guard::guard;
use crate::problem::Problem;
use crate::{App, request_id, security};

/// The longest that an answer is held back; whoever wants to wait longer asks again.
const WAIT_MS_MAX: u64 = 60_000;

/// All routes of the server.
pub fn router(app: Arc<App>) -> Router {
    let secure = app.secure;
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/", get(signin::home))
        .route("/signin", get(signin::page).post(signin::sign_in))
        .route("/signout", post(signin::sign_out))
        .route("/v1/whoami", get(keys::whoami))
        .route("/v1/keys", get(keys::list).post(keys::create))
        .route("/v1/keys/{id}/revoke", post(keys::revoke))
        .route("/v1/audit", get(audit::newest))
        .route("/v1/events", get(events::stream))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/sessions", post(sessions::open))
        .route("/v1/sessions/{id}", delete(sessions::close))
        .route("/v1/sessions/{id}/beat", post(sessions::beat))
        .route("/v1/history", get(history::newest))
        .route("/v1/verify", get(history::verify))
        .route("/v1/workers", get(workers::list))
        .route("/v1/kinds", get(workers::kinds))
        .route("/v1/janitor", get(janitor::show))
        .route("/v1/dead", get(dead::list))
        .route("/v1/dead/redrive", post(dead::redrive))
        .route("/v1/dead/discard", post(dead::discard))
        .merge(of_locks())
        .merge(of_resources())
        .merge(of_jobs())
        .route_layer(from_fn_with_state(Arc::clone(&app), guard))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn(move |request, next| security::headers(secure, request, next)))
        .layer(from_fn(request_id::give))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), crate::metrics::measure))
        .with_state(app)
}

fn of_locks() -> Router<Arc<App>> {
    let lock = "/v1/locks/{kind}/{name}";
    Router::new()
        .route("/v1/locks", get(locks::list))
        .route(lock, get(locks::show))
        .route(&format!("{lock}/acquire"), post(locks::acquire))
        .route(&format!("{lock}/renew"), post(locks::renew))
        .route(&format!("{lock}/release"), post(locks::release))
        .route(&format!("{lock}/withdraw"), post(locks::withdraw))
        .route(&format!("{lock}/break"), post(locks::break_by))
}

fn of_resources() -> Router<Arc<App>> {
    let resource = "/v1/resources/{kind}/{name}";
    let one = get(resources::show).put(resources::put).delete(resources::delete);
    Router::new()
        .route("/v1/resources", get(resources::list))
        .route(resource, one)
        .route(&format!("{resource}/jobs"), post(jobs::submit))
        .route(&format!("{resource}/pause"), post(resources::pause))
        .route(&format!("{resource}/resume"), post(resources::resume))
        .route(&format!("{resource}/why"), get(resources::why))
        .route(&format!("{resource}/history"), get(history::of_resource))
}

fn of_jobs() -> Router<Arc<App>> {
    let job = "/v1/jobs/{id}";
    Router::new()
        .route("/v1/jobs", get(jobs::list))
        .route("/v1/jobs/claim", post(claims::claim))
        .route(job, get(jobs::show))
        .route(&format!("{job}/why"), get(jobs::why))
        .route(&format!("{job}/cancel"), post(jobs::cancel))
        .route(&format!("{job}/retry"), post(jobs::retry))
        .route(&format!("{job}/discard"), post(jobs::discard))
        .route(&format!("{job}/progress"), post(claims::progress))
        .route(&format!("{job}/finish"), post(claims::finish))
        .route(&format!("{job}/logs"), get(logs::read).post(claims::log))
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
