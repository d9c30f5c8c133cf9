//! What each route needs: the one table of who may do what.
//!
//! A route that is not here is answered to nobody. A test walks the table against the router and
//! against every role.

use axum::http::Method;
use tenure_core::Role;

/// What a route needs.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// `GET`, ….
    pub method: &'static str,
    /// The route, with names in braces.
    pub path: &'static str,
    /// Who may ask.
    pub who: Who,
    /// What the audit calls it; none for what changes nothing.
    pub action: Option<&'static str>,
}

/// What workers do all the time, and what begins and ends nothing: the audit has it only when it
/// was refused, or it would have nothing else.
const ROUTINE: [&str; 4] = ["session.beat", "lock.renew", "job.progress", "job.log"];

impl Rule {
    /// Whether it is noted only when it was refused.
    #[must_use]
    pub fn is_routine(&self) -> bool {
        self.action.is_some_and(|action| ROUTINE.contains(&action))
    }
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Anybody, without a key.
    Anybody,
    /// A key of this role or a higher one, for what is its tenant's.
    Tenant(Role),
    /// A key of this role or a higher one that is bound to no tenant: it is about all of them.
    All(Role),
}

impl Who {
    /// The least role; none where no key is needed.
    #[must_use]
    pub fn role(self) -> Option<Role> {
        match self {
            Self::Anybody => None,
            Self::Tenant(role) | Self::All(role) => Some(role),
        }
    }
}

const fn look(path: &'static str, who: Who) -> Rule {
    Rule { method: "GET", path, who, action: None }
}

const fn act(method: &'static str, path: &'static str, role: Role, action: &'static str) -> Rule {
    Rule { method, path, who: Who::Tenant(role), action: Some(action) }
}

const VIEWER: Who = Who::Tenant(Role::Viewer);

/// All routes.
pub const RULES: &[Rule] = &[
    look("/healthz", Who::Anybody),
    look("/readyz", Who::Anybody),
    look("/metrics", Who::All(Role::Viewer)),
    look("/openapi.json", Who::Anybody),
    look("/docs", Who::Anybody),
    look("/docs/errors/{code}", Who::Anybody),
    look("/docs/style.css", Who::Anybody),
    look("/", Who::Anybody),
    look("/signin", Who::Anybody),
    Rule { method: "POST", path: "/signin", who: Who::Anybody, action: Some("signin") },
    Rule { method: "POST", path: "/signout", who: Who::Anybody, action: Some("signout") },
    look("/v1/whoami", VIEWER),
    look("/v1/events", VIEWER),
    look("/v1/audit", Who::Tenant(Role::Operator)),
    // Keys.
    look("/v1/keys", Who::Tenant(Role::Admin)),
    act("POST", "/v1/keys", Role::Admin, "key.create"),
    act("POST", "/v1/keys/{id}/revoke", Role::Admin, "key.revoke"),
    // Sessions.
    act("POST", "/v1/sessions", Role::Worker, "session.open"),
    act("DELETE", "/v1/sessions/{id}", Role::Worker, "session.close"),
    act("POST", "/v1/sessions/{id}/beat", Role::Worker, "session.beat"),
    // Locks.
    look("/v1/locks", VIEWER),
    look("/v1/locks/{kind}/{name}", VIEWER),
    act("POST", "/v1/locks/{kind}/{name}/acquire", Role::Worker, "lock.acquire"),
    act("POST", "/v1/locks/{kind}/{name}/renew", Role::Worker, "lock.renew"),
    act("POST", "/v1/locks/{kind}/{name}/release", Role::Worker, "lock.release"),
    act("POST", "/v1/locks/{kind}/{name}/withdraw", Role::Worker, "lock.withdraw"),
    act("POST", "/v1/locks/{kind}/{name}/break", Role::Operator, "lock.break"),
    // Resources.
    look("/v1/resources", VIEWER),
    look("/v1/resources/{kind}/{name}", VIEWER),
    act("PUT", "/v1/resources/{kind}/{name}", Role::Operator, "resource.put"),
    act("DELETE", "/v1/resources/{kind}/{name}", Role::Operator, "resource.delete"),
    act("POST", "/v1/resources/{kind}/{name}/jobs", Role::Worker, "job.submit"),
    act("POST", "/v1/resources/{kind}/{name}/pause", Role::Operator, "resource.pause"),
    act("POST", "/v1/resources/{kind}/{name}/resume", Role::Operator, "resource.resume"),
    look("/v1/resources/{kind}/{name}/why", VIEWER),
    look("/v1/resources/{kind}/{name}/history", VIEWER),
    // Jobs.
    look("/v1/jobs", VIEWER),
    act("POST", "/v1/jobs/claim", Role::Worker, "job.claim"),
    look("/v1/jobs/{id}", VIEWER),
    look("/v1/jobs/{id}/why", VIEWER),
    look("/v1/jobs/{id}/logs", VIEWER),
    act("POST", "/v1/jobs/{id}/logs", Role::Worker, "job.log"),
    act("POST", "/v1/jobs/{id}/cancel", Role::Operator, "job.cancel"),
    act("POST", "/v1/jobs/{id}/retry", Role::Operator, "job.retry"),
    act("POST", "/v1/jobs/{id}/discard", Role::Operator, "job.discard"),
    act("POST", "/v1/jobs/{id}/progress", Role::Worker, "job.progress"),
    act("POST", "/v1/jobs/{id}/finish", Role::Worker, "job.finish"),
    // Pipelines; the same routes are also under /v1.
    look("/pipelines", VIEWER),
    act("POST", "/pipelines/run/{pipeline_id}", Role::Worker, "pipeline.run"),
    look("/pipelines/runs", VIEWER),
    look("/pipelines/runs/{id}", VIEWER),
    act("DELETE", "/pipelines/runs/{id}", Role::Operator, "pipeline.cancel"),
    look("/pipelines/locks", VIEWER),
    act("POST", "/pipelines/locks/{pipeline_id}/release", Role::Operator, "pipeline.release"),
    // Dead letters.
    look("/v1/dead", VIEWER),
    act("POST", "/v1/dead/redrive", Role::Operator, "dead.redrive"),
    act("POST", "/v1/dead/discard", Role::Operator, "dead.discard"),
    // The deployment.
    look("/v1/workers", VIEWER),
    look("/v1/kinds", VIEWER),
    look("/v1/history", VIEWER),
    look("/v1/verify", Who::Tenant(Role::Operator)),
    look("/v1/janitor", Who::All(Role::Viewer)),
];

/// What a route needs, if it is known.
#[must_use]
pub fn rule(method: &Method, path: &str) -> Option<&'static Rule> {
    // Whoever may look may also ask whether there is something to look at.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let path =
        path.strip_prefix("/v1").filter(|rest| rest.starts_with("/pipelines")).unwrap_or(path);
    RULES.iter().find(|rule| rule.path == path && rule.method == method.as_str())
}
