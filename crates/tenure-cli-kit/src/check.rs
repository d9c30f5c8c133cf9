//! Printing the result of checking configuration files.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use tenure_config::{BadConfig, Error};

use crate::text::print_line;
use crate::{Done, Output, color, exit, print_json};

/// Prints the result of checking `file`: a summary and counts if it is valid, otherwise every
/// problem. Returns exit code 0, or 1 for problems, or 2 if the file cannot be read.
pub fn print_check<T>(
    file: &Path,
    checked: Result<T, Error>,
    summary: impl FnOnce(&T) -> String,
    counts: impl FnOnce(Option<&T>) -> Map<String, Value>,
    output: Output,
) -> Done {
    let checked = match checked {
        Ok(checked) => Ok(checked),
        Err(Error::Bad(bad)) => Err(bad),
        Err(error) => {
            anstream::eprintln!("tenure: {error}; name an existing file");
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    match output {
        Output::Json => {
            let problems = checked.as_ref().err().map_or(&[][..], |BadConfig(problems)| problems);
            let mut report = Map::from_iter([
                ("ok".to_owned(), json!(checked.is_ok())),
                ("file".to_owned(), json!(file)),
            ]);
            report.extend(counts(checked.as_ref().ok()));
            report.insert("problems".to_owned(), json!(problems));
            print_json(&report)?;
        }
        Output::Table => match &checked {
            Ok(checked) => print_line(&format!("{}: {}", color::state("ok"), summary(checked)))?,
            Err(bad) => print_line(&bad.to_string())?,
        },
    }
    Ok(if checked.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
}
