//! Prechecks: whether a run of a pipeline is already active in an external system.
//!
//! A precheck runs before a run is started, if Tenure knows none: a run that was started by hand,
//! or by the system that Tenure replaces, is then not started a second time. No lock and no
//! transaction of the store is held meanwhile, so that a run which starts elsewhere between the
//! check and the first step is not noticed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tenure::clock::BootInstant;
use tenure::exec::{CommandEnd, Deadlines, EndReason, ExitKind, Spec, Supervisor};
use tenure::worker::{Failure, inherited_variables};
use tenure_config::report::Report;
use tenure_config::section::Section;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

use crate::declare::DeclaredNames;
use crate::steps::{self, Command, HttpCheck, Query, redact_text};
use crate::template::{SCHEDULED_AT, Values};
use crate::{Catalog, Pipeline, secrets};

/// Default time limit.
const LIMIT_DEFAULT: Duration = Duration::from_secs(5);
/// Maximum time limit: a trigger waits for the check.
const LIMIT_MAX: Duration = Duration::from_secs(30);
/// Time from TERM to KILL of a command that exceeded its time limit.
const GRACE: Duration = Duration::from_millis(500);
/// Time to read the remaining output of a command that has ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of the output of a command that is kept.
const OUTPUT_BYTES_MAX: usize = 4 * 1024;
/// Maximum size of an external id.
const ID_BYTES_MAX: usize = 256;

/// Fields of the run that exist before the run.
pub(crate) const RUN_FIELDS: [&str; 3] = ["tenant", "pipeline", SCHEDULED_AT];

/// Declaration of a precheck.
#[derive(Clone, Debug, PartialEq)]
pub struct Precheck {
    action: Action,
    limit: Duration,
    on_error: OnError,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Command(Command),
    Http(Box<HttpCheck>),
    Sql(Query),
}

/// What happens if a check fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnError {
    /// The trigger is refused.
    Refuse,
    /// The run starts.
    Start,
}

/// A precheck for one trigger.
pub(crate) struct Check {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) pipeline: Arc<Pipeline>,
    /// Parameters with defaults filled in.
    pub(crate) parameters: Map<String, Value>,
    /// Tick of a scheduled run in RFC 3339.
    pub(crate) scheduled_at: Option<String>,
    /// Variables of this process that commands get besides the minimum.
    pub(crate) pass_env: Arc<[String]>,
}

/// What a precheck decides.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// No run is active elsewhere, or the pipeline does not ask.
    Start,
    /// A run with this external id is active.
    Active(String),
    /// The check failed, and nothing may start.
    Refuse(String),
}

impl Check {
    /// Performs the check.
    pub(crate) async fn run(self) -> Decision {
        let Some(precheck) = &self.pipeline.precheck else { return Decision::Start };
        let why = match self.find_active(precheck).await {
            Ok(None) => return Decision::Start,
            Ok(Some(id)) => return Decision::Active(id),
            Err(why) => why,
        };
        let (tenant_id, pipeline_id) = (&self.pipeline.tenant, &self.pipeline.name);
        match precheck.on_error {
            OnError::Refuse => Decision::Refuse(why),
            OnError::Start => {
                tracing::warn!(%tenant_id, %pipeline_id, why, "precheck failed; starting anyway");
                Decision::Start
            }
        }
    }

    /// Returns the external id of the active run, if there is one.
    async fn find_active(&self, precheck: &Precheck) -> Result<Option<String>, String> {
        let values = self.values(precheck)?;
        let found = match &precheck.action {
            Action::Command(command) => self.run_command(command, precheck.limit, &values).await,
            Action::Http(check) => {
                let settings = &self.catalog.settings;
                let http = self.catalog.http_client()?;
                let perform = check.perform(&http, &settings.addresses, &values);
                within(precheck.limit, perform).await
            }
            Action::Sql(query) => {
                within(precheck.limit, query.first(&values, precheck.limit)).await
            }
        };
        let found = found.map_err(|why| redact_text(why, &values))?;
        let id = found.map(|id| redact_text(id, &values).trim().to_owned());
        let id = id.filter(|id| !id.is_empty());
        if id.as_ref().is_some_and(|id| id.len() > ID_BYTES_MAX || id.contains(char::is_control)) {
            return Err(format!(
                "the id of the active run has more than {ID_BYTES_MAX} bytes or control characters"
            ));
        }
        Ok(id)
    }

    fn values(&self, precheck: &Precheck) -> Result<Values, String> {
        let Pipeline { tenant, name, .. } = &*self.pipeline;
        let settings = &self.catalog.settings;
        let secrets = secrets::load(settings.secrets.as_deref(), tenant, precheck.secrets())?;
        let mut run = BTreeMap::from([("tenant", tenant.clone()), ("pipeline", name.clone())]);
        run.extend(self.scheduled_at.clone().map(|at| (SCHEDULED_AT, at)));
        Ok(Values { parameters: self.parameters.clone(), secrets, run })
    }

