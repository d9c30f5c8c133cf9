//! What spans of requests have to do with traces elsewhere. Without the feature `otel`: nothing.
//!
//! A request goes on with the trace that its `traceparent` names. A job outlives the request that
//! made it, and its record has no place for a trace; so the trace of a job has the job's id, and
//! the request links to it.

use axum::extract::Request;
use axum::http::StatusCode;
use tracing::Span;

/// Takes over the trace of the caller.
#[cfg_attr(not(feature = "otel"), expect(unused_variables, reason = "nobody takes spans"))]
pub(crate) fn adopt(span: &Span, request: &Request) {
    #[cfg(feature = "otel")]
    export::adopt(span, request);
}

/// Notes how a request has ended.
#[cfg_attr(not(feature = "otel"), expect(unused_variables, reason = "nobody takes spans"))]
pub(crate) fn ended(span: &Span, status: StatusCode) {
    #[cfg(feature = "otel")]
    export::ended(span, status);
}

#[cfg(feature = "otel")]
pub use export::continue_trace;

#[cfg(feature = "otel")]
mod export {
    use axum::extract::{MatchedPath, Request};
    use axum::http::StatusCode;
    use opentelemetry::Context;
    use opentelemetry::trace::TraceContextExt as _;
    use tenure::trace::TraceParent;
    use tenure_app::trace::remote;
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    pub(super) fn adopt(span: &Span, request: &Request) {
        let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
        span.record("otel.name", format!("{} {route}", request.method()));
        span.record("otel.kind", "server");
        let brought = request.headers().get("traceparent").and_then(|one| one.to_str().ok());
        if let Some(parent) = brought.and_then(|text| text.parse().ok()) {
            continue_trace(span, parent);
        }
    }

    /// Has a span that has not begun yet go on with a trace from elsewhere.
    pub fn continue_trace(span: &Span, parent: TraceParent) {
        let context = Context::new().with_remote_span_context(remote(parent));
        if let Err(error) = span.set_parent(context) {
            tracing::debug!(%error, "a span does not take over its trace");
        }
    }

    pub(super) fn ended(span: &Span, status: StatusCode) {
        span.record("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
    }
}
