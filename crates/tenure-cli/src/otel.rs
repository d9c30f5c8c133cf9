//! Exports spans to an OpenTelemetry collector, as OTLP over HTTP, if `OTEL_EXPORTER_OTLP_ENDPOINT`
//! is set. Only in builds with the feature `otel`.
//!
//! While the collector is unavailable, spans are dropped; nothing else is affected.

use std::time::Duration;

use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tenure::http::tls;
use tenure::trace::TraceParent;
use tenure::worker::{Context, attempt_span};
use tracing::{Level, Metadata, Span, Subscriber};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

/// Environment variables with the address of the collector, for all signals or for traces alone.
const ENDPOINT_VARS: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
/// Timeout of the export of a batch of spans.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Exports spans to the collector. Dropping it flushes the remaining spans.
pub(crate) struct SpanExport(SdkTracerProvider);

impl SpanExport {
    /// Starts the export, if an endpoint is configured.
    pub(crate) fn start() -> anyhow::Result<Option<Self>> {
        let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(endpoint) = ENDPOINT_VARS.iter().find_map(set) else { return Ok(None) };
        let tls = if endpoint.starts_with("https:") {
            tls::client_config()?
        } else {
            tls::plain_http_config()?
        };
        let client = reqwest::blocking::Client::builder()
            .tls_backend_preconfigured(tls)
            .timeout(EXPORT_TIMEOUT)
            .build()?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .build()?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("tenure");
        }
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
        Ok(Some(Self(provider.with_resource(resource.build()).build())))
    }

    /// Returns the layer that exports the spans of this process.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let layer: OpenTelemetryLayer<S, SdkTracer> =
            tracing_opentelemetry::layer().with_tracer(self.0.tracer("tenure"));
        // Spans of libraries are left out, among them those of the HTTP client that exports.
        let is_ours = |span: &Metadata<'_>| span.target().starts_with("tenure");
        layer.with_filter(filter_fn(move |span| is_ours(span) && *span.level() <= Level::INFO))
    }
}

impl Drop for SpanExport {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "cannot flush the last spans to the collector");
        }
    }
}

/// Creates the span of an attempt, in the trace of its job.
pub(crate) fn create_attempt_span(job: &Context) -> Span {
    let span = attempt_span(job);
    tenure_server::continue_trace(&span, TraceParent::for_job(job.id()));
    span
}

/// Returns the current span as a parent for others, or `None` if spans are not exported.
pub(crate) fn current_span() -> Option<TraceParent> {
    let context = Span::current().context();
    let span = context.span().span_context().clone();
    let parent = || TraceParent {
        trace: u128::from_be_bytes(span.trace_id().to_bytes()),
        span: u64::from_be_bytes(span.span_id().to_bytes()),
        flags: span.trace_flags().to_u8(),
    };
    span.is_valid().then(parent)
}
