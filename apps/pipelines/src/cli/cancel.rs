//! `tenure pipeline cancel`

use std::process::ExitCode;

use crate::KIND;
use crate::wire::{RunInfo, RunStatus};
use clap::Args;
use tenure::http::HttpTransport;
use tenure_core::JobId;

use super::{POLL_WAIT, get_run, with_hint};
use tenure_cli_kit::CliContext;
use tenure_cli_kit::exit;
use tenure_cli_kit::text::{print_line, query};
use tenure_cli_kit::{Done, JobArg, Output, print_json};

/// Stop a run
///
/// A waiting run ends immediately. A running one stops its step, which may take a moment.
/// Cancelling a run that has finished otherwise is refused.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline cancel 019a2b3c4d5e6f708192a3b4c5d6e7f8
  tenure pipeline cancel 019a2b3c4d5e6f708192a3b4c5d6e7f8 --reason \"wrong day\" --wait")]
pub(crate) struct Cancel {
    /// Id of the run, or at least 8 digits from its start or its end
    #[arg(value_name = "RUN")]
    id: JobArg,
    /// Reason, kept with the run
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait until the run has stopped
    #[arg(long)]
    wait: bool,
}

impl Cancel {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let transport = cx.server.transport()?;
        let id = self.id.resolve(&transport, Some(KIND)).await?;
        let path = query(&format!("/pipelines/runs/{id}"), &[("reason", self.reason.clone())]);
        let mut run: RunInfo = with_hint(id, transport.delete(&path).await)?;
        if self.wait {
            run = wait_for_end(&transport, id).await?;
        }
        match cx.output {
            Output::Json => print_json(&run)?,
            Output::Table => print_line(&format!("{} {id}", run.status.as_str()))?,
        }
        Ok(match run.status {
            RunStatus::Cancelled | RunStatus::Cancelling => ExitCode::SUCCESS,
            _ => ExitCode::from(exit::REFUSED),
        })
    }
}

/// Waits until a run has ended.
async fn wait_for_end(transport: &HttpTransport, id: JobId) -> anyhow::Result<RunInfo> {
    loop {
        let detail = get_run(transport, id, POLL_WAIT).await?;
        if detail.run.status.is_finished() {
            return Ok(detail.run);
        }
    }
}
