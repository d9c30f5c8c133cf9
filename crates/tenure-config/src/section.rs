//! Typed access to a table. An invalid value is reported and skipped, so that parsing continues and
//! finds all problems.

use std::ops::RangeInclusive;

use serde_json::{Number, Value};
use toml::de::{DeTable, DeValue};

use super::duration;
use super::report::Report;

/// Maximum edit distance for a suggestion.
const SUGGESTION_DISTANCE_MAX: usize = 2;

/// A table and its place.
pub struct Section<'t> {
    /// Dotted path of the table; empty for the whole file.
    pub place: String,
    table: &'t DeTable<'t>,
}

impl<'t> Section<'t> {
    /// Creates the section of the whole file.
    pub fn root(table: &'t DeTable<'t>) -> Self {
        Self { place: String::new(), table }
    }

    /// Returns the dotted path of a key.
    pub fn place_of(&self, key: &str) -> String {
        if self.place.is_empty() { key.to_owned() } else { format!("{}.{key}", self.place) }
    }

    /// Records the line of each key, and reports unknown keys.
    pub fn check_keys(&self, keys: &[&str], report: &mut Report<'_>) {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            let place = self.place_of(name);
            report.visit(&place, key.span());
            if !keys.contains(&name) {
                report.add(&place, unknown_name("key", name, keys.iter().copied()));
            }
        }
    }

    /// Returns a nested table.
    pub fn section(&self, key: &str, report: &mut Report<'_>) -> Option<Self> {
        let table = match self.value(key)? {
            DeValue::Table(table) => table,
            other => return self.reject_type(key, other, "a table", report),
        };
        Some(Self { place: self.place_of(key), table })
    }

    /// Returns all nested tables with their names.
    pub fn sections(&self, report: &mut Report<'_>) -> Vec<(&'t str, Self)> {
        let mut sections = Vec::new();
        for key in self.table.keys() {
            let name: &'t str = key.get_ref().as_ref();
            report.visit(&self.place_of(name), key.span());
            sections.extend(self.section(name, report).map(|section| (name, section)));
        }
        sections
    }

    /// Returns all keys with their text values, for a table with arbitrary keys.
    pub fn pairs(&self, report: &mut Report<'_>) -> Vec<(&'t str, &'t str)> {
        let mut pairs = Vec::new();
        for key in self.table.keys() {
            let name: &'t str = key.get_ref().as_ref();
            report.visit(&self.place_of(name), key.span());
            pairs.extend(self.text(name, report).map(|text| (name, text)));
        }
        pairs
    }

    /// Returns the tables of a list, with places such as `steps[0]`.
    pub fn list(&self, key: &str, report: &mut Report<'_>) -> Vec<Self> {
        let expected = "a list of tables such as [[steps]]";
        let list = match self.value(key) {
            None => return Vec::new(),
            Some(DeValue::Array(list)) => list,
            Some(other) => {
                return self.reject_type(key, other, expected, report).unwrap_or_default();
            }
        };
        let mut sections = Vec::new();
        for (index, item) in list.iter().enumerate() {
            let place = format!("{}[{index}]", self.place_of(key));
            report.visit(&place, item.span());
            match item.get_ref() {
                DeValue::Table(table) => sections.push(Self { place, table }),
                other => {
                    let got = other.type_str();
                    report.add(&place, format!("it must be a table, not of the type {got}"));
                }
            }
        }
        sections
    }

    /// Returns any value as JSON. A date or time becomes a string.
    pub fn json(&self, key: &str, report: &mut Report<'_>) -> Option<Value> {
        let value = self.value(key)?;
        match to_json(value) {
            Some(json) => Some(json),
            None => {
                self.reject(key, "it has a number that JSON cannot represent".to_owned(), report)
            }
        }
    }

    /// Returns the names of its keys.
    pub fn keys(&self) -> impl Iterator<Item = &'t str> {
        self.table.keys().map(|key| key.get_ref().as_ref())
    }

    /// Returns a string.
    pub fn text(&self, key: &str, report: &mut Report<'_>) -> Option<&'t str> {
        match self.value(key)? {
            DeValue::String(text) => Some(text.as_ref()),
            other => self.reject_type(key, other, "a string in quotes", report),
        }
    }

    /// Returns a list of strings.
    pub fn texts(&self, key: &str, report: &mut Report<'_>) -> Option<Vec<&'t str>> {
        let expected = "a list of strings such as [\"a\", \"b\"]";
        let list = match self.value(key)? {
            DeValue::Array(list) => list,
            other => return self.reject_type(key, other, expected, report),
        };
        let mut texts = Vec::new();
        for item in list.iter() {
            match item.get_ref() {
                DeValue::String(text) => texts.push(text.as_ref()),
                other => return self.reject_type(key, other, expected, report),
            }
        }
        Some(texts)
    }

    /// Returns a list of strings, which may be written as one string.
    pub fn one_or_more(&self, key: &str, report: &mut Report<'_>) -> Option<Vec<&'t str>> {
        match self.value(key)? {
            DeValue::String(text) => Some(vec![text.as_ref()]),
            _ => self.texts(key, report),
        }
    }

    /// Returns a duration in milliseconds.
    pub fn duration_ms(&self, key: &str, report: &mut Report<'_>) -> Option<u64> {
        let text = match self.value(key)? {
            DeValue::String(text) => text.as_ref(),
            other => return self.reject_type(key, other, "a duration such as \"30m\"", report),
        };
        match duration::parse(text) {
            Ok(duration) => Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
            Err(why) => self.reject(key, why, report),
        }
    }

    /// Returns an integer within bounds.
    pub fn count(
        &self,
        key: &str,
        within: RangeInclusive<u64>,
        report: &mut Report<'_>,
    ) -> Option<u64> {
        let number = match self.value(key)? {
            DeValue::Integer(number) => number,
            other => return self.reject_type(key, other, "an integer", report),
        };
        let digits = number.as_str().replace('_', "");
        match u64::from_str_radix(&digits, number.radix()) {
            Ok(count) if within.contains(&count) => Some(count),
            _ => {
                let (min, max) = (within.start(), within.end());
                self.reject(key, format!("it must be between {min} and {max}"), report)
            }
        }
    }

    /// Returns a number.
    pub fn number(&self, key: &str, report: &mut Report<'_>) -> Option<f64> {
        let digits = match self.value(key)? {
            DeValue::Integer(number) => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            other => return self.reject_type(key, other, "a number", report),
        };
        match digits.replace('_', "").parse() {
            Ok(number) => Some(number),
            Err(_) => self.reject(key, format!("{digits} is not a decimal number"), report),
        }
    }

    /// Returns a boolean.
    pub fn flag(&self, key: &str, report: &mut Report<'_>) -> Option<bool> {
        match self.value(key)? {
            DeValue::Boolean(flag) => Some(*flag),
            other => self.reject_type(key, other, "true or false", report),
        }
    }

    /// Returns whether the key is set.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Reports that the value of a key is invalid.
    pub fn reject<T>(&self, key: &str, why: String, report: &mut Report<'_>) -> Option<T> {
        report.add(&self.place_of(key), why);
        None
    }

    fn reject_type<T>(
        &self,
        key: &str,
        got: &DeValue<'_>,
        expected: &str,
        report: &mut Report<'_>,
    ) -> Option<T> {
        let got = got.type_str();
        self.reject(key, format!("it must be {expected}, not of the type {got}"), report)
    }

    fn value(&self, key: &str) -> Option<&'t DeValue<'t>> {
        self.table.get(key).map(toml::Spanned::get_ref)
    }
}

fn to_json(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            Value::from(i64::from_str_radix(&digits, number.radix()).ok()?)
        }
        DeValue::Float(number) => {
            let number: f64 = number.as_str().replace('_', "").parse().ok()?;
            Value::Number(Number::from_f64(number)?)
        }
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Datetime(instant) => Value::from(instant.to_string()),
        DeValue::Array(list) => {
            let items = list.iter().map(|item| to_json(item.get_ref()));
            Value::Array(items.collect::<Option<_>>()?)
        }
        DeValue::Table(table) => {
            let pair = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
                let key: &std::borrow::Cow<'_, str> = key.get_ref();
                Some((key.to_string(), to_json(value.get_ref())?))
            };
            Value::Object(table.iter().map(pair).collect::<Option<_>>()?)
        }
    })
}

