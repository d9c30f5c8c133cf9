//! Splits the console output of the installer into blocks of errors.

use crate::progress::{Level, LogLine, is_secret};

/// Maximum size of the text that is searched, in bytes; of a longer one, the end.
pub const CONSOLE_BYTES_MAX: usize = 1024 * 1024;
/// Maximum length of an excerpt, in bytes.
const EXCERPT_BYTES_MAX: usize = 400;
/// Maximum length of a fingerprint, in bytes.
const FINGERPRINT_BYTES_MAX: usize = 200;

/// The console output, without debug lines and without lines that have a credential: a successful
/// run repeats throttled calls, and mentions them at the debug level only.
pub(super) struct Console {
    /// Consecutive lines of the levels error and fatal, newest block first.
    pub(super) blocks: Vec<String>,
    /// All lines.
    pub(super) text: String,
    /// Newest line of the levels error and fatal, or else the newest line.
    last: String,
}

impl Console {
    pub(super) fn new(output: &str) -> Self {
        let start = output.ceil_char_boundary(output.len().saturating_sub(CONSOLE_BYTES_MAX));
        let (mut blocks, mut text) = (Vec::<String>::new(), String::new());
        let (mut last, mut last_error) = (String::new(), None);
        let mut level = Level::Info;
        let mut in_block = false;
        for line in output[start..].lines().filter(|line| !is_secret(line)) {
            let parsed = LogLine::parse(line);
            let has_level = parsed.is_some();
            // A line without a level continues the one before it.
            level = parsed.as_ref().map_or(level, |line| line.level);
            if level == Level::Debug {
                in_block = false;
                continue;
            }
            let message = parsed.map_or_else(|| line.trim().to_owned(), |line| line.message);
            push_line(&mut text, &message);
            let is_error = level >= Level::Error;
            if is_error && in_block {
                if let Some(block) = blocks.last_mut() {
                    push_line(block, &message);
                }
            } else if is_error {
                blocks.push(message.clone());
            }
            in_block = is_error;
            if is_error && has_level {
                last_error = Some(message.clone());
            }
            if !message.is_empty() {
                last = message;
            }
        }
        blocks.reverse();
        Self { blocks, text, last: last_error.unwrap_or(last) }
    }

    /// Creates an output whose only line is an error.
    pub(super) fn of_error(error: &str) -> Self {
        let error = error.to_owned();
        Self { blocks: vec![error.clone()], text: error.clone(), last: error }
    }

    /// Returns the error that ended the installer, in one line.
    pub(super) fn excerpt(&self) -> Option<String> {
        let line = self.last.split_whitespace().collect::<Vec<_>>().join(" ");
        let cut = crate::progress::truncate(&line, EXCERPT_BYTES_MAX);
        (!cut.is_empty()).then(|| cut.to_owned())
    }

    /// Returns the same error without what differs from run to run, to group unknown failures.
    pub(super) fn fingerprint(&self) -> Option<String> {
        let excerpt = self.excerpt()?.to_lowercase();
        let mut shape = String::new();
        let is_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
        for word in excerpt.split_inclusive(|c| !is_word(c)) {
            let (stem, end) = word.split_at(word.find(|c| !is_word(c)).unwrap_or(word.len()));
            let is_id = stem.contains(|c: char| c.is_ascii_digit());
            shape += if is_id { "#" } else { stem };
            shape += end;
        }
        Some(crate::progress::truncate(&shape, FINGERPRINT_BYTES_MAX).to_owned())
    }
}

fn push_line(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}
