//! `tenure cluster`: creates, shows, scales and destroys clusters, and checks profiles.
//!
//! An operation on a cluster is a job, so `tenure job show` and `tenure why` work on it, too.

mod change;
mod check;
mod create;
pub(crate) mod display;
pub(crate) mod follow;
mod history;
mod id;
mod lock;
mod logs;
pub(crate) mod ls;
mod outputs;
mod profiles;
mod queue;
mod show;
mod views;

use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use clap::Subcommand;
use tenure::http::HttpTransport;
use tenure_cli_kit::{CliContext, Done, ListedValues, ParsedVerb, RunVerb, Verb};
use tenure_core::{Code, JobId};
use tenure_wire::JobInfo;

use crate::wire::ClusterInfo;

/// Create, scale and destroy OpenShift clusters
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure cluster profiles
  tenure cluster create demo --profile aws-dev --ttl 8h --follow
  tenure cluster ls --owner ann --state READY
  tenure cluster outputs aws:demo.dev.example.com --kubeconfig kubeconfig
  tenure cluster extend aws:demo.dev.example.com --ttl 24h
  tenure cluster destroy aws:demo.dev.example.com --follow
  tenure cluster check profiles/                 before you deploy them

CLUSTER is the id PLATFORM:NAME.BASE_DOMAIN, or the beginning of a name that one cluster has.")]
enum ClusterVerb {
    Create(create::Create),
    Ls(ls::Ls),
    Show(show::Show),
    Destroy(change::Destroy),
    Scale(change::Scale),
    Extend(change::Extend),
    Logs(logs::Logs),
    Outputs(outputs::Outputs),
    History(history::History),
    Lock(lock::Lock),
    Profiles(profiles::ProfilesVerb),
    Check(check::Check),
    Queue(queue::Queue),
    Views(views::Views),
}

#[async_trait(?Send)]
impl RunVerb for ClusterVerb {
    async fn run(&self, cx: &CliContext) -> Done {
        match self {
            Self::Create(create) => create.run(cx).await,
            Self::Ls(ls) => ls.run(cx).await,
            Self::Show(show) => show.run(cx).await,
            Self::Destroy(destroy) => destroy.run(cx).await,
            Self::Scale(scale) => scale.run(cx).await,
            Self::Extend(extend) => extend.run(cx).await,
            Self::Logs(logs) => logs.run(cx).await,
            Self::Outputs(outputs) => outputs.run(cx).await,
            Self::History(history) => history.run(cx).await,
            Self::Lock(lock) => lock.run(cx).await,
            Self::Profiles(profiles) => profiles.run(cx).await,
            Self::Check(check) => check.run(cx.output),
            Self::Queue(queue) => queue.run(cx).await,
            Self::Views(views) => views.run(cx.output).await,
        }
    }
}

/// What shells complete: ids of clusters, and names of profiles.
const LISTED_VALUES: [ListedValues; 2] = [
    ListedValues { argument: "cluster", list: "/v1/clusters?limit=1000", field: "id" },
    ListedValues { argument: "profile", list: "/v1/profiles", field: "name" },
];

/// The verb `tenure cluster`.
pub(crate) fn verb() -> Box<dyn Verb> {
    let command = || {
        let command = ClusterVerb::augment_subcommands(clap::Command::new("cluster"));
        command.subcommand_required(true).arg_required_else_help(true)
    };
    let verb = ParsedVerb::<ClusterVerb>::new(command).listed_values(&LISTED_VALUES);
    Box::new(verb.example(
        "tenure cluster create demo --profile aws-dev --follow",
        "create an OpenShift cluster and follow it",
    ))
}

/// Reads a cluster.
pub(crate) async fn get_cluster(
    transport: &HttpTransport,
    id: &str,
) -> anyhow::Result<ClusterInfo> {
    with_hint(id, transport.get(&route(id, "")).await)
}

/// Reads a job, after it has ended or `wait` has passed.
pub(crate) async fn get_job(
    transport: &HttpTransport,
    id: JobId,
    wait: Duration,
) -> Result<JobInfo, tenure::Error> {
    transport.get_with_wait(&format!("/v1/jobs/{id}?wait_ms={}", wait.as_millis()), wait).await
}

/// Returns the HTTP path of a cluster, with `suffix` appended.
pub(crate) fn route(id: &str, suffix: &str) -> String {
    format!("/v1/clusters/{id}{suffix}")
}

/// Adds a hint to the error if there is no such cluster.
fn with_hint<T>(id: &str, result: Result<T, tenure::Error>) -> anyhow::Result<T> {
    match result {
        Err(error) if error.code() == Some(Code::NotFound) => {
            Err(error).with_context(|| format!("cluster {id}; `tenure cluster ls` lists them"))
        }
        other => Ok(other?),
    }
}
