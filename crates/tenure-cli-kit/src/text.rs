//! Human-readable text: durations, ages, field lists; and printing to stdout.
//!
//! Text from other parties is shown without control characters: the message of a worker must not be
//! able to move the cursor of a terminal.

use std::io::Write;

use tenure_core::Millis;
use tenure_wire::parse_instant;

use crate::{clock, color};

pub use tenure_config::duration::parse as parse_duration;

pub use crate::table::{dynamic_table, header_case, table, tenant_table};

/// Maximum length of text from other parties in a table cell; `-o json` prints all of it.
const CELL_CHARS_MAX: usize = 80;

/// Formats a duration in its largest fitting unit, and the next smaller one from a minute on.
pub fn format_duration(ms: u64) -> String {
    let (seconds, minutes, hours) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{seconds}s"),
        60_000..3_600_000 => format!("{minutes}m{:02}s", seconds % 60),
        3_600_000..86_400_000 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{}d{:02}h", hours / 24, hours % 24),
    }
}

/// Formats a count with a noun whose plural ends in s: `1 step`, `2 steps`.
pub fn count(n: usize, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {what}{s}")
}

/// Formats the time since an instant of the server, by the local clock.
pub fn age(at: &str) -> String {
    parse_instant(at)
        .map_or_else(|_| at.to_owned(), |at| format_duration(clock::wall_time().since(at)))
}

/// Formats the time between two instants of the server.
pub fn span(from: &str, to: &str) -> String {
    let ms = |at| parse_instant(at).unwrap_or_default();
    format_duration(Millis::since(ms(to), ms(from)))
}

/// Returns text from another party on one line, trimmed and without control characters.
pub fn sanitize(text: &str) -> String {
    sanitize_line(text.trim())
}

/// Returns a line from another party without control characters. Keeps its indentation.
pub fn sanitize_line(line: &str) -> String {
    let line = color::strip(line);
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Like [`sanitize`], and shortened to fit into a table cell.
pub fn cell(text: &str) -> String {
    let text = sanitize(text);
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Formats fields as `NAME  VALUE` lines; fields without a value are left out.
pub fn field_list(fields: &[(&str, Option<String>)]) -> String {
    let present: Vec<_> =
        fields.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?))).collect();
    let width = present.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> =
        present.iter().map(|(name, value)| format!("{name:width$}  {value}")).collect();
    lines.join("\n")
}

/// Prints data to stdout. A closed pipe is an error that [`crate::exit::report`] ignores.
pub fn print_line(text: &str) -> anyhow::Result<()> {
    writeln!(anstream::stdout().lock(), "{text}")?;
    Ok(())
}

/// Returns `path` with the query parameters that have a value.
pub fn query(path: &str, parts: &[(&str, Option<String>)]) -> String {
    let present = parts.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?)));
    let present: Vec<_> =
        present.map(|(name, value)| format!("{name}={}", percent_encode(value))).collect();
    if present.is_empty() { path.to_owned() } else { format!("{path}?{}", present.join("&")) }
}

fn percent_encode(text: &str) -> String {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let encode = |byte| match unreserved(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_or_two_units() {
        assert_eq!(
            [12, 12_000, 75_000, 3_700_000, 90_000_000].map(format_duration),
            ["12ms", "12s", "1m15s", "1h01m", "1d01h"]
        );
    }

    #[test]
    fn control_characters_are_removed_and_cells_are_shortened() {
        assert_eq!(sanitize("\u{1b}[2Jdisk\nfull\u{7}\n"), "disk full");
        assert_eq!(cell(&"x".repeat(80)), "x".repeat(80));
        assert_eq!(cell(&"é".repeat(81)), format!("{}…", "é".repeat(80)));
    }

    #[test]
    fn queries_are_encoded_and_leave_out_absent_values() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(query("/v1/jobs", &[("kind", None)]), "/v1/jobs");
        let parts = [("kind", some("a+b&c=d é")), ("name", None), ("limit", some("3"))];
        assert_eq!(query("/v1/jobs", &parts), "/v1/jobs?kind=a%2Bb%26c%3Dd%20%C3%A9&limit=3");
    }

    #[test]
    fn field_values_are_aligned() {
        let some = |text: &str| Some(text.to_owned());
        let written = field_list(&[("job", some("1")), ("error", None), ("state", some("queued"))]);
        assert_eq!(written, "job    1\nstate  queued");
    }
}
