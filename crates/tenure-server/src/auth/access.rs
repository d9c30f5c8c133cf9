//! The access rules of all routes.
//!
//! A route without a rule is refused to every caller. A test compares the table with the router and
//! with every role.

use std::collections::HashMap;

use axum::http::Method;
use tenure_app::Apps;
use tenure_app::access::{Access, Rule};
use tenure_core::Role;

/// The rules of the server's own routes.
const RULES: &[Rule] = &[
    Rule::read("/healthz", Access::Public),
    Rule::read("/readyz", Access::Public),
    Rule::read("/metrics", Access::AllTenants(Role::Viewer)),
    Rule::read("/openapi.json", Access::Public),
    Rule::read("/docs", Access::Public),
    Rule::read("/docs/errors/{code}", Access::Public),
    Rule::read("/docs/style.css", Access::Public),
    Rule::read("/", Access::Public),
    Rule::read("/signin", Access::Public),
    Rule::public_write("POST", "/signin", "signin"),
    Rule::public_write("POST", "/signout", "signout"),
    Rule::read("/v1/whoami", Access::VIEWER),
    Rule::read("/v1/events", Access::VIEWER),
    // Each request of a batch has its own rule.
    Rule::routine("/v1/batch", Role::Viewer, "batch"),
    Rule::read("/v1/audit", Access::Tenant(Role::Operator)),
    // Keys.
    Rule::read("/v1/keys", Access::Tenant(Role::Admin)),
    Rule::write("POST", "/v1/keys", Role::Admin, "key.create"),
    Rule::write("POST", "/v1/keys/{id}/revoke", Role::Admin, "key.revoke"),
    // Sessions.
    Rule::write("POST", "/v1/sessions", Role::Worker, "session.open"),
    Rule::write("DELETE", "/v1/sessions/{id}", Role::Worker, "session.close"),
    Rule::routine("/v1/sessions/{id}/beat", Role::Worker, "session.beat"),
    // Locks.
    Rule::read("/v1/locks", Access::VIEWER),
    Rule::read("/v1/locks/{kind}/{name}", Access::VIEWER),
    Rule::write("POST", "/v1/locks/{kind}/{name}/acquire", Role::Worker, "lock.acquire"),
    Rule::routine("/v1/locks/{kind}/{name}/renew", Role::Worker, "lock.renew"),
    Rule::write("POST", "/v1/locks/{kind}/{name}/release", Role::Worker, "lock.release"),
    Rule::write("POST", "/v1/locks/{kind}/{name}/withdraw", Role::Worker, "lock.withdraw"),
    Rule::write("POST", "/v1/locks/{kind}/{name}/break", Role::Operator, "lock.break"),
    // Resources.
    Rule::read("/v1/resources", Access::VIEWER),
    Rule::read("/v1/resources/{kind}/{name}", Access::VIEWER),
    Rule::write("PUT", "/v1/resources/{kind}/{name}", Role::Operator, "resource.put"),
    Rule::write("DELETE", "/v1/resources/{kind}/{name}", Role::Operator, "resource.delete"),
    Rule::write("POST", "/v1/resources/{kind}/{name}/jobs", Role::Worker, "job.submit"),
    Rule::write("POST", "/v1/resources/{kind}/{name}/pause", Role::Operator, "resource.pause"),
    Rule::write("POST", "/v1/resources/{kind}/{name}/resume", Role::Operator, "resource.resume"),
    Rule::read("/v1/resources/{kind}/{name}/why", Access::VIEWER),
    Rule::read("/v1/resources/{kind}/{name}/history", Access::VIEWER),
    Rule::write(
        "PUT",
        "/v1/resources/{kind}/{name}/timers/{operation}",
        Role::Operator,
        "timer.set",
    ),
    Rule::write(
        "DELETE",
        "/v1/resources/{kind}/{name}/timers/{operation}",
        Role::Operator,
        "timer.remove",
    ),
    Rule::read("/v1/groups/{kind}/{group}", Access::VIEWER),
    // Jobs.
    Rule::read("/v1/jobs", Access::VIEWER),
    Rule::write("POST", "/v1/jobs/claim", Role::Worker, "job.claim"),
    Rule::read("/v1/jobs/{id}", Access::VIEWER),
    Rule::read("/v1/jobs/{id}/why", Access::VIEWER),
    Rule::read("/v1/jobs/{id}/logs", Access::VIEWER),
    Rule::routine("/v1/jobs/{id}/logs", Role::Worker, "job.log"),
    Rule::write("POST", "/v1/jobs/{id}/cancel", Role::Operator, "job.cancel"),
    Rule::write("POST", "/v1/jobs/{id}/retry", Role::Operator, "job.retry"),
    Rule::write("POST", "/v1/jobs/{id}/discard", Role::Operator, "job.discard"),
    Rule::routine("/v1/jobs/{id}/progress", Role::Worker, "job.progress"),
    Rule::routine("/v1/jobs/{id}/status", Role::Worker, "job.status"),
    Rule::write("POST", "/v1/jobs/{id}/finish", Role::Worker, "job.finish"),
    // Dead letters.
    Rule::read("/v1/dead", Access::VIEWER),
    Rule::write("POST", "/v1/dead/redrive", Role::Operator, "dead.redrive"),
    Rule::write("POST", "/v1/dead/discard", Role::Operator, "dead.discard"),
    // The deployment.
    Rule::read("/v1/status", Access::VIEWER),
    Rule::read("/v1/workers", Access::VIEWER),
    Rule::read("/v1/kinds", Access::VIEWER),
    Rule::read("/v1/history", Access::VIEWER),
    Rule::read("/v1/verify", Access::Tenant(Role::Operator)),
    Rule::read("/v1/controllers", Access::AllTenants(Role::Viewer)),
    Rule::read("/v1/janitor", Access::AllTenants(Role::Viewer)),
];

/// The access rules of all routes of a server, those of its apps included.
pub struct Rules(HashMap<(&'static str, String), Rule>);

impl Rules {
    /// Collects the rules of the server and of `apps`.
    #[must_use]
    pub fn new(apps: &Apps) -> Self {
        let of_server = RULES.iter().map(|rule| (rule.path.to_owned(), *rule));
        let of_apps = apps.iter().flat_map(|app| {
            let routes = app.routes();
            let under_v1 = routes.also_under_v1;
            routes.rules.into_iter().flat_map(move |rule| {
                let second = under_v1.then(|| (format!("/v1{}", rule.path), rule));
                [(rule.path.to_owned(), rule)].into_iter().chain(second)
            })
        });
        Self(of_server.chain(of_apps).map(|(path, rule)| ((rule.method, path), rule)).collect())
    }

    /// Returns the rule of a route. HEAD has the rule of GET.
    #[must_use]
    pub fn get(&self, method: &Method, path: &str) -> Option<&Rule> {
        let method = match method.as_str() {
            "GET" | "HEAD" => "GET",
            "POST" => "POST",
            "PUT" => "PUT",
            "DELETE" => "DELETE",
            _ => return None,
        };
        self.0.get(&(method, path.to_owned()))
    }

    /// Iterates over all rules with the full path of their route, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Rule)> {
        self.0.iter().map(|((_, path), rule)| (path.as_str(), rule))
    }
}
