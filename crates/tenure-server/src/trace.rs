//! Distributed tracing of requests; without the feature `otel` it does nothing.
//!
//! A request continues the trace in its `traceparent` header. A job outlives the request that
//! submits it, and its record does not store a trace id, so the trace of a job has the job's id,
//! and the request links to it.

use axum::extract::Request;
use axum::http::StatusCode;
use tracing::Span;

/// Continues the trace of the caller.
#[cfg_attr(
    not(feature = "otel"),
    expect(unused_variables, reason = "used with the feature `otel`")
)]
pub(crate) fn set_parent(span: &Span, request: &Request) {
    #[cfg(feature = "otel")]
    export::set_parent(span, request);
}

/// Records the status of the response.
#[cfg_attr(
    not(feature = "otel"),
    expect(unused_variables, reason = "used with the feature `otel`")
)]
pub(crate) fn record_status(span: &Span, status: StatusCode) {
    #[cfg(feature = "otel")]
    export::record_status(span, status);
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

    pub(super) fn set_parent(span: &Span, request: &Request) {
        let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
        span.record("otel.name", format!("{} {route}", request.method()));
        span.record("otel.kind", "server");
        let header = request.headers().get("traceparent").and_then(|one| one.to_str().ok());
        if let Some(parent) = header.and_then(|text| text.parse().ok()) {
            continue_trace(span, parent);
        }
    }

    /// Makes a span that is not entered yet a child of a remote span.
    pub fn continue_trace(span: &Span, parent: TraceParent) {
        let context = Context::new().with_remote_span_context(remote(parent));
        if let Err(error) = span.set_parent(context) {
            tracing::debug!(%error, "cannot set the parent of a span");
        }
    }

    pub(super) fn record_status(span: &Span, status: StatusCode) {
        span.record("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
    }
}
