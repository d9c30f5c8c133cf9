//! `tenure audit`: the audit log.

use std::process::ExitCode;

use clap::Args;
use tenure_wire::AuditResponse;

use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::listing::Empty;
use tenure_cli_kit::text::{print_line, query, sanitize, table};
use tenure_cli_kit::{Done, Output, print_json};

const NO_ENTRIES: Empty<'_> = Empty {
    none: "no audit entries",
    item: "audit entry",
    hint: "actions are recorded unless `audit` in [server] of tenure.toml is off",
    hint_in_one_tenant: false,
    list: "tenure audit",
};

/// Show the audit log: actions, and requests that were refused
///
/// Newest entries first, of all tenants or of that given by --tenant. With several servers on one
/// database, actions of operators and refused requests are those of all servers; calls of workers
/// are those of the server that answers.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure audit
  tenure audit --action lock.break
  tenure audit --tenant acme
  tenure audit --since 2h --who ann
  tenure audit --since 2026-11-16T00:00:00Z
  tenure audit --limit 1000 -o json | jq '.items[] | select(.status == 403)'")]
pub(super) struct AuditVerb {
    /// Only this action, such as lock.break or key.create
    #[arg(long)]
    action: Option<String>,
    /// Only calls with this key: its name or its id
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Only entries since this instant, or within this duration
    #[arg(long, value_name = "DUR|TIME")]
    since: Option<String>,
    /// Maximum number of entries
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

impl AuditVerb {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let parts = [
            ("action", self.action.clone()),
            ("who", self.who.clone()),
            ("since", self.since.clone()),
            ("limit", Some(self.limit.to_string())),
        ];
        let path = query("/v1/audit", &parts);
        let list: AuditResponse = server.transport_to_all()?.get(&path).await?;
        if let Some(why) = &list.partial {
            anstream::eprintln!("warning: entries of other servers are missing: {}", sanitize(why));
        }
        if output == Output::Json {
            print_json(&list)?;
            return Ok(ExitCode::SUCCESS);
        }
        if list.items.is_empty() {
            NO_ENTRIES.print(server.tenant_or_all(), &parts[..3]);
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
