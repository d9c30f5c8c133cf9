//! `tenure pipeline ls`

use std::process::ExitCode;

use crate::wire::PipelineInfo;
use clap::Args;
use tenure_wire::ListResponse;

use tenure_cli_kit::CliContext;
use tenure_cli_kit::text::{format_duration, print_line, sanitize, tenant_table};
use tenure_cli_kit::{Done, Output, print_json};

/// List the declared pipelines
///
/// `-o json` includes their descriptions and parameters.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline ls
  tenure pipeline ls --tenant '*'                pipelines of all tenants
  tenure pipeline ls -o json | jq '.items[].parameters'")]
pub(crate) struct Ls {}

impl Ls {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let list: ListResponse<PipelineInfo> = cx.server.transport()?.get("/pipelines").await?;
        match cx.output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => anstream::eprintln!(
                "no pipelines are declared for {}; add files to `dir` in [pipelines] of the \
                 server's tenure.toml, and check them with: tenure pipeline check",
                cx.server.tenant()
            ),
            Output::Table => print_line(&pipelines_table(cx, &list.items))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn pipelines_table(cx: &CliContext, items: &[PipelineInfo]) -> String {
    let row = |one: &PipelineInfo| {
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
    let tenant = cx.server.tenant();
    tenant_table(tenant, &header, items.iter().map(|one| (&*one.tenant_id, row(one))))
}

/// Returns the id of the run, or the number of runs.
fn running(one: &PipelineInfo) -> String {
    match &one.running[..] {
        [] => String::new(),
        [id] => id.to_string(),
        several => format!("{} runs", several.len()),
    }
}
