//! `tenure pipeline`: trigger runs, follow and cancel them, look at them; check what is declared.
//!
//! A run is a job, and its id is the job's: `tenure job logs` and `tenure why` know it, too.

mod cancel;
mod check;
mod display;
mod follow;
mod ls;
mod run;
mod runs;
mod show;

use std::time::Duration;

use crate::slots;
use crate::wire::RunDetail;
use anyhow::Context as _;
use clap::Subcommand;
use tenure::http::HttpTransport;
use tenure_core::session::ALL_TENANTS;
use tenure_core::{Code, JobId};

use async_trait::async_trait;
use tenure_cli_kit::text::{dynamic_table, sanitize};
use tenure_cli_kit::{CliContext, Done, ParsedVerb, RunVerb, Verb};

/// How long one answer is waited for; it is asked again until the run is over.
const WAIT: Duration = Duration::from_secs(20);

/// Trigger pipelines, look at their runs and cancel them
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure pipeline ls
  tenure pipeline run billing --param date=2030-01-31 --follow
  tenure pipeline runs --pipeline billing --status FAILED
  tenure pipeline show 019a2b3c4d5e6f708192a3b4c5d6e7f8
  tenure pipeline cancel 019a2b3c4d5e6f708192a3b4c5d6e7f8 --reason \"wrong day\" --wait
  tenure pipeline check pipelines/               before they are put in force")]
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

/// The verb `tenure pipeline`.
pub(crate) fn verb() -> Box<dyn Verb> {
    let command = || {
        let command = PipelineVerb::augment_subcommands(clap::Command::new("pipeline"));
        command.subcommand_required(true).arg_required_else_help(true)
    };
    let verb = ParsedVerb::<PipelineVerb>::new(command);
    Box::new(
        verb.example(
            "tenure pipeline run billing --follow",
            "trigger a pipeline and see its steps",
        ),
    )
}

/// The name of a pipeline, as somebody typed it.
fn parse_name(name: &str) -> Result<String, String> {
    if slots::is_name(name) {
        return Ok(name.to_owned());
    }
    let why = "no name of a pipeline: letters, digits, `_`, `-` and `.`; `tenure pipeline ls` has \
               those that are declared";
    Err(why.to_owned())
}

/// A run, as soon as it is over or `wait` has passed.
async fn look(link: &HttpTransport, id: JobId, wait: Duration) -> anyhow::Result<RunDetail> {
    let path = format!("/pipelines/runs/{id}?wait_ms={}", wait.as_millis());
    found(id, link.get_with_wait(&path, wait).await)
}

/// Says where runs are found when there is no such run.
fn found<T>(id: JobId, answer: Result<T, tenure::Error>) -> anyhow::Result<T> {
    match answer {
        Err(error) if error.code() == Some(Code::NotFound) => {
            Err(error).with_context(|| format!("no run {id}; `tenure pipeline runs` lists them"))
        }
        other => Ok(other?),
    }
}

/// A table, whose first column is the tenant when whoever asks acts for all of them.
fn of_tenants<'a>(
    cx: &CliContext,
    header: &[&'a str],
    rows: impl Iterator<Item = (&'a str, Vec<String>)>,
) -> String {
    let all = cx.server.tenant() == ALL_TENANTS;
    let first = all.then_some("TENANT").into_iter();
    let header: Vec<&str> = first.chain(header.iter().copied()).collect();
    let row = |(tenant, row)| all.then(|| sanitize(tenant)).into_iter().chain(row);
    dynamic_table(&header, rows.map(row))
}
