//! Label and field selectors: `a=b`, `a==b`, `a!=b`, `a`, `!a`, joined by commas.
//!
//! Must never accept a form that it does not understand: a selector that is ignored selects all.

use serde_json::Value;

use super::objects::text;
use super::refusal::Refusal;

/// One condition of a selector.
#[derive(Clone, Debug)]
enum Condition {
    Equals(String, String),
    Differs(String, String),
    Exists(String),
    Absent(String),
}

/// Conditions that an object has to meet.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    labels: Vec<Condition>,
    fields: Vec<Condition>,
}

impl Selector {
    pub(super) fn parse(labels: &str, fields: &str) -> Result<Self, Refusal> {
        let parse = |text: &str| {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts.map(parse_condition).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self { labels: parse(labels)?, fields: parse(fields)? })
    }

    pub(super) fn selects(&self, object: &Value) -> bool {
        let label = |name: &str| object["metadata"]["labels"][name].as_str();
        let field = |name: &str| Some(text(object, &format!("/{}", name.replace('.', "/"))));
        self.labels.iter().all(|condition| condition.is_met(label))
            && self.fields.iter().all(|condition| condition.is_met(field))
    }
}

impl Condition {
    fn is_met<'a>(&self, value_of: impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::Equals(name, value) => value_of(name) == Some(value),
            Self::Differs(name, value) => value_of(name) != Some(value),
            Self::Exists(name) => value_of(name).is_some(),
            Self::Absent(name) => value_of(name).is_none(),
        }
    }
}

fn parse_condition(part: &str) -> Result<Condition, Refusal> {
    if part.contains(['(', ')', ' ']) {
        return Err(Refusal::bad_request("set-based selectors are not imitated"));
    }
    let pair = |separator| {
        let (name, value) = part.split_once(separator)?;
        Some((name.to_owned(), value.to_owned()))
    };
    Ok(if let Some((name, value)) = pair("!=") {
        Condition::Differs(name, value)
    } else if let Some((name, value)) = pair("==").or_else(|| pair("=")) {
        Condition::Equals(name, value)
    } else if let Some(name) = part.strip_prefix('!') {
        Condition::Absent(name.to_owned())
    } else {
        Condition::Exists(part.to_owned())
    })
}
