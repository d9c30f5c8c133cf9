//! `tenure pipeline`: triggers, follows, shows and cancels runs, and checks declarations.
//!
//! A run is a job with the same id, so `tenure job logs` and `tenure why` work on it, too.

mod cancel;
mod check;
pub(crate) mod display;
mod follow;
mod ls;
mod run;
pub(crate) mod runs;
mod show;

use std::time::Duration;

use crate::slots;
use crate::wire::RunDetail;
use anyhow::Context as _;
use clap::Subcommand;
use tenure::http::HttpTransport;
use tenure_core::{Code, JobId};

use async_trait::async_trait;
use tenure_cli_kit::{CliContext, Done, ListedValues, ParsedVerb, RunVerb, Verb};

/// Maximum wait of one request for the end of a run; it is repeated until the run ends.
const POLL_WAIT: Duration = Duration::from_secs(20);

/// Trigger pipelines, and show or cancel their runs
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure pipeline ls
  tenure pipeline run billing --param date=2030-01-31 --follow
  tenure pipeline runs --pipeline billing --status FAILED
  tenure pipeline show 019a2b3c4d5e6f708192a3b4c5d6e7f8
  tenure pipeline cancel 019a2b3c4d5e6f708192a3b4c5d6e7f8 --reason \"wrong day\" --wait
  tenure pipeline check pipelines/               before you deploy them")]
enum PipelineVerb {
    Ls(ls::Ls),
    Run(run::Run),
    Runs(runs::Runs),
    Show(show::Show),
    Cancel(cancel::Cancel),
    Check(check::Check),
}

#[async_trait(?Send)]
impl RunVerb for PipelineVerb {
    async fn run(&self, cx: &CliContext) -> Done {
        match self {
            Self::Ls(ls) => ls.run(cx).await,
            Self::Run(run) => run.run(cx).await,
            Self::Runs(runs) => runs.run(cx).await,
            Self::Show(show) => show.run(cx).await,
            Self::Cancel(cancel) => cancel.run(cx).await,
            Self::Check(check) => check.run(cx.output),
        }
    }
}

/// What shells complete: names of pipelines, and ids of runs.
const LISTED_VALUES: [ListedValues; 3] = [
    ListedValues { argument: "name", list: "/pipelines", field: "pipeline_id" },
    ListedValues { argument: "pipeline", list: "/pipelines", field: "pipeline_id" },
    ListedValues {
        argument: "id",
        list: "/pipelines/runs?limit=1000",
        field: "pipeline_logging_id",
    },
];

/// The verb `tenure pipeline`.
pub(crate) fn verb() -> Box<dyn Verb> {
    let command = || {
        let command = PipelineVerb::augment_subcommands(clap::Command::new("pipeline"));
        command.subcommand_required(true).arg_required_else_help(true)
    };
    let verb = ParsedVerb::<PipelineVerb>::new(command).listed_values(&LISTED_VALUES);
    Box::new(
        verb.example(
            "tenure pipeline run billing --follow",
            "trigger a pipeline and follow its steps",
        ),
    )
}

/// Parses the name of a pipeline.
fn parse_name(name: &str) -> Result<String, String> {
    if slots::is_name(name) {
        return Ok(name.to_owned());
    }
    let why = "not a name of a pipeline: letters, digits, `_`, `-` and `.`; `tenure pipeline ls` \
               lists the declared ones";
    Err(why.to_owned())
}

/// Reads a run, after it has ended or `wait` has passed.
pub(crate) async fn get_run(
    transport: &HttpTransport,
    id: JobId,
    wait: Duration,
) -> anyhow::Result<RunDetail> {
    let path = format!("/pipelines/runs/{id}?wait_ms={}", wait.as_millis());
    with_hint(id, transport.get_with_wait(&path, wait).await)
}

/// Adds a hint to the error if the run does not exist.
fn with_hint<T>(id: JobId, result: Result<T, tenure::Error>) -> anyhow::Result<T> {
    match result {
        Err(error) if error.code() == Some(Code::NotFound) => {
            Err(error).with_context(|| format!("no run {id}; `tenure pipeline runs` lists them"))
        }
        other => Ok(other?),
    }
}
