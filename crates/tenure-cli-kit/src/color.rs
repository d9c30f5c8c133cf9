//! Colours of states: the one place that maps the words for states to colours.
//!
//! Texts always contain the colours; the streams of `anstream`, to which everything is printed,
//! remove them unless the output is a terminal. `NO_COLOR`, `CLICOLOR_FORCE` and `--color` override
//! that. JSON has no colours.

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};

/// When output has colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorMode {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl ColorMode {
    /// Makes this the mode of the process.
    pub fn apply(self) {
        let choice = match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// Returns whether stderr has colours, for output that does not go through `anstream`.
#[must_use]
pub fn is_on_stderr() -> bool {
    AutoStream::choice(&std::io::stderr()) != ColorChoice::Never
}

/// Returns whether stdout has colours, for output that does not go through `anstream`.
#[must_use]
pub fn is_on_stdout() -> bool {
    AutoStream::choice(&std::io::stdout()) != ColorChoice::Never
}

/// The meaning of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// In progress, or held.
    Active,
    /// As it should be.
    Good,
    /// Failed.
    Bad,
    /// Waits for something, or needs attention.
    Attention,
    /// Over, and of no further interest.
    Quiet,
}

/// Words for states, in lower case. Other words have no colour.
const WORDS: [(Tone, &[&str]); 5] = [
    (Tone::Active, &["running", "cancelling", "held", "in progress", "started"]),
    (Tone::Good, &["succeeded", "ok", "ready", "good", "complete", "free"]),
    (Tone::Bad, &["failed", "dead", "broken", "bad", "timeout", "lost"]),
    (Tone::Attention, &["backoff", "stale", "waiting", "warn", "paused", "retrying"]),
    (Tone::Quiet, &["cancelled", "superseded", "discarded", "expired", "revoked", "stopped"]),
];

impl Tone {
    /// Returns the meaning of a word for a state, in any case.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        let has = |words: &[&str]| words.iter().any(|known| known.eq_ignore_ascii_case(word));
        WORDS.iter().find(|(_, words)| has(words)).map(|(tone, _)| *tone)
    }

    /// Returns `text` in the colour of this meaning.
    #[must_use]
    pub fn paint(self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let color = match self {
            Self::Active => AnsiColor::Cyan,
            Self::Good => AnsiColor::Green,
            Self::Bad => AnsiColor::Red,
            Self::Attention => AnsiColor::Yellow,
            Self::Quiet => AnsiColor::BrightBlack,
        };
        let style = Style::new().fg_color(Some(color.into()));
        format!("{style}{text}{style:#}")
    }
}

/// Returns a word for a state in its colour.
#[must_use]
pub fn state(word: &str) -> String {
    Tone::of(word).map_or_else(|| word.to_owned(), |tone| tone.paint(word))
}

/// Returns `text` without colours.
#[must_use]
pub fn strip(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[cfg(test)]
mod tests {
    use tenure_core::JobState;

    use super::*;

    #[test]
    fn colours_have_a_meaning() {
        assert_eq!(state("running"), "\u{1b}[36mrunning\u{1b}[0m");
        assert_eq!(state("FAILED"), "\u{1b}[31mFAILED\u{1b}[0m");
        assert_eq!(state("CREATING"), "CREATING");
        assert_eq!(strip(&state("backoff")), "backoff");
    }

    #[test]
    fn every_state_of_a_job_but_queued_has_a_colour() {
        let tone = |state: JobState| Tone::of(state.as_str());
        assert_eq!(tone(JobState::Queued), None);
        for (state, expected) in [
            (JobState::Backoff, Tone::Attention),
            (JobState::Running, Tone::Active),
            (JobState::Cancelling, Tone::Active),
            (JobState::Succeeded, Tone::Good),
            (JobState::Failed, Tone::Bad),
            (JobState::Dead, Tone::Bad),
            (JobState::Cancelled, Tone::Quiet),
            (JobState::Superseded, Tone::Quiet),
        ] {
            assert_eq!(tone(state), Some(expected), "{state:?}");
        }
    }
}
