//! Every request has an id: in the log, in the answer, in the audit, in a problem.
//!
//! Its span carries the id to every line of the log, and its end is a line of its own.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tenure_store::clock::stopwatch;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::trace;

/// The header that carries it.
pub(crate) const HEADER: &str = "x-request-id";
/// Longest id of a client that is taken over.
const BYTES_MAX: usize = 64;

/// The layer that gives ids. One that the client brings is kept, so that it can find its own.
pub(crate) async fn give(request: Request, next: Next) -> Response {
    let brought = request.headers().get(HEADER).and_then(|id| id.to_str().ok());
    let plain = |id: &&str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        (1..=BYTES_MAX).contains(&id.len()) && id.chars().all(allowed)
    };
    let id = brought.filter(plain).map_or_else(tenure_app::request_id::new, str::to_owned);
    let span = span(&request, &id);
    let mut end = End { span: span.clone(), began: stopwatch(), status: None };
    let header = HeaderValue::from_str(&id);
    let mut response = tenure_app::request_id::scope(id, next.run(request).instrument(span)).await;
    end.status = Some(response.status());
    drop(end);
    if let Ok(header) = header {
        response.headers_mut().insert(HEADER, header);
    }
    response
}

/// Around everything that is done for a request. Its level is the highest, so that no filter takes
/// the id away from a line.
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
    trace::adopt(&span, request);
    span
}

/// Says how a request has ended, also when nobody waited for its answer.
struct End {
    span: Span,
    began: Instant,
    status: Option<StatusCode>,
}

impl Drop for End {
    fn drop(&mut self) {
        let duration_ms = self.began.elapsed().as_secs_f64() * 1e3;
        let Some(status) = self.status else {
            return self.span.in_scope(|| tracing::debug!(duration_ms, "the client did not wait"));
        };
        trace::ended(&self.span, status);
        let code = status.as_u16();
        self.span.in_scope(|| match code {
            // It is told to come again, as under a load that cannot be carried.
            503 => tracing::info!(status = code, duration_ms, "answered"),
            500.. => tracing::warn!(status = code, duration_ms, "answered"),
            _ => tracing::debug!(status = code, duration_ms, "answered"),
        });
    }
}
