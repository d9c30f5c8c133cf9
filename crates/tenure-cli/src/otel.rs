//! Sends spans to an OpenTelemetry collector: OTLP over HTTP, when `OTEL_EXPORTER_OTLP_ENDPOINT`
//! says where. Only in builds with the feature `otel`.
//!
//! A collector that is away costs nothing but its spans.

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

/// Where spans go: the collector, or its address for traces alone.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
/// How long a collector may take for a batch of spans.
const EXPORT_MAX: Duration = Duration::from_secs(5);

/// The way to the collector. Its end sends what is left.
pub(crate) struct Export(SdkTracerProvider);

impl Export {
    /// Starts it, if there is somewhere to send spans.
    pub(crate) fn start() -> anyhow::Result<Option<Self>> {
        let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(endpoint) = ENDPOINTS.iter().find_map(set) else { return Ok(None) };
        let tls = if endpoint.starts_with("https:") {
            tls::client_config()?
        } else {
            tls::plain_http_config()?
        };
        let client = reqwest::blocking::Client::builder()
            .tls_backend_preconfigured(tls)
            .timeout(EXPORT_MAX)
            .build()?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .build()?;
        let mut about = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            about = about.with_service_name("tenure");
        }
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
        Ok(Some(Self(provider.with_resource(about.build()).build())))
    }

    /// Takes the spans of this process.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let layer: OpenTelemetryLayer<S, SdkTracer> =
            tracing_opentelemetry::layer().with_tracer(self.0.tracer("tenure"));
        // Not those of the libraries below, among which is the one that sends.
        let ours = |of: &Metadata<'_>| of.target().starts_with("tenure");
        layer.with_filter(filter_fn(move |of| ours(of) && *of.level() <= Level::INFO))
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last spans were not taken by the collector");
        }
    }
}

/// The span around an attempt, in the trace of its job.
pub(crate) fn span(job: &Context) -> Span {
    let span = attempt_span(job);
    tenure_server::continue_trace(&span, TraceParent::for_job(job.id()));
    span
}

/// The present span, for those who go on with it; none when spans are not sent.
pub(crate) fn current() -> Option<TraceParent> {
    let context = Span::current().context();
    let span = context.span().span_context().clone();
    let parent = || TraceParent {
        trace: u128::from_be_bytes(span.trace_id().to_bytes()),
        span: u64::from_be_bytes(span.span_id().to_bytes()),
        flags: span.trace_flags().to_u8(),
    };
    span.is_valid().then(parent)
}
