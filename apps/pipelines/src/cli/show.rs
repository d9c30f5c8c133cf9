//! `tenure pipeline show`

use std::process::ExitCode;
use std::time::Duration;

use crate::KIND;
use crate::wire::{AttachedTriggerInfo, RunDetail, RunInfo, RunStatus, StepInfo};
use clap::Args;
use serde_json::Value;
use tenure_wire::{FailureInfo, RequestedByInfo};
use tokio::signal::unix::{SignalKind, signal};

use super::display::took;
use super::follow::{exit_code, follow};
use super::get_run;
use tenure_cli_kit::CliContext;
use tenure_cli_kit::text::{
    age, cell, count, field_list, format_duration, print_line, sanitize, table,
};
use tenure_cli_kit::{Done, JobArg, Output, print_json};
use tenure_cli_kit::{color, exit};

/// Show a run with its parameters, steps and attached triggers
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline show 019a2b3c4d5e6f708192a3b4c5d6e7f8
  tenure pipeline show -f 019a2b3c4d5e6f708192a3b4c5d6e7f8
  tenure pipeline show 019a2b3c4d5e6f708192a3b4c5d6e7f8 -o json

`tenure job logs RUN` shows the output of its steps, `tenure why RUN` what it waits for.")]
pub(crate) struct Show {
    /// Id of the run, or at least 8 digits from its start or its end
    #[arg(value_name = "RUN")]
    id: JobArg,
    /// Show the steps until the run ends; exits like `run --follow`
    #[arg(long, short)]
    follow: bool,
}

impl Show {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let transport = cx.server.transport()?;
        let id = self.id.resolve(&transport, Some(KIND)).await?;
        let mut detail = get_run(&transport, id, Duration::ZERO).await?;
        let mut code = ExitCode::SUCCESS;
        if self.follow {
            let (name, interrupt) = (&detail.run.pipeline_id, signal(SignalKind::interrupt())?);
            match follow(&transport, (id, name), cx.output, interrupt).await? {
                Some(ended) => (code, detail) = (exit_code(ended.run.status), ended),
                None => code = ExitCode::from(exit::INTERRUPTED),
            }
        }
        match cx.output {
            Output::Json => print_json(&detail)?,
            Output::Table => print(&detail, cx.server.tenant())?,
        }
        Ok(code)
    }
}

fn print(detail: &RunDetail, tenant: &str) -> anyhow::Result<()> {
    print_line(&facts_of(&detail.run, tenant))?;
    if !detail.steps.is_empty() {
        print_line("")?;
        print_line(&steps_table(detail))?;
    }
    if !detail.attached.is_empty() {
        print_line("")?;
        print_line(&attached_table(&detail.attached))?;
    }
    Ok(())
}

fn facts_of(run: &RunInfo, tenant: &str) -> String {
    let at = |at: &String| format!("{at} ({} ago)", age(at));
    let requester = |requested: &RequestedByInfo| {
        sanitize(&format!("{} at {}: {}", requested.by, requested.at, requested.reason))
    };
    let error = run.error.as_ref().filter(|_| run.status != RunStatus::Complete);
    let progress = run.progress.as_ref().filter(|_| run.status == RunStatus::Running);
    let number = |n: u32| (n > 0).then(|| n.to_string());
    let pipeline = match &*run.tenant_id {
        owner if owner == tenant => sanitize(&run.pipeline_id),
        other => sanitize(&format!("{other}/{}", run.pipeline_id)),
    };
    let others = |n: usize| (n > 0).then(|| count(n, "other trigger"));
    let duplicates = others(usize::try_from(run.duplicates).unwrap_or(usize::MAX));
    let parameters = (!run.parameters.is_empty()).then(|| Value::from(run.parameters.clone()));
    field_list(&[
        ("run", Some(run.pipeline_logging_id.to_string())),
        ("pipeline", Some(pipeline)),
        ("status", Some(color::state(run.status.as_str()))),
        ("attempt", number(run.attempt)),
        ("progress", progress.map(|p| sanitize(&format!("{} % {}", p.percent, p.message)))),
        ("error", error.map(|error| sanitize(&describe_error(error)))),
        ("asked to stop by", run.cancel.as_ref().map(requester)),
        ("triggered", Some(format!("{} by {}", at(&run.triggered_at), sanitize(&run.trigger_by)))),
        ("started", run.started_at.as_ref().map(at)),
        ("ended", run.ended_at.as_ref().map(at)),
        ("took", run.duration_ms.map(format_duration)),
        ("duplicates", duplicates.map(|others| format!("{others} attached"))),
        ("parameters", parameters.as_ref().map(Value::to_string)),
        ("result", run.result.as_ref().map(Value::to_string)),
    ])
}

fn steps_table(detail: &RunDetail) -> String {
    let row = |step: &StepInfo| {
        [
            sanitize(&step.name),
            color::state(step.status.as_str()),
            step.tries.to_string(),
            step.started_at.clone().unwrap_or_default(),
            took(step, &detail.run).map(format_duration).unwrap_or_default(),
            step.error.as_ref().map(|error| cell(&describe_error(error))).unwrap_or_default(),
        ]
    };
    let header = ["STEP", "STATUS", "TRIES", "STARTED", "TOOK", "ERROR"];
    table(header, detail.steps.iter().map(row))
}

fn attached_table(attached: &[AttachedTriggerInfo]) -> String {
    let row = |one: &AttachedTriggerInfo| [sanitize(&one.trigger_by), one.at.clone()];
    table(["ALSO TRIGGERED BY", "AT"], attached.iter().map(row))
}

fn describe_error(error: &FailureInfo) -> String {
    format!("{}: {}", error.code, error.message)
}
