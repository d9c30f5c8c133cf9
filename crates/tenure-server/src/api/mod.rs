//! The routes.

mod health;
mod history;
mod locks;
mod sessions;

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::routing::{get, post};
use tenure_core::{Command, Outcome};

use crate::App;
use crate::problem::Problem;

/// All routes of the server.
pub fn router(app: Arc<App>) -> Router {
    let lock = "/v1/locks/{kind}/{name}";
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/v1/locks", get(locks::list))
        .route(lock, get(locks::show))
        .route(&format!("{lock}/acquire"), post(locks::acquire))
        .route(&format!("{lock}/renew"), post(locks::renew))
        .route(&format!("{lock}/release"), post(locks::release))
        .route(&format!("{lock}/withdraw"), post(locks::withdraw))
        .route(&format!("{lock}/break"), post(locks::break_by))
        .route("/v1/sessions", post(sessions::open))
        .route("/v1/sessions/{id}", axum::routing::delete(sessions::close))
        .route("/v1/sessions/{id}/beat", post(sessions::beat))
        .route("/v1/resources/{kind}/{name}/history", get(history::of_resource))
        .route("/v1/history", get(history::newest))
        .route("/v1/verify", get(history::verify))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(app)
}

async fn no_route() -> Problem {
    Problem::not_found("there is no such route; the API is under /v1")
}

async fn no_method(method: Method) -> Problem {
    Problem::new(405, "not_found", &format!("this route does not answer {method}"))
}

/// Sends a command; a refusal becomes a problem.
async fn submit(app: &App, command: Command) -> Result<Outcome, Problem> {
    match app.committer.submit(command).await? {
        Outcome::Refused(refusal) => Err(refusal.into()),
        outcome => Ok(outcome),
    }
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
