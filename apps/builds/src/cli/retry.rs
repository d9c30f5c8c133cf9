//! `tenure build retry`

use std::process::ExitCode;

use clap::Args;
use tenure_cli_kit::{CliContext, Done, Output, message, print_json};

use super::parse_build;
use crate::node::api::{BuildApi, SERVER_TIMEOUT};
use crate::wire::RetryRequest;

/// Queue failed tests again
///
/// The nodes that work on the build run them; start one with `tenure build run` if there is none. A
/// node that is run again does this by itself for the tests that have failed on it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure build retry 4711
  tenure build retry 4711 --worker node-3")]
pub(super) struct Retry {
    /// Id of the build
    #[arg(value_parser = parse_build)]
    build: String,
    /// Only tests that have failed on this node
    #[arg(long, value_name = "ID")]
    worker: Option<String>,
}

impl Retry {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let api = BuildApi::new(cx.server.transport()?, &self.build, SERVER_TIMEOUT);
        let answer = api.retry(&RetryRequest { worker: self.worker.clone() }).await?;
        match cx.output {
            Output::Json => print_json(&answer)?,
            Output::Table => {
                message::say(&format!("{} failed tests are queued again", answer.tests));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
