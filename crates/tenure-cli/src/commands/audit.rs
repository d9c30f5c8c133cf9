//! `tenure audit`: what was done on a server, by whom, and what was refused.

use std::process::ExitCode;

use clap::Args;
use tenure_wire::{AuditLine, ListAnswer};

use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::text::{out, plain, query, table};
use tenure_cli_kit::{Done, Output, print_json};

/// Show what was done on a server, and what was refused
///
/// The newest comes first. Each server keeps its own audit; the file is audit.jsonl in its data
/// directory.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure audit
  tenure audit --action lock.break
  tenure audit --limit 1000 -o json | jq '.items[] | select(.status == 403)'")]
pub(super) struct AuditVerb {
    /// Only this, such as lock.break or key.create
    #[arg(long)]
    action: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

impl AuditVerb {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let parts = [("action", self.action.clone()), ("limit", Some(self.limit.to_string()))];
        let path = query("/v1/audit", &parts);
        let lines: ListAnswer<AuditLine> = server.link()?.get(&path).await?;
        if output == Output::Json {
            print_json(&lines)?;
            return Ok(ExitCode::SUCCESS);
        }
        let rows = lines.items.iter().map(|line| {
            let or = |text: &Option<String>| text.as_deref().map(plain).unwrap_or_default();
            [
                line.at.clone(),
                line.principal.as_deref().map_or_else(|| "nobody".to_owned(), plain),
                or(&line.address),
                line.action.clone(),
                plain(&line.path),
                line.outcome.clone(),
                or(&line.reason),
            ]
        });
        out(&table(["when", "who", "from", "what", "on", "outcome", "why"], rows))?;
        Ok(ExitCode::SUCCESS)
    }
}
