//! Traces that the commands write: start, progress and end, in the order in which they happened.
//!
//! All holders of a resource append to one file, a line at a time. The order of the lines is the
//! real order of events, independent of clocks and servers.

use std::path::Path;

/// The command of holders. Writes `start`, `at` a few times and `end`, each with the token.
pub(crate) const SCRIPT: &str = r#"#!/bin/sh
# work.sh TIMES SECONDS [RESOURCE]
what=${3:-$TENURE_RESOURCE}
file="$(dirname "$0")/trace/${what%%/*}.${what#*/}"
echo "start $TENURE_TOKEN" >> "$file"
i=0
while [ $i -lt "$1" ]; do
    sleep "$2"
    echo "at $TENURE_TOKEN" >> "$file"
    i=$((i + 1))
done
echo "end $TENURE_TOKEN" >> "$file"
"#;

/// Statistics and violations found in the trace files.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Commands that started, and that completed.
    pub(crate) started: usize,
    pub(crate) ended: usize,
    /// Starts whose token is not higher than that of an earlier holder.
    pub(crate) non_increasing: Vec<String>,
    /// Lines written by a holder after another had started.
    pub(crate) overlaps: Vec<String>,
}

impl Trace {
    /// Reads all files of a directory.
    pub(crate) fn read(dir: &Path) -> Self {
        let mut trace = Self::default();
        for entry in std::fs::read_dir(dir).expect("it was created") {
            let path = entry.expect("it is readable").path();
            let text = std::fs::read_to_string(&path).expect("it is readable");
            let name = path.file_name().expect("it has one").to_string_lossy().into_owned();
            trace.add_file(&name, &text);
        }
        trace
    }

    fn add_file(&mut self, name: &str, text: &str) {
        let (mut highest, mut current) = (0, None);
        for (n, line) in text.lines().enumerate() {
            let (what, token) = line.split_once(' ').expect("a word and a token");
            let token: u64 = token.parse().expect("a token");
            let context = || {
                let lines: Vec<&str> = text.lines().take(n + 3).skip(n.saturating_sub(6)).collect();
                format!("{name}:{n}: {line}; around it: {lines:?}")
            };
            match what {
                "start" if token <= highest => self.non_increasing.push(context()),
                "start" => {
                    self.started += 1;
                    (highest, current) = (token, Some(token));
                }
                _ if current != Some(token) => self.overlaps.push(context()),
                "end" => {
                    self.ended += 1;
                    current = None;
                }
                _ => {}
            }
        }
    }
}

#[test]
fn overlaps_and_non_increasing_tokens_are_detected() {
    let problems = |text| {
        let mut trace = Trace::default();
        trace.add_file("x", text);
        (trace.non_increasing.len(), trace.overlaps.len())
    };
    assert_eq!(problems("start 1\nat 1\nend 1\nstart 2\nend 2\n"), (0, 0));
    assert_eq!(problems("start 1\nat 1\nstart 2\nend 2\n"), (0, 0), "the first was killed");
    assert_eq!(problems("start 1\nstart 2\nat 1\nend 2\n"), (0, 1), "the first is alive");
    assert_eq!(problems("start 2\nend 2\nstart 1\n"), (1, 0));
    assert_eq!(problems("start 2\nstart 2\n"), (1, 0));
}
