//! Texts with places that a run fills in: `{{ parameters.date }}`, `{{ secrets.key }}`,
//! `{{ run.id }}`.
//!
//! What a place names is checked when a file is read, so that filling it in cannot fail. A text
//! says what may stand in it: secrets never go where others can see them, into the words of a
//! command for example.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// What can be said of the run itself.
pub const OF_RUN: [&str; 5] = ["id", "token", "attempt", "tenant", "pipeline"];

/// A place in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The value of a parameter.
    Parameter(String),
    /// A secret.
    Secret(String),
    /// One of [`OF_RUN`].
    Run(String),
}

/// The secret that a place names, if it names one.
pub(super) fn secret(place: &Place) -> Option<&str> {
    if let Place::Secret(name) = place { Some(name) } else { None }
}

/// A text with places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Place(Place),
}

/// What places are filled in with.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// The parameters of the run.
    pub parameters: Map<String, Value>,
    /// The secrets that the pipeline names.
    pub secrets: BTreeMap<String, String>,
    /// What is said of the run itself.
    pub run: BTreeMap<&'static str, String>,
}

impl Values {
    /// What a place stands for, as JSON.
    #[must_use]
    pub fn json(&self, place: &Place) -> Value {
        match place {
            Place::Parameter(name) => self.parameters.get(name).cloned().unwrap_or(Value::Null),
            Place::Secret(name) => self.secrets.get(name).map(String::as_str).into(),
            Place::Run(name) => self.run.get(name.as_str()).map(String::as_str).into(),
        }
    }

    /// What a place stands for, as a text; nothing is the empty one.
    #[must_use]
    pub fn text(&self, place: &Place) -> String {
        match self.json(place) {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }
}

impl Template {
    /// Reads a text.
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
            pieces.push(Piece::Place(place(inside.trim())?));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    /// Its places.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Place(place) => Some(place),
            Piece::Text(_) => None,
        })
    }

    /// The text with its places filled in.
    #[must_use]
    pub fn fill(&self, values: &Values) -> String {
        self.fill_with(|place| values.text(place))
    }

    /// The same, with a say in how each value is written.
    pub fn fill_with(&self, mut write: impl FnMut(&Place) -> String) -> String {
        let text = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Place(place) => write(place),
        };
        self.0.iter().map(text).collect()
    }

    /// The value that it stands for: one that is a single place keeps its type.
    #[must_use]
    pub fn json(&self, values: &Values) -> Value {
        match self.0.as_slice() {
            [Piece::Place(place)] => values.json(place),
            _ => self.fill(values).into(),
        }
    }
}

fn place(inside: &str) -> Result<Place, String> {
    let known = "there are {{ parameters.NAME }}, {{ secrets.NAME }} and {{ run.id }}";
    let (of, name) = inside.split_once('.').unwrap_or((inside, ""));
    match of {
        _ if name.is_empty() => Err(format!("`{inside}` names nothing; {known}")),
        "parameters" => Ok(Place::Parameter(name.to_owned())),
        "secrets" => Ok(Place::Secret(name.to_owned())),
        "run" if OF_RUN.contains(&name) => Ok(Place::Run(name.to_owned())),
        "run" => Err(format!("`run.{name}` is not known; there are {}", OF_RUN.join(", "))),
        _ => Err(format!("`{inside}` names nothing; {known}")),
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
    fn places_are_filled_in() {
        let values = values();
        let template =
            Template::parse("{{ run.id }}: {{parameters.rows}} {{ secrets.key }}!").unwrap();
        assert_eq!(template.fill(&values), "01a1: 10 s3cret!");
        assert_eq!(template.places().count(), 3);
    }

    #[test]
    fn a_single_place_keeps_its_type() {
        let values = values();
        assert_eq!(Template::parse("{{ parameters.rows }}").unwrap().json(&values), json!(10));
        assert_eq!(Template::parse("{{ parameters.rows }} rows").unwrap().json(&values), "10 rows");
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for text in ["{{ x", "{{ x }}", "{{ run.name }}", "{{ parameters. }}", "{{ env.HOME }}"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
        assert_eq!(Template::parse("{ plain }").unwrap().fill(&values()), "{ plain }");
    }
}
