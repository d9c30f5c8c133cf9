//! JSON arguments of the command line: inline, from a file, or from stdin.
//!
//! Syntax errors are reported, with line and column, before a request is sent.

use std::fs::File;
use std::io::Read;

use anyhow::Context as _;
use serde_json::{Map, Value};
use tenure::Error;
use tenure_core::Refusal;

/// Maximum size of a document. The server's limit is lower and has its own error message.
const DOCUMENT_BYTES_MAX: u64 = 512 * 1024;

/// Returns an error for invalid input of the user, with exit code 2.
pub fn usage_error(why: String) -> anyhow::Error {
    Error::Refused(Refusal::Invalid(why)).into()
}

/// Parses an option value: `JSON`, `@FILE`, or `-` for stdin. `option` names it in errors.
pub fn read_json(option: &str, value: &str) -> anyhow::Result<Value> {
    match value.strip_prefix('@') {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot open {path}"));
            let file = file.map_err(|error| usage_error(format!("{error:#}")))?;
            parse(option, &read_text(option, file)?)
        }
        None if value == "-" => parse(option, &read_text(option, std::io::stdin().lock())?),
        None => parse(option, value),
    }
}

fn read_text(option: &str, source: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = source.take(DOCUMENT_BYTES_MAX + 1).read_to_string(&mut text);
    let read = read.map_err(|error| usage_error(format!("cannot read {option}: {error}")))?;
    if read as u64 > DOCUMENT_BYTES_MAX {
        let max = DOCUMENT_BYTES_MAX / 1024;
        return Err(usage_error(format!("{option} exceeds {max} KiB; pass a reference instead")));
    }
    Ok(text)
}

fn parse(option: &str, text: &str) -> anyhow::Result<Value> {
    serde_json::from_str(text)
        .map_err(|error| usage_error(format!("{option} is not JSON: {error}")))
}

/// One `--arg` or `--param`: a string as `NAME=TEXT`, any other value as `NAME:=JSON`.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg {
    name: String,
    value: Value,
    /// Whether it was given as `NAME=TEXT`.
    is_text: bool,
}

impl Arg {
    /// Returns name and text if it was given as `NAME=TEXT`.
    #[must_use]
    pub fn as_text(&self) -> Option<(&str, &str)> {
        self.value.as_str().filter(|_| self.is_text).map(|text| (&*self.name, text))
    }

    /// Replaces the value.
    #[must_use]
    pub fn with_value(&self, value: Value) -> Self {
        Self { name: self.name.clone(), value, is_text: false }
    }
}

impl std::str::FromStr for Arg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("{text:?} is not of the form NAME=TEXT or NAME:=JSON");
        let (name, value) = text.split_once('=').ok_or_else(malformed)?;
        let (name, value, is_text) = match name.strip_suffix(':') {
            Some(name) => {
                let value = serde_json::from_str(value);
                (name, value.map_err(|error| format!("{name} is not JSON: {error}"))?, false)
            }
            None => (name, Value::from(value), true),
        };
        if name.is_empty() {
            return Err(malformed());
        }
        Ok(Self { name: name.to_owned(), value, is_text })
    }
}

/// Returns the arguments of a job: the `--args` document, with each `--arg` merged into it.
pub fn merge_args(document: Option<&str>, each: &[Arg]) -> anyhow::Result<Option<Value>> {
    let document = document.map(|value| read_json("--args", value)).transpose()?;
    if each.is_empty() {
        return Ok(document);
    }
    let Value::Object(mut fields) = document.unwrap_or_else(|| Map::new().into()) else {
        let why = "--arg requires --args to be an object like {\"size\": 3}";
        return Err(usage_error(why.to_owned()));
    };
    insert_all("--arg", each, &mut fields)?;
    Ok(Some(fields.into()))
}

/// Returns the parameters of a run, each given by an `option` of its own.
pub fn parameter_map(option: &str, each: &[Arg]) -> anyhow::Result<Map<String, Value>> {
    let mut fields = Map::new();
    insert_all(option, each, &mut fields)?;
    Ok(fields)
}

fn insert_all(option: &str, each: &[Arg], fields: &mut Map<String, Value>) -> anyhow::Result<()> {
    for (at, Arg { name, value, .. }) in each.iter().enumerate() {
        if each[..at].iter().any(|earlier| earlier.name == *name) {
            return Err(usage_error(format!("{option} {name} is given twice; give it once")));
        }
        fields.insert(name.clone(), value.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn args(document: Option<&str>, each: &[&str]) -> Result<Option<Value>, String> {
        let each: Result<Vec<Arg>, _> = each.iter().map(|arg| arg.parse()).collect();
        merge_args(document, &each?).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn values_are_strings_unless_given_as_json() {
        assert_eq!(args(None, &[]), Ok(None));
        let given = ["version=1.10", "size:=3", "note=a=b", "empty="];
        let expected = json!({"version": "1.10", "size": 3, "note": "a=b", "empty": ""});
        assert_eq!(args(None, &given), Ok(Some(expected)));
    }

    #[test]
    fn single_arguments_are_merged_into_the_document() {
        let given = args(Some(r#"{"size": 1, "zone": "b"}"#), &["size:=2"]);
        assert_eq!(given, Ok(Some(json!({"size": 2, "zone": "b"}))));
        assert_eq!(args(Some("[1, 2]"), &[]), Ok(Some(json!([1, 2]))));
    }

    #[test]
    fn errors_name_the_option_and_the_position() {
        for (document, each, part) in [
            (
                Some(r#"{"size": }"#),
                &[][..],
                "--args is not JSON: expected value at line 1 column 10",
            ),
            (Some("[1]"), &["a=b"], "requires --args to be an object"),
            (Some("@/no/such/file"), &[], "cannot open /no/such/file"),
            (None, &["size"], "not of the form NAME=TEXT or NAME:=JSON"),
            (None, &["=3"], "not of the form"),
            (None, &["size:=3x"], "size is not JSON: trailing characters at line 1 column 2"),
            (None, &["a=1", "a=2"], "--arg a is given twice"),
        ] {
            let why = args(document, each).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn documents_above_the_size_limit_are_rejected() {
        let max = usize::try_from(DOCUMENT_BYTES_MAX).unwrap();
        assert_eq!(read_text("x", &*vec![b' '; max]).unwrap().len(), max);
        let why = read_text("x", &*vec![b' '; max + 1]).unwrap_err();
        assert!(why.to_string().contains("exceeds 512 KiB"), "{why}");
    }
}
