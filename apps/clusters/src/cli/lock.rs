//! `tenure cluster lock`

use std::process::ExitCode;

use clap::Args;
use tenure_cli_kit::text::{age, field_list, print_line, sanitize};
use tenure_cli_kit::{CliContext, Done, Output, print_json};

use super::id::ClusterArg;
use super::ls::time_left;
use super::{route, with_hint};
use crate::wire::ClusterLockResponse;

/// Show which worker has the lock of a cluster
///
/// With the columns of the table `job_locks` of older systems. `tenure lock break` ends a lock by
/// hand; the worker stops its installer then.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster lock aws:demo.dev.example.com
  tenure cluster lock demo -o json")]
pub(super) struct Lock {
    /// Cluster
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterArg,
}

impl Lock {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let transport = cx.server.transport()?;
        let id = self.cluster.resolve(&transport).await?;
        let sent = transport.get(&route(&id, "/lock")).await;
        let answer: ClusterLockResponse = with_hint(&id, sent)?;
        match (cx.output, &answer.lock) {
            (Output::Json, _) => print_json(&answer)?,
            (Output::Table, None) => {
                anstream::eprintln!("nobody has the lock of {}", sanitize(&answer.cluster_id));
            }
            (Output::Table, Some(lock)) => print_line(&field_list(&[
                ("cluster_id", Some(sanitize(&answer.cluster_id))),
                ("job_id", lock.job_id.map(|job| job.to_string())),
                ("locked_at", Some(format!("{} ({} ago)", lock.locked_at, age(&lock.locked_at)))),
                ("locked_by", Some(sanitize(&lock.locked_by))),
                (
                    "expires_at",
                    Some(format!(
                        "{} (in {}, unless a heartbeat arrives)",
                        lock.expires_at,
                        time_left(&lock.expires_at)
                    )),
                ),
                ("token", Some(lock.token.to_string())),
            ]))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
