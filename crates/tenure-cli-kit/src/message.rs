//! Messages to the user on stderr. In a process with a JSON log they are log events.

use std::io::Write as _;
use std::sync::OnceLock;

static JSON: OnceLock<bool> = OnceLock::new();

/// Sets whether messages are written as log events, for processes with a JSON log. Only the first
/// call has an effect.
pub fn set_json(json: bool) {
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
