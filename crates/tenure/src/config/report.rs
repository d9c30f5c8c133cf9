//! The problems of a file, with the lines they are on.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Problem {
    /// The line, counted from 1.
    pub line: usize,
    /// The table or key that it is about; empty for the file as a whole.
    pub place: String,
    /// What is wrong, and the remedy.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.as_str() {
            "" => f.write_str(&self.message),
            place => write!(f, "{place}: {}", self.message),
        }
    }
}

/// Everything that is wrong with a file, in the order of its lines. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BadConfig(pub Vec<Problem>);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |problem: &Problem| format!("line {}: {problem}", problem.line);
        f.write_str(&self.0.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

/// Collects problems while a file is read.
#[derive(Default)]
pub struct Report<'t> {
    text: &'t str,
    found: Vec<Problem>,
    /// Where each table and key that was met begins.
    places: BTreeMap<String, usize>,
}

impl<'t> Report<'t> {
    /// For this text.
    pub fn new(text: &'t str) -> Self {
        Self { text, found: Vec::new(), places: BTreeMap::new() }
    }

    /// The text as a table, if it is TOML at all.
    pub fn table(&mut self) -> Result<Spanned<DeTable<'t>>, BadConfig> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            self.syntax(error.span(), error.message());
        }
        // What the parser made of the rest is a guess.
        if errors.is_empty() { Ok(table) } else { Err(std::mem::take(self).into_bad()) }
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// How many problems there are so far.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Notes where something begins.
    pub fn met(&mut self, place: &str, span: Range<usize>) {
        let line = self.line(span.start);
        self.places.insert(place.to_owned(), line);
    }

    /// Notes a problem with what begins at a place that was met.
    pub fn say(&mut self, place: &str, message: impl fmt::Display) {
        let line = self.places.get(place).copied().unwrap_or(1);
        let (place, message) = (place.to_owned(), message.to_string());
        self.found.push(Problem { line, place, message });
    }

    /// Notes that the text is not TOML.
    pub fn syntax(&mut self, span: Option<Range<usize>>, message: &str) {
        let line = span.map_or(1, |span| self.line(span.start));
        let message = format!("this is not TOML: {message}");
        self.found.push(Problem { line, place: String::new(), message });
    }

    /// Takes a problem of the core, `place: message`, and finds the line of what it is about: the
    /// key that the message begins with, if the table has it, otherwise the table.
    pub fn semantic(&mut self, problem: &str) {
        let of = |place: &&String| {
            problem.strip_prefix(place.as_str()).is_some_and(|rest| rest.starts_with(": "))
        };
        let place = self.places.keys().find(of).cloned();
        let Some(place) = place else { return self.say("", problem) };
        let message = &problem[place.len() + 2..];
        let first = message.split(' ').next().unwrap_or("");
        let key = format!("{place}.{first}");
        let line = self.places.get(&key).or(self.places.get(&place)).copied().unwrap_or(1);
        self.found.push(Problem { line, place, message: message.to_owned() });
    }

    /// All problems, of which there is one at least.
    pub fn into_bad(mut self) -> BadConfig {
        debug_assert!(!self.found.is_empty(), "whoever gives up says why");
        self.found.sort_by_key(|problem| problem.line);
        BadConfig(self.found)
    }

    fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}
