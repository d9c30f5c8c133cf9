//! Steps that run a command, supervised like that of any job.

use std::path::Path;

use serde_json::Value;
use tenure::worker::{Command as Supervised, Failure, Handler as _, REDACTED};
use tenure_config::report::Report;
use tenure_config::section::Section;
use tenure_config::{check_variable, read_command, read_path};
use tenure_core::retry::TIME_LIMIT;

use super::{STEP_TIME_LIMIT, StepContext};
use crate::declare::{DeclaredNames, SecretUse};
use crate::slots;
use crate::template::{SCHEDULED_AT, Template, Values};

/// A command and its environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    argv: Vec<Template>,
    /// Working directory.
    pub(crate) dir: Option<String>,
    env: Vec<(String, Template)>,
    /// Variables with the names of their secrets.
    secrets: Vec<(String, String)>,
}

impl Command {
    pub(super) async fn perform(&self, cx: &StepContext<'_>) -> Result<Option<Value>, Failure> {
        let values = cx.values;
        let mut command = Supervised::new(self.arguments(values))
            .pass_env(cx.pass_env)
            .env(self.environment(cx))
            // With the defaults filled in.
            .args(Value::from(values.parameters.clone()).to_string())
            .limit(cx.limit)
            .phase(cx.phase.clone())
            .traceparent(cx.parent);
        if let Some(dir) = &self.dir {
            command = command.dir(dir);
        }
        match command.run(cx.job).await {
            Ok(done) => {
                Ok(done.result.map(|json| redact(tenure_wire::parse_document(&json), values)))
            }
            // The time limit of the step, not of the run, was exceeded.
            Err(failure) if failure.code == TIME_LIMIT && cx.job.cancel_reason().is_none() => {
                Err(Failure::new(STEP_TIME_LIMIT, "the step exceeded its time limit"))
            }
            Err(failure) => Err(failure),
        }
    }

    fn environment(&self, cx: &StepContext<'_>) -> Vec<(String, String)> {
        let (job, values) = (cx.job, cx.values);
        let standard = [
            ("PIPELINE_ID", slots::pipeline(job.key().name()).to_owned()),
            ("PIPELINE_LOGGING_ID", job.id().to_string()),
            ("PIPELINE_STEP", cx.phase.name.clone()),
            ("TENANT_ID", job.key().tenant().to_owned()),
        ];
        let standard = standard.into_iter().map(|(name, value)| (name.to_owned(), value));
        standard.chain(self.variables(values)).collect()
    }

    /// Returns the program and its arguments.
    pub(crate) fn arguments(&self, values: &Values) -> Vec<String> {
        self.argv.iter().map(|arg| arg.fill(values)).collect()
    }

    /// Returns the declared variables, and the tick of a scheduled run.
    pub(crate) fn variables(&self, values: &Values) -> Vec<(String, String)> {
        let tick = values.run.get(SCHEDULED_AT);
        let tick = tick.map(|at| ("PIPELINE_SCHEDULED_AT".to_owned(), at.clone()));
        let plain = self.env.iter().map(|(name, text)| (name.clone(), text.fill(values)));
        let secret = self.secrets.iter().map(|(name, secret)| {
            (name.clone(), values.secrets.get(secret).cloned().unwrap_or_default())
        });
        tick.into_iter().chain(plain).chain(secret).collect()
    }

    pub(crate) fn secrets(&self) -> Vec<&str> {
        self.secrets.iter().map(|(_, secret)| secret.as_str()).collect()
    }
}

/// Replaces the secrets in a text.
pub(crate) fn redact_text(text: String, values: &Values) -> String {
    let secrets = values.secrets.values().filter(|secret| !secret.is_empty());
    secrets.fold(text, |text, secret| text.replace(secret.as_str(), REDACTED))
}

/// Replaces the secrets in the result of a command.
fn redact(value: Value, values: &Values) -> Value {
    match value {
        Value::String(text) => redact_text(text, values).into(),
        Value::Array(items) => items.into_iter().map(|item| redact(item, values)).collect(),
        Value::Object(fields) => {
            let redact_field = |(name, value)| (name, redact(value, values));
            Value::Object(fields.into_iter().map(redact_field).collect())
        }
        plain => plain,
    }
}

pub(crate) fn read(
    section: &Section<'_>,
    dir: &Path,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<Command> {
    let argv = read_command(section, "command", dir, report);
    let dir = read_path(section, "dir", dir, report);
    if dir.as_deref() == Some("") {
        let why = "it is empty: leave it out to run in the directory of the worker".to_owned();
        section.reject::<()>("dir", why, report);
    }
    let template = |arg: &String, report: &mut Report<'_>| {
        names.template((section, "command"), arg, SecretUse::Forbidden, report)
    };
    let argv: Vec<Template> = argv.iter().map(|arg| template(arg, report)).collect();
    let mut env = Vec::new();
    let mut secrets = Vec::new();
    if let Some(section) = section.section("env", report) {
        for (name, text) in section.pairs(report) {
            check_variable(&section, name, report);
            let text = names.template((&section, name), text, SecretUse::Forbidden, report);
            env.push((name.to_owned(), text));
        }
    }
    if let Some(section) = section.section("secrets", report) {
        for (name, secret) in section.pairs(report) {
            check_variable(&section, name, report);
            if let Err(why) = names.check_secret(secret) {
                section.reject::<()>(name, why, report);
            }
            secrets.push((name.to_owned(), secret.to_owned()));
        }
    }
    (!argv.is_empty()).then_some(Command { argv, dir, env, secrets })
}
