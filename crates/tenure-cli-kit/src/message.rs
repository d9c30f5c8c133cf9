//! Messages to the user on stderr. In a process with a JSON log they are log events.

use std::io::Write as _;
use std::sync::OnceLock;

use serde_json::json;

use crate::color::Tone;
use crate::option_names::name_options;
use crate::text::sanitize_line;
use crate::{Output, hint, problem};

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
        // In one piece: other processes may write to the same terminal.
        anstream::stderr().write_all(format!("tenure: {line}\n").as_bytes()).ok();
    } else {
        tracing::info!("{line}");
    }
}

/// Writes a warning.
pub fn warn(line: &str) {
    if is_text() {
        let warning = Tone::Attention.paint("warning:");
        writeln!(anstream::stderr(), "tenure: {warning} {line}").ok();
    } else {
        tracing::warn!("{line}");
    }
}

/// Writes the error that ends the process, as JSON on request.
pub fn error(error: &anyhow::Error, output: Output) {
    let line = describe(error);
    match output {
        _ if !is_text() => tracing::error!("{line}"),
        Output::Json => {
            let document = json!({ "error": problem::error_document(error, line) });
            writeln!(anstream::stderr(), "{document}").ok();
        }
        Output::Table => {
            let tenure = Tone::Bad.paint("tenure:");
            writeln!(anstream::stderr(), "{tenure} {line}").ok();
        }
    }
}

/// Returns the text of an error with its causes, in the words of the command line and with commands
/// that can be run. Parts of it come from other parties.
#[must_use]
pub fn describe(error: &anyhow::Error) -> String {
    let text = hint::complete(&name_options(format!("{error:#}")));
    let lines: Vec<_> = text.lines().map(sanitize_line).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_errors_are_removed() {
        let error = anyhow::anyhow!("disk \u{1b}[2Jis full\n  line 3: bad");
        assert_eq!(describe(&error), "disk is full\n  line 3: bad");
    }
}
