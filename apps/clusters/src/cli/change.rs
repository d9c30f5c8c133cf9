//! `tenure cluster destroy`, `scale` and `extend`

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure::http::{HttpTransport, Method, RequestOptions};
use tenure_cli_kit::text::{print_line, sanitize};
use tenure_cli_kit::{CliContext, Done, Output, exit, message, print_json};

use super::create::{Ttl, parse_ttl};
use super::follow::{Submitted, accepted};
use super::id::ClusterArg;
use super::ls::time_left;
use super::{get_cluster, route, with_hint};
use crate::wire::{ClusterResponse, ExtendRequest, ExtendResponse, ScaleRequest};

/// Destroy a cluster, and verify that nothing of it is left
///
/// A create or a change of workers that is running is cancelled first. A second destroy joins the
/// first one. A cluster that is destroyed already is verified again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster destroy aws:demo.dev.example.com
  tenure cluster destroy demo --yes --follow

On a terminal it asks first, unless --yes is given. With --follow, exits with 0 if the cluster is
DESTROYED, 1 if parts of it may exist. Ctrl-C stops following, not the destroy, and exits with
130.")]
pub(super) struct Destroy {
    /// Cluster
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterArg,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Show the progress until the cluster is destroyed
    #[arg(long, short)]
    follow: bool,
}

impl Destroy {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let transport = cx.server.transport()?;
        let id = self.cluster.resolve(&transport).await?;
        if !self.yes && !confirm(&transport, &id).await? {
            message::say("nothing was destroyed");
            return Ok(ExitCode::from(exit::REFUSED));
        }
        let key = Some(tenure_store::random::request_id().to_string());
        let options = RequestOptions { id: key, ..RequestOptions::default() };
        let path = route(&id, "");
        let sent =
            transport.call(Method::DELETE, &path, options, None::<&()>, Duration::ZERO).await;
        let answer: ClusterResponse = with_hint(&id, accepted(sent))?;
        Submitted { answer, follow: self.follow }.finish(cx, &transport).await
    }
}

/// Asks on a terminal whether the cluster is to be destroyed.
async fn confirm(transport: &HttpTransport, id: &str) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(true);
    }
    let cluster = get_cluster(transport, id).await?;
    let (id, owner) = (sanitize(id), sanitize(&cluster.owner));
    write!(anstream::stderr(), "destroy {id} of {owner}, which is {}? [y/N] ", cluster.state)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Change the number of worker nodes
///
/// Succeeds when all nodes are ready. If it fails, the cluster stays READY with the nodes that it
/// has. A change that has not started is replaced by a later one.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster scale aws:demo.dev.example.com 5
  tenure cluster scale demo 5 --follow")]
pub(super) struct Scale {
    /// Cluster
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterArg,
    /// Number of worker nodes
    #[arg(value_name = "N")]
    workers: u32,
    /// Show the progress until all nodes are ready
    #[arg(long, short)]
    follow: bool,
}

impl Scale {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let transport = cx.server.transport()?;
        let id = self.cluster.resolve(&transport).await?;
        let body = ScaleRequest { workers: self.workers };
        let key = Some(tenure_store::random::request_id().to_string());
        let sent = transport.post(&route(&id, "/scale"), key, &body, Duration::ZERO).await;
        let answer: ClusterResponse = with_hint(&id, accepted(sent))?;
        Submitted { answer, follow: self.follow }.finish(cx, &transport).await
    }
}

/// Move the time at which a cluster is destroyed
///
/// The time counts from now, and may also be shorter than before. It is refused if the cluster is
/// being destroyed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster extend aws:demo.dev.example.com --ttl 24h
  tenure cluster extend demo --ttl none          keep it until it is destroyed")]
pub(super) struct Extend {
    /// Cluster
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterArg,
    /// Time from now, or `none`, if the profile allows that
    #[arg(long, value_name = "DUR|none", value_parser = parse_ttl)]
    ttl: Ttl,
}

impl Extend {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let transport = cx.server.transport()?;
        let id = self.cluster.resolve(&transport).await?;
        let body = ExtendRequest { ttl_ms: self.ttl.ms() };
        let sent = transport.post(&route(&id, "/ttl"), None, &body, Duration::ZERO).await;
        let answer: ExtendResponse = with_hint(&id, sent)?;
        match (cx.output, &answer.expires_at) {
            (Output::Json, _) => print_json(&answer)?,
            (Output::Table, None) => {
                print_line(&format!("{} is kept until it is destroyed", sanitize(&answer.id)))?;
            }
            (Output::Table, Some(at)) => {
                let (id, left) = (sanitize(&answer.id), time_left(at));
                print_line(&format!("{id} is destroyed at {at} (in {left})"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
