//! `tenure pipeline cancel`

use std::process::ExitCode;

use crate::wire::{RunAnswer, RunStatus};
use clap::Args;
use tenure::http::HttpTransport;
use tenure_core::JobId;

use super::{WAIT, found, look};
use tenure_cli_kit::CliContext;
use tenure_cli_kit::exit;
use tenure_cli_kit::text::{print_line, query};
use tenure_cli_kit::{Done, Output, print_json};

/// Stop a run
///
/// One that waits is over at once. One that runs has its step stopped, which may take a moment.
/// Cancelling a run that is over in another way is refused.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline cancel 019a2b3c4d5e6f708192a3b4c5d6e7f8
  tenure pipeline cancel 019a2b3c4d5e6f708192a3b4c5d6e7f8 --reason \"wrong day\" --wait")]
pub(crate) struct Cancel {
    /// The run
    #[arg(value_name = "RUN")]
    id: JobId,
    /// Why; kept with the run
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Return when it has stopped
    #[arg(long)]
    wait: bool,
}

impl Cancel {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let (link, id) = (cx.server.transport()?, self.id);
        let path = query(&format!("/pipelines/runs/{id}"), &[("reason", self.reason.clone())]);
        let mut run: RunAnswer = found(id, link.delete(&path).await)?;
        if self.wait {
            run = over(&link, id).await?;
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

/// Waits until a run is over.
async fn over(link: &HttpTransport, id: JobId) -> anyhow::Result<RunAnswer> {
    loop {
        let detail = look(link, id, WAIT).await?;
        if detail.run.status.is_finished() {
            return Ok(detail.run);
        }
    }
}
