//! The log of servers and workers on standard error: text, or one JSON object per line.
//!
//! A JSON event includes the fields of all enclosing spans, so that every line of a request has its
//! `request_id` and every line of an attempt its `job`. Messages to the user and the error that
//! ends the process are events, too: every line is a JSON object.

use std::fmt;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value};
use tenure_cli_kit::{color, message};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Scope};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// Log options
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LogArgs {
    /// Format of the log on standard error
    #[arg(
        long,
        env = "TENURE_LOG_FORMAT",
        value_enum,
        default_value = "text",
        value_name = "FORM"
    )]
    pub(crate) log_format: LogFormat,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Keeps the log alive. Dropping it flushes the exported spans.
#[must_use]
pub(crate) struct Log {
    #[cfg(feature = "otel")]
    _export: Option<crate::otel::SpanExport>,
}

/// Starts the log of this process. `daemon` is the format for servers and workers, and `None` for
/// other verbs, which log errors only. The filter in `TENURE_LOG` overrides the level.
pub(crate) fn start(daemon: Option<LogFormat>) -> anyhow::Result<Log> {
    let format = daemon.unwrap_or_default();
    let default = if daemon.is_some() { "info" } else { "error" };
    message::set_json(format == LogFormat::Json);
    let filter = EnvFilter::try_from_env("TENURE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match format {
        LogFormat::Text => log.with_ansi(color::is_on_stderr()).boxed(),
        LogFormat::Json => {
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
            log.with_ansi(false).fmt_fields(JsonFields::new()).event_format(FlatJson).boxed()
        }
    };
    let log = tracing_subscriber::registry().with(log.with_filter(filter));
    #[cfg(feature = "otel")]
    {
        let export = daemon.map(|_| crate::otel::SpanExport::start()).transpose()?.flatten();
        log.with(export.as_ref().map(crate::otel::SpanExport::layer)).init();
        Ok(Log { _export: export })
    }
    #[cfg(not(feature = "otel"))]
    {
        log.init();
        Ok(Log {})
    }
}

/// Formats an event and the fields of its spans as one flat JSON object.
struct FlatJson;

#[derive(Serialize)]
struct LogLine<'a> {
    timestamp: &'a str,
    level: &'a str,
    target: &'a str,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl<S, N> FormatEvent<S, N> for FlatJson
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Map::new();
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            if let Some(formatted) = span.extensions().get::<FormattedFields<N>>() {
                merge_fields(&mut fields, &formatted.fields);
            }
        }
        let mut event_fields = String::new();
        context.format_fields(Writer::new(&mut event_fields), event)?;
        merge_fields(&mut fields, &event_fields);
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let (level, target) = (event.metadata().level().as_str(), event.metadata().target());
        let line = LogLine { timestamp: &timestamp, level, target, fields };
        writeln!(writer, "{}", serde_json::to_string(&line).map_err(|_| fmt::Error)?)
    }
}

/// Merges the fields of a span or an event. Inner spans and the event override outer spans.
fn merge_fields(fields: &mut Map<String, Value>, json: &str) {
    let new: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    // Fields of every line, and OpenTelemetry's own, are left out.
    let reserved = |name: &str| matches!(name, "timestamp" | "level" | "target");
    let keep = |(name, _): &(String, Value)| !reserved(name) && !name.starts_with("otel.");
    fields.extend(new.into_iter().filter(keep));
}
