//! `tenure build release`

use std::process::ExitCode;

use clap::Args;
use tenure_cli_kit::{CliContext, Done, Output, message, print_json};

use super::parse_build;
use crate::node::api::{BuildApi, SERVER_TIMEOUT};
use crate::wire::ReleaseNodeRequest;

/// Hand over what a dead node holds, without waiting for its heartbeat
///
/// For the hook that a CI system runs when a node was terminated. A node that is alive after all
/// notices at its next heartbeat, kills its command, and joins the build again.
#[derive(Args)]
#[command(after_help = "\
Example:
  tenure build release 4711 --worker node-3")]
pub(super) struct Release {
    /// Id of the build
    #[arg(value_parser = parse_build)]
    build: String,
    /// Name of the node
    #[arg(long, value_name = "ID")]
    worker: String,
}

impl Release {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let api = BuildApi::new(cx.server.transport()?, &self.build, SERVER_TIMEOUT);
        let answer = api.release(&ReleaseNodeRequest { worker: self.worker.clone() }).await?;
        match cx.output {
            Output::Json => print_json(&answer)?,
            Output::Table => {
                message::say(&format!("ended {} sessions of {}", answer.released, self.worker));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
