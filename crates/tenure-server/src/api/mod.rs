//! The routes of the API, one file per resource, and the router.

mod audit;
pub(crate) mod batch;
mod claims;
mod controllers;
mod dead;
mod documents;
pub(crate) mod events;
mod groups;
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
mod status;
mod timers;
mod workers;

use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;
use tenure_app::{Apps, Problem};
use tenure_core::Text;
use tenure_core::session::ALL_TENANTS;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::batch::SingleRequests;
use crate::auth::access::Rules;
use crate::auth::guard::guard;
use crate::{ServerState, openapi, request_id, security};

/// The tenant in the query of a list that a key of all tenants otherwise sees in full.
#[derive(Deserialize)]
struct NamedTenant {
    tenant: Option<String>,
}

impl NamedTenant {
    /// Returns the one tenant that the request names.
    fn only(self) -> Option<Text> {
        self.tenant.filter(|tenant| tenant != ALL_TENANTS).map(Text::from)
    }
}

/// Builds the router with all routes and middleware.
pub fn router(state: ServerState) -> Router {
    let secure = state.secure;
    let mut router: Router<ServerState> = routes(&state.apps).into();
    for app in state.apps.iter().map(|app| app.routes()) {
        let routes = Router::from(app.router).with_state(state.services.clone());
        if app.also_under_v1 {
            router = router.nest("/v1", routes.clone());
        }
        router = router.merge(routes);
    }
    // The requests of a batch take the same way, except into another batch.
    let single = with_middleware(router.clone(), &state).with_state(state.clone());
    let batch = Router::from(batch_routes()).layer(Extension(SingleRequests::new(single)));
    with_middleware(router.merge(batch), &state)
        .layer(from_fn(move |request, next| security::add_headers(secure, request, next)))
        .with_state(state)
}

/// Adds authorization, the audit log, request ids and metrics.
fn with_middleware(router: Router<ServerState>, state: &ServerState) -> Router<ServerState> {
    router
        .route_layer(from_fn_with_state(state.clone(), guard))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn(request_id::assign))
        .layer(from_fn_with_state(state.clone(), crate::metrics::measure))
}

/// Builds the OpenAPI document of a server with these apps.
fn document(apps: &Apps) -> OpenApi {
    let mut document = routes(apps).merge(batch_routes()).into_openapi();
    for app in apps.iter() {
        document.merge(app.routes().router.into_openapi());
    }
    openapi::complete(document, &Rules::new(apps))
}

/// Returns the OpenAPI document as JSON. With the apps of the binary it equals `openapi.json` in
/// the repository.
#[must_use]
pub fn document_text(apps: &Apps) -> String {
    document(apps).to_pretty_json().expect("plain JSON") + "\n"
}

/// Returns the routes of the server; handlers declare their paths and methods. `apps` add tags to
/// the document.
fn routes(apps: &Apps) -> OpenApiRouter<ServerState> {
    OpenApiRouter::with_openapi(openapi::base(apps))
        .merge(lock_routes())
        .routes(routes!(sessions::open))
        .routes(routes!(sessions::close))
        .routes(routes!(sessions::heartbeat))
        .merge(job_routes())
        .merge(resource_routes())
        .routes(routes!(dead::list))
        .routes(routes!(dead::redrive))
        .routes(routes!(dead::discard))
        .routes(routes!(status::show))
        .routes(routes!(workers::list))
        .routes(routes!(workers::kinds))
        .routes(routes!(janitor::show))
        .routes(routes!(controllers::list))
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

fn batch_routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new().routes(routes!(batch::run))
}

fn lock_routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(locks::list))
        .routes(routes!(locks::show))
        .routes(routes!(locks::acquire))
        .routes(routes!(locks::renew))
        .routes(routes!(locks::release))
        .routes(routes!(locks::withdraw))
        .routes(routes!(locks::break_lock))
}

fn resource_routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(resources::list))
        .routes(routes!(resources::show, resources::put, resources::delete))
        .routes(routes!(jobs::submit))
        .routes(routes!(resources::pause))
        .routes(routes!(resources::resume))
        .routes(routes!(resources::why))
        .routes(routes!(timers::set, timers::remove))
        .routes(routes!(groups::show))
        .routes(routes!(history::of_resource))
}

fn job_routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(jobs::list))
        .routes(routes!(claims::claim))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::why))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::discard))
        .routes(routes!(claims::progress))
        .routes(routes!(claims::status))
        .routes(routes!(claims::finish))
        .routes(routes!(logs::read, claims::log))
}

async fn not_found() -> Problem {
    Problem::not_found("no such route; the API is under /v1")
}

async fn method_not_allowed(method: Method) -> Problem {
    Problem::method_not_allowed(&method)
}
