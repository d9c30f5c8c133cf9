//! What a trigger may say: declared parameters with their types and defaults.

use jiff::civil::Date;
use serde_json::{Map, Value};
use tenure_config::report::Report;
use tenure_config::section::{Section, unknown};

/// The field of a trigger that is no parameter.
pub const TRIGGER_BY: &str = "trigger_by";
/// Most parameters of a pipeline.
pub const PARAMETERS_MAX: usize = 64;
/// Longest name of a parameter.
const NAME_BYTES_MAX: usize = 64;

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A day such as `2026-01-31`.
    Date,
    /// Any JSON.
    Json,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::String, Self::Integer, Self::Number, Self::Boolean, Self::Date, Self::Json];

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Date => "date",
            Self::Json => "json",
        }
    }

    fn takes(self, value: &Value) -> bool {
        match self {
            Self::String => value.is_string(),
            Self::Integer => value.is_i64() || value.is_u64(),
            Self::Number => value.is_number(),
            Self::Boolean => value.is_boolean(),
            Self::Date => value.as_str().is_some_and(|text| {
                // The parser takes more than a day; what it writes is a day.
                text.len() == 10 && text.parse::<Date>().is_ok_and(|date| date.to_string() == text)
            }),
            Self::Json => true,
        }
    }
}

/// A parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// What its value may be.
    pub kind: Kind,
    /// Its value when a trigger says nothing; without one it must be given.
    pub default: Option<Value>,
}

/// The parameters of a trigger with defaults filled in, or everything that is wrong with them.
pub fn fill(
    declared: &[Parameter],
    given: &Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let mut problems = Vec::new();
    let names = declared.iter().map(|parameter| parameter.name.as_str());
    for name in given.keys().filter(|name| names.clone().all(|known| known != *name)) {
        problems.push(if declared.is_empty() {
            format!("{name:?}: this pipeline takes no parameters")
        } else {
            unknown("parameter", name, names.clone())
        });
    }
    let mut filled = Map::new();
    for Parameter { name, kind, default } in declared {
        match (given.get(name), default) {
            (Some(value), _) if has_zero(value) => {
                problems.push(format!("{name}: it has a character that is zero"));
            }
            (Some(value), _) if kind.takes(value) => {
                filled.insert(name.clone(), value.clone());
            }
            (Some(_), _) => problems.push(format!("{name}: it must be of type {}", kind.as_str())),
            (None, Some(value)) => {
                filled.insert(name.clone(), value.clone());
            }
            (None, None) => problems.push(format!("{name}: it is missing and has no default")),
        }
    }
    if problems.is_empty() { Ok(filled) } else { Err(problems.join("; ")) }
}

/// Whether a text in it has a character that no command, database or store takes.
fn has_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_zero),
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| name.contains('\0') || has_zero(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Reads `[parameters]`.
pub(super) fn read(root: &Section<'_>, report: &mut Report<'_>) -> Vec<Parameter> {
    let Some(section) = root.section("parameters", report) else { return Vec::new() };
    let mut parameters = Vec::new();
    for (name, section) in section.sections(report) {
        if !is_name(name) {
            let why = "a name has letters, digits and `_`, and begins with a letter";
            report.add(&section.place, why);
        }
        if name == TRIGGER_BY {
            report.add(&section.place, "it is who triggers a run, and no parameter");
        }
        parameters.extend(parameter(name, &section, report));
    }
    if parameters.len() > PARAMETERS_MAX {
        report.add(&section.place, format!("at most {PARAMETERS_MAX} parameters are allowed"));
    }
    parameters
}

fn parameter(name: &str, section: &Section<'_>, report: &mut Report<'_>) -> Option<Parameter> {
    section.known(&["type", "default"], report);
    let word = section.text("type", report);
    if !section.has("type") {
        report.add(&section.place, "`type` is missing");
    }
    let default = section.json("default", report);
    let Some(kind) = Kind::ALL.into_iter().find(|kind| Some(kind.as_str()) == word) else {
        let words = Kind::ALL.iter().map(|kind| kind.as_str());
        return section.refuse("type", unknown("type", word?, words), report);
    };
    if default.as_ref().is_some_and(|value| !kind.takes(value)) {
        section.refuse::<()>("default", format!("it must be of type {}", kind.as_str()), report);
    }
    Some(Parameter { name: name.to_owned(), kind, default })
}

fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(letter)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn declared() -> Vec<Parameter> {
        let parameter = |name: &str, kind, default| Parameter { name: name.into(), kind, default };
        vec![
            parameter("date", Kind::Date, None),
            parameter("rows", Kind::Integer, Some(json!(10))),
            parameter("full", Kind::Boolean, Some(json!(false))),
        ]
    }

    fn try_fill(given: &Value) -> Result<Map<String, Value>, String> {
        fill(&declared(), given.as_object().unwrap())
    }

    #[test]
    fn defaults_are_filled_in() {
        let filled = try_fill(&json!({ "date": "2026-01-31", "full": true })).unwrap();
        assert_eq!(Value::from(filled), json!({ "date": "2026-01-31", "rows": 10, "full": true }));
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let why = try_fill(&json!({ "rows": "many", "dat": 1 })).unwrap_err();
        assert!(why.contains("unknown parameter `dat`; did you mean `date`?"), "{why}");
        assert!(why.contains("date: it is missing and has no default"), "{why}");
        assert!(why.contains("rows: it must be of type integer"), "{why}");
        let why = try_fill(&json!({ "date": "2026-01-31\0" })).unwrap_err();
        assert_eq!(why, "date: it has a character that is zero");
    }

    #[test]
    fn each_type_takes_its_own() {
        for (kind, good, bad) in [
            (Kind::String, json!("x"), json!(1)),
            (Kind::Integer, json!(-1), json!(1.5)),
            (Kind::Number, json!(1.5), json!("1.5")),
            (Kind::Boolean, json!(true), json!("true")),
            (Kind::Date, json!("2024-02-29"), json!("2023-02-29")),
        ] {
            assert!(kind.takes(&good), "{kind:?} {good}");
            assert!(!kind.takes(&bad), "{kind:?} {bad}");
        }
        assert!(!Kind::Date.takes(&json!("2024-02-29T00:00:00")));
        assert!(Kind::Json.takes(&json!([null])));
    }
}
