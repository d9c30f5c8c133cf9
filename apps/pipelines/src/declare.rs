//! Declaration of one pipeline. All problems of a file are reported at once, with their lines.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};
use tenure_config::report::Report;
use tenure_config::section::{Section, unknown_name};
use tenure_config::{BadConfig, read_retry};
use tenure_core::ResourceKey;
use tenure_core::retry::{Retry, TIME_LIMIT};

use super::parameters::{self, Parameter};
use super::precheck::Precheck;
use super::schedule::{self, Schedule};
use super::settings::{PipelineSettings, run_limit};
use super::steps::{self, Action};
use super::template::{self, Placeholder, Template};
use super::{precheck, secrets, slots};

/// Maximum number of steps of a pipeline.
pub const STEPS_MAX: usize = 64;
/// Maximum number of concurrent runs of one pipeline.
pub const MAX_RUNS_MAX: u64 = 16;
/// Keys of a file.
const KEYS: [&str; 8] =
    ["description", "limit", "retry", "max_runs", "schedule", "parameters", "precheck", "steps"];
/// Maximum length of the name of a step.
const STEP_NAME_BYTES_MAX: usize = 64;

/// A declared pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// Tenant.
    pub tenant: String,
    /// Name, unique within the tenant.
    pub name: String,
    /// Description for people.
    pub description: Option<String>,
    /// Time limit of a run.
    pub limit_ms: u64,
    /// Retry rule of a run.
    pub retry: Retry,
    /// Maximum number of concurrent runs.
    pub max_runs: u32,
    /// Schedule, if it has one.
    pub schedule: Option<Schedule>,
    /// Declared parameters.
    pub parameters: Vec<Parameter>,
    /// Check before a run is started, if there is one.
    pub precheck: Option<Precheck>,
    /// Steps, in order of execution.
    pub steps: Vec<Step>,
}

/// A step of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name, unique within the pipeline.
    pub name: String,
    /// Action of the step.
    pub action: Action,
    /// Time limit of one try.
    pub limit: Option<Duration>,
    /// Retry rule of the step.
    pub retry: Retry,
}

impl Pipeline {
    /// Parses a file. Paths of commands are relative to its directory.
    pub fn parse(
        text: &str,
        path: &Path,
        tenant: &str,
        name: &str,
        settings: &PipelineSettings,
    ) -> Result<Self, BadConfig> {
        let mut report = Report::new(text);
        let table = report.table()?;
        let root = Section::root(table.get_ref());
        root.check_keys(&KEYS, &mut report);
        let parameters = parameters::read(&root, &mut report);
        let names = DeclaredNames {
            parameters: &parameters,
            secrets: settings.secrets.is_some(),
            run: &template::RUN_FIELDS,
        };
        let dir = path.parent().unwrap_or(Path::new("."));
        let before_run = DeclaredNames { run: &precheck::RUN_FIELDS, ..names };
        let precheck = precheck::read(&root, dir, &before_run, &mut report);
        let steps = steps(&root, dir, &names, &mut report);
        let max_runs = root.count("max_runs", 1..=MAX_RUNS_MAX, &mut report).unwrap_or(1);
        let pipeline = Self {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            description: root.text("description", &mut report).map(str::to_owned),
            limit_ms: run_limit(&root, &mut report).unwrap_or(settings.limit_ms),
            retry: without_retry_on_timeout(retry(&root, &mut report)),
            max_runs: u32::try_from(max_runs).unwrap_or(1),
            schedule: schedule::read(&root, &mut report),
            precheck,
            steps,
            parameters,
        };
        pipeline.check_schedule(&mut report);
        if report.is_empty() { Ok(pipeline) } else { Err(report.into_error()) }
    }

    /// Returns its slots: one resource for each concurrent run.
    pub fn keys(&self) -> impl Iterator<Item = ResourceKey> {
        (1..=self.max_runs).filter_map(|slot| slots::key(&self.tenant, &self.name, slot))
    }

    /// Returns the parameters of a trigger with defaults filled in, or a message with all problems.
    pub fn fill(&self, given: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        parameters::fill(&self.parameters, given)
    }

    /// Returns the names of the secrets that its steps use.
    #[must_use]
    pub fn secrets(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.steps.iter().flat_map(|step| step.action.secrets()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Reports parameters without a default, which a schedule cannot provide.
    fn check_schedule(&self, report: &mut Report<'_>) {
        let is_required = |parameter: &&Parameter| parameter.default.is_none();
        if let (Some(_), Some(parameter)) =
            (&self.schedule, self.parameters.iter().find(is_required))
        {
            let name = &parameter.name;
            let why =
                format!("a scheduled run has no value for the parameter {name}: give it a default");
            report.add("schedule", why);
        }
    }
}

/// Makes exceeding the time limit a permanent failure unless the rule mentions it.
fn without_retry_on_timeout(mut retry: Retry) -> Retry {
    if !retry.transient.iter().chain(&retry.permanent).any(|code| **code == *TIME_LIMIT) {
        retry.permanent.push(TIME_LIMIT.into());
    }
    retry
}

/// Reads a retry rule and reports its problems.
fn retry(section: &Section<'_>, report: &mut Report<'_>) -> Retry {
    let retry = read_retry(section, report);
    for problem in retry.problems() {
        report.add(&section.place_of("retry"), format!("retry{problem}"));
    }
    retry
}

/// Names that the templates of a file may use.
pub(super) struct DeclaredNames<'a> {
    parameters: &'a [Parameter],
    /// Whether a directory of secrets is configured.
    secrets: bool,
    /// Fields of the run.
    run: &'a [&'a str],
}

