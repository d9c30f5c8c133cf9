//! Output of a command: splits it into lines and parses directives.
//!
//! A line that begins with `::` and a known name is a directive to Tenure; every other line is
//! logged. Whatever a command prints, a line is bounded, is plain text, and is never cut in the
//! middle of a secret such that redaction misses it.
//!
//! See `redact.rs`, which redacts logged lines, and `command.rs`, which applies directives.

use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tenure_core::{StatusUpdate, limits};
use tenure_wire::timer_changes;

use super::text::strip_control;

/// Maximum number of bytes kept of a line: a whole result fits.
pub(crate) const LINE_BYTES_MAX: usize = limits::RESULT_BYTES_MAX + 1024;

/// Directive of a command to Tenure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Directive {
    /// `::progress 40 copying rows`
    Progress { percent: u8, message: String },
    /// `::error CODE message`
    Error { code: String, message: String },
    /// `::state NAME`
    State(String),
    /// `::result JSON`
    Result(String),
    /// `::status {"infra_id": "i-1"}`, `::timers {"expire": {"after_ms": 60000}}`
    Update(StatusUpdate),
    /// `::defer SECONDS CODE message`
    Defer { delay: Duration, code: String, message: String },
}

impl Directive {
    /// Parses a line; one that is not well formed is logged as it is.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.strip_prefix("::")?.split_once(' ')?;
        let rest = rest.trim();
        match word {
            "progress" => Self::parse_progress(rest),
            "error" => Self::parse_error(rest),
            "state" => is_name(rest).then(|| Self::State(rest.to_owned())),
            "result" => {
                serde_json::from_str::<IgnoredAny>(rest).ok()?;
                let fits = rest.len() <= limits::RESULT_BYTES_MAX;
                fits.then(|| Self::Result(rest.to_owned()))
            }
            "status" => {
                let is_object = serde_json::from_str::<Map<String, Value>>(rest).is_ok();
                let update = StatusUpdate { merge: Some(rest.into()), timers: Vec::new() };
                is_object.then_some(Self::Update(update))
            }
            "timers" => {
                let timers = timer_changes(&serde_json::from_str(rest).ok()?).ok()?;
                Some(Self::Update(StatusUpdate { merge: None, timers }))
            }
            "defer" => Self::parse_defer(rest),
            _ => None,
        }
    }

    fn parse_defer(rest: &str) -> Option<Self> {
        let (seconds, rest) = rest.split_once(' ')?;
        let delay = Duration::from_secs(seconds.parse().ok()?);
        match Self::parse_error(rest.trim_start())? {
            Self::Error { code, message } => Some(Self::Defer { delay, code, message }),
            _ => None,
        }
    }

    fn parse_progress(rest: &str) -> Option<Self> {
        let (percent, message) = rest.split_once(' ').unwrap_or((rest, ""));
        let percent = percent.strip_suffix('%').unwrap_or(percent).parse().ok()?;
        let message = message.trim().to_owned();
        (percent <= 100).then_some(Self::Progress { percent, message })
    }

    fn parse_error(rest: &str) -> Option<Self> {
        let (code, message) = rest.split_once(' ').unwrap_or((rest, ""));
        let is_valid = is_name(code) && code.len() <= limits::CODE_BYTES_MAX;
        is_valid.then(|| Self::Error { code: code.to_owned(), message: message.trim().to_owned() })
    }
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
}

/// Line of output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutputLine {
    /// Text without the line terminator.
    pub(crate) text: String,
    /// The line was longer than [`LINE_BYTES_MAX`].
    pub(crate) truncated: bool,
}

/// Splits a byte stream into lines.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    bytes: Vec<u8>,
    /// The current line exceeds [`LINE_BYTES_MAX`].
    truncated: bool,
    /// The last byte was a carriage return: what follows overwrites the line, unless the line ends.
    carriage_return: bool,
}

impl LineSplitter {
    /// Consumes bytes and calls `on_line` for each completed line.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8], mut on_line: impl FnMut(OutputLine)) {
        for &byte in bytes {
            match byte {
                b'\n' => on_line(self.take_line()),
                b'\r' => self.carriage_return = true,
                _ => self.push(byte),
            }
        }
    }

    /// Returns the last line if it is not terminated.
    pub(crate) fn take_unterminated(&mut self) -> Option<OutputLine> {
        (!self.bytes.is_empty()).then(|| self.take_line())
    }

    fn push(&mut self, byte: u8) {
        if std::mem::take(&mut self.carriage_return) {
            self.bytes.clear();
            self.truncated = false;
        }
        if self.bytes.len() < LINE_BYTES_MAX {
            self.bytes.push(byte);
        } else {
            self.truncated = true;
        }
    }

    fn take_line(&mut self) -> OutputLine {
        self.carriage_return = false;
        let truncated = std::mem::take(&mut self.truncated);
        let text =
            strip_control(&String::from_utf8_lossy(&std::mem::take(&mut self.bytes))).into_owned();
        OutputLine {
            text: if truncated { drop_last_word(&text).to_owned() } else { text },
            truncated,
        }
    }
}

