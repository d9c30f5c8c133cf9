//! The output of a command, as lines: where they end, how long they may be, what they may order.
//!
//! A line that begins with `::` and a known word speaks to Tenure; every other line is for people.
//! Whatever a command prints, a line here has a bound, is plain text, and never splits a secret in
//! two halves that both come through.
//!
//! Next: `redact.rs` cleans what is for people, `command.rs` obeys the rest.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use tenure_core::limits;

/// Most bytes of a line that are kept: a whole result fits.
pub(crate) const LINE_BYTES_MAX: usize = limits::RESULT_BYTES_MAX + 1024;
/// Most bytes of a line that go to the log.
pub(crate) const SHOWN_BYTES_MAX: usize = 8 * 1024;

/// What a command says to Tenure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// `::progress 40 copying rows`
    Progress { percent: u8, message: String },
    /// `::error CODE message`
    Error { code: String, message: String },
    /// `::state NAME`
    State(String),
    /// `::result JSON`
    Result(String),
}

impl Order {
    /// Reads a line; one that is not well formed is for people.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.strip_prefix("::")?.split_once(' ')?;
        let rest = rest.trim();
        match word {
            "progress" => Self::progress(rest),
            "error" => Self::error(rest),
            "state" => is_name(rest).then(|| Self::State(rest.to_owned())),
            "result" => {
                serde_json::from_str::<IgnoredAny>(rest).ok()?;
                let fits = rest.len() <= limits::RESULT_BYTES_MAX;
                fits.then(|| Self::Result(rest.to_owned()))
            }
            _ => None,
        }
    }

    fn progress(rest: &str) -> Option<Self> {
        let (percent, message) = rest.split_once(' ').unwrap_or((rest, ""));
        let percent = percent.strip_suffix('%').unwrap_or(percent).parse().ok()?;
        let message = message.trim().to_owned();
        (percent <= 100).then_some(Self::Progress { percent, message })
    }

    fn error(rest: &str) -> Option<Self> {
        let (code, message) = rest.split_once(' ').unwrap_or((rest, ""));
        let good = is_name(code) && code.len() <= limits::CODE_BYTES_MAX;
        good.then(|| Self::Error { code: code.to_owned(), message: message.trim().to_owned() })
    }
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
}

/// A line of output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its text, without the line's end.
    pub(crate) text: String,
    /// It was longer than a line may be.
    pub(crate) cut: bool,
}

/// Cuts what comes in pieces into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// The line goes on beyond its bound.
    cut: bool,
    /// The last byte was a carriage return: what follows overwrites the line, unless the line ends.
    returned: bool,
}

impl Lines {
    /// Takes a piece, and gives each line that it ends.
    pub(crate) fn take(&mut self, piece: &[u8], mut each: impl FnMut(Line)) {
        for &byte in piece {
            match byte {
                b'\n' => each(self.line()),
                b'\r' => self.returned = true,
                _ => self.push(byte),
            }
        }
    }

    /// The last line, when it has no end.
    pub(crate) fn rest(&mut self) -> Option<Line> {
        (!self.bytes.is_empty()).then(|| self.line())
    }

    fn push(&mut self, byte: u8) {
        if std::mem::take(&mut self.returned) {
            self.bytes.clear();
            self.cut = false;
        }
        if self.bytes.len() < LINE_BYTES_MAX {
            self.bytes.push(byte);
        } else {
            self.cut = true;
        }
    }

    fn line(&mut self) -> Line {
        self.returned = false;
        let cut = std::mem::take(&mut self.cut);
        let text = plain(&String::from_utf8_lossy(&std::mem::take(&mut self.bytes))).into_owned();
        Line { text: if cut { whole_words(&text).to_owned() } else { text }, cut }
    }
}

/// Up to the last blank or quote: what comes after may be the first half of a secret.
fn whole_words(text: &str) -> &str {
    let last = text.rfind(|c: char| c.is_whitespace() || "\"'".contains(c));
    last.map_or("", |at| &text[..at])
}

/// Without colours and other sequences that are for terminals.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c.is_control() && c != '\t') {
        return text.into();
    }
    let mut clean = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_sequence(&mut chars),
            '\t' => clean.push(c),
            c if c.is_control() => {}
            c => clean.push(c),
        }
    }
    clean.into()
}

