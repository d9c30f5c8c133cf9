//! How things are written for people: durations, ages, tables, facts; and what goes to stdout.
//!
//! What others wrote is shown on one line and without control characters: a message of a worker
//! must not be able to move the cursor of whoever looks at it.

use std::io::Write;

use comfy_table::{Table, presets};
use tenure_core::Millis;
use tenure_wire::parse_instant;

use crate::clock;

pub use tenure_config::duration::parse as parse_duration;

/// Longest text of others in a cell of a table; `-o json` has all of it.
const CELL_CHARS_MAX: usize = 80;

/// Writes a duration in its largest fitting unit, and the next one where it matters.
pub fn human(ms: u64) -> String {
    let (seconds, minutes, hours) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{seconds}s"),
        60_000..3_600_000 => format!("{minutes}m{:02}s", seconds % 60),
        3_600_000..86_400_000 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{}d{:02}h", hours / 24, hours % 24),
    }
}

/// So many of something whose name has a plural with an s: `1 step`, `2 steps`.
pub fn count(n: usize, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {what}{s}")
}

/// How long ago an instant of the server was, by this machine's clock.
pub fn age(at: &str) -> String {
    parse_instant(at).map_or_else(|_| at.to_owned(), |at| human(clock::wall().since(at)))
}

/// How long from one instant of the server to another.
pub fn span(from: &str, to: &str) -> String {
    let ms = |at| parse_instant(at).unwrap_or_default();
    human(Millis::since(ms(to), ms(from)))
}

/// A text of others on one line, without control characters.
pub fn plain(text: &str) -> String {
    harmless(text.trim())
}

/// A line of others without control characters, indented as it was.
pub fn harmless(line: &str) -> String {
    let line = anstream::adapter::strip_str(line).to_string();
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The same, short enough for a table.
pub fn cell(text: &str) -> String {
    let text = plain(text);
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Rows under a header, without lines between them.
pub fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    columns(&header, rows)
}

/// The same, where it is only known then how many columns there are.
pub fn columns(
    header: &[&str],
    rows: impl IntoIterator<Item = impl IntoIterator<Item = String>>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.trim_fmt()
}

/// Facts about one thing, one on a line; those without a value are left out.
pub fn facts(facts: &[(&str, Option<String>)]) -> String {
    let said: Vec<_> =
        facts.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?))).collect();
    let width = said.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> =
        said.iter().map(|(name, value)| format!("{name:width$}  {value}")).collect();
    lines.join("\n")
}

/// Prints data. Whoever reads it may have gone, which is no failure: see [`crate::exit::report`].
pub fn out(text: &str) -> anyhow::Result<()> {
    writeln!(anstream::stdout().lock(), "{text}")?;
    Ok(())
}

/// A path with those parts of a query that are said.
pub fn query(path: &str, parts: &[(&str, Option<String>)]) -> String {
    let said = parts.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?)));
    let said: Vec<_> = said.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    if said.is_empty() { path.to_owned() } else { format!("{path}?{}", said.join("&")) }
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let byte = |byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_for_people() {
        assert_eq!(
            [12, 12_000, 75_000, 3_700_000, 90_000_000].map(human),
            ["12ms", "12s", "1m15s", "1h01m", "1d01h"]
        );
    }

    #[test]
    fn a_text_of_others_cannot_move_the_cursor_or_fill_the_screen() {
        assert_eq!(plain("\u{1b}[2Jdisk\nfull\u{7}\n"), "disk full");
        assert_eq!(cell(&"x".repeat(80)), "x".repeat(80));
        assert_eq!(cell(&"é".repeat(81)), format!("{}…", "é".repeat(80)));
    }

    #[test]
    fn a_query_has_only_what_was_said_and_means_what_was_said() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(query("/v1/jobs", &[("kind", None)]), "/v1/jobs");
        let parts = [("kind", some("a+b&c=d é")), ("name", None), ("limit", some("3"))];
        assert_eq!(query("/v1/jobs", &parts), "/v1/jobs?kind=a%2Bb%26c%3Dd%20%C3%A9&limit=3");
    }

    #[test]
    fn facts_are_in_a_column() {
        let some = |text: &str| Some(text.to_owned());
        let written = facts(&[("job", some("1")), ("error", None), ("state", some("queued"))]);
        assert_eq!(written, "job    1\nstate  queued");
    }
}