/// Truncates at the last blank or quote: the rest may be the first half of a secret.
fn drop_last_word(text: &str) -> &str {
    let last = text.rfind(|c: char| c.is_whitespace() || "\"'".contains(c));
    last.map_or("", |at| &text[..at])
}

#[cfg(test)]
mod tests {
    use tenure_core::{TimerChange, TimerSetting};

    use super::*;

    fn lines(pieces: &[&str]) -> Vec<String> {
        let (mut lines, mut found) = (LineSplitter::default(), Vec::new());
        pieces.iter().for_each(|piece| lines.push_bytes(piece.as_bytes(), |l| found.push(l.text)));
        found.extend(lines.take_unterminated().map(|line| line.text));
        found
    }

    #[test]
    fn directives_are_parsed() {
        let directive =
            |line| Directive::parse(line).unwrap_or_else(|| panic!("{line:?} is a directive"));
        let progress =
            |percent, message: &str| Directive::Progress { percent, message: message.into() };
        let error = |code: &str, message: &str| Directive::Error {
            code: code.into(),
            message: message.into(),
        };
        assert_eq!(directive("::progress 40 copying rows"), progress(40, "copying rows"));
        assert_eq!(directive("::progress 100%"), progress(100, ""));
        assert_eq!(directive("::error DISK_FULL no room left"), error("DISK_FULL", "no room left"));
        assert_eq!(directive("::error QUOTA"), error("QUOTA", ""));
        let merge = |json: &str| {
            let update = StatusUpdate { merge: Some(json.into()), timers: Vec::new() };
            Directive::Update(update)
        };
        assert_eq!(directive(r#"::status {"a": null}"#), merge(r#"{"a": null}"#));
        let timer = |operation: &str, setting| TimerChange { operation: operation.into(), setting };
        let timers = vec![timer("a", TimerSetting::After(5)), timer("b", TimerSetting::Remove)];
        let update = Directive::Update(StatusUpdate { merge: None, timers });
        assert_eq!(directive(r#"::timers {"b": null, "a": {"after_ms": 5}}"#), update);
        let defer = Directive::Defer {
            delay: Duration::from_secs(60),
            code: "QUOTA".into(),
            message: "not yet".into(),
        };
        assert_eq!(directive("::defer 60 QUOTA not yet"), defer);
        assert_eq!(directive("::state READY"), Directive::State("READY".into()));
        assert_eq!(directive("::result {\"rows\": 3}"), Directive::Result("{\"rows\": 3}".into()));
    }

    #[test]
    fn other_lines_are_not_directives() {
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
            "::status [1]",
            "::status {",
            "::timers {\"a\": {}}",
            "::timers {\"a\": 5}",
            "::defer 60",
            "::defer soon QUOTA",
            "::defer -1 QUOTA",
            "::debug x",
            "::",
        ] {
            assert_eq!(Directive::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_result_and_a_code_at_their_limit_pass_and_one_byte_more_does_not() {
        let result = |n: usize| Directive::parse(&format!("::result \"{}\"", "x".repeat(n - 2)));
        assert!(result(limits::RESULT_BYTES_MAX).is_some());
        assert!(result(limits::RESULT_BYTES_MAX + 1).is_none());
        let code = |n: usize| Directive::parse(&format!("::error {}", "X".repeat(n)));
        assert!(code(limits::CODE_BYTES_MAX).is_some());
        assert!(code(limits::CODE_BYTES_MAX + 1).is_none());
    }

    #[test]
    fn lines_are_split_independently_of_reads() {
        assert_eq!(lines(&["a\nb", "c\n", "\nd"]), ["a", "bc", "", "d"]);
        assert_eq!(lines(&["a\r", "\nb\r\n"]), ["a", "b"]);
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn a_redrawn_progress_bar_is_one_line() {
        assert_eq!(lines(&["10%\r20%\r", "30%\n"]), ["30%"]);
    }

    #[test]
    fn terminal_sequences_are_removed() {
        assert_eq!(lines(&["\x1b[31mred\x1b[0m \x07b\x1b]0;title\x07e\tf\n"]), ["red be\tf"]);
    }

    #[test]
    fn a_line_at_its_limit_is_whole_and_a_longer_one_is_truncated_between_words() {
        let take = |text: String| {
            let (mut lines, mut found) = (LineSplitter::default(), Vec::new());
            lines.push_bytes(text.as_bytes(), |line| found.push(line));
            found
        };
        let text = format!("first {}", "x".repeat(LINE_BYTES_MAX - 6));
        assert_eq!(
            take(format!("{text}\n")),
            [OutputLine { text: text.clone(), truncated: false }]
        );
        let truncated = take(format!("{text}y\nnext\n"));
        assert_eq!(truncated[0], OutputLine { text: "first".into(), truncated: true });
        assert_eq!(truncated[1], OutputLine { text: "next".into(), truncated: false });
    }

    #[test]
    fn invalid_utf_8_is_replaced() {
        let (mut lines, mut found) = (LineSplitter::default(), Vec::new());
        lines.push_bytes(b"a\xff\xfeb\n", |line| found.push(line.text));
        assert_eq!(found, ["a\u{fffd}\u{fffd}b"]);
    }
}
