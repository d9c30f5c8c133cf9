//! `tenure pipeline runs`

use std::process::ExitCode;

use crate::wire::{RunInfo, RunStatus};
use clap::Args;

use super::parse_name;
use tenure_cli_kit::CliContext;
use tenure_cli_kit::color;
use tenure_cli_kit::listing::{Empty, fetch, print_more_hint};
use tenure_cli_kit::text::{age, cell, format_duration, print_line, sanitize, tenant_table};
use tenure_cli_kit::{Done, Output, print_json};

/// List runs, newest first
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline runs
  tenure pipeline runs --pipeline billing --status FAILED
  tenure pipeline runs --tenant '*' --status RUNNING -o json")]
pub(crate) struct Runs {
    /// Only runs of this pipeline
    #[arg(long, value_name = "ID", value_parser = parse_name)]
    pipeline: Option<String>,
    /// Only runs with this status: PENDING, RUNNING, COMPLETE, FAILED, CANCELLING, CANCELLED,
    /// TIMEOUT
    #[arg(long, value_parser = parse_status)]
    status: Option<RunStatus>,
    /// Maximum number of runs
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const NO_RUNS: Empty<'_> = Empty {
    none: "no runs",
    item: "run",
    hint: "see: tenure pipeline ls",
    hint_in_one_tenant: false,
    list: "tenure pipeline runs",
};

/// Parses a status, ignoring case.
fn parse_status(text: &str) -> Result<RunStatus, String> {
    text.to_ascii_uppercase().parse()
}

impl Runs {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let filters = [
            ("pipeline_id", self.pipeline.clone()),
            ("status", self.status.map(|status| status.as_str().to_owned())),
        ];
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let list =
            fetch::<RunInfo>(&cx.server.transport()?, "/pipelines/runs", &filters, limit).await?;
        match cx.output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => self.print_none(cx),
            Output::Table => {
                print_line(&runs_table(cx, &list.items))?;
                print_more_hint(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print_none(&self, cx: &CliContext) {
        let status = self.status.map(|status| status.as_str().to_owned());
        let filters = [("pipeline", self.pipeline.clone()), ("status", status)];
        NO_RUNS.print(cx.server.tenant(), &filters);
    }
}

fn runs_table(cx: &CliContext, items: &[RunInfo]) -> String {
    let row = |run: &RunInfo| {
        vec![
            run.pipeline_logging_id.to_string(),
            sanitize(&run.pipeline_id),
            color::state(run.status.as_str()),
            age(&run.triggered_at),
            run.duration_ms.map(format_duration).unwrap_or_default(),
            sanitize(&run.trigger_by),
            run.duplicates.to_string(),
            note(run),
        ]
    };
    let header = ["RUN", "PIPELINE", "STATUS", "AGE", "TOOK", "BY", "DUPLICATES", "NOTE"];
    let tenant = cx.server.tenant();
    tenant_table(tenant, &header, items.iter().map(|run| (&*run.tenant_id, row(run))))
}

/// Returns the progress or the error of a run.
pub(crate) fn note(run: &RunInfo) -> String {
    match (&run.progress, &run.error) {
        (Some(progress), _) if run.status == RunStatus::Running => {
            cell(&format!("{} % {}", progress.percent, progress.message))
        }
        (_, Some(error)) if run.status != RunStatus::Complete => {
            cell(&format!("{}: {}", error.code, error.message))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_parsed_ignoring_case() {
        assert_eq!(parse_status("failed"), Ok(RunStatus::Failed));
        assert_eq!(parse_status("TIMEOUT"), Ok(RunStatus::Timeout));
        assert!(parse_status("dead").unwrap_err().contains("expected PENDING, RUNNING"));
    }
}
