//! Request ids, for the log, the response, the audit log and problems.
//!
//! The span of a request carries its id to every log event; the end of the request is logged.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tenure_store::clock::stopwatch;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::trace;

/// The header of the request id.
pub(crate) const HEADER: &str = "x-request-id";
/// Maximum length of an id that a client may choose.
const BYTES_MAX: usize = 64;

/// Middleware that assigns an id to each request: the one that the client sent, or a new one.
pub(crate) async fn assign(request: Request, next: Next) -> Response {
    let client_id = request.headers().get(HEADER).and_then(|id| id.to_str().ok());
    let plain = |id: &&str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        (1..=BYTES_MAX).contains(&id.len()) && id.chars().all(allowed)
    };
    let id = client_id.filter(plain).map_or_else(tenure_app::request_id::new, str::to_owned);
    let span = span(&request, &id);
    let mut end = EndLog { span: span.clone(), started: stopwatch(), status: None };
    let header = HeaderValue::from_str(&id);
    let mut response = tenure_app::request_id::scope(id, next.run(request).instrument(span)).await;
    end.status = Some(response.status());
    drop(end);
    if let Ok(header) = header {
        response.headers_mut().insert(HEADER, header);
    }
    response
}

/// Creates the span of a request. Its level is the highest, so that no filter removes the id from
/// log events.
fn span(request: &Request, request_id: &str) -> Span {
    let (method, path) = (request.method(), request.uri().path());
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let route = matched.unwrap_or("none");
    let span = tracing::error_span!(
        "request",
        %method,
        path,
        route,
        request_id,
        job = Empty,
        otel.name = Empty,
        otel.kind = Empty,
        otel.status_code = Empty,
        http.response.status_code = Empty,
    );
    trace::set_parent(&span, request);
    span
}

/// Logs the end of a request on drop, also if the client disconnected before the response.
struct EndLog {
    span: Span,
    started: Instant,
    status: Option<StatusCode>,
}

impl Drop for EndLog {
    fn drop(&mut self) {
        let duration_ms = self.started.elapsed().as_secs_f64() * 1e3;
        let Some(status) = self.status else {
            return self.span.in_scope(|| tracing::debug!(duration_ms, "client disconnected"));
        };
        trace::record_status(&self.span, status);
        let code = status.as_u16();
        self.span.in_scope(|| match code {
            // Not a warning: the regular response under overload, and the client retries.
            503 => tracing::info!(status = code, duration_ms, "request completed"),
            500.. => tracing::warn!(status = code, duration_ms, "request completed"),
            _ => tracing::debug!(status = code, duration_ms, "request completed"),
        });
    }
}
