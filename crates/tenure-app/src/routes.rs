//! The HTTP routes of an app.

use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

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

impl AppRoutes {
    /// Creates an app without routes; `tag` and `description` name its section of the OpenAPI
    /// document.
    #[must_use]
    pub fn new(tag: &'static str, description: &'static str) -> Self {
        Self { tag: Some((tag, description)), ..Self::default() }
    }

    /// Adds the handlers of one path, made by `routes!`, with one access rule for each method.
    #[must_use]
    pub fn route(
        mut self,
        handlers: UtoipaMethodRouter<Services>,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Self {
        self.router = self.router.routes(handlers);
        self.rules.extend(rules);
        self
    }

    /// Serves the same routes also under `/v1`.
    #[must_use]
    pub fn also_under_v1(mut self) -> Self {
        self.also_under_v1 = true;
        self
    }
}
