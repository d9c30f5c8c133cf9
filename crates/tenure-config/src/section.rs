//! A table of the file, read key by key. What is not as it must be is reported and left out, so
//! that reading goes on to the next problem.

use std::ops::RangeInclusive;

use serde_json::{Number, Value};
use toml::de::{DeTable, DeValue};

use super::duration;
use super::report::Report;

/// The longest misspelling that is still understood, in edits.
const SLIP_MAX: usize = 2;

/// A table and where it is.
pub struct Section<'t> {
    /// The way to it, with dots; empty for the whole file.
    pub place: String,
    table: &'t DeTable<'t>,
}

impl<'t> Section<'t> {
    /// The whole file.
    pub fn root(table: &'t DeTable<'t>) -> Self {
        Self { place: String::new(), table }
    }

    /// The way to a key of it.
    pub fn at(&self, key: &str) -> String {
        if self.place.is_empty() { key.to_owned() } else { format!("{}.{key}", self.place) }
    }

    /// Notes where each key is, and reports those that mean nothing.
    pub fn known(&self, keys: &[&str], report: &mut Report<'_>) {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            let place = self.at(name);
            report.visit(&place, key.span());
            if !keys.contains(&name) {
                report.add(&place, unknown("key", name, keys.iter().copied()));
            }
        }
    }

    /// A table below it.
    pub fn section(&self, key: &str, report: &mut Report<'_>) -> Option<Self> {
        let table = match self.value(key)? {
            DeValue::Table(table) => table,
            other => return self.wrong(key, other, "a table", report),
        };
        Some(Self { place: self.at(key), table })
    }

    /// All tables below it, each with its name.
    pub fn sections(&self, report: &mut Report<'_>) -> Vec<(&'t str, Self)> {
        let mut sections = Vec::new();
        for key in self.table.keys() {
            let name: &'t str = key.get_ref().as_ref();
            report.visit(&self.at(name), key.span());
            sections.extend(self.section(name, report).map(|section| (name, section)));
        }
        sections
    }

    /// The names and texts of a table whose keys are anybody's choice.
    pub fn pairs(&self, report: &mut Report<'_>) -> Vec<(&'t str, &'t str)> {
        let mut pairs = Vec::new();
        for key in self.table.keys() {
            let name: &'t str = key.get_ref().as_ref();
            report.visit(&self.at(name), key.span());
            pairs.extend(self.text(name, report).map(|text| (name, text)));
        }
        pairs
    }

    /// The tables of a list, each with its place: `steps[0]`.
    pub fn list(&self, key: &str, report: &mut Report<'_>) -> Vec<Self> {
        let wanted = "a list of tables such as [[steps]]";
        let list = match self.value(key) {
            None => return Vec::new(),
            Some(DeValue::Array(list)) => list,
            Some(other) => return self.wrong(key, other, wanted, report).unwrap_or_default(),
        };
        let mut sections = Vec::new();
        for (at, item) in list.iter().enumerate() {
            let place = format!("{}[{at}]", self.at(key));
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

    /// Any value, as JSON. What JSON has no word for is a text.
    pub fn json(&self, key: &str, report: &mut Report<'_>) -> Option<Value> {
        let value = self.value(key)?;
        match to_json(value) {
            Some(json) => Some(json),
            None => self.refuse(key, "it has a number that JSON cannot say".to_owned(), report),
        }
    }

    /// The names of its keys.
    pub fn keys(&self) -> impl Iterator<Item = &'t str> {
        self.table.keys().map(|key| key.get_ref().as_ref())
    }

    /// A text.
    pub fn text(&self, key: &str, report: &mut Report<'_>) -> Option<&'t str> {
        match self.value(key)? {
            DeValue::String(text) => Some(text.as_ref()),
            other => self.wrong(key, other, "a text in quotes", report),
        }
    }

    /// A list of texts.
    pub fn texts(&self, key: &str, report: &mut Report<'_>) -> Option<Vec<&'t str>> {
        let wanted = "a list of texts such as [\"a\", \"b\"]";
        let list = match self.value(key)? {
            DeValue::Array(list) => list,
            other => return self.wrong(key, other, wanted, report),
        };
        let mut texts = Vec::new();
        for item in list.iter() {
            match item.get_ref() {
                DeValue::String(text) => texts.push(text.as_ref()),
                other => return self.wrong(key, other, wanted, report),
            }
        }
        Some(texts)
    }

    /// A text, or a list of texts.
    pub fn one_or_more(&self, key: &str, report: &mut Report<'_>) -> Option<Vec<&'t str>> {
        match self.value(key)? {
            DeValue::String(text) => Some(vec![text.as_ref()]),
            _ => self.texts(key, report),
        }
    }

    /// A duration, in milliseconds.
    pub fn duration_ms(&self, key: &str, report: &mut Report<'_>) -> Option<u64> {
        let text = match self.value(key)? {
            DeValue::String(text) => text.as_ref(),
            other => return self.wrong(key, other, "a duration such as \"30m\"", report),
        };
        match duration::parse(text) {
            Ok(duration) => Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
            Err(why) => self.refuse(key, why, report),
        }
    }

    /// A whole number within bounds.
    pub fn count(
        &self,
        key: &str,
        within: RangeInclusive<u64>,
        report: &mut Report<'_>,
    ) -> Option<u64> {
        let number = match self.value(key)? {
            DeValue::Integer(number) => number,
            other => return self.wrong(key, other, "a whole number", report),
        };
        let digits = number.as_str().replace('_', "");
        match u64::from_str_radix(&digits, number.radix()) {
            Ok(count) if within.contains(&count) => Some(count),
            _ => {
                let (min, max) = (within.start(), within.end());
                self.refuse(key, format!("it must be between {min} and {max}"), report)
            }
        }
    }

    /// A number.
    pub fn number(&self, key: &str, report: &mut Report<'_>) -> Option<f64> {
        let digits = match self.value(key)? {
            DeValue::Integer(number) => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            other => return self.wrong(key, other, "a number", report),
        };
        match digits.replace('_', "").parse() {
            Ok(number) => Some(number),
            Err(_) => self.refuse(key, format!("{digits} is not a decimal number"), report),
        }
    }

    /// Yes or no.
    pub fn flag(&self, key: &str, report: &mut Report<'_>) -> Option<bool> {
        match self.value(key)? {
            DeValue::Boolean(flag) => Some(*flag),
            other => self.wrong(key, other, "true or false", report),
        }
    }

    /// Whether the key is there at all.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Reports that the value of a key is not acceptable.
    pub fn refuse<T>(&self, key: &str, why: String, report: &mut Report<'_>) -> Option<T> {
        report.add(&self.at(key), why);
        None
    }

    fn wrong<T>(
        &self,
        key: &str,
        got: &DeValue<'_>,
        wanted: &str,
        report: &mut Report<'_>,
    ) -> Option<T> {
        let got = got.type_str();
        self.refuse(key, format!("it must be {wanted}, not of the type {got}"), report)
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

/// Says that a word means nothing, and what may have been meant.
pub fn unknown<'a>(what: &str, word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let slip = known.clone().map(|known| (distance(word, known), known)).min();
    match slip {
        Some((edits, meant)) if edits <= SLIP_MAX && edits < meant.len() => {
            format!("unknown {what} `{word}`; did you mean `{meant}`?")
        }
        _ => {
            let known: Vec<_> = known.collect();
            format!("unknown {what} `{word}`; there are {}", known.join(", "))
        }
    }
}

/// How many letters must be put in, left out, changed or swapped to get from one word to another.
fn distance(from: &str, to: &str) -> usize {
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
    fn a_slip_is_understood_and_nonsense_is_not() {
        let known = ["from", "during", "failed"];
        let say = |word| unknown("key", word, known.into_iter());
        assert_eq!(say("form"), "unknown key `form`; did you mean `from`?");
        assert_eq!(say("durring"), "unknown key `durring`; did you mean `during`?");
        assert_eq!(say("color"), "unknown key `color`; there are from, during, failed");
    }

    #[test]
    fn a_swap_of_neighbours_is_one_edit() {
        for (from, to, edits) in [("form", "from", 1), ("", "abc", 3), ("same", "same", 0)] {
            assert_eq!(distance(from, to), edits, "{from} {to}");
        }
    }
}
