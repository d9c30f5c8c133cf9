//! `tenure pipeline run`: triggers a run and optionally follows it.

use std::process::ExitCode;
use std::time::Duration;

use crate::parameters::{Kind, TRIGGER_BY};
use crate::wire::{ParameterInfo, PipelineInfo, TriggerRequest, TriggerResponse};
use anyhow::Context as _;
use clap::Args;
use serde_json::{Map, Value};
use tenure::Error;
use tenure::http::HttpTransport;
use tenure_core::Refusal;
use tenure_core::session::ALL_TENANTS;
use tenure_wire::ListResponse;
use tokio::signal::unix::{SignalKind, signal};

use super::follow::{describe_end, exit_code, follow};
use super::parse_name;
use tenure_cli_kit::CliContext;
use tenure_cli_kit::document::{Arg, parameter_map, usage_error};
use tenure_cli_kit::exit;
use tenure_cli_kit::text::{print_line, sanitize};
use tenure_cli_kit::{Done, Output, hint, print_json};

/// Maximum time that a server delays the response while another run is active; see `retries` and
/// `delay` of [pipelines].
const TRIGGER_DELAY_MAX: Duration = Duration::from_secs(60);

/// Trigger a run of a pipeline
///
/// Prints a status and the id of the run: PENDING for a new run, RUNNING for the one that is
/// already active. With `-o json`, prints the response to the trigger; with --follow as well,
/// prints the finished run, and the output of the steps goes to stderr.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline run billing
  tenure pipeline run billing --param date=2030-01-31 --param rows=500 --follow
  tenure pipeline run billing --by ann -o json
  tenure pipeline run billing --idempotency-key jan-31

With --follow, the steps and their output are shown until the run ends. The exit code is then 0 if
the run is COMPLETE, 1 if it is FAILED or TIMEOUT, and 5 if it is CANCELLED. Ctrl-C stops following,
not the run, and exits with 130.")]
pub(crate) struct Run {
    /// Name of the pipeline
    #[arg(value_name = "PIPELINE", value_parser = parse_name)]
    name: String,
    /// Set a parameter: NAME=VALUE, a value of its declared type; or NAME:=JSON
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<Arg>,
    /// Name of the caller, for display [default: name of the key]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Show the steps until the run ends
    #[arg(long, short)]
    follow: bool,
    /// Key that makes repeated triggers return the same run [default: a random key]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl Run {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        if cx.server.tenant() == ALL_TENANTS {
            return Err(usage_error(
                "a pipeline belongs to one tenant; select it with --tenant".to_owned(),
            ));
        }
        // Problems of the command line alone are reported before a request is sent.
        self.check_parameters()?;
        let transport = cx.server.transport()?;
        let parameters = self.parameters(&transport).await?;
        let body = TriggerRequest { trigger_by: self.by.clone(), parameters };
        let response = self.trigger(&transport, &body).await?;
        // Installed before the id is printed: from then on, Ctrl-C only stops following.
        let interrupt = self.follow.then(|| signal(SignalKind::interrupt())).transpose()?;
        if cx.output == Output::Table {
            print_line(&format!("{} {}", response.status.as_str(), shown_id(&response)))?;
        }
        anstream::eprintln!("{}", sanitize(&response.message));
        // A run of an external system cannot be followed.
        let Some((interrupt, id)) = interrupt.zip(response.pipeline_logging_id) else {
            if cx.output == Output::Json {
                print_json(&response)?;
            }
            return Ok(ExitCode::SUCCESS);
        };
        let Some(detail) = follow(&transport, (id, &self.name), cx.output, interrupt).await? else {
            if cx.output == Output::Json {
                print_json(&response)?;
            }
            return Ok(ExitCode::from(exit::INTERRUPTED));
        };
        hint::print(&describe_end(&detail.run));
        match cx.output {
            Output::Json => print_json(&detail)?,
            Output::Table => print_line(&format!("{} {id}", detail.run.status.as_str()))?,
        }
        Ok(exit_code(detail.run.status))
    }

    fn check_parameters(&self) -> anyhow::Result<()> {
        if parameter_map("--param", &self.param)?.contains_key(TRIGGER_BY) {
            return Err(usage_error(format!("{TRIGGER_BY} is not a parameter; use --by")));
        }
        Ok(())
    }

    /// Returns the parameters. Those given as text are parsed by their declared types.
    async fn parameters(&self, transport: &HttpTransport) -> anyhow::Result<Map<String, Value>> {
        if self.param.iter().all(|arg| arg.as_text().is_none()) {
            return parameter_map("--param", &self.param);
        }
        let list: ListResponse<PipelineInfo> = transport.get("/pipelines").await?;
        let pipeline = list.items.into_iter().find(|one| one.pipeline_id == self.name);
        let declared = pipeline.map(|one| one.parameters).unwrap_or_default();
        let typed: Result<Vec<Arg>, _> =
            self.param.iter().map(|arg| parse_by_type(arg, &declared)).collect();
        parameter_map("--param", &typed?)
    }

    async fn trigger(
        &self,
        transport: &HttpTransport,
        body: &TriggerRequest,
    ) -> anyhow::Result<TriggerResponse> {
        let name = &self.name;
        let random = || tenure_store::random::request_id().to_string();
        let key = self.idempotency_key.clone().unwrap_or_else(random);
        let path = format!("/pipelines/run/{name}");
        match transport.post(&path, Some(key.clone()), body, TRIGGER_DELAY_MAX).await {
            Err(Error::Unavailable(why)) => {
                let why = format!(
                    "{why}. The run may have been triggered; retry with --idempotency-key {key}"
                );
                Err(Error::Unavailable(why).into())
            }
            Err(Error::Refused(Refusal::Invalid(why))) => Err(usage_error(name_parameters(&why))),
            Err(error @ Error::NotFound(_)) => Err(error).with_context(|| {
                format!(
                    "{name} was not triggered; `tenure pipeline ls` lists the declared pipelines"
                )
            }),
            other => Ok(other?),
        }
    }
}

/// Returns the id of the run for display.
fn shown_id(response: &TriggerResponse) -> String {
    let external = response.external_id.as_deref().unwrap_or_default();
    response.pipeline_logging_id.map_or_else(|| sanitize(external), |id| id.to_string())
}

/// Puts the option before each problem `NAME: it …` of a parameter. The API sends them as `args`.
fn name_parameters(why: &str) -> String {
    let why = match why.strip_prefix("args has ") {
        Some(rest) => format!("--param has {rest}"),
        None => why.to_owned(),
    };
    let problems = why.split("; ").map(|problem| match problem.split_once(": it ") {
        Some((name, _)) if !name.contains(' ') => format!("--param {problem}"),
        _ => problem.to_owned(),
    });
    problems.collect::<Vec<_>>().join("; ")
}

/// Parses a parameter given as text by its declared type. Leaves unknown parameters to the server.
fn parse_by_type(arg: &Arg, declared: &[ParameterInfo]) -> anyhow::Result<Arg> {
    let find = |name: &str| declared.iter().find(|parameter| parameter.name == name);
    let Some((name, text)) = arg.as_text() else { return Ok(arg.clone()) };
    let Some(kind) = find(name).and_then(|parameter| Kind::parse(&parameter.kind)) else {
        return Ok(arg.clone());
    };
    let value = kind.parse_text(text).ok_or_else(|| {
        let kind = kind.as_str();
        usage_error(format!("--param {name}: it must be of type {kind}, not {text:?}"))
    })?;
    Ok(arg.with_value(value))
}
