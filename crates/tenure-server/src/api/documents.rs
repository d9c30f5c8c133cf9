//! The OpenAPI document and its pages, public.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderName, header};
use tenure_wire::schema::ProblemCode;

use crate::ServerState;
use crate::docs::{STYLE, errors};
use tenure_app::Problem;
use tenure_app::openapi::NotFound;

type Headers = [(HeaderName, &'static str); 1];

fn headers(kind: &'static str) -> Headers {
    [(header::CONTENT_TYPE, kind)]
}

/// Returns this document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "documents",
    operation_id = "openapi",
    security(()),
    responses((status = 200, description = "The OpenAPI document", body = Object,
        content_type = "application/json"))
)]
pub(super) async fn openapi(State(state): State<ServerState>) -> (Headers, String) {
    (headers("application/json"), state.docs.openapi(&state.apps).to_owned())
}

/// Renders this document as an HTML page.
#[utoipa::path(
    get,
    path = "/docs",
    tag = "documents",
    operation_id = "docs",
    security(()),
    responses((status = 200, description = "HTML page", body = String, content_type = "text/html"))
)]
pub(super) async fn page(State(state): State<ServerState>) -> (Headers, String) {
    (headers("text/html; charset=utf-8"), state.docs.page(&state.apps).to_owned())
}

/// Renders the page of an error code: meaning and remedy.
#[utoipa::path(
    get,
    path = "/docs/errors/{code}",
    tag = "documents",
    operation_id = "error_docs",
    security(()),
    params(("code" = inline(ProblemCode), Path, description = "The stable code of a problem")),
    responses(
        (status = 200, description = "HTML page", body = String, content_type = "text/html"),
        NotFound
    )
)]
pub(super) async fn error(
    code: Result<Path<String>, PathRejection>,
) -> Result<(Headers, String), Problem> {
    let page = code.ok().and_then(|Path(code)| errors::page(&code));
    let page = page.ok_or_else(|| Problem::not_found("no such error code; /docs lists all"))?;
    Ok((headers("text/html; charset=utf-8"), page))
}

/// Serves the style sheet of the pages, which is not part of the API.
pub(super) async fn style() -> (Headers, &'static str) {
    (headers("text/css; charset=utf-8"), STYLE)
}
