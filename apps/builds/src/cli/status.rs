//! `tenure build status`

use std::process::ExitCode;

use clap::Args;
use tenure_cli_kit::text::{age, field_list, format_duration, print_line, sanitize, table};
use tenure_cli_kit::{CliContext, Done, Output, color, hint, print_json};

use super::parse_build;
use crate::node::api::{BuildApi, SERVER_TIMEOUT};
use crate::wire::{BuildInfo, MasterStatus, NodeInfo};

/// Show a build: its leader, what is left, and its nodes
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure build status 4711
  tenure build status acme/web/77/test -o json")]
pub(super) struct Status {
    /// Id of the build
    #[arg(value_parser = parse_build)]
    build: String,
}

impl Status {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let build =
            BuildApi::new(cx.server.transport()?, &self.build, SERVER_TIMEOUT).show().await?;
        match cx.output {
            Output::Json => print_json(&build)?,
            Output::Table => print(&build)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(build: &BuildInfo) -> anyhow::Result<()> {
    let heartbeat = build.master_setup_heartbeat_age_ms;
    let requeues = build.requeues_max.map(|max| format!("{} of {max}", build.requeues));
    let error = build.error.as_ref();
    let error = error.map(|error| sanitize(&format!("{}: {}", error.code, error.message)));
    print_line(&field_list(&[
        ("build", Some(sanitize(&build.build))),
        ("master_status", Some(color::state(build.master_status.as_str()))),
        ("master_worker_id", build.master_worker_id.as_deref().map(sanitize)),
        ("heartbeat", heartbeat.map(|age| format!("{} ago", format_duration(age)))),
        ("term", build.term.map(|term| term.to_string())),
        ("elections", Some(build.elections.to_string())),
        ("tests", build.total.map(|total| total.to_string())),
        ("remaining", build.total.map(|_| build.remaining.to_string())),
        ("running", build.total.map(|_| build.running.to_string())),
        ("requeues", requeues),
        ("seed", Some(sanitize(&build.rules.seed))),
        ("stopped", build.stopped.as_ref().map(|stop| sanitize(&stop.message))),
        ("error", error),
        ("created", Some(format!("{} ago", age(&build.created_at)))),
        ("expires_at", Some(build.expires_at.clone())),
    ]))?;
    if build.nodes.is_empty() {
        if build.master_status != MasterStatus::Finished {
            hint::print("no node works on it; join with `tenure build run`");
        }
        return Ok(());
    }
    let row = |node: &NodeInfo| {
        [
            sanitize(&node.worker),
            node.session.to_string(),
            age(&node.since),
            format_duration(node.heartbeat_age_ms),
            format_duration(node.expires_in_ms),
        ]
    };
    print_line("")?;
    let header = ["NODE", "SESSION", "AGE", "HEARTBEAT", "EXPIRES IN"];
    print_line(&table(header, build.nodes.iter().map(row)))
}
