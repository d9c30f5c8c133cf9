//! `tenure audit`: the audit log of a server.

use std::process::ExitCode;

use clap::Args;
use tenure_wire::{AuditEntry, ListResponse};

use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::text::{print_line, query, sanitize, table};
use tenure_cli_kit::{Done, Output, print_json};

/// Show the audit log of a server: actions, and requests that were refused
///
/// Newest entries first, of all tenants or of that given by --tenant. Each server keeps its own
/// audit log, audit.jsonl in its data directory.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure audit
  tenure audit --action lock.break
  tenure audit --tenant acme
  tenure audit --limit 1000 -o json | jq '.items[] | select(.status == 403)'")]
pub(super) struct AuditVerb {
    /// Only this action, such as lock.break or key.create
    #[arg(long)]
    action: Option<String>,
    /// Maximum number of entries
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

impl AuditVerb {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let parts = [("action", self.action.clone()), ("limit", Some(self.limit.to_string()))];
        let path = query("/v1/audit", &parts);
        let list: ListResponse<AuditEntry> = server.transport_to_all()?.get(&path).await?;
        if output == Output::Json {
            print_json(&list)?;
            return Ok(ExitCode::SUCCESS);
        }
        let rows = list.items.iter().map(|entry| {
            let optional =
                |text: &Option<String>| text.as_deref().map(sanitize).unwrap_or_default();
            [
                entry.at.clone(),
                entry.principal.as_deref().map_or_else(|| "anonymous".to_owned(), sanitize),
                optional(&entry.address),
                entry.action.clone(),
                sanitize(&entry.path),
                entry.outcome.clone(),
                optional(&entry.reason),
            ]
        });
        print_line(&table(["when", "who", "from", "what", "on", "outcome", "why"], rows))?;
        Ok(ExitCode::SUCCESS)
    }
}
