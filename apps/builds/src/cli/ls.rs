//! `tenure build ls`

use std::process::ExitCode;

use clap::Args;
use tenure_cli_kit::listing::{Empty, fetch, print_more_hint};
use tenure_cli_kit::text::{age, print_line, sanitize, tenant_table};
use tenure_cli_kit::{CliContext, Done, Output, color, print_json};

use crate::wire::BuildInfo;

/// List builds
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure build ls
  tenure build ls --tenant '*' -o json")]
pub(super) struct Ls {
    /// Maximum number of builds
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const NO_BUILDS: Empty<'_> = Empty {
    none: "no builds",
    item: "build",
    hint: "try: tenure build run 4711 --tests tests.txt -- echo {}",
    hint_in_one_tenant: true,
    list: "tenure build ls",
};

impl Ls {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let list = fetch::<BuildInfo>(&cx.server.transport()?, "/v1/builds", &[], limit).await?;
        match cx.output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => NO_BUILDS.print(cx.server.tenant(), &[]),
            Output::Table => {
                print_line(&builds_table(cx, &list.items))?;
                print_more_hint(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn builds_table(cx: &CliContext, items: &[BuildInfo]) -> String {
    let row = |build: &BuildInfo| {
        vec![
            sanitize(&build.build),
            color::state(build.master_status.as_str()),
            build.master_worker_id.as_deref().map(sanitize).unwrap_or_default(),
            build.total.map(|total| total.to_string()).unwrap_or_default(),
            build.total.map(|_| build.remaining.to_string()).unwrap_or_default(),
            build.nodes.len().to_string(),
            age(&build.created_at),
        ]
    };
    let header = ["BUILD", "STATUS", "LEADER", "TESTS", "REMAINING", "NODES", "AGE"];
    tenant_table(cx.server.tenant(), &header, items.iter().map(|one| (&*one.tenant, row(one))))
}
