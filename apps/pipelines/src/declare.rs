//! One pipeline, as its file declares it. Every problem of a file is named at once, with its line.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};
use tenure_config::report::Report;
use tenure_config::section::{Section, unknown};
use tenure_config::{BadConfig, read_retry};
use tenure_core::ResourceKey;
use tenure_core::retry::{Retry, TIME_LIMIT};

use super::parameters::{self, Parameter};
use super::schedule::{self, Schedule};
use super::settings::{PipelineSettings, run_limit};
use super::steps::{self, Action};
use super::template::{Place, Template};
use super::{secrets, slots};

/// Most steps of a pipeline.
pub const STEPS_MAX: usize = 64;
/// Most runs of one pipeline at once.
pub const MAX_RUNS_MAX: u64 = 16;
/// Longest name of a step.
const STEP_NAME_BYTES_MAX: usize = 64;

/// A pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// Whose it is.
    pub tenant: String,
    /// Its name, unique for the tenant.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// How long a run may take.
    pub limit_ms: u64,
    /// When a run is begun again.
    pub retry: Retry,
    /// Most runs at once.
    pub max_runs: u32,
    /// When it runs by itself.
    pub schedule: Option<Schedule>,
    /// What it takes.
    pub parameters: Vec<Parameter>,
    /// What it does, in this order.
    pub steps: Vec<Step>,
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// How long one try may take.
    pub limit: Option<Duration>,
    /// When it is tried again.
    pub retry: Retry,
}

impl Pipeline {
    /// Reads a file. Relative paths of commands are below its directory.
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
        let keys = ["description", "limit", "retry", "max_runs", "schedule", "parameters", "steps"];
        root.known(&keys, &mut report);
        let parameters = parameters::read(&root, &mut report);
        let declared = Declared { parameters: &parameters, secrets: settings.secrets.is_some() };
        let dir = path.parent().unwrap_or(Path::new("."));
        let steps = steps(&root, dir, &declared, &mut report);
        let max_runs = root.count("max_runs", 1..=MAX_RUNS_MAX, &mut report).unwrap_or(1);
        let pipeline = Self {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            description: root.text("description", &mut report).map(str::to_owned),
            limit_ms: run_limit(&root, &mut report).unwrap_or(settings.limit_ms),
            retry: final_in_time(retry(&root, &mut report)),
            max_runs: u32::try_from(max_runs).unwrap_or(1),
            schedule: schedule::read(&root, &mut report),
            steps,
            parameters,
        };
        pipeline.check_schedule(&mut report);
        if report.is_empty() { Ok(pipeline) } else { Err(report.into_bad()) }
    }

    /// The resources behind it, one for each run that may go on at the same time.
    pub fn keys(&self) -> impl Iterator<Item = ResourceKey> {
        (1..=self.max_runs).filter_map(|place| slots::key(&self.tenant, &self.name, place))
    }

    /// The parameters of a trigger with defaults filled in, or everything that is wrong with them.
    pub fn fill(&self, given: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        parameters::fill(&self.parameters, given)
    }

    /// The secrets that its steps name.
    #[must_use]
    pub fn secrets(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.steps.iter().flat_map(|step| step.action.secrets()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Nobody is there to say a parameter when it runs by itself.
    fn check_schedule(&self, report: &mut Report<'_>) {
        let needs = |parameter: &&Parameter| parameter.default.is_none();
        if let (Some(_), Some(parameter)) = (&self.schedule, self.parameters.iter().find(needs)) {
            let name = &parameter.name;
            let why = format!("nobody says {name} when it runs by itself: give it a default");
            report.add("schedule", why);
        }
    }
}

/// A run that took as long as it may is over, whatever the rule says of other failures.
fn final_in_time(mut retry: Retry) -> Retry {
    if !retry.transient.iter().chain(&retry.permanent).any(|code| **code == *TIME_LIMIT) {
        retry.permanent.push(TIME_LIMIT.into());
    }
    retry
}

/// A retry rule that makes sense.
fn retry(section: &Section<'_>, report: &mut Report<'_>) -> Retry {
    let retry = read_retry(section, report);
    for problem in retry.problems() {
        report.add(&section.at("retry"), format!("retry{problem}"));
    }
    retry
}

/// What the texts of a file may name.
pub(super) struct Declared<'a> {
    parameters: &'a [Parameter],
    /// Whether there is a place for secrets.
    secrets: bool,
}

