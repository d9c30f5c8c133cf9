//! The routes. One file for each noun; what handlers share is here.

mod audit;
mod claims;
mod controllers;
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
mod resources;
mod sessions;
pub(crate) mod signin;
mod workers;

use axum::Router;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use tenure_app::{Apps, Problem};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::access::Rules;
use crate::auth::guard::guard;
use crate::{ServerState, openapi, request_id, security};

/// All routes of the server.
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
    router
        .route_layer(from_fn_with_state(state.clone(), guard))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn(move |request, next| security::headers(secure, request, next)))
        .layer(from_fn(request_id::give))
        .layer(from_fn_with_state(state.clone(), crate::metrics::measure))
        .with_state(state)
}

/// The OpenAPI document of a server with these apps.
fn document(apps: &Apps) -> OpenApi {
    let mut document = routes(apps).into_openapi();
    for app in apps.iter() {
        document.merge(app.routes().router.into_openapi());
    }
    openapi::complete(document, &Rules::new(apps))
}

/// The OpenAPI document as text. With the apps of the binary it equals `openapi.json` in the
/// repository.
#[must_use]
pub fn document_text(apps: &Apps) -> String {
    document(apps).to_pretty_json().expect("it is made of texts and numbers") + "\n"
}

/// The server's own routes; handlers declare path and method themselves. `apps` add their tags to
/// the document.
fn routes(apps: &Apps) -> OpenApiRouter<ServerState> {
    OpenApiRouter::with_openapi(openapi::base(apps))
        .merge(of_locks())
        .routes(routes!(sessions::open))
        .routes(routes!(sessions::close))
        .routes(routes!(sessions::beat))
        .merge(of_jobs())
        .merge(of_resources())
        .routes(routes!(dead::list))
        .routes(routes!(dead::redrive))
        .routes(routes!(dead::discard))
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

fn of_locks() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(locks::list))
        .routes(routes!(locks::show))
        .routes(routes!(locks::acquire))
        .routes(routes!(locks::renew))
        .routes(routes!(locks::release))
        .routes(routes!(locks::withdraw))
        .routes(routes!(locks::break_by))
}

fn of_resources() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(resources::list))
        .routes(routes!(resources::show, resources::put, resources::delete))
        .routes(routes!(jobs::submit))
        .routes(routes!(resources::pause))
        .routes(routes!(resources::resume))
        .routes(routes!(resources::why))
        .routes(routes!(history::of_resource))
}

fn of_jobs() -> OpenApiRouter<ServerState> {
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

async fn no_route() -> Problem {
    Problem::not_found("there is no such route; the API is under /v1")
}

async fn no_method(method: Method) -> Problem {
    Problem::no_method(&method)
}
