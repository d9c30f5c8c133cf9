//! Templates with the placeholders `{{ parameters.date }}`, `{{ secrets.key }}` and `{{ run.id }}`.
//!
//! Placeholders are checked when a file is parsed, so that rendering cannot fail. Whether secrets
//! are allowed depends on the use: they never go where others can see them, such as the arguments
//! of a command.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Fields of the run that a placeholder can refer to.
pub const RUN_FIELDS: [&str; 6] = ["id", "token", "attempt", "tenant", "pipeline", SCHEDULED_AT];
/// Field of the run with its tick, which only a scheduled run has.
pub const SCHEDULED_AT: &str = "scheduled_at";

/// A placeholder in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// Value of a parameter.
    Parameter(String),
    /// A secret.
    Secret(String),
    /// One of [`RUN_FIELDS`].
    Run(String),
}

/// Returns the name of the secret that a placeholder refers to, if any.
pub(super) fn secret(placeholder: &Placeholder) -> Option<&str> {
    if let Placeholder::Secret(name) = placeholder { Some(name) } else { None }
}

/// A text with placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Placeholder(Placeholder),
}

/// Values of placeholders.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// Parameters of the run.
    pub parameters: Map<String, Value>,
    /// Secrets of the pipeline.
    pub secrets: BTreeMap<String, String>,
    /// Fields of the run.
    pub run: BTreeMap<&'static str, String>,
}

impl Values {
    /// Returns the value of a placeholder as JSON.
    #[must_use]
    pub fn json(&self, placeholder: &Placeholder) -> Value {
        match placeholder {
            Placeholder::Parameter(name) => {
                self.parameters.get(name).cloned().unwrap_or(Value::Null)
            }
            Placeholder::Secret(name) => self.secrets.get(name).map(String::as_str).into(),
            Placeholder::Run(name) => self.run.get(name.as_str()).map(String::as_str).into(),
        }
    }

    /// Returns the value of a placeholder as text; `null` is the empty string.
    #[must_use]
    pub fn text(&self, placeholder: &Placeholder) -> String {
        match self.json(placeholder) {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }
}

impl Template {
    /// Parses a template.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((inside, after)) = after.split_once("}}") else {
                return Err("`{{` has no `}}`".to_owned());
            };
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(Piece::Placeholder(parse_placeholder(inside.trim())?));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    /// Returns the text before the first placeholder.
    #[must_use]
    pub fn literal_start(&self) -> &str {
        match self.0.first() {
            Some(Piece::Text(text)) => text,
            _ => "",
        }
    }

    /// Returns the placeholders in order.
    pub fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Placeholder(placeholder) => Some(placeholder),
            Piece::Text(_) => None,
        })
    }

    /// Renders the template.
    #[must_use]
    pub fn fill(&self, values: &Values) -> String {
        self.fill_with(|placeholder| values.text(placeholder))
    }

    /// Renders the template with a custom conversion of values.
    pub fn fill_with(&self, mut write: impl FnMut(&Placeholder) -> String) -> String {
        let text = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Placeholder(placeholder) => write(placeholder),
        };
        self.0.iter().map(text).collect()
    }

    /// Renders a template whose text is JSON. Within a string of the text a value is escaped;
    /// elsewhere it becomes a JSON value, so that no value changes the structure of the text.
    #[must_use]
    pub fn fill_json_text(&self, values: &Values) -> String {
        let (mut filled, mut string) = (String::new(), JsonString::default());
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => {
                    string.advance(text);
                    filled.push_str(text);
                }
                Piece::Placeholder(placeholder) if string.open => {
                    let quoted = Value::String(values.text(placeholder)).to_string();
                    filled.push_str(&quoted[1..quoted.len() - 1]);
                }
                Piece::Placeholder(placeholder) => {
                    filled.push_str(&values.json(placeholder).to_string());
                }
            }
        }
        filled
    }

    /// Renders the template as JSON. A template that is a single placeholder keeps its type.
    #[must_use]
    pub fn json(&self, values: &Values) -> Value {
        match self.0.as_slice() {
            [Piece::Placeholder(placeholder)] => values.json(placeholder),
            _ => self.fill(values).into(),
        }
    }
}

