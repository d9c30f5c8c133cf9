//! `tenure cluster ls`

use std::process::ExitCode;

use clap::Args;
use tenure_cli_kit::listing::{Empty, fetch, print_more_hint};
use tenure_cli_kit::text::{age, cell, format_duration, print_line, sanitize, tenant_table};
use tenure_cli_kit::{CliContext, Done, Output, clock, color, print_json};
use tenure_wire::parse_instant;

use crate::state::ClusterState;
use crate::wire::ClusterInfo;

/// List clusters
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster ls
  tenure cluster ls --state READY --owner ann
  tenure cluster ls --tag team=web --tenant '*' -o json")]
pub(super) struct Ls {
    /// Only clusters in this state: PENDING, CREATING, READY, SCALING, DESTROYING, DESTROYED,
    /// FAILED, DESTROY_FAILED
    #[arg(long, value_parser = parse_state)]
    state: Option<ClusterState>,
    /// Only clusters of this profile
    #[arg(long)]
    profile: Option<String>,
    /// Only clusters of this owner
    #[arg(long)]
    owner: Option<String>,
    /// Only clusters in this region
    #[arg(long)]
    region: Option<String>,
    /// Only clusters with this tag
    #[arg(long, value_name = "NAME=VALUE")]
    tag: Option<String>,
    /// Maximum number of clusters
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const NO_CLUSTERS: Empty<'_> = Empty {
    none: "no clusters",
    item: "cluster",
    hint: "see: tenure cluster profiles",
    hint_in_one_tenant: false,
    list: "tenure cluster ls",
};

/// Parses a state, ignoring case.
fn parse_state(text: &str) -> Result<ClusterState, String> {
    ClusterState::parse(&text.to_ascii_uppercase()).ok_or_else(|| {
        let known = ClusterState::ALL.map(ClusterState::as_str).join(", ");
        format!("expected one of {known}")
    })
}

impl Ls {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let filters = [
            ("state", self.state.map(|state| state.as_str().to_owned())),
            ("profile", self.profile.clone()),
            ("owner", self.owner.clone()),
            ("region", self.region.clone()),
            ("tag", self.tag.clone()),
        ];
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let transport = cx.server.transport()?;
        let list = fetch::<ClusterInfo>(&transport, "/v1/clusters", &filters, limit).await?;
        match cx.output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => {
                NO_CLUSTERS.print(cx.server.tenant(), &filters);
            }
            Output::Table => {
                print_line(&clusters_table(cx.server.tenant(), &list.items))?;
                print_more_hint(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Formats clusters as a table.
pub(crate) fn clusters_table(tenant: &str, items: &[ClusterInfo]) -> String {
    let row = |cluster: &ClusterInfo| {
        vec![
            sanitize(&cluster.id),
            color::state(&cluster.state),
            sanitize(&cluster.version),
            sanitize(&cluster.region),
            cluster.workers.to_string(),
            sanitize(&cluster.owner),
            cluster.created_at.as_deref().map(age).unwrap_or_default(),
            expiry(cluster).map(time_left).unwrap_or_default(),
            note(cluster),
        ]
    };
    let header =
        ["CLUSTER", "STATE", "VERSION", "REGION", "WORKERS", "OWNER", "AGE", "LEFT", "NOTE"];
    tenant_table(tenant, &header, items.iter().map(|one| (&*one.tenant, row(one))))
}

/// Returns the time of the automatic destroy, unless it has no effect any more.
pub(super) fn expiry(cluster: &ClusterInfo) -> Option<&str> {
    let is_gone = cluster.state == ClusterState::Destroyed.as_str();
    cluster.expires_at.as_deref().filter(|_| !is_gone)
}

/// Formats the time to an instant of the server, by the local clock; empty if it has passed.
pub(super) fn time_left(at: &str) -> String {
    let left = parse_instant(at).map(|at| at.since(clock::wall_time())).unwrap_or(0);
    if left == 0 { String::new() } else { format_duration(left) }
}

/// Returns what is being done with a cluster, or why it failed.
fn note(cluster: &ClusterInfo) -> String {
    if let Some(operation) = &cluster.operation {
        let name = &operation.operation;
        let what = match (&operation.progress, &operation.error) {
            (Some(progress), _) => format!("{name} {} % {}", progress.percent, progress.message),
            (None, Some(error)) if operation.next_attempt_at.is_some() => {
                format!("{name} waits after {}: {}", error.code, error.message)
            }
            _ => format!("{name} {}", operation.state),
        };
        return cell(&what);
    }
    if cluster.preserved {
        return "kept after a failed create".to_owned();
    }
    let error = cluster.last_error.as_ref();
    error.map(|error| cell(&format!("{}: {}", error.code, error.message))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_parsed_ignoring_case() {
        assert_eq!(parse_state("ready"), Ok(ClusterState::Ready));
        assert!(parse_state("dead").unwrap_err().contains("PENDING, CREATING"));
    }
}
