//! Traces of jobs; without the feature `otel`, the job is only a field in the log.

use tenure_core::JobId;
use tracing::Span;

/// Records that the current request has submitted a job or attached to one. A job outlives the
/// request and its record does not store a trace id, so the trace of a job has the job's id, and
/// the span of the request links to it.
pub fn record_job(job: JobId) {
    let span = Span::current();
    span.record("job", tracing::field::display(job));
    #[cfg(feature = "otel")]
    {
        use tracing_opentelemetry::OpenTelemetrySpanExt as _;
        span.add_link(remote(tenure::trace::TraceParent::for_job(job)));
    }
}

/// Converts a W3C trace parent to a remote span.
#[cfg(feature = "otel")]
#[must_use]
pub fn remote(parent: tenure::trace::TraceParent) -> opentelemetry::trace::SpanContext {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
    let (trace, span) = (TraceId::from(parent.trace), SpanId::from(parent.span));
    SpanContext::new(trace, span, TraceFlags::new(parent.flags), true, TraceState::NONE)
}
