//! Middleware of every route: authentication, authorization, rate limits and the audit log.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tenure::client::DEFAULT_TENANT;
use tenure_core::session::ALL_TENANTS;
use tenure_core::{ResourceKey, Role, Text};
use tenure_store::clock::stopwatch;

use super::cookie;
use super::keys::{Keys, Principal};
use crate::ServerState;
use crate::audit::{AuditClass, PendingEntry};
use tenure_app::access::{Access, Audit, Rule};
use tenure_app::{Caller, Problem};

/// Headers that a request has at most once.
const SINGLE_HEADERS: [&str; 5] =
    ["host", "authorization", "x-api-key", "idempotency-key", "x-tenure-csrf"];

/// Refuses a head that a proxy may have understood differently.
fn check_head(parts: &Parts) -> Result<(), Problem> {
    let count = |name: &str| parts.headers.get_all(name).iter().count();
    if let Some(name) = SINGLE_HEADERS.into_iter().find(|name| count(name) > 1) {
        // A proxy may have used the other one.
        let detail = format!("the request has more than one {name} header; send one");
        return Err(Problem::invalid(&detail));
    }
    if parts.version == Version::HTTP_11 && count("host") == 0 {
        return Err(Problem::invalid(&"a request of HTTP/1.1 needs a Host header; send one"));
    }
    Ok(())
}

/// Authorizes a request, runs its handler and writes the audit entry.
pub(crate) async fn guard(
    State(state): State<ServerState>,
    matched: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let Some(rule) = state.rules.get(&parts.method, matched.as_str()) else {
        // A route without a rule is refused to every caller.
        return Problem::method_not_allowed(&parts.method).into_response();
    };
    if let Err(problem) = check_head(&parts) {
        return problem.into_response();
    }
    let mut audited = AuditedRequest::start(&state, rule, &parts);
    let response = match authorize(&state, rule, &parts, &mut audited).await {
        Ok(caller) => {
            audited.caller.clone_from(&caller);
            parts.extensions.insert(audited.address);
            if let Some(caller) = caller {
                parts.extensions.insert(caller);
            }
            next.run(Request::from_parts(parts, body)).await
        }
        Err(problem) => problem.into_response(),
    };
    if let Some(entry) = audited.finish(&response) {
        state.audit.write(entry).await;
    }
    response
}

/// A request whose audit entry is not written yet.
struct AuditedRequest<'a> {
    state: &'a ServerState,
    rule: &'a Rule,
    path: String,
    address: Option<IpAddr>,
    started: Instant,
    principal: Option<Principal>,
    caller: Option<Caller>,
    /// Over the limit of failed authentications: no entry is written.
    rate_limited: bool,
    finished: bool,
}

impl<'a> AuditedRequest<'a> {
    fn start(state: &'a ServerState, rule: &'a Rule, parts: &Parts) -> Self {
        let (path, address) = (parts.uri.path().to_owned(), address(parts));
        let (principal, caller, started) = (None, None, stopwatch());
        Self {
            state,
            rule,
            path,
            address,
            started,
            principal,
            caller,
            rate_limited: false,
            finished: false,
        }
    }

    /// Returns the audit entry, if the rule asks for one.
    fn finish(mut self, response: &Response) -> Option<PendingEntry> {
        self.finished = true;
        let status = response.status();
        let denied = status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN;
        // A sign-in has a principal only afterwards.
        let signed_in = response.extensions().get::<Principal>().cloned();
        let action = match self.rule.audit {
            Audit::Refused(_) if status.is_success() => return None,
            Audit::Refused(action) | Audit::Always(action) => action,
            Audit::Denied if signed_in.is_some() => "signin",
            Audit::Denied if denied => "look",
            Audit::Denied => return None,
        };
        self.principal = self.principal.take().or(signed_in);
        (!self.rate_limited).then(|| self.entry(action, Some(response)))
    }

    fn entry(&self, action: &str, response: Option<&Response>) -> PendingEntry {
        let class = self.class(response.map(Response::status));
        let (path, took) = (&self.path, self.started.elapsed());
        let entry = PendingEntry::new(class, action, path, self.address, response, took);
        entry.by(self.caller.as_ref(), self.principal.as_ref())
    }
}

impl AuditedRequest<'_> {
    /// Returns the class of the entry. Only operators can cause entries of their class.
    fn class(&self, status: Option<StatusCode>) -> AuditClass {
        let denied = status.is_some_and(|status| {
            let codes = [401, 403, 429];
            codes.contains(&status.as_u16())
        });
        let is_operator = |role: Role| role >= Role::Operator;
        match &self.principal {
            None => AuditClass::Denied,
            Some(_) if denied => AuditClass::Denied,
            Some(principal)
                if is_operator(principal.role)
                    && self.rule.access.role().is_none_or(is_operator) =>
            {
                AuditClass::Operators
            }
            Some(_) => AuditClass::Workers,
        }
    }
}

