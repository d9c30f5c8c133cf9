//! Stands before every route: who asks, may they, how often, and what the audit says of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Query, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
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
use crate::audit::Entry;
use tenure_app::access::{Access, Audit, Rule};
use tenure_app::{Caller, Problem};

/// The layer of all routes.
pub(crate) async fn guard(
    State(state): State<ServerState>,
    matched: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let Some(rule) = state.rules.get(&parts.method, matched.as_str()) else {
        // What is in no rule is answered to nobody, handler or not.
        return Problem::no_method(&parts.method).into_response();
    };
    let mut visit = Visit::begin(&state, rule, &parts);
    let response = match admit(&state, rule, &parts, &mut visit).await {
        Ok(admitted) => {
            visit.caller.clone_from(&admitted);
            parts.extensions.insert(visit.address);
            if let Some(admitted) = admitted {
                parts.extensions.insert(admitted);
            }
            next.run(Request::from_parts(parts, body)).await
        }
        Err(problem) => problem.into_response(),
    };
    if let Some(line) = visit.end(&response) {
        state.audit.write(line).await;
    }
    response
}

/// A request on its way, until the audit knows of it.
struct Visit<'a> {
    state: &'a ServerState,
    rule: &'a Rule,
    path: String,
    address: Option<IpAddr>,
    began: Instant,
    whoever: Option<Principal>,
    caller: Option<Caller>,
    /// Too many of the same came before: nothing is noted.
    too_many: bool,
    over: bool,
}

impl<'a> Visit<'a> {
    fn begin(state: &'a ServerState, rule: &'a Rule, parts: &Parts) -> Self {
        let (path, address) = (parts.uri.path().to_owned(), address(parts));
        let (whoever, caller, began) = (None, None, stopwatch());
        Self { state, rule, path, address, began, whoever, caller, too_many: false, over: false }
    }

    /// What the audit is to know of it.
    fn end(mut self, response: &Response) -> Option<Entry> {
        self.over = true;
        let status = response.status();
        let denied = status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN;
        // Whoever signs in becomes known on the way.
        let signed_in = response.extensions().get::<Principal>().cloned();
        let action = match self.rule.audit {
            Audit::Refused(_) if status.is_success() => return None,
            Audit::Refused(action) | Audit::Always(action) => action,
            Audit::Denied if signed_in.is_some() => "signin",
            Audit::Denied if denied => "look",
            Audit::Denied => return None,
        };
        self.whoever = self.whoever.take().or(signed_in);
        (!self.too_many).then(|| self.entry(action, Some(response)))
    }

    fn entry(&self, action: &str, response: Option<&Response>) -> Entry {
        let entry = Entry::new(action, &self.path, self.address, response, self.began.elapsed());
        entry.by(self.caller.as_ref(), self.whoever.as_ref())
    }
}

impl Drop for Visit<'_> {
    /// Whoever hangs up before the answer may have done something all the same.
    fn drop(&mut self) {
        if let Audit::Always(action) = self.rule.audit
            && !self.over
            && self.caller.is_some()
        {
            self.state.audit.write_now(self.entry(action, None));
        }
    }
}

/// Whoever asks, if they may; nobody where anybody may.
async fn admit(
    state: &ServerState,
    rule: &Rule,
    parts: &Parts,
    visit: &mut Visit<'_>,
) -> Result<Option<Caller>, Problem> {
    let Some(role) = rule.access.role() else { return Ok(None) };
    let address = visit.address;
    let Some(principal) = authenticate(state, rule, parts).await? else {
        let again = state.limits.failure(address);
        visit.too_many = again.is_err();
        // Whoever has no key at all guesses nothing, and is told what is missing.
        let guesses = key(parts).is_some();
        return Err(match again {
            Err(after) if guesses => Problem::rate_limited(after),
            _ => Problem::unauthenticated(),
        });
    };
    let principal = visit.whoever.insert(principal);
    allow(rule, role, principal)?;
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

/// By the key in a header, or by the cookie of somebody who has signed in.
async fn authenticate(
    state: &ServerState,
    rule: &Rule,
    parts: &Parts,
) -> Result<Option<Principal>, Problem> {
    if let Some(key) = key(parts) {
        return Ok(state.keys.find(key, state.services.store()).await);
    }
    let now = state.keys.now();
    let Some(signed_in) = state.signer.read(&parts.headers, now) else { return Ok(None) };
    if rule.action().is_some() && !cookie::is_ours(&parts.headers, &signed_in) {
        let detail = "this came with a cookie but without the token of our own pages; send \
                      `x-tenure-csrf` from GET /v1/whoami, or a key";
        return Err(Problem::new(403, "forbidden", detail));
    }
    Ok(match &signed_in.key {
        Some(id) => state.keys.good(id, None),
        None => Some(Keys::root()),
    })
}

fn allow(rule: &Rule, role: Role, principal: &Principal) -> Result<(), Problem> {
    if principal.role < role {
        let detail = format!("this needs a key of role {role} or higher");
        return Err(Problem::new(403, "forbidden", &detail));
    }
    if matches!(rule.access, Access::AllTenants(_)) && *principal.tenant != *ALL_TENANTS {
        let detail = "this is about all tenants, and the key is bound to one";
        return Err(Problem::new(403, "forbidden", detail));
    }
    Ok(())
}

#[derive(Deserialize)]
struct TenantQuery {
    tenant: Option<String>,
}

/// The tenant that is acted for: that of the key; for a key of all tenants the one that is named
/// in the query.
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

/// Refuses what cannot be the name of a tenant.
pub(crate) fn check_tenant(name: &str) -> Result<(), Problem> {
    // Checked as part of a key, so that the message is the same everywhere.
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
