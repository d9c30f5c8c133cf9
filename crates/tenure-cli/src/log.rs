//! The log of servers and workers on standard error: text for people, or one JSON object a line.
//!
//! In JSON the fields of all spans around an event are beside its own, so that every line of a
//! request has its `request_id` and every line of an attempt its `job`. What is said to people
//! becomes events there, and so does an error that ends the process: no line is anything else.

use std::fmt;
use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value};
use tenure_cli_kit::message;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Scope};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// How the log is written
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LogArgs {
    /// How the log on standard error is written
    #[arg(
        long,
        env = "TENURE_LOG_FORMAT",
        value_enum,
        default_value = "text",
        value_name = "FORM"
    )]
    pub(crate) log_format: LogFormat,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// What must be told at the end of the process.
#[must_use]
pub(crate) struct Log {
    #[cfg(feature = "otel")]
    _export: Option<crate::otel::Export>,
}

/// Starts the log of this process, for those who serve in the form that they want. `TENURE_LOG`
/// says how much.
pub(crate) fn start(serves: Option<LogFormat>) -> anyhow::Result<Log> {
    let format = serves.unwrap_or_default();
    let default = if serves.is_some() { "info" } else { "error" };
    message::as_events(format == LogFormat::Json);
    let filter = EnvFilter::try_from_env("TENURE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => {
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
            log.with_ansi(false).fmt_fields(JsonFields::new()).event_format(Flat).boxed()
        }
    };
    let log = tracing_subscriber::registry().with(log.with_filter(filter));
    #[cfg(feature = "otel")]
    {
        let export = serves.map(|_| crate::otel::Export::start()).transpose()?.flatten();
        log.with(export.as_ref().map(crate::otel::Export::layer)).init();
        Ok(Log { _export: export })
    }
    #[cfg(not(feature = "otel"))]
    {
        log.init();
        Ok(Log {})
    }
}

/// An event and the fields of the spans around it, as one JSON object.
struct Flat;

#[derive(Serialize)]
struct Line<'a> {
    timestamp: &'a str,
    level: &'a str,
    target: &'a str,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl<S, N> FormatEvent<S, N> for Flat
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
            if let Some(known) = span.extensions().get::<FormattedFields<N>>() {
                take(&mut fields, &known.fields);
            }
        }
        let mut own = String::new();
        context.format_fields(Writer::new(&mut own), event)?;
        take(&mut fields, &own);
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let (level, target) = (event.metadata().level().as_str(), event.metadata().target());
        let line = Line { timestamp: &timestamp, level, target, fields };
        writeln!(writer, "{}", serde_json::to_string(&line).map_err(|_| fmt::Error)?)
    }
}

/// Adds what a span or an event says about itself. What is inside counts more.
fn take(fields: &mut Map<String, Value>, said: &str) {
    let said: Map<String, Value> = serde_json::from_str(said).unwrap_or_default();
    // Names that a line has anyway, and those by which spans are named elsewhere.
    let ours = |name: &str| matches!(name, "timestamp" | "level" | "target");
    let free = |(name, _): &(String, Value)| !ours(name) && !name.starts_with("otel.");
    fields.extend(said.into_iter().filter(free));
}
