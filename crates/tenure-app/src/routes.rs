//! The HTTP routes of an app.

use utoipa_axum::router::OpenApiRouter;

use crate::access::Rule;
use crate::services::Services;

/// The HTTP routes of an app, with their access rules and their section of the OpenAPI document.
#[derive(Default)]
pub struct AppRoutes {
    /// The handlers.
    pub router: OpenApiRouter<Services>,
    /// One access rule per route. A route without one is refused to every caller.
    pub rules: Vec<Rule>,
    /// Name and description of the routes' tag in the OpenAPI document.
    pub tag: Option<(&'static str, &'static str)>,
    /// Whether the same routes are also served under `/v1`.
    pub also_under_v1: bool,
}
