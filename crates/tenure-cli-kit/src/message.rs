//! Messages for people on stderr. In JSON logs they are events like all others.

use std::io::Write as _;
use std::sync::OnceLock;

static JSON: OnceLock<bool> = OnceLock::new();

/// Writes messages as log events from now on, for processes whose log is JSON. The first call
/// counts.
pub fn as_events(json: bool) {
    JSON.get_or_init(|| json);
}

/// Returns whether messages are written as plain text.
#[must_use]
pub fn is_text() -> bool {
    !JSON.get().is_some_and(|json| *json)
}

/// Writes a message. A closed terminal does not stop a server.
pub fn say(line: &str) {
    if is_text() {
        writeln!(anstream::stderr(), "tenure: {line}").ok();
    } else {
        tracing::info!("{line}");
    }
}

/// Writes the error that ends the process.
pub fn error(line: &str) {
    if is_text() {
        writeln!(anstream::stderr(), "tenure: {line}").ok();
    } else {
        tracing::error!("{line}");
    }
}
