//! `tenure resource group`: counts of the unfinished jobs of a group.

use std::process::ExitCode;

use clap::Args;
use tenure_cli_kit::text::{field_list, print_line};
use tenure_cli_kit::{Done, Output, ServerArgs, print_json};
use tenure_wire::GroupInfo;

use super::ResourcePath;

/// Count the unfinished jobs of a group of a grouped kind
#[derive(Args)]
pub(in crate::commands) struct Group {
    /// KIND/GROUP
    group: ResourcePath,
}

impl Group {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let ResourcePath { kind, name } = &self.group;
        let path = format!("/v1/groups/{kind}/{name}");
        let answer: GroupInfo = server.transport()?.get(&path).await?;
        match output {
            Output::Json => print_json(&answer)?,
            Output::Table => print_line(&field_list(&[
                ("group", Some(self.group.to_string())),
                ("running", Some(answer.running.to_string())),
                ("waiting", Some(answer.waiting.to_string())),
                ("ready", Some(format!("{} of the waiting can start now", answer.ready))),
            ]))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