/// Whether a template may use secrets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SecretUse {
    /// Only parameters and fields of the run.
    Forbidden,
    /// Also secrets: the text is not visible to others.
    Allowed,
}

impl DeclaredNames<'_> {
    /// Parses a template and reports placeholders that it may not use.
    pub(super) fn template(
        &self,
        (section, key): (&Section<'_>, &str),
        text: &str,
        secrets: SecretUse,
        report: &mut Report<'_>,
    ) -> Template {
        let checked = Template::parse(text).and_then(|template| {
            template.placeholders().try_for_each(|placeholder| self.check(placeholder, secrets))?;
            Ok(template)
        });
        match checked {
            Ok(template) => template,
            Err(why) => section.reject(key, why, report).unwrap_or_default(),
        }
    }

    /// Checks that a template may use a placeholder.
    pub(super) fn check(
        &self,
        placeholder: &Placeholder,
        secrets: SecretUse,
    ) -> Result<(), String> {
        match placeholder {
            Placeholder::Parameter(name) => {
                let names = self.parameters.iter().map(|parameter| parameter.name.as_str());
                if names.clone().any(|known| known == name) {
                    Ok(())
                } else if self.parameters.is_empty() {
                    Err(format!("the parameter `{name}` is not declared in [parameters]"))
                } else {
                    Err(unknown_name("parameter", name, names))
                }
            }
            Placeholder::Secret(_) if secrets == SecretUse::Forbidden => {
                let why = "a secret is not allowed here, where others can see it; pass it to a \
                           command with `secrets = { VARIABLE = \"name\" }`";
                Err(why.to_owned())
            }
            Placeholder::Secret(name) => self.check_secret(name),
            Placeholder::Run(name) if !self.run.contains(&name.as_str()) => {
                let fields = self.run.join(", ");
                Err(format!("`run.{name}` does not exist before the run; available are {fields}"))
            }
            Placeholder::Run(_) => Ok(()),
        }
    }

    /// Checks that a secret can be read.
    pub(super) fn check_secret(&self, name: &str) -> Result<(), String> {
        if !self.secrets {
            let why = "no directory of secrets is configured; set `secrets` in [pipelines] of \
                       tenure.toml";
            return Err(why.to_owned());
        }
        if !secrets::is_name(name) {
            return Err(format!(
                "{name:?} is not a name of a secret: letters, digits, `_`, `-`, `.`"
            ));
        }
        Ok(())
    }

    /// Returns whether a parameter is declared.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parameters.iter().any(|parameter| parameter.name == name)
    }
}

fn steps(
    root: &Section<'_>,
    dir: &Path,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Vec<Step> {
    let sections = root.list("steps", report);
    if sections.is_empty() && !root.has("steps") {
        report.add("", "a pipeline needs at least one of [[steps]]");
    }
    if sections.len() > STEPS_MAX {
        report.add("steps", format!("{} steps; at most {STEPS_MAX} are allowed", sections.len()));
    }
    let mut steps: Vec<Step> = Vec::new();
    for section in &sections {
        let Some(step) = step(section, dir, names, report) else { continue };
        if steps.iter().any(|other| other.name == step.name) {
            let why = format!("there is already a step {}", step.name);
            section.reject::<()>("name", why, report);
        }
        steps.push(step);
    }
    steps
}

fn step(
    section: &Section<'_>,
    dir: &Path,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<Step> {
    section.check_keys(&[&["name", "limit", "retry"], &steps::KEYS[..]].concat(), report);
    let name = section.text("name", report);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_name = |name: &str| {
        (1..=STEP_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_allowed)
    };
    match name {
        Some(name) if !is_name(name) => {
            let why = "a name consists of letters, digits, `_`, `-` and `.`".to_owned();
            section.reject::<()>("name", why, report);
        }
        None if !section.has("name") => report.add(&section.place, "`name` is missing"),
        _ => {}
    }
    let action = steps::read(section, dir, names, report);
    let limit = section.duration_ms("limit", report).map(Duration::from_millis);
    if limit.is_some_and(|limit| limit.is_zero()) {
        section.reject::<()>("limit", "it must be above 0".to_owned(), report);
    }
    let retry = retry(section, report);
    Some(Step { name: name?.to_owned(), action: action?, limit, retry })
}
