//! Trace of a run: keeps the last lines, and prints all of them if asked to.

use std::collections::VecDeque;
use std::fmt::Arguments;

/// Number of trace lines that a violation includes.
pub const LINES_MAX: usize = 60;

/// The trace of a run.
#[derive(Debug, Default)]
pub struct Trace {
    verbose: bool,
    lines: VecDeque<String>,
}

impl Trace {
    /// Creates a trace that also prints every line if `verbose`.
    #[must_use]
    pub fn new(verbose: bool) -> Self {
        Self { verbose, lines: VecDeque::with_capacity(LINES_MAX) }
    }

    /// Appends a line at a true time.
    pub fn push(&mut self, now_us: u64, what: Arguments<'_>) {
        let line = format!("{:>10.3}s {what}", now_us as f64 / 1e6);
        if self.verbose {
            println!("{line}");
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Returns the last lines.
    #[must_use]
    pub fn tail(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}
