//! Problems found in configuration files, with the file and line of each.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::DeTable;

/// One problem in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Problem {
    /// The file; `None` for the text that is being parsed.
    pub file: Option<PathBuf>,
    /// The line, counted from 1.
    pub line: usize,
    /// Path of the table or key, for example `kinds.database.states`; empty for the whole file.
    pub place: String,
    /// What is wrong, and the remedy.
    pub message: String,
}

impl Problem {
    /// Creates a problem with a file as a whole.
    #[must_use]
    pub fn of_file(file: &Path, message: impl Into<String>) -> Self {
        let (file, place) = (Some(file.to_owned()), String::new());
        Self { file, line: 1, place, message: message.into() }
    }

    /// Returns `PLACE: MESSAGE`, without the file and the line.
    #[must_use]
    pub fn description(&self) -> String {
        match self.place.as_str() {
            "" => self.message.clone(),
            place => format!("{place}: {}", self.message),
        }
    }
}

/// `FILE:LINE: PLACE: MESSAGE`, the form that editors parse.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}:{}: ", file.display(), self.line)?,
            None => write!(f, "line {}: ", self.line)?,
        }
        f.write_str(&self.description())
    }
}

/// Every problem of a configuration, in the order of files and lines. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BadConfig(pub Vec<Problem>);

impl BadConfig {
    /// Appends problems of other files.
    #[must_use]
    pub fn with(mut self, problems: impl IntoIterator<Item = Problem>) -> Self {
        self.0.extend(problems);
        self
    }

    /// Names `file` as the one that was parsed.
    #[must_use]
    pub fn in_file(mut self, file: &Path) -> Self {
        for problem in &mut self.0 {
            problem.file.get_or_insert_with(|| file.to_owned());
        }
        self
    }
}

/// One problem per line.
impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// Collects problems while a file is parsed.
#[derive(Default)]
pub struct Report<'t> {
    text: &'t str,
    problems: Vec<Problem>,
    /// Problems of other files, which only disable what those files declare.
    disabling: Vec<Problem>,
    /// Line on which each table and key that was visited begins.
    places: BTreeMap<String, usize>,
}

impl<'t> Report<'t> {
    /// Creates an empty report for `text`.
    pub fn new(text: &'t str) -> Self {
        Self { text, ..Self::default() }
    }

    /// Parses the text as TOML.
    pub fn table(&mut self) -> Result<Spanned<DeTable<'t>>, BadConfig> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            self.add_syntax_error(error.span(), error.message());
        }
        // What the parser recovered after an error is a guess.
        if errors.is_empty() { Ok(table) } else { Err(std::mem::take(self).into_error()) }
    }

    /// Returns whether no problem was found so far.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns the number of problems found so far.
    pub fn len(&self) -> usize {
        self.problems.len()
    }

    /// Records where a table or key begins.
    pub fn visit(&mut self, place: &str, span: Range<usize>) {
        let line = self.line(span.start);
        self.places.insert(place.to_owned(), line);
    }

    /// Adds a problem with the table or key at `place`.
    pub fn add(&mut self, place: &str, message: impl fmt::Display) {
        let line = self.places.get(place).copied().unwrap_or(1);
        let (place, message) = (place.to_owned(), message.to_string());
        self.problems.push(Problem { file: None, line, place, message });
    }

    /// Adds problems of another file that this one refers to.
    pub fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        self.problems.extend(problems);
    }

    /// Adds problems of a file of an app that disable only what that file declares: the
    /// configuration is valid without it. Each names its file.
    pub fn disable(&mut self, problems: impl IntoIterator<Item = Problem>) {
        self.disabling.extend(problems);
    }

    /// Removes and returns the problems that were added with [`Report::disable`].
    pub fn take_disabling(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.disabling)
    }

    /// Adds a TOML syntax error.
    pub fn add_syntax_error(&mut self, span: Option<Range<usize>>, message: &str) {
        let line = span.map_or(1, |span| self.line(span.start));
        let message = format!("invalid TOML: {message}");
        self.problems.push(Problem { file: None, line, place: String::new(), message });
    }

    /// Adds a problem reported by the core as `place: message`. Its line is that of the key with
    /// which the message begins if the table has it, otherwise that of the table.
    pub fn add_core_problem(&mut self, problem: &str) {
        let is_prefix = |place: &&String| {
            problem.strip_prefix(place.as_str()).is_some_and(|rest| rest.starts_with(": "))
        };
        let place = self.places.keys().find(is_prefix).cloned();
        let Some(place) = place else { return self.add("", problem) };
        let message = &problem[place.len() + 2..];
        let first = message.split(' ').next().unwrap_or("");
        let key = format!("{place}.{first}");
        let line = self.places.get(&key).or(self.places.get(&place)).copied().unwrap_or(1);
        self.problems.push(Problem { file: None, line, place, message: message.to_owned() });
    }

    /// Converts to an error. There must be at least one problem.
    pub fn into_error(mut self) -> BadConfig {
        debug_assert!(!self.problems.is_empty(), "a parser that fails reports a problem");
        self.problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        BadConfig(self.problems)
    }

    fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}
