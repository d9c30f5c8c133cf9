//! `tenure pipeline ls`

use std::process::ExitCode;

use crate::wire::PipelineAnswer;
use clap::Args;
use tenure_wire::ListAnswer;

use super::of_tenants;
use tenure_cli_kit::CliContext;
use tenure_cli_kit::text::{format_duration, print_line, sanitize};
use tenure_cli_kit::{Done, Output, print_json};

/// List the pipelines that are declared
///
/// With `-o json` also what they are for, and the parameters that they take.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline ls
  tenure pipeline ls --tenant '*'                those of all tenants
  tenure pipeline ls -o json | jq '.items[].parameters'")]
pub(crate) struct Ls {}

impl Ls {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let list: ListAnswer<PipelineAnswer> = cx.server.transport()?.get("/pipelines").await?;
        match cx.output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => anstream::eprintln!(
                "no pipeline is declared for {}; `dir` in [pipelines] of the server's tenure.toml \
                 names where",
                cx.server.tenant()
            ),
            Output::Table => print_line(&pipelines(cx, &list.items))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn pipelines(cx: &CliContext, items: &[PipelineAnswer]) -> String {
    let row = |one: &PipelineAnswer| {
        let steps: Vec<String> = one.steps.iter().map(|step| sanitize(step)).collect();
        vec![
            sanitize(&one.pipeline_id),
            steps.join(", "),
            format_duration(one.limit_ms),
            one.schedule.as_deref().map(sanitize).unwrap_or_default(),
            one.next_at.clone().unwrap_or_default(),
            running(one),
        ]
    };
    let header = ["PIPELINE", "STEPS", "LIMIT", "SCHEDULE", "NEXT", "RUNNING"];
    of_tenants(cx, &header, items.iter().map(|one| (&*one.tenant_id, row(one))))
}

/// The run, or how many there are.
fn running(one: &PipelineAnswer) -> String {
    match &one.running[..] {
        [] => String::new(),
        [id] => id.to_string(),
        several => format!("{} runs", several.len()),
    }
}
