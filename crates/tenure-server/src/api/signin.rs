//! Browser sign-in: exchanges a key, or the link that the server printed, for a cookie.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use serde::Deserialize;
use tenure_store::clock::stopwatch;
use tenure_wire::SignInRequest;

use crate::ServerState;
use crate::auth::keys::Principal;
use crate::auth::{COOKIE, Keys};
use tenure_app::Problem;
use tenure_app::extract::{Body, Params};

/// Validity of a sign-in link.
const LINK_TTL: Duration = Duration::from_secs(15 * 60);
/// Maximum number of valid links.
const LINKS_MAX: usize = 100;
/// Maximum size of a body. Callers are unknown yet, so it stays below what counts for the budget of
/// all bodies: they must not use it up.
const SIGN_IN_BODY_BYTES_MAX: usize = 4 * 1024;

type SignInBody = Body<SignInRequest, SIGN_IN_BODY_BYTES_MAX>;

/// Single-use links that sign their bearer in as admin.
#[derive(Default)]
pub(crate) struct SignInLinks(Mutex<HashMap<String, Instant>>);

impl SignInLinks {
    /// Issues a new link code.
    pub(crate) fn issue(&self) -> String {
        let code = tenure_store::random::secret();
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, at| at.elapsed() < LINK_TTL);
        if links.len() < LINKS_MAX {
            links.insert(code.clone(), stopwatch());
        }
        code
    }

    /// Invalidates a code and returns whether it was valid.
    fn redeem(&self, code: &str) -> bool {
        let at = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(code);
        at.is_some_and(|at| at.elapsed() < LINK_TTL)
    }
}

#[derive(Deserialize)]
pub(super) struct CodeParams {
    code: Option<String>,
}

pub(super) async fn page(
    State(state): State<ServerState>,
    method: Method,
    Params(params): Params<CodeParams>,
) -> Response {
    // HEAD, as sent by link previews, does not redeem the link.
    match params.code.filter(|_| method == Method::GET) {
        None => Html(include_str!("signin.html")).into_response(),
        Some(code) if state.links.redeem(&code) => signed_in(&state, &Keys::admin_principal()),
        Some(_) => {
            let page = include_str!("signin.html");
            let alert = "<p role=\"alert\">This link is used or expired. Use a key, or the link \
                         that the server prints when it starts.</p>";
            let page = page.replacen("<!-- alert -->", alert, 1);
            (StatusCode::UNAUTHORIZED, Html(page)).into_response()
        }
    }
}

pub(super) async fn sign_in(
    State(state): State<ServerState>,
    Extension(address): Extension<Option<IpAddr>>,
    headers: HeaderMap,
    request: axum::extract::Request,
) -> Result<Response, Problem> {
    reject_cross_site(&headers)?;
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let body = if kind.starts_with("application/x-www-form-urlencoded") {
        SignInBody::from_form(request, &state.services).await?
    } else {
        SignInBody::from_json(request, &state.services).await?
    };
    let key = body.0.key.trim();
    state.limits.check_key(address, key).map_err(Problem::rate_limited)?;
    match state.keys.authenticate(key, state.services.store()).await {
        Some(principal) => {
            state.limits.record_accepted(address, key);
            Ok(signed_in(&state, &principal))
        }
        None => {
            let limit = state.limits.failure(address, Some(key));
            Err(limit.map_or_else(Problem::rate_limited, |()| Problem::unauthenticated()))
        }
    }
}

/// Sets the cookie and redirects to the home page.
fn signed_in(state: &ServerState, principal: &Principal) -> Response {
    let key = principal.key.as_deref();
    let (value, _) = state.signer.issue(key, state.keys.now());
    let secure = if state.secure { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{secure}");
    let headers = [(SET_COOKIE, cookie), (LOCATION, "/".to_owned())];
    let mut response = (StatusCode::SEE_OTHER, headers).into_response();
    response.extensions_mut().insert(principal.clone());
    response
}

pub(super) async fn sign_out(
    State(state): State<ServerState>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    reject_cross_site(&headers)?;
    if let Some(signed_in) = state.signed_in(&headers)
        && let Err(error) = state.keys.sign_out(signed_in, state.services.store()).await
    {
        tracing::warn!(%error, "cannot record a sign-out for other servers; retrying");
    }
    let secure = if state.secure { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0{secure}");
    let headers = [(SET_COOKIE, cookie), (LOCATION, "/signin".to_owned())];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}

/// Rejects cross-site requests.
fn reject_cross_site(headers: &HeaderMap) -> Result<(), Problem> {
    let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    if site.is_some_and(|site| site == "cross-site") {
        let detail = "cross-site request; use the sign-in page of this server";
        return Err(Problem::new(403, "forbidden", detail));
    }
    Ok(())
}

/// Serves the home page, or redirects to the sign-in page.
pub(super) async fn home(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    if state.signed_in(&headers).is_none() {
        return (StatusCode::SEE_OTHER, [(LOCATION, "/signin")]).into_response();
    }
    Html(include_str!("home.html")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_valid_once() {
        let links = SignInLinks::default();
        let code = links.issue();
        assert!(!links.redeem("another"));
        assert!(links.redeem(&code));
        assert!(!links.redeem(&code));
    }
}