fn skip_sequence(chars: &mut std::str::Chars<'_>) {
    match chars.next() {
        Some('[') => drop(chars.find(|c| ('@'..='~').contains(c))),
        Some(']') => drop(chars.find(|c| matches!(c, '\x07' | '\x1b'))),
        _ => {}
    }
}

/// A text of at most so many bytes, cut between two characters.
pub(crate) fn at_most(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&str]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        pieces.iter().for_each(|piece| lines.take(piece.as_bytes(), |l| found.push(l.text)));
        found.extend(lines.rest().map(|line| line.text));
        found
    }

    #[test]
    fn orders_are_read() {
        let order = |line| Order::parse(line).unwrap_or_else(|| panic!("{line:?} is an order"));
        let progress =
            |percent, message: &str| Order::Progress { percent, message: message.into() };
        let error =
            |code: &str, message: &str| Order::Error { code: code.into(), message: message.into() };
        assert_eq!(order("::progress 40 copying rows"), progress(40, "copying rows"));
        assert_eq!(order("::progress 100%"), progress(100, ""));
        assert_eq!(order("::error DISK_FULL no room left"), error("DISK_FULL", "no room left"));
        assert_eq!(order("::error QUOTA"), error("QUOTA", ""));
        assert_eq!(order("::state READY"), Order::State("READY".into()));
        assert_eq!(order("::result {\"rows\": 3}"), Order::Result("{\"rows\": 3}".into()));
    }

    #[test]
    fn what_is_no_order_is_for_people() {
        for line in [
            "progress 40",
            " ::progress 40",
            "::progress",
            "::progress many",
            "::progress 101",
            "::progress -1",
            "::error ",
            "::error <tag>",
            "::state two words",
            "::result {",
            "::debug x",
            "::",
        ] {
            assert_eq!(Order::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_result_and_a_code_at_their_bounds_pass_and_one_byte_more_does_not() {
        let result = |n: usize| Order::parse(&format!("::result \"{}\"", "x".repeat(n - 2)));
        assert!(result(limits::RESULT_BYTES_MAX).is_some());
        assert!(result(limits::RESULT_BYTES_MAX + 1).is_none());
        let code = |n: usize| Order::parse(&format!("::error {}", "X".repeat(n)));
        assert!(code(limits::CODE_BYTES_MAX).is_some());
        assert!(code(limits::CODE_BYTES_MAX + 1).is_none());
    }

    #[test]
    fn lines_end_where_they_end_however_they_come_in() {
        assert_eq!(lines(&["a\nb", "c\n", "\nd"]), ["a", "bc", "", "d"]);
        assert_eq!(lines(&["a\r", "\nb\r\n"]), ["a", "b"]);
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn a_bar_that_is_drawn_over_and_over_is_one_line() {
        assert_eq!(lines(&["10%\r20%\r", "30%\n"]), ["30%"]);
    }

    #[test]
    fn what_is_for_terminals_is_left_out() {
        assert_eq!(lines(&["\x1b[31mred\x1b[0m \x07b\x1b]0;title\x07e\tf\n"]), ["red be\tf"]);
    }

    #[test]
    fn a_line_at_its_bound_is_whole_and_one_byte_more_is_cut_between_words() {
        let take = |text: String| {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            lines.take(text.as_bytes(), |line| found.push(line));
            found
        };
        let text = format!("first {}", "x".repeat(LINE_BYTES_MAX - 6));
        assert_eq!(take(format!("{text}\n")), [Line { text: text.clone(), cut: false }]);
        let cut = take(format!("{text}y\nnext\n"));
        assert_eq!(cut[0], Line { text: "first".into(), cut: true });
        assert_eq!(cut[1], Line { text: "next".into(), cut: false });
    }

    #[test]
    fn what_is_not_utf_8_is_no_reason_to_stop() {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        lines.take(b"a\xff\xfeb\n", |line| found.push(line.text));
        assert_eq!(found, ["a\u{fffd}\u{fffd}b"]);
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(at_most("aä", 2), "a");
        assert_eq!(at_most("aä", 3), "aä");
    }
}
