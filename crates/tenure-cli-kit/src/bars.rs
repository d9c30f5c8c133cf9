//! Draw target of progress bars: stderr, if it is a terminal.
//!
//! `indicatif` assumes that its rows stay where it has drawn them. A terminal that becomes narrower
//! wraps them onto further rows, which would stay on the screen. `BarTerminal` ends each row with
//! a line break, remembers how wide it is, and erases as many rows as it occupies now.

use std::fmt::Debug;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressDrawTarget, TermLike};

use crate::color;
use crate::status_line::{columns, erase, rows_of, terminal_rows};
use crate::table::width;

/// Maximum number of redraws per second.
const REDRAWS_PER_SECOND: u8 = 20;

/// Returns the draw target for bars; hidden if stderr is not a terminal that can move its cursor.
#[must_use]
pub fn draw_target() -> ProgressDrawTarget {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if is_dumb || !io::stderr().is_terminal() {
        return ProgressDrawTarget::hidden();
    }
    let terminal = Box::new(BarTerminal::new(Stderr));
    ProgressDrawTarget::term_like_with_hz(terminal, REDRAWS_PER_SECOND)
}

/// The screen that bars are drawn on.
trait Screen: Debug + Send + Sync {
    /// Returns columns and rows.
    fn size(&self) -> (usize, u16);

    fn write(&self, text: &str) -> io::Result<()>;
}

#[derive(Debug)]
struct Stderr;

impl Screen for Stderr {
    fn size(&self) -> (usize, u16) {
        (columns(), terminal_rows())
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut stderr = io::stderr().lock();
        stderr.write_all(text.as_bytes())?;
        stderr.flush()
    }
}

/// Translates the calls of one draw: `indicatif` moves up to its first row and clears each of its
/// rows, then writes each row as a text and the spaces after it, then flushes.
#[derive(Debug)]
struct BarTerminal<S> {
    screen: S,
    drawing: Mutex<Drawing>,
}

#[derive(Debug, Default)]
struct Drawing {
    /// Widths of the rows that were drawn last, and the columns of the screen then.
    drawn: Vec<usize>,
    columns: usize,
    /// How far the cursor is to move up.
    up: usize,
    /// The sequence that erases the rows of the last draw, once they are to be cleared.
    erase: Option<String>,
    /// Rows of the current draw.
    rows: Vec<String>,
    /// Whether the next text is the space after a row.
    is_space_next: bool,
}

impl Drawing {
    /// Returns the widths of the rows that occupied the last `count` rows of the screen.
    fn last_rows(&self, count: usize) -> &[usize] {
        let (mut start, mut occupied) = (self.drawn.len(), 0);
        while start > 0 && occupied < count {
            start -= 1;
            occupied += rows_of(self.drawn[start], self.columns);
        }
        &self.drawn[start..]
    }
}

impl<S: Screen> BarTerminal<S> {
    fn new(screen: S) -> Self {
        Self { screen, drawing: Mutex::default() }
    }