/// Whether a position in a JSON text is within a string.
#[derive(Default)]
struct JsonString {
    open: bool,
    /// Whether a backslash precedes the position.
    escaped: bool,
}

impl JsonString {
    fn advance(&mut self, text: &str) {
        for c in text.chars() {
            let escaped = std::mem::take(&mut self.escaped);
            match c {
                '"' if !escaped => self.open = !self.open,
                '\\' if self.open && !escaped => self.escaped = true,
                _ => {}
            }
        }
    }
}

fn parse_placeholder(inside: &str) -> Result<Placeholder, String> {
    let expected = "expected {{ parameters.NAME }}, {{ secrets.NAME }} or {{ run.NAME }}";
    let (scope, name) = inside.split_once('.').unwrap_or((inside, ""));
    match scope {
        _ if name.is_empty() => Err(format!("`{inside}` is not a placeholder; {expected}")),
        "parameters" => Ok(Placeholder::Parameter(name.to_owned())),
        "secrets" => Ok(Placeholder::Secret(name.to_owned())),
        "run" if RUN_FIELDS.contains(&name) => Ok(Placeholder::Run(name.to_owned())),
        "run" => Err(format!("`run.{name}` is unknown; expected one of {}", RUN_FIELDS.join(", "))),
        _ => Err(format!("`{inside}` is not a placeholder; {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values() -> Values {
        let mut values = Values::default();
        values.parameters.insert("rows".into(), json!(10));
        values.secrets.insert("key".into(), "s3cret".into());
        values.run.insert("id", "01a1".into());
        values
    }

    #[test]
    fn placeholders_are_filled_in() {
        let values = values();
        let template =
            Template::parse("{{ run.id }}: {{parameters.rows}} {{ secrets.key }}!").unwrap();
        assert_eq!(template.fill(&values), "01a1: 10 s3cret!");
        assert_eq!(template.placeholders().count(), 3);
    }

    #[test]
    fn no_value_changes_the_structure_of_a_text_that_is_json() {
        let mut values = values();
        let name = "a\", \"admin\": \"\\\n";
        values.parameters.insert("name".into(), json!(name));
        values.parameters.insert("list".into(), json!(["\", \"admin\": \"", 1]));
        let fill = |text: &str| {
            let text = Template::parse(text).unwrap().fill_json_text(&values);
            serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
        };
        assert_eq!(
            fill("{\"rows\": {{ parameters.rows }}, \"name\": \"<{{ parameters.name }}>\"}"),
            json!({ "rows": 10, "name": format!("<{name}>") })
        );
        // Without quotes in the text, a string gets its own.
        assert_eq!(fill("[{{ parameters.name }}, {{ secrets.none }}]"), json!([name, null]));
        let list = &values.parameters["list"];
        assert_eq!(fill("{\"list\": {{ parameters.list }}}"), json!({ "list": list }));
        assert_eq!(
            fill("[\"\\\"{{ parameters.list }}\", \"\\\\{{ parameters.rows }}\"]"),
            json!([format!("\"{list}"), "\\10"])
        );
    }

    #[test]
    fn single_placeholder_keeps_its_type() {
        let values = values();
        assert_eq!(Template::parse("{{ parameters.rows }}").unwrap().json(&values), json!(10));
        assert_eq!(Template::parse("{{ parameters.rows }} rows").unwrap().json(&values), "10 rows");
    }

    #[test]
    fn invalid_placeholders_are_rejected() {
        for text in ["{{ x", "{{ x }}", "{{ run.name }}", "{{ parameters. }}", "{{ env.HOME }}"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
        assert_eq!(Template::parse("{ plain }").unwrap().fill(&values()), "{ plain }");
    }
}
