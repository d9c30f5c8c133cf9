//! A status line on stderr: redrawn in place on a terminal, elsewhere one line per change.

use std::io::{IsTerminal as _, Write as _};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::color;
use crate::message::say;

/// Size of a terminal that does not report one.
const COLUMNS_DEFAULT: usize = 80;
const ROWS_DEFAULT: u16 = 24;

/// A line that shows what a command waits for. Removed from the terminal when dropped.
pub struct StatusLine {
    is_terminal: bool,
    /// Width of the text that is on the terminal.
    drawn: Option<usize>,
    /// Change key of the line printed last.
    last: Option<String>,
}

impl StatusLine {
    /// Creates a status line on stderr.
    #[must_use]
    pub fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), drawn: None, last: None }
    }

    /// Shows a line, shortened to the width of the terminal. Elsewhere it is printed if `change`
    /// differs from the last one: leave out durations, which always differ.
    pub fn show(&mut self, line: &str, change: &str) {
        if self.is_terminal {
            let columns = columns();
            let text = shorten(line, columns.saturating_sub(1));
            let erase = erase(self.drawn.as_slice(), columns);
            // A closed terminal does not end the wait. `anstream` would remove the sequences that
            // move the cursor, too, when there are no colours.
            write!(std::io::stderr(), "{erase}{text}").ok();
            self.drawn = Some(text.width());
        } else if self.last.as_deref() != Some(change) {
            say(line);
            self.last = Some(change.to_owned());
        }
    }

    /// Removes the line from the terminal.
    pub fn clear(&mut self) {
        if let Some(width) = self.drawn.take() {
            write!(std::io::stderr(), "{}", erase(&[width], columns())).ok();
        }
    }
}

impl Default for StatusLine {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the number of rows of the terminal.
pub(crate) fn terminal_rows() -> u16 {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.ok().map(|size| size.ws_row).filter(|n| *n > 0).unwrap_or(ROWS_DEFAULT)
}

/// Returns the width of the terminal.
pub(crate) fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|n| *n > 0).unwrap_or(COLUMNS_DEFAULT)
}

/// Returns the first lines of a text, as many as the terminal of stdout shows without scrolling.
#[must_use]
pub fn fit_to_screen(text: &str) -> String {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
    let rows = size.map_or(ROWS_DEFAULT, |size| size.ws_row);
    let columns = size.map_or(COLUMNS_DEFAULT, |size| usize::from(size.ws_col));
    first_rows(text, usize::from(rows), columns)
}

/// Returns the first lines of a text, which may have colours, that occupy up to `rows` rows.
fn first_rows(text: &str, rows: usize, columns: usize) -> String {
    let mut used = 0;
    let fits = |line: &&str| {
        used += rows_of(color::strip(line).width(), columns);
        used <= rows
    };
    text.lines().take_while(fits).collect::<Vec<_>>().join("\n")
}

/// Returns how many rows of the terminal a text occupies.
pub(crate) fn rows_of(width: usize, columns: usize) -> usize {
    width.saturating_sub(1) / columns.max(1) + 1
}

/// Returns the sequence that removes lines of these widths and moves to the beginning of the first.
/// The cursor is in the last one. A terminal that became narrower shows a line on several rows.
pub(crate) fn erase(drawn: &[usize], columns: usize) -> String {
    let rows: usize = drawn.iter().map(|width| rows_of(*width, columns)).sum();
    let rows_above = rows.saturating_sub(1);
    let up = if rows_above > 0 { format!("\x1b[{rows_above}A") } else { String::new() };
    format!("\r{up}\x1b[J")
}

/// Shortens a line to at most `columns` columns.
fn shorten(line: &str, columns: usize) -> String {
    if line.width() <= columns {
        return line.to_owned();
    }
    let (mut text, mut used) = (String::new(), 1);
    for c in line.chars() {
        used += c.width().unwrap_or(0);
        if used > columns {
            break;
        }
        text.push(c);
    }
    text + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_has_the_lines_whose_rows_fit() {
        let text = "one\n\n\u{1b}[31mthree\u{1b}[0m\nfour is long\nfive";
        assert_eq!(first_rows(text, 6, 6), text);
        assert_eq!(first_rows(text, 5, 6), text.strip_suffix("\nfive").unwrap());
        assert_eq!(first_rows(text, 4, 6), "one\n\n\u{1b}[31mthree\u{1b}[0m");
        assert_eq!(first_rows(text, 5, 12), text);
    }

    #[test]
    fn a_line_is_shortened_to_the_columns_that_it_occupies() {
        assert_eq!(shorten("waiting", 7), "waiting");
        assert_eq!(shorten("waiting", 6), "waiti…");
        // Each of these characters occupies two columns.
        assert_eq!(shorten("待機中です", 6), "待機…");
    }

    #[test]
    fn a_text_on_a_narrower_terminal_is_erased_on_all_its_rows() {
        assert_eq!(erase(&[], 80), "\r\x1b[J");
        assert_eq!(erase(&[79], 80), "\r\x1b[J");
        assert_eq!(erase(&[79], 40), "\r\x1b[1A\x1b[J");
        assert_eq!(erase(&[80], 40), "\r\x1b[1A\x1b[J");
        assert_eq!(erase(&[81], 40), "\r\x1b[2A\x1b[J");
        assert_eq!(erase(&[0, 41, 40], 40), "\r\x1b[3A\x1b[J");
    }
}