    fn drawing(&self) -> MutexGuard<'_, Drawing> {
        self.drawing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Screen> TermLike for BarTerminal<S> {
    fn width(&self) -> u16 {
        u16::try_from(self.screen.size().0).unwrap_or(u16::MAX)
    }

    fn height(&self) -> u16 {
        self.screen.size().1
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.drawing().up = n;
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.drawing().rows.push(text.to_owned());
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        let mut drawing = self.drawing();
        if !drawing.is_space_next {
            let text = text.trim_end();
            let is_plain = !color::is_on_stderr();
            drawing.rows.push(if is_plain { color::strip(text) } else { text.to_owned() });
        }
        drawing.is_space_next = !drawing.is_space_next;
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        let columns = self.screen.size().0;
        let mut drawing = self.drawing();
        if drawing.erase.is_none() {
            drawing.erase = Some(erase(drawing.last_rows(drawing.up + 1), columns));
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let columns = self.screen.size().0;
        let mut drawing = self.drawing();
        let (rows, erase) = (std::mem::take(&mut drawing.rows), drawing.erase.take());
        let text = rows.join("\r\n");
        // Without rows to erase, the cursor may be at the end of a text.
        let is_after_text = erase.is_none() && !drawing.drawn.is_empty() && !rows.is_empty();
        let start = erase.unwrap_or_else(|| if is_after_text { "\r\n" } else { "" }.to_owned());
        drawing.drawn = rows.iter().map(|row| width(row)).collect();
        (drawing.columns, drawing.is_space_next) = (columns, false);
        self.screen.write(&(start + &text))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

    use super::*;

    /// A terminal that wraps its lines anew when its width changes, like most terminals.
    #[derive(Clone, Debug)]
    struct Emulator(Arc<Mutex<Emulated>>);

    #[derive(Debug)]
    struct Emulated {
        columns: usize,
        lines: Vec<String>,
        /// Line and column of the cursor; the column is counted without wrapping.
        cursor: (usize, usize),
    }

    impl Emulator {
        fn new(columns: usize) -> Self {
            let lines = vec![String::new()];
            Self(Arc::new(Mutex::new(Emulated { columns, lines, cursor: (0, 0) })))
        }

        fn resize(&self, columns: usize) {
            self.0.lock().unwrap().columns = columns;
        }

        fn lines(&self) -> Vec<String> {
            self.0.lock().unwrap().lines.clone()
        }
    }

    impl Screen for Emulator {
        fn size(&self) -> (usize, u16) {
            (self.0.lock().unwrap().columns, 24)
        }

        fn write(&self, text: &str) -> io::Result<()> {
            let mut screen = self.0.lock().unwrap();
            let mut rest = text;
            while let Some(c) = rest.chars().next() {
                rest = &rest[c.len_utf8()..];
                if c == '\u{1b}' {
                    let end = rest.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                    screen.apply(&rest[1..end], &rest[end..=end]);
                    rest = &rest[end + 1..];
                } else {
                    screen.put(c);
                }
            }
            Ok(())
        }
    }

    impl Emulated {
        /// Returns how many rows above the cursor its line occupies.
        fn rows_above(&self) -> usize {
            self.cursor.1.saturating_sub(1) / self.columns
        }

        fn put(&mut self, c: char) {
            match c {
                '\r' => self.cursor.1 = self.rows_above() * self.columns,
                '\n' => {
                    self.cursor = (self.cursor.0 + 1, 0);
                    self.lines.resize(self.lines.len().max(self.cursor.0 + 1), String::new());
                }
                c => {
                    let (line, column) = self.cursor;
                    let line: &mut String = &mut self.lines[line];
                    let kept: String = line.chars().take(column).collect();
                    let after: String = line.chars().skip(column + 1).collect();
                    *line = format!("{kept}{c}{after}");
                    self.cursor.1 += 1;
                }
            }
        }

        fn apply(&mut self, count: &str, verb: &str) {
            match verb {
                "A" => (0..count.parse().unwrap()).for_each(|_| self.move_up()),
                "J" => {
                    let (line, column) = self.cursor;
                    self.lines.truncate(line + 1);
                    let kept = self.lines[line].chars().take(column).collect();
                    self.lines[line] = kept;
                }
                other => panic!("unknown sequence {other}"),
            }
        }

        /// Moves up by a row, in the first column.
        fn move_up(&mut self) {
            let (line, column) = self.cursor;
            if column >= self.columns {
                self.cursor.1 = column - self.columns;
                return;
            }
            let above = self.lines[line - 1].chars().count();
            self.cursor = (line - 1, above.saturating_sub(1) / self.columns * self.columns);
        }
    }

    fn bar(all: &MultiProgress, message: &str) -> ProgressBar {
        let bar = all.add(ProgressBar::no_length());
        bar.set_style(ProgressStyle::with_template("{wide_msg}").unwrap());
        bar.set_message(message.to_owned());
        bar.tick();
        bar
    }

    #[test]
    fn bars_leave_no_rows_behind_when_the_terminal_becomes_narrower() {
        let screen = Emulator::new(60);
        let target = ProgressDrawTarget::term_like(Box::new(BarTerminal::new(screen.clone())));
        let all = MultiProgress::with_draw_target(target);
        let (first, second) = ("first bar with a message of 38 columns", "second, which is short");
        let bars = [bar(&all, first), bar(&all, second)];
        assert_eq!(screen.lines(), [first, second]);
        all.println("a line above the bars").unwrap();
        assert_eq!(screen.lines(), ["a line above the bars", first, second]);
        for columns in [25, 9, 60, 30] {
            screen.resize(columns);
            bars.iter().for_each(ProgressBar::tick);
            let shown = screen.lines();
            assert_eq!(shown.len(), 3, "{columns}: {shown:?}");
            assert_eq!(shown[0], "a line above the bars");
            assert!(first.starts_with(&shown[1]) && shown[1].len() <= columns, "{shown:?}");
            assert!(second.starts_with(&shown[2]) && shown[2].len() <= columns, "{shown:?}");
        }
        screen.resize(12);
        bars.iter().for_each(ProgressBar::finish_and_clear);
        assert_eq!(screen.lines(), ["a line above the bars", ""]);
    }
}
