//! `tenure worker ls`: the sessions that claim jobs.

use std::process::ExitCode;

use clap::Args;
use tenure_wire::{ListResponse, WorkerInfo, WorkerJobInfo};

use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::color::Tone;
use tenure_cli_kit::listing::Empty;
use tenure_cli_kit::text::{format_duration, print_line, sanitize, tenant_table};
use tenure_cli_kit::{Done, Output, print_json};

const NO_WORKERS: Empty<'_> = Empty {
    none: "no workers claim jobs",
    item: "worker",
    hint: "try: tenure worker --config tenure.toml",
    hint_in_one_tenant: false,
    list: "tenure worker ls",
};

/// List workers, the sessions that claim jobs, with what they run
#[derive(Args)]
pub(super) struct Ls {
    /// Only workers that claim jobs of this kind
    #[arg(long)]
    kind: Option<String>,
}

impl Ls {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let mut list: ListResponse<WorkerInfo> = server.transport()?.get("/v1/workers").await?;
        if let Some(kind) = &self.kind {
            list.items.retain(|worker| worker.kinds.contains(kind));
        }
        match output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => {
                NO_WORKERS.print(server.tenant(), &[("kind", self.kind.clone())]);
            }
            Output::Table => {
                let rows = list.items.iter().map(|worker| (&*worker.tenant, row(worker)));
                let header =
                    ["WORKER", "KINDS", "AGE", "LAST CLAIM", "EXPIRES IN", "JOBS", "RUNNING"];
                print_line(&tenant_table(server.tenant(), &header, rows))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn row(worker: &WorkerInfo) -> Vec<String> {
    let resource = |job: &WorkerJobInfo| sanitize(&format!("{}/{}", job.kind, job.name));
    let running: Vec<_> = worker.jobs.iter().map(resource).collect();
    let ago = |ms: u64| format!("{} ago", format_duration(ms));
    vec![
        sanitize(&worker.name),
        sanitize(&worker.kinds.join(", ")),
        format_duration(worker.age_ms),
        ago(worker.asked_ms),
        format_duration(worker.expires_in_ms),
        worker.jobs.len().to_string(),
        Tone::Active.paint(&running.join(", ")),
    ]
}