/// Returns the message for an unknown name, with a suggestion if one is similar.
pub fn unknown_name<'a>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
    let closest = known.clone().map(|known| (edit_distance(name, known), known)).min();
    match closest {
        Some((edits, suggestion))
            if edits <= SUGGESTION_DISTANCE_MAX && edits < suggestion.len() =>
        {
            format!("unknown {what} `{name}`; did you mean `{suggestion}`?")
        }
        _ => {
            let known: Vec<_> = known.collect();
            format!("unknown {what} `{name}`; expected one of {}", known.join(", "))
        }
    }
}

/// Returns the edit distance (insertions, deletions, substitutions and transpositions).
fn edit_distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows = vec![(0..=to.len()).collect::<Vec<_>>()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let changed = usize::from(from[i - 1] != to[j - 1]);
            let mut best =
                (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + changed);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_name_is_suggested() {
        let known = ["from", "during", "failed"];
        let message = |name| unknown_name("key", name, known.into_iter());
        assert_eq!(message("form"), "unknown key `form`; did you mean `from`?");
        assert_eq!(message("durring"), "unknown key `durring`; did you mean `during`?");
        assert_eq!(message("color"), "unknown key `color`; expected one of from, during, failed");
    }

    #[test]
    fn transposition_is_one_edit() {
        for (from, to, edits) in [("form", "from", 1), ("", "abc", 3), ("same", "same", 0)] {
            assert_eq!(edit_distance(from, to), edits, "{from} {to}");
        }
    }
}