/// What a text may name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Allowed {
    /// Parameters and the run.
    Plain,
    /// Secrets, too: nobody else sees the text.
    Secrets,
}

impl Declared<'_> {
    /// Reads a text with places, all of which name something.
    pub(super) fn template(
        &self,
        (section, key): (&Section<'_>, &str),
        text: &str,
        allowed: Allowed,
        report: &mut Report<'_>,
    ) -> Template {
        let checked = Template::parse(text).and_then(|template| {
            template.places().try_for_each(|place| self.check(place, allowed))?;
            Ok(template)
        });
        match checked {
            Ok(template) => template,
            Err(why) => section.refuse(key, why, report).unwrap_or_default(),
        }
    }

    /// Whether a place names something that may stand there.
    pub(super) fn check(&self, place: &Place, allowed: Allowed) -> Result<(), String> {
        match place {
            Place::Parameter(name) => {
                let names = self.parameters.iter().map(|parameter| parameter.name.as_str());
                if names.clone().any(|known| known == name) {
                    Ok(())
                } else if self.parameters.is_empty() {
                    Err(format!("the parameter `{name}` is not declared in [parameters]"))
                } else {
                    Err(unknown("parameter", name, names))
                }
            }
            Place::Secret(_) if allowed == Allowed::Plain => {
                let why = "a secret must not stand here, where others can see it; give it to a \
                           command by `secrets = { VARIABLE = \"name\" }`";
                Err(why.to_owned())
            }
            Place::Secret(name) => self.check_secret(name),
            Place::Run(_) => Ok(()),
        }
    }

    /// Whether a secret can be had.
    pub(super) fn check_secret(&self, name: &str) -> Result<(), String> {
        if !self.secrets {
            let why = "`secrets` in [pipelines] of tenure.toml names the directory of secrets; it \
                       is missing";
            return Err(why.to_owned());
        }
        if !secrets::is_name(name) {
            return Err(format!("{name:?} is no name of a secret: letters, digits, `_`, `-`, `.`"));
        }
        Ok(())
    }

    /// Whether a parameter is declared.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parameters.iter().any(|parameter| parameter.name == name)
    }
}

fn steps(
    root: &Section<'_>,
    dir: &Path,
    declared: &Declared<'_>,
    report: &mut Report<'_>,
) -> Vec<Step> {
    let sections = root.list("steps", report);
    if sections.is_empty() && !root.has("steps") {
        report.add("", "a pipeline has at least one of [[steps]]");
    }
    if sections.len() > STEPS_MAX {
        report.add("steps", format!("{} steps; at most {STEPS_MAX} are allowed", sections.len()));
    }
    let mut steps: Vec<Step> = Vec::new();
    for section in &sections {
        let Some(step) = step(section, dir, declared, report) else { continue };
        if steps.iter().any(|other| other.name == step.name) {
            let why = format!("there is another step {}", step.name);
            section.refuse::<()>("name", why, report);
        }
        steps.push(step);
    }
    steps
}

fn step(
    section: &Section<'_>,
    dir: &Path,
    declared: &Declared<'_>,
    report: &mut Report<'_>,
) -> Option<Step> {
    section.known(&[&["name", "limit", "retry"], &steps::KEYS[..]].concat(), report);
    let name = section.text("name", report);
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_name =
        |name: &str| (1..=STEP_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(letter);
    match name {
        Some(name) if !is_name(name) => {
            let why = "a name has letters, digits, `_`, `-` and `.`".to_owned();
            section.refuse::<()>("name", why, report);
        }
        None if !section.has("name") => report.add(&section.place, "`name` is missing"),
        _ => {}
    }
    let action = steps::read(section, dir, declared, report);
    let limit = section.duration_ms("limit", report).map(Duration::from_millis);
    if limit.is_some_and(|limit| limit.is_zero()) {
        section.refuse::<()>("limit", "a limit of 0 lets nothing run".to_owned(), report);
    }
    let retry = retry(section, report);
    Some(Step { name: name?.to_owned(), action: action?, limit, retry })
}
