//! Declared parameters of a trigger, with their types and defaults.

use jiff::civil::Date;
use serde_json::{Map, Value};
use tenure_config::report::Report;
use tenure_config::section::{Section, unknown_name};

/// Field of a trigger that is not a parameter.
pub const TRIGGER_BY: &str = "trigger_by";
/// Maximum number of parameters of a pipeline.
pub const PARAMETERS_MAX: usize = 64;
/// Maximum length of the name of a parameter.
const NAME_BYTES_MAX: usize = 64;
/// Maximum length of a value in a message.
const VALUE_CHARS_MAX: usize = 60;

/// Type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    String,
    /// An integer.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A date such as `2026-01-31`.
    Date,
    /// Any JSON.
    Json,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::String, Self::Integer, Self::Number, Self::Boolean, Self::Date, Self::Json];

    /// Returns the spelling in files and in the API.
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

    /// Parses the spelling in files and in the API.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Parses text from a command line as a value of this type. Types without a spelling of their
    /// own there keep the text. Returns `None` for text that is not a value of this type.
    #[must_use]
    pub fn parse_text(self, text: &str) -> Option<Value> {
        match self {
            Self::Integer | Self::Number | Self::Boolean => {
                serde_json::from_str(text).ok().filter(|value| self.accepts(value))
            }
            Self::String | Self::Date | Self::Json => Some(text.into()),
        }
    }

    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::String => value.is_string(),
            Self::Integer => value.is_i64() || value.is_u64(),
            Self::Number => value.is_number(),
            Self::Boolean => value.is_boolean(),
            Self::Date => value.as_str().is_some_and(|text| {
                // The parser accepts more than a date; it formats a date only.
                text.len() == 10 && text.parse::<Date>().is_ok_and(|date| date.to_string() == text)
            }),
            Self::Json => true,
        }
    }
}

/// A declared parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name.
    pub name: String,
    /// Type of its value.
    pub kind: Kind,
    /// Default value; without one the parameter is required.
    pub default: Option<Value>,
}

/// Returns the parameters of a trigger with defaults filled in, or a message with all problems.
pub fn fill(
    declared: &[Parameter],
    given: &Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let mut problems = Vec::new();
    let names = declared.iter().map(|parameter| parameter.name.as_str());
    for name in given.keys().filter(|name| names.clone().all(|known| known != *name)) {
        problems.push(if declared.is_empty() {
            format!("{name:?}: this pipeline has no parameters")
        } else {
            unknown_name("parameter", name, names.clone())
        });
    }
    let mut filled = Map::new();
    for Parameter { name, kind, default } in declared {
        match (given.get(name), default) {
            (Some(value), _) if has_nul(value) => {
                problems.push(format!("{name}: it has a NUL character"));
            }
            (Some(value), _) if kind.accepts(value) => {
                filled.insert(name.clone(), value.clone());
            }
            (Some(value), _) => {
                let (kind, value) = (kind.as_str(), shorten(value));
                problems.push(format!("{name}: it must be of type {kind}, not {value}"));
            }
            (None, Some(value)) => {
                filled.insert(name.clone(), value.clone());
            }
            (None, None) => problems.push(format!("{name}: it is missing and has no default")),
        }
    }
    if problems.is_empty() { Ok(filled) } else { Err(problems.join("; ")) }
}

/// Formats a value for a message.
fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Returns whether a string in the value has a NUL character, which commands and databases reject.
fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| name.contains('\0') || has_nul(value))
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
            let why = "a name consists of letters, digits and `_`, and starts with a letter";
            report.add(&section.place, why);
        }
        if name == TRIGGER_BY {
            report.add(&section.place, "the name is reserved for the caller of a trigger");
        }
        parameters.extend(parameter(name, &section, report));
    }
    if parameters.len() > PARAMETERS_MAX {
        report.add(&section.place, format!("at most {PARAMETERS_MAX} parameters are allowed"));
    }
    parameters
}

fn parameter(name: &str, section: &Section<'_>, report: &mut Report<'_>) -> Option<Parameter> {
    section.check_keys(&["type", "default"], report);
    let name_of_type = section.text("type", report);
    if !section.has("type") {
        report.add(&section.place, "`type` is missing");
    }
    let default = section.json("default", report);
    let Some(kind) = name_of_type.and_then(Kind::parse) else {
        let known = Kind::ALL.iter().map(|kind| kind.as_str());
        return section.reject("type", unknown_name("type", name_of_type?, known), report);
    };
    if default.as_ref().is_some_and(|value| !kind.accepts(value)) {
        section.reject::<()>("default", format!("it must be of type {}", kind.as_str()), report);
    }
    Some(Parameter { name: name.to_owned(), kind, default })
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(is_allowed)
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
        assert!(why.contains("rows: it must be of type integer, not \"many\""), "{why}");
        let why = try_fill(&json!({ "date": "2026-01-31", "rows": "9".repeat(99) })).unwrap_err();
        assert_eq!(why, format!("rows: it must be of type integer, not \"{}…", "9".repeat(59)));
        let why = try_fill(&json!({ "date": "2026-01-31\0" })).unwrap_err();
        assert_eq!(why, "date: it has a NUL character");
    }

    #[test]
    fn text_is_parsed_by_the_type() {
        for (kind, text, expected) in [
            (Kind::Integer, "-5", Some(json!(-5))),
            (Kind::Integer, "5.5", None),
            (Kind::Integer, "many", None),
            (Kind::Number, "5.5", Some(json!(5.5))),
            (Kind::Number, "\"5\"", None),
            (Kind::Boolean, "true", Some(json!(true))),
            (Kind::Boolean, "yes", None),
            (Kind::String, "5", Some(json!("5"))),
            (Kind::Date, "2026-01-31", Some(json!("2026-01-31"))),
            (Kind::Json, "5", Some(json!("5"))),
        ] {
            assert_eq!(kind.parse_text(text), expected, "{kind:?} {text}");
        }
    }

    #[test]
    fn each_type_accepts_its_values_only() {
        for (kind, good, bad) in [
            (Kind::String, json!("x"), json!(1)),
            (Kind::Integer, json!(-1), json!(1.5)),
            (Kind::Number, json!(1.5), json!("1.5")),
            (Kind::Boolean, json!(true), json!("true")),
            (Kind::Date, json!("2024-02-29"), json!("2023-02-29")),
        ] {
            assert!(kind.accepts(&good), "{kind:?} {good}");
            assert!(!kind.accepts(&bad), "{kind:?} {bad}");
        }
        assert!(!Kind::Date.accepts(&json!("2024-02-29T00:00:00")));
        assert!(Kind::Json.accepts(&json!([null])));
    }
}
