//! `tenure pipeline run`: a trigger, and following the run that it got.

use std::process::ExitCode;
use std::time::Duration;

use crate::parameters::TRIGGER_BY;
use crate::wire::{TriggerAnswer, TriggerBody};
use anyhow::Context as _;
use clap::Args;
use serde_json::{Map, Value};
use tenure::http::HttpTransport;
use tenure_core::session::ALL_TENANTS;
use tokio::signal::unix::{SignalKind, signal};

use super::follow::{ending, exit_code, follow};
use super::parse_name;
use tenure_cli_kit::CliContext;
use tenure_cli_kit::document::{Arg, parameter_map, usage_error};
use tenure_cli_kit::exit;
use tenure_cli_kit::text::{print_line, sanitize};
use tenure_cli_kit::{Done, Output, print_json};

/// How long a server may hold the answer back while another run goes on; see `retries` and `delay`
/// of [pipelines].
const HELD_BACK_MAX: Duration = Duration::from_secs(60);

/// Trigger a run of a pipeline
///
/// Prints a status and the id of the run that counts: PENDING for a new one, RUNNING for the one
/// that goes on already. With `-o json` that is the trigger's answer; with --follow as well it is
/// the run, when it is over, and what the steps write goes to stderr.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline run billing
  tenure pipeline run billing --param date=2030-01-31 --param rows:=500 --follow
  tenure pipeline run billing --by ann -o json
  tenure pipeline run billing --idempotency-key jan-31

With --follow its steps are shown until it is over, and what they write is printed. Then it exits
with 0 when the run is COMPLETE, 1 when it is FAILED or TIMEOUT, 5 when it is CANCELLED. Ctrl-C
stops following, not the run, and exits with 130.")]
pub(crate) struct Run {
    /// The pipeline
    #[arg(value_name = "PIPELINE", value_parser = parse_name)]
    name: String,
    /// One parameter: NAME=TEXT, or NAME:=JSON for what is not a text
    #[arg(long, value_name = "NAME=TEXT")]
    param: Vec<Arg>,
    /// Who triggers it, for people [default: the name of the key]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Show its steps until it is over
    #[arg(long, short)]
    follow: bool,
    /// Repeating a trigger with the same key gives the same run [default: a new one each time]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl Run {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        if cx.server.tenant() == ALL_TENANTS {
            return Err(usage_error(
                "whose pipeline is meant? Name its tenant with --tenant".to_owned(),
            ));
        }
        let body = TriggerBody { trigger_by: self.by.clone(), parameters: self.parameters()? };
        let link = cx.server.transport()?;
        let answer = self.trigger(&link, &body).await?;
        // Listened to before the id is seen: from then on Ctrl-C only stops following.
        let interrupt = self.follow.then(|| signal(SignalKind::interrupt())).transpose()?;
        let id = answer.pipeline_logging_id;
        if cx.output == Output::Table {
            print_line(&format!("{} {id}", answer.status.as_str()))?;
        }
        anstream::eprintln!("{}", sanitize(&answer.message));
        let Some(interrupt) = interrupt else {
            if cx.output == Output::Json {
                print_json(&answer)?;
            }
            return Ok(ExitCode::SUCCESS);
        };
        let Some(detail) = follow(&link, (id, &self.name), cx.output, interrupt).await? else {
            if cx.output == Output::Json {
                print_json(&answer)?;
            }
            return Ok(ExitCode::from(exit::INTERRUPTED));
        };
        anstream::eprintln!("{}", ending(&detail.run));
        match cx.output {
            Output::Json => print_json(&detail)?,
            Output::Table => print_line(&format!("{} {id}", detail.run.status.as_str()))?,
        }
        Ok(exit_code(detail.run.status))
    }

    fn parameters(&self) -> anyhow::Result<Map<String, Value>> {
        let parameters = parameter_map("--param", &self.param)?;
        if parameters.contains_key(TRIGGER_BY) {
            return Err(usage_error(format!("{TRIGGER_BY} is no parameter; say it with --by")));
        }
        Ok(parameters)
    }

    async fn trigger(
        &self,
        link: &HttpTransport,
        body: &TriggerBody,
    ) -> anyhow::Result<TriggerAnswer> {
        let name = &self.name;
        let new = || tenure_store::random::request_id().to_string();
        let key = self.idempotency_key.clone().unwrap_or_else(new);
        let path = format!("/pipelines/run/{name}");
        match link.post(&path, Some(key.clone()), body, HELD_BACK_MAX).await {
            Err(error) if error.is_unavailable() => {
                anstream::eprintln!(
                    "it may have been triggered all the same; repeat it with --idempotency-key \
                     {key}"
                );
                Err(error.into())
            }
            Err(error @ tenure::Error::NotFound(_)) => Err(error).with_context(|| {
                format!("{name} was not triggered; `tenure pipeline ls` has what is declared")
            }),
            other => Ok(other?),
        }
    }
}
