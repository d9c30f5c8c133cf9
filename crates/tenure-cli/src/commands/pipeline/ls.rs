//! `tenure pipeline ls`

use std::process::ExitCode;

use clap::Args;
use tenure::wire::ListAnswer;
use tenure::wire::pipelines::PipelineAnswer;

use super::of_tenants;
use crate::commands::{Done, Output, print_json};
use crate::context::Reach;
use crate::text::{human, out, plain};

/// List the pipelines that are declared
///
/// With `-o json` also what they are for, and the parameters that they take.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline ls
  tenure pipeline ls --tenant '*'                those of all tenants
  tenure pipeline ls -o json | jq '.items[].parameters'")]
pub(in crate::commands) struct Ls {}

impl Ls {
    pub(super) async fn run(&self, reach: &Reach, output: Output) -> Done {
        let list: ListAnswer<PipelineAnswer> = reach.link()?.get("/pipelines").await?;
        match output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => anstream::eprintln!(
                "no pipeline is declared for {}; `dir` in [pipelines] of the server's tenure.toml \
                 names where",
                reach.tenant()
            ),
            Output::Table => out(&pipelines(reach, &list.items))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn pipelines(reach: &Reach, items: &[PipelineAnswer]) -> String {
    let row = |one: &PipelineAnswer| {
        let steps: Vec<String> = one.steps.iter().map(|step| plain(step)).collect();
        vec![
            plain(&one.pipeline_id),
            steps.join(", "),
            human(one.limit_ms),
            one.schedule.as_deref().map(plain).unwrap_or_default(),
            one.next_at.clone().unwrap_or_default(),
            running(one),
        ]
    };
    let header = ["PIPELINE", "STEPS", "LIMIT", "SCHEDULE", "NEXT", "RUNNING"];
    of_tenants(reach, &header, items.iter().map(|one| (&*one.tenant_id, row(one))))
}

/// The run, or how many there are.
fn running(one: &PipelineAnswer) -> String {
    match &one.running[..] {
        [] => String::new(),
        [id] => id.to_string(),
        several => format!("{} runs", several.len()),
    }
}
