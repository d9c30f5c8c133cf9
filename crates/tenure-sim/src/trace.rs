//! The story of a run: the last lines are kept, all of them are printed on demand.

use std::collections::VecDeque;
use std::fmt::Arguments;

/// Lines that a failing run shows.
pub const LINES_MAX: usize = 60;

/// The lines so far.
#[derive(Debug, Default)]
pub struct Trace {
    loud: bool,
    lines: VecDeque<String>,
}

impl Trace {
    /// A trace that prints every line when it is `loud`.
    #[must_use]
    pub fn new(loud: bool) -> Self {
        Self { loud, lines: VecDeque::with_capacity(LINES_MAX) }
    }

    /// Adds a line at a true time.
    pub fn line(&mut self, now_us: u64, what: Arguments<'_>) {
        let line = format!("{:>10.3}s {what}", now_us as f64 / 1e6);
        if self.loud {
            println!("{line}");
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The last lines.
    #[must_use]
    pub fn tail(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}