impl Drop for AuditedRequest<'_> {
    /// The command of a client that disconnected early may have been applied.
    fn drop(&mut self) {
        if let Audit::Always(action) = self.rule.audit
            && !self.finished
            && self.caller.is_some()
        {
            self.state.audit.try_write(self.entry(action, None));
        }
    }
}

/// Returns the authorized caller; `None` on a public route.
async fn authorize(
    state: &ServerState,
    rule: &Rule,
    parts: &Parts,
    audited: &mut AuditedRequest<'_>,
) -> Result<Option<Caller>, Problem> {
    let Some(role) = rule.access.role() else { return Ok(None) };
    let address = audited.address;
    if let Some(key) = key(parts)
        && let Err(after) = state.limits.check_key(address, key)
    {
        audited.rate_limited = true;
        return Err(Problem::rate_limited(after));
    }
    let Some(principal) = authenticate(state, rule, parts).await? else {
        let limit = state.limits.failure(address, key(parts));
        audited.rate_limited = limit.is_err();
        // A request without a key is no guess, so it gets the message about the missing key.
        let has_key = key(parts).is_some();
        return Err(match limit {
            Err(after) if has_key => Problem::rate_limited(after),
            _ => Problem::unauthenticated(),
        });
    };
    if let Some(key) = key(parts) {
        state.limits.record_accepted(address, key);
    }
    let principal = audited.principal.insert(principal);
    check_rule(rule, role, principal)?;
    let tenant = tenant(parts, principal)?;
    if *principal.tenant != *ALL_TENANTS {
        state.limits.request(&principal.tenant).map_err(Problem::rate_limited)?;
    }
    Ok(Some(Caller {
        tenant,
        role: principal.role,
        name: principal.name.clone(),
        key: principal.key.clone(),
        key_tenant: principal.tenant.clone(),
        address,
        audit: Arc::default(),
    }))
}

/// Authenticates by the key in a header, or by the cookie of a signed-in browser.
async fn authenticate(
    state: &ServerState,
    rule: &Rule,
    parts: &Parts,
) -> Result<Option<Principal>, Problem> {
    if let Some(key) = key(parts) {
        return Ok(state.keys.authenticate(key, state.services.store()).await);
    }
    let Some(signed_in) = state.signed_in(&parts.headers) else { return Ok(None) };
    if rule.action().is_some() && !cookie::has_valid_csrf(&parts.headers, &signed_in) {
        let detail = "the CSRF token is missing or wrong; send `x-tenure-csrf` from GET \
                      /v1/whoami, or a key instead of the cookie";
        return Err(Problem::new(403, "forbidden", detail));
    }
    Ok(match &signed_in.key {
        Some(id) => state.keys.principal(id, None),
        None => Some(Keys::admin_principal()),
    })
}

fn check_rule(rule: &Rule, role: Role, principal: &Principal) -> Result<(), Problem> {
    if principal.role < role {
        let detail = format!("this requires a key of role {role} or higher");
        return Err(Problem::new(403, "forbidden", &detail));
    }
    if matches!(rule.access, Access::AllTenants(_)) && *principal.tenant != *ALL_TENANTS {
        let detail = "this requires a key of all tenants; the key is bound to one";
        return Err(Problem::new(403, "forbidden", detail));
    }
    Ok(())
}

#[derive(Deserialize)]
struct TenantQuery {
    tenant: Option<String>,
}

/// Returns the tenant that the request acts for: that of the key; for a key of all tenants the one
/// named in the query.
fn tenant(parts: &Parts, principal: &Principal) -> Result<Text, Problem> {
    let named = match parts.uri.query() {
        Some(_) => {
            let query = Query::<TenantQuery>::try_from_uri(&parts.uri);
            query.map_err(|error| Problem::invalid(&error))?.0.tenant
        }
        None => None,
    };
    if *principal.tenant != *ALL_TENANTS {
        if named.is_some_and(|named| *named != *principal.tenant) {
            let detail = "the key is bound to its own tenant; leave ?tenant= out";
            return Err(Problem::new(403, "forbidden", detail));
        }
        return Ok(principal.tenant.clone());
    }
    let Some(named) = named else { return Ok(DEFAULT_TENANT.into()) };
    if named != ALL_TENANTS {
        check_tenant(&named)?;
    }
    Ok(named.into())
}

/// Rejects an invalid tenant name.
pub(crate) fn check_tenant(name: &str) -> Result<(), Problem> {
    // Checked as part of a key for the same message as elsewhere.
    let checked = ResourceKey::new(name, "kind", "name");
    checked.map(drop).map_err(|error| Problem::invalid(&error))
}

fn key(parts: &Parts) -> Option<&str> {
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    bearer.or_else(|| header("x-api-key")).map(str::trim)
}

fn address(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
}
