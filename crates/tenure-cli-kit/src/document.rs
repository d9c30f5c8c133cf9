//! JSON that people give on the command line: as it is, in a file, or on stdin.
//!
//! What is wrong with it is said before the server is asked, with the place.

use std::fs::File;
use std::io::Read;

use anyhow::Context as _;
use serde_json::{Map, Value};
use tenure::Error;
use tenure_core::Refusal;

/// Longest document that is read; the server takes less, and says how much.
const DOCUMENT_BYTES_MAX: u64 = 512 * 1024;

/// A mistake of whoever typed the command.
pub fn usage(why: String) -> anyhow::Error {
    Error::Refused(Refusal::Invalid(why)).into()
}

/// Reads `JSON`, `@FILE` or `-` for stdin; `what` is the option it was given to.
pub fn read(what: &str, given: &str) -> anyhow::Result<Value> {
    match given.strip_prefix('@') {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot open {path}"));
            parse(what, &text(what, file.map_err(|error| usage(format!("{error:#}")))?)?)
        }
        None if given == "-" => parse(what, &text(what, std::io::stdin().lock())?),
        None => parse(what, given),
    }
}

fn text(what: &str, source: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = source.take(DOCUMENT_BYTES_MAX + 1).read_to_string(&mut text);
    let read = read.map_err(|error| usage(format!("{what} cannot be read: {error}")))?;
    if read as u64 > DOCUMENT_BYTES_MAX {
        let max = DOCUMENT_BYTES_MAX / 1024;
        return Err(usage(format!("{what} has more than {max} KiB; give less, or a reference")));
    }
    Ok(text)
}

fn parse(what: &str, text: &str) -> anyhow::Result<Value> {
    serde_json::from_str(text).map_err(|error| usage(format!("{what} is not JSON: {error}")))
}

/// One `--arg` or `--param`: a text as `NAME=TEXT`, anything else as `NAME:=JSON`.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg {
    name: String,
    value: Value,
}

impl std::str::FromStr for Arg {
    type Err = String;
    fn from_str(given: &str) -> Result<Self, String> {
        let shape = || format!("{given:?} is not of the form NAME=TEXT or NAME:=JSON");
        let (name, text) = given.split_once('=').ok_or_else(shape)?;
        let (name, value) = match name.strip_suffix(':') {
            Some(name) => {
                let value = serde_json::from_str(text);
                (name, value.map_err(|error| format!("{name} is not JSON: {error}"))?)
            }
            None => (name, Value::from(text)),
        };
        if name.is_empty() { Err(shape()) } else { Ok(Self { name: name.to_owned(), value }) }
    }
}

/// All arguments of a job: the document, with single ones put into it.
pub fn arguments(document: Option<&str>, each: &[Arg]) -> anyhow::Result<Option<Value>> {
    let whole = document.map(|given| read("--args", given)).transpose()?;
    if each.is_empty() {
        return Ok(whole);
    }
    let Value::Object(mut fields) = whole.unwrap_or_else(|| Map::new().into()) else {
        let why = "--arg goes with --args only when that is an object like {\"size\": 3}";
        return Err(usage(why.to_owned()));
    };
    put("--arg", each, &mut fields)?;
    Ok(Some(fields.into()))
}

/// The parameters of a run, each said by an `option` of its own.
pub fn parameters(option: &str, each: &[Arg]) -> anyhow::Result<Map<String, Value>> {
    let mut fields = Map::new();
    put(option, each, &mut fields)?;
    Ok(fields)
}

fn put(option: &str, each: &[Arg], fields: &mut Map<String, Value>) -> anyhow::Result<()> {
    for (at, Arg { name, value }) in each.iter().enumerate() {
        if each[..at].iter().any(|earlier| earlier.name == *name) {
            return Err(usage(format!("{option} {name} is given twice; which one is meant?")));
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
        arguments(document, &each?).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn texts_stay_texts_and_json_is_asked_for() {
        assert_eq!(args(None, &[]), Ok(None));
        let given = ["version=1.10", "size:=3", "note=a=b", "empty="];
        let expected = json!({"version": "1.10", "size": 3, "note": "a=b", "empty": ""});
        assert_eq!(args(None, &given), Ok(Some(expected)));
    }

    #[test]
    fn single_arguments_go_into_the_document() {
        let given = args(Some(r#"{"size": 1, "zone": "b"}"#), &["size:=2"]);
        assert_eq!(given, Ok(Some(json!({"size": 2, "zone": "b"}))));
        assert_eq!(args(Some("[1, 2]"), &[]), Ok(Some(json!([1, 2]))));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (document, each, part) in [
            (
                Some(r#"{"size": }"#),
                &[][..],
                "--args is not JSON: expected value at line 1 column 10",
            ),
            (Some("[1]"), &["a=b"], "only when that is an object"),
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
    fn a_document_is_read_up_to_its_bound() {
        let max = usize::try_from(DOCUMENT_BYTES_MAX).unwrap();
        assert_eq!(text("x", &*vec![b' '; max]).unwrap().len(), max);
        let why = text("x", &*vec![b' '; max + 1]).unwrap_err();
        assert!(why.to_string().contains("more than 512 KiB"), "{why}");
    }
}