    /// Runs a command: with exit code 0, the first line of its output is the id.
    async fn run_command(
        &self,
        command: &Command,
        limit: Duration,
        values: &Values,
    ) -> Result<Option<String>, String> {
        let mut spec = Spec::new(command.arguments(values));
        spec.dir = command.dir.as_ref().map(Into::into);
        spec.env_clear = true;
        spec.env = inherited_variables(&self.pass_env);
        let standard = [
            ("PIPELINE_ID", self.pipeline.name.clone()),
            ("TENANT_ID", self.pipeline.tenant.clone()),
            ("TENURE_ARGS", Value::from(values.parameters.clone()).to_string()),
        ];
        spec.env.extend(standard.map(|(name, value)| (name.into(), value.into())));
        let variables = command.variables(values).into_iter();
        spec.env.extend(variables.map(|(name, value)| (name.into(), value.into())));
        spec.grace = GRACE;
        spec.stdin = Some(Stdio::null());
        spec.stdout = Some(Stdio::piped());
        spec.stderr = Some(Stdio::null());
        let term_at = BootInstant::now() + limit;
        let deadlines = Deadlines { term_at, kill_at: term_at + GRACE };
        // Dropping it kills the command.
        let mut supervisor =
            Supervisor::start(spec, deadlines).await.map_err(|error| error.to_string())?;
        let stdout = supervisor.stdout.take().map(std::os::fd::OwnedFd::from);
        let output = tokio::spawn(read_output(stdout.map(Receiver::from_owned_fd)));
        let ended = supervisor.wait().await.map_err(|error| error.to_string())?;
        let output = timeout(OUTPUT_TIMEOUT, output).await.ok().and_then(Result::ok);
        match ended {
            CommandEnd { status: ExitKind::Code(0), reason: EndReason::Exited } => {
                let output = output.ok_or("the output of the command cannot be read")?;
                Ok(output.lines().next().map(str::to_owned))
            }
            CommandEnd { status: ExitKind::Code(code), reason: EndReason::Exited } => {
                Err(format!("the command exited with code {code}"))
            }
            CommandEnd { status: ExitKind::Signal(signal), reason: EndReason::Exited } => {
                Err(format!("the command was terminated by signal {signal}"))
            }
            _ => Err(limit_exceeded(limit)),
        }
    }
}

impl Precheck {
    fn secrets(&self) -> Vec<&str> {
        match &self.action {
            Action::Command(command) => command.secrets(),
            Action::Http(check) => check.secrets(),
            Action::Sql(query) => query.secrets(),
        }
    }
}

async fn within<T>(
    limit: Duration,
    check: impl Future<Output = Result<T, Failure>>,
) -> Result<T, String> {
    match timeout(limit, check).await {
        Ok(result) => result.map_err(|failure| failure.message),
        Err(_) => Err(limit_exceeded(limit)),
    }
}

fn limit_exceeded(limit: Duration) -> String {
    format!("it exceeded its limit of {limit:?}")
}

/// Reads output to its end and returns the beginning.
async fn read_output(pipe: Option<std::io::Result<Receiver>>) -> String {
    let (mut kept, mut buffer) = (Vec::new(), vec![0; OUTPUT_BYTES_MAX]);
    if let Some(Ok(mut pipe)) = pipe {
        while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
            let space = OUTPUT_BYTES_MAX - kept.len();
            kept.extend_from_slice(&buffer[..length.min(space)]);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Reads `[precheck]`.
pub(crate) fn read(
    root: &Section<'_>,
    dir: &Path,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<Precheck> {
    if !root.has("precheck") {
        return None;
    }
    let section = root.section("precheck", report)?;
    section.check_keys(&[&["limit", "on_error"], &steps::KEYS[..]].concat(), report);
    let limit = section.duration_ms("limit", report).map(Duration::from_millis);
    if limit.is_some_and(|limit| limit.is_zero() || limit > LIMIT_MAX) {
        let why = "a trigger waits for the check: above 0, at most 30s".to_owned();
        section.reject::<()>("limit", why, report);
    }
    let on_error = match section.text("on_error", report) {
        None | Some("refuse") => OnError::Refuse,
        Some("start") => OnError::Start,
        Some(other) => {
            let why = format!("{other:?} is unknown; expected \"refuse\" or \"start\"");
            section.reject("on_error", why, report).unwrap_or(OnError::Refuse)
        }
    };
    let action = match steps::read_action_key(&section, "a precheck", report)? {
        "command" => steps::read_command(&section, dir, names, report).map(Action::Command),
        "http" => steps::read_http_check(&section, names, report).map(Box::new).map(Action::Http),
        _ => steps::read_query(&section, names, report).map(Action::Sql),
    };
    Some(Precheck { action: action?, limit: limit.unwrap_or(LIMIT_DEFAULT), on_error })
}
