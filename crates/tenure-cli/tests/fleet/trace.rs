//! What the work itself has written: who began, went on and ended, in the order in which it
//! happened.
//!
//! Each resource has a file that all its holders append to, a line at a time. So the order of the
//! lines is the order of the world, and no clock and no server has a say in it.

use std::path::Path;

/// What holders do: `start`, `at` a few times, `end`, each with the token.
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

/// What the files tell.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Work that began, and that came to its end.
    pub(crate) begun: usize,
    pub(crate) ended: usize,
    /// Holders whose token is not higher than that of one before.
    pub(crate) falls: Vec<String>,
    /// Holders that went on after another had begun.
    pub(crate) overlaps: Vec<String>,
}

impl Trace {
    /// Reads all files of a directory.
    pub(crate) fn read(dir: &Path) -> Self {
        let mut trace = Self::default();
        for entry in std::fs::read_dir(dir).expect("it was made") {
            let path = entry.expect("it is readable").path();
            let text = std::fs::read_to_string(&path).expect("it is readable");
            let name = path.file_name().expect("it has one").to_string_lossy().into_owned();
            trace.take(&name, &text);
        }
        trace
    }

    fn take(&mut self, name: &str, text: &str) {
        let (mut highest, mut present) = (0, None);
        for (n, line) in text.lines().enumerate() {
            let (what, token) = line.split_once(' ').expect("a word and a token");
            let token: u64 = token.parse().expect("a token");
            let around = || {
                let lines: Vec<&str> = text.lines().take(n + 3).skip(n.saturating_sub(6)).collect();
                format!("{name}:{n}: {line}; around it: {lines:?}")
            };
            match what {
                "start" if token <= highest => self.falls.push(around()),
                "start" => {
                    self.begun += 1;
                    (highest, present) = (token, Some(token));
                }
                _ if present != Some(token) => self.overlaps.push(around()),
                "end" => {
                    self.ended += 1;
                    present = None;
                }
                _ => {}
            }
        }
    }
}

#[test]
fn overlaps_and_tokens_that_fall_are_seen() {
    let problems = |text| {
        let mut trace = Trace::default();
        trace.take("x", text);
        (trace.falls.len(), trace.overlaps.len())
    };
    assert_eq!(problems("start 1\nat 1\nend 1\nstart 2\nend 2\n"), (0, 0));
    assert_eq!(problems("start 1\nat 1\nstart 2\nend 2\n"), (0, 0), "the first was killed");
    assert_eq!(problems("start 1\nstart 2\nat 1\nend 2\n"), (0, 1), "the first lives");
    assert_eq!(problems("start 2\nend 2\nstart 1\n"), (1, 0));
    assert_eq!(problems("start 2\nstart 2\n"), (1, 0));
}
