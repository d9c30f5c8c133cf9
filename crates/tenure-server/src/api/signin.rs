//! Signing in with a browser: a key, or the link that the server printed, becomes a cookie.

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
use tenure_wire::SignInBody;

use crate::ServerState;
use crate::auth::keys::Principal;
use crate::auth::{COOKIE, Keys};
use tenure_app::Problem;
use tenure_app::extract::{Body, Params};

/// How long a link to sign in is good for.
const LINK_GOOD: Duration = Duration::from_secs(15 * 60);
/// Most links that are good at once.
const LINKS_MAX: usize = 100;

/// Links that sign somebody in as admin, once.
#[derive(Default)]
pub(crate) struct Links(Mutex<HashMap<String, Instant>>);

impl Links {
    /// A new one.
    pub(crate) fn issue(&self) -> String {
        let code = tenure_store::random::secret();
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, at| at.elapsed() < LINK_GOOD);
        if links.len() < LINKS_MAX {
            links.insert(code.clone(), stopwatch());
        }
        code
    }

    /// Uses one up. Says whether it was good.
    fn redeem(&self, code: &str) -> bool {
        let at = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(code);
        at.is_some_and(|at| at.elapsed() < LINK_GOOD)
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
    // Who only asks whether there is something does not use the link up.
    match params.code.filter(|_| method == Method::GET) {
        None => Html(include_str!("signin.html")).into_response(),
        Some(code) if state.links.redeem(&code) => signed_in(&state, &Keys::root()),
        Some(_) => {
            let page = include_str!("signin.html");
            let said = "<p role=\"alert\">This link was used before, or is too old. Use a key, or \
                        the link that the server prints when it starts.</p>";
            let page = page.replacen("<!-- said -->", said, 1);
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
    from_here(&headers)?;
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let body = if kind.starts_with("application/x-www-form-urlencoded") {
        Body::<SignInBody>::from_form(request, &state.services).await?
    } else {
        Body::<SignInBody>::from_json(request, &state.services).await?
    };
    match state.keys.find(body.0.key.trim(), state.services.store()).await {
        Some(principal) => Ok(signed_in(&state, &principal)),
        None => {
            let again = state.limits.failure(address);
            Err(again.map_or_else(Problem::rate_limited, |()| Problem::unauthenticated()))
        }
    }
}

/// The cookie, and on to the first page.
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
    from_here(&headers)?;
    let secure = if state.secure { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0{secure}");
    let headers = [(SET_COOKIE, cookie), (LOCATION, "/signin".to_owned())];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}

/// Refuses what another site told a browser to send.
fn from_here(headers: &HeaderMap) -> Result<(), Problem> {
    let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    if site.is_some_and(|site| site == "cross-site") {
        let detail = "another site sent this; use the page of this server";
        return Err(Problem::new(403, "forbidden", detail));
    }
    Ok(())
}

/// The first page: for whom it is, and where to go.
pub(super) async fn home(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    if state.signer.read(&headers, state.keys.now()).is_none() {
        return (StatusCode::SEE_OTHER, [(LOCATION, "/signin")]).into_response();
    }
    Html(include_str!("home.html")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_good_once() {
        let links = Links::default();
        let code = links.issue();
        assert!(!links.redeem("another"));
        assert!(links.redeem(&code));
        assert!(!links.redeem(&code));
    }
}
