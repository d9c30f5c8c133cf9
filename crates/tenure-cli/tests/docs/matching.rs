//! Compares what a document shows with what a command printed.
//!
//! Whitespace, instants, durations and process ids need not be equal. An id stands for the real
//! one in the rest of the document. `…` stands for anything.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use crate::blocks::Expected;

/// What in a shown text differs from run to run; `…` also stands for the space around it.
static VARIABLE: LazyLock<Regex> = LazyLock::new(|| {
    let parts = [
        r"(?P<instant>\d{4}-\d\d-\d\dT[\d:.]+Z)",
        r"(?P<id>\b[0-9a-f]{12,}\b…?|\b[0-9a-f]{4,}…)",
        r"(?P<process>\bvm/\d+)",
        r"(?P<duration>\b\d+(\.\d+)? ?(ms|s|m|h)(\d\ds)?\b)",
        r"(?P<any>\s*…\s*)",
        r"(?P<space>\s+)",
    ];
    Regex::new(&parts.join("|")).expect("a valid expression")
});

/// Messages of bash about jobs that were killed.
static JOB_NOTICE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^.*: line \d+:\s+\d+ (Killed|Terminated).*$").expect("a valid expression")
});

/// Numbers that depend on what else happened in the store.
const COUNTS: [&str; 8] =
    ["position", "resources", "entries", "grants", "n", "count", "total", "incarnation"];

/// Ids in the document, and the real ones.
#[derive(Default)]
pub(crate) struct Ids(HashMap<String, String>);

impl Ids {
    /// Replaces the ids of the document by real ones.
    pub(crate) fn substitute(&self, command: &str) -> String {
        let mut command = command.to_owned();
        for (shown, real) in &self.0 {
            command = command.replace(&format!("{shown}…"), real).replace(shown, real);
        }
        command
    }

    fn bind(&mut self, shown: &str, real: &str) -> bool {
        let bound = self.0.entry(shown.to_owned()).or_insert_with(|| real.to_owned());
        bound == real
    }

    /// Returns whether the output is what the document shows. If `exactly` is false, there may be
    /// more output before and after.
    pub(crate) fn matches(&mut self, expected: &Expected, output: &str, exactly: bool) -> bool {
        let output = JOB_NOTICE.replace_all(output, "");
        let before = self.0.clone();
        let matches = match expected {
            Expected::Text(shown) => self.matches_text(shown.trim(), output.trim(), exactly),
            Expected::Json(shown) => {
                let shown = serde_json::from_str(shown).expect("the document shows JSON");
                // The last one first: it is the one that is shown, if several match.
                values(&output).iter().rev().any(|value| self.is_within(&shown, value))
            }
        };
        if !matches {
            self.0 = before;
        }
        matches
    }

    fn matches_text(&mut self, shown: &str, output: &str, exactly: bool) -> bool {
        let (mut pattern, mut ids, mut end) = (String::from("(?s)"), Vec::new(), 0);
        pattern += if exactly { r"\A" } else { "" };
        for found in VARIABLE.captures_iter(shown) {
            let all = found.get(0).expect("it matches");
            pattern += &regex::escape(&shown[end..all.start()]);
            end = all.end();
            if let Some(id) = found.name("id") {
                ids.push(id.as_str().trim_end_matches('…'));
                pattern += &format!("(?P<id{}>[0-9a-f]{{12,}})", ids.len());
            } else if found.name("instant").is_some() {
                pattern += r"\d{4}-\d\d-\d\dT[\d:.]+Z";
            } else if found.name("process").is_some() {
                pattern += r"[\w.-]+/\d+";
            } else if found.name("duration").is_some() {
                pattern += r"\d+(\.\d+)? ?(ms|s|m|h)(\d\ds)?";
            } else {
                pattern += if found.name("any").is_some() { ".*?" } else { r"\s+" };
            }
        }
        pattern += &regex::escape(&shown[end..]);
        pattern += if exactly { r"\z" } else { "" };
        let pattern = Regex::new(&pattern).expect("an escaped text");
        let Some(found) = pattern.captures(output) else { return false };
        let real = |n: usize| found.name(&format!("id{n}")).expect("part of it").as_str();
        (1..).zip(ids).all(|(n, shown)| self.bind(shown, real(n)))
    }

    /// Returns whether `shown` is a part of `value`, or of something in it.
    fn is_within(&mut self, shown: &Value, value: &Value) -> bool {
        let before = self.0.clone();
        if self.is_part(shown, value, "") {
            return true;
        }
        self.0 = before;
        match value {
            Value::Array(items) => items.iter().any(|item| self.is_within(shown, item)),
            Value::Object(fields) => fields.values().any(|item| self.is_within(shown, item)),
            _ => false,
        }
    }

    fn is_part(&mut self, shown: &Value, value: &Value, key: &str) -> bool {
        match (shown, value) {
            (Value::Object(shown), Value::Object(value)) => shown
                .iter()
                .all(|(key, part)| value.get(key).is_some_and(|of| self.is_part(part, of, key))),
            (Value::Array(shown), Value::Array(value)) => {
                shown.len() <= value.len()
                    && shown.iter().zip(value).all(|(part, of)| self.is_part(part, of, key))
            }
            (Value::String(shown), Value::String(value)) => {
                key == "next" || self.matches_text(shown, value, true)
            }
            (Value::Number(_), Value::Number(_))
                if key.ends_with("_ms") || COUNTS.contains(&key) =>
            {
                true
            }
            (shown, value) => shown == value,
        }
    }
}

/// Returns the JSON values in an output, without what is between them.
fn values(output: &str) -> Vec<Value> {
    let (mut values, mut rest) = (Vec::new(), output);
    while let Some(start) = rest.find('{') {
        let mut stream = serde_json::Deserializer::from_str(&rest[start..]).into_iter();
        let read = stream.next();
        rest = match read {
            Some(Ok(value)) => {
                values.push(value);
                &rest[start + stream.byte_offset()..]
            }
            _ => &rest[start + 1..],
        };
    }
    values
}
