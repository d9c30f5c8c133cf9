//! A step that runs a command, supervised like any command of Tenure.

use std::path::Path;

use serde_json::Value;
use tenure::worker::{Command as Supervised, Failure, Handler as _, REDACTED};
use tenure_config::read_command;
use tenure_config::report::Report;
use tenure_config::section::Section;
use tenure_core::retry::TIME_LIMIT;

use super::{STEP_TIME_LIMIT, Try};
use crate::declare::{Allowed, Declared};
use crate::slots;
use crate::template::{Template, Values};

/// A command and what it finds in its environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    words: Vec<Template>,
    env: Vec<(String, Template)>,
    /// Variables and the secrets that are in them.
    secrets: Vec<(String, String)>,
}

impl Command {
    pub(super) async fn perform(&self, with: &Try<'_>) -> Result<Option<Value>, Failure> {
        let values = with.values;
        let command = Supervised::new(self.words.iter().map(|word| word.fill(values)))
            .env(self.environment(with))
            // With the defaults filled in.
            .args(Value::from(values.parameters.clone()).to_string())
            .limit(with.limit)
            .phase(with.part.clone())
            .traceparent(with.parent);
        match command.run(with.job).await {
            Ok(done) => Ok(done.result.map(|json| cleaned(tenure_wire::value(&json), values))),
            // The limit was that of the step and not that of the run.
            Err(failure) if failure.code == TIME_LIMIT && with.job.cancel_reason().is_none() => {
                Err(Failure::new(STEP_TIME_LIMIT, "the step took longer than it may"))
            }
            Err(failure) => Err(failure),
        }
    }

    fn environment(&self, with: &Try<'_>) -> Vec<(String, String)> {
        let (job, values) = (with.job, with.values);
        let own = [
            ("PIPELINE_ID", slots::pipeline(job.key().name()).to_owned()),
            ("PIPELINE_LOGGING_ID", job.id().to_string()),
            ("PIPELINE_STEP", with.part.name.clone()),
            ("TENANT_ID", job.key().tenant().to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        let plain = self.env.iter().map(|(name, text)| (name.clone(), text.fill(values)));
        let secret = self.secrets.iter().map(|(name, secret)| {
            (name.clone(), values.secrets.get(secret).cloned().unwrap_or_default())
        });
        own.chain(plain).chain(secret).collect()
    }

    pub(super) fn secrets(&self) -> Vec<&str> {
        self.secrets.iter().map(|(_, secret)| secret.as_str()).collect()
    }
}

/// What a command gave, without the secrets that it was given.
fn cleaned(value: Value, values: &Values) -> Value {
    match value {
        Value::String(text) => {
            let secrets = values.secrets.values().filter(|secret| !secret.is_empty());
            secrets.fold(text, |text, secret| text.replace(secret.as_str(), REDACTED)).into()
        }
        Value::Array(items) => items.into_iter().map(|item| cleaned(item, values)).collect(),
        Value::Object(fields) => {
            let clean = |(name, value)| (name, cleaned(value, values));
            Value::Object(fields.into_iter().map(clean).collect())
        }
        plain => plain,
    }
}

pub(super) fn read(
    section: &Section<'_>,
    dir: &Path,
    declared: &Declared<'_>,
    report: &mut Report<'_>,
) -> Option<Command> {
    let words = read_command(section, "command", dir, report);
    let word = |word: &String, report: &mut Report<'_>| {
        declared.template((section, "command"), word, Allowed::Plain, report)
    };
    let words: Vec<Template> = words.iter().map(|text| word(text, report)).collect();
    let mut env = Vec::new();
    let mut secrets = Vec::new();
    if let Some(section) = section.section("env", report) {
        for (name, text) in section.pairs(report) {
            check_variable(&section, name, report);
            let text = declared.template((&section, name), text, Allowed::Plain, report);
            env.push((name.to_owned(), text));
        }
    }
    if let Some(section) = section.section("secrets", report) {
        for (name, secret) in section.pairs(report) {
            check_variable(&section, name, report);
            if let Err(why) = declared.check_secret(secret) {
                section.refuse::<()>(name, why, report);
            }
            secrets.push((name.to_owned(), secret.to_owned()));
        }
    }
    (!words.is_empty()).then_some(Command { words, env, secrets })
}

fn check_variable(section: &Section<'_>, name: &str, report: &mut Report<'_>) {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(letter) {
        return;
    }
    let why = "a variable has letters, digits and `_`".to_owned();
    section.refuse::<()>(name, why, report);
}
