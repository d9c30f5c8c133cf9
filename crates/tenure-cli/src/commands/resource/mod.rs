//! `tenure resource`: shows, pauses, changes and deletes resources.

mod change;
mod group;
mod history;

use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use tenure::Error;
use tenure::http::HttpTransport;
use tenure_core::{LockPath, Refusal};
use tenure_wire::{
    JobInfo, PauseResponse, ReasonRequest, RequestedByInfo, ResourceInfo, ResourceLocksResponse,
    TimerInfo,
};

pub(in crate::commands) use change::Condition;

use super::job::{jobs_table, print_without_jobs};
use super::why;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::color::{self, Tone};
use tenure_cli_kit::listing::{Empty, fetch, print_more_hint};
use tenure_cli_kit::text::{age, cell, field_list, print_line, sanitize, table};
use tenure_cli_kit::{Done, Output, hint, print_json};

const NO_RESOURCES: Empty<'_> = Empty {
    none: "no resources",
    item: "resource",
    hint: "see: tenure job submit --help",
    hint_in_one_tenant: true,
    list: "tenure resource ls",
};

/// Show, pause, change and delete resources
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure resource ls --kind database --state FAILED
  tenure resource show database/orders
  tenure resource history database/orders
  tenure resource pause database/orders --reason \"disk is being replaced\"
  tenure resource put database/orders --spec '{\"size\": 3}'
  tenure resource put database/orders --spec '{\"size\": 4}' --if-generation 1
  tenure resource timer database/orders expire --in 8h
  tenure resource group test/build-7")]
pub(super) enum ResourceVerb {
    /// List resources
    Ls(Ls),
    /// Show a resource with its unfinished jobs
    Show {
        /// KIND/NAME
        resource: ResourcePath,
    },
    /// Show the history of a resource, oldest entry first
    History {
        /// KIND/NAME
        resource: ResourcePath,
        /// Maximum number of entries, the latest ones
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Explain what a resource is waiting for
    Why {
        /// KIND/NAME
        resource: ResourcePath,
    },
    /// Pause a resource: no job starts, a running one continues
    Pause {
        /// KIND/NAME
        resource: ResourcePath,
        /// Reason, shown by `tenure why`
        #[arg(long)]
        reason: String,
    },
    /// Resume a paused resource
    Resume {
        /// KIND/NAME
        resource: ResourcePath,
        /// Reason, recorded in the history
        #[arg(long)]
        reason: Option<String>,
    },
    Put(change::Put),
    Timer(change::Timer),
    Delete(change::Delete),
    Group(group::Group),
}

/// Which resources to list
#[derive(Args)]
pub(super) struct Ls {
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only this group of a grouped kind
    #[arg(long, requires = "kind")]
    group: Option<String>,
    /// Only this state
    #[arg(long)]
    state: Option<String>,
    /// Maximum number of resources
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// A resource of the command line: `KIND/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResourcePath {
    kind: String,
    name: String,
}

impl ResourcePath {
    /// Returns the HTTP path of the resource, with `suffix` appended.
    pub(super) fn route(&self, suffix: &str) -> String {
        format!("/v1/resources/{}/{}{suffix}", self.kind, self.name)
    }
}

impl fmt::Display for ResourcePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

impl FromStr for ResourcePath {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('#') || !text.contains('/') {
            return Err(format!("{text:?} is not of the form KIND/NAME"));
        }
        let LockPath { kind, name, .. } = text.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { kind, name })
    }
}

impl ResourceVerb {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        match self {
            Self::Ls(ls) => ls.run(server, output).await,
            Self::Show { resource } => show(server, resource, output).await,
            Self::History { resource, limit } => {
                history::run(server, resource, *limit, output).await
            }
            Self::Why { resource } => {
                why::print_resource(&server.transport()?, resource, output).await
            }
            Self::Pause { resource, reason } => {
                let reason = Some(reason.clone());
                set_paused(&server.transport()?, resource, "/pause", reason, output).await
            }
            Self::Resume { resource, reason } => {
                set_paused(&server.transport()?, resource, "/resume", reason.clone(), output).await
            }
            Self::Put(put) => put.run(server, output).await,
            Self::Timer(timer) => timer.run(server, output).await,
            Self::Delete(delete) => delete.run(server, output).await,
            Self::Group(group) => group.run(server, output).await,
        }
    }
}

impl Ls {
    async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let filters = [
            ("kind", self.kind.clone()),
            ("group", self.group.clone()),
            ("state", self.state.clone()),
        ];
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let transport = server.transport()?;
        let list = fetch::<ResourceInfo>(&transport, "/v1/resources", &filters, limit).await?;
        match output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => {
                print_without_jobs(NO_RESOURCES, server, &transport, &filters).await;
            }
            Output::Table => {
                print_line(&resources_table(&list.items, server.tenant()))?;
                print_more_hint(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn resources_table(resources: &[ResourceInfo], tenant: &str) -> String {
    let row = |resource: &ResourceInfo| {
        let ResourceInfo { generation, observed_generation, .. } = resource;
        let running = resource.current_job.as_ref();
        let paused = resource.paused.as_ref();
        [
            resource_name(resource, tenant),
            color::state(&resource.state),
            age(&resource.since),
            format!("{observed_generation}/{generation}"),
            running.map(|job| format!("{} {}", job.operation, job.id)).unwrap_or_default(),
            resource.queue_length.to_string(),
            paused.map(|request| Tone::Attention.paint(&cell(&request.reason))).unwrap_or_default(),
        ]
    };
    let header = ["RESOURCE", "STATE", "SINCE", "GENERATION", "RUNNING", "WAITING", "PAUSED"];
    table(header, resources.iter().map(row))
}

fn resource_name(resource: &ResourceInfo, tenant: &str) -> String {
    let ResourceInfo { kind, name, .. } = resource;
    match &resource.tenant {
        other if other != tenant => format!("{other}/{kind}/{name}"),
        _ => format!("{kind}/{name}"),
    }
}

async fn show(server: &ServerArgs, resource: &ResourcePath, output: Output) -> Done {
    let transport = server.transport()?;
    let answer: ResourceInfo = match transport.get(&resource.route("")).await {
        Err(Error::Refused(Refusal::NoSuchResource)) => {
            return Err(explain_missing(&transport, resource).await.into());
        }
        answer => answer?,
    };
    match output {
        Output::Json => print_json(&answer)?,
        Output::Table => print(&answer, server.tenant())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the error for a resource without a state: nothing is known of it, or only its locks.
async fn explain_missing(transport: &HttpTransport, resource: &ResourcePath) -> Error {
    let ResourcePath { kind, name } = resource;
    let locks = transport.get::<ResourceLocksResponse>(&format!("/v1/locks/{kind}/{name}")).await;
    match locks {
        Ok(_) => Error::NotFound(format!(
            "{resource} has locks but no state: no job was submitted for it and no spec was put, \
             or it was deleted. `tenure lock show {resource}` and `tenure lock ls --kind {kind}` \
             show its locks, `tenure why {resource}` who holds them"
        )),
        Err(Error::NotFound(_)) => Error::Refused(Refusal::NoSuchResource),
        Err(error) => error,
    }
}

fn print(resource: &ResourceInfo, tenant: &str) -> anyhow::Result<()> {
    let request = |request: &RequestedByInfo| {
        sanitize(&format!("{} at {}: {}", request.by, request.at, request.reason))
    };
    let (state, since) = (color::state(&resource.state), &resource.since);
    let since = format!("{state} since {since} ({})", age(since));
    let ResourceInfo { generation, observed_generation, .. } = resource;
    print_line(&field_list(&[
        ("resource", Some(resource_name(resource, tenant))),
        ("state", Some(since)),
        ("generation", Some(format!("{generation}, observed {observed_generation}"))),
        ("paused by", resource.paused.as_ref().map(request)),
        ("running", resource.current_job.as_ref().map(describe_running)),
        ("waiting", Some(resource.queue_length.to_string())),
        ("spec", resource.spec.as_ref().map(Value::to_string)),
        ("status", resource.status.as_ref().map(Value::to_string)),
        ("status since", resource.status_at.as_ref().map(|at| format!("{at} ({})", age(at)))),
    ]))?;
    for timer in &resource.timers {
        print_line(&describe_timer(timer))?;
    }
    if !resource.queue.is_empty() {
        print_line("")?;
        print_line(&jobs_table(&resource.queue, tenant))?;
    }
    let hidden = resource.queue_length - resource.queue.len().min(resource.queue_length);
    if hidden > 0 {
        hint::print(&format!("{hidden} more jobs are waiting; list them with `tenure job ls`"));
    }
    Ok(())
}

fn describe_timer(timer: &TimerInfo) -> String {
    let TimerInfo { operation, at, by, refused, .. } = timer;
    let refused = refused.as_ref().map(|error| format!("; refused: {}", error.message));
    sanitize(&format!("timer: submits {operation} at {at} for {by}{}", refused.unwrap_or_default()))
}

fn describe_running(job: &JobInfo) -> String {
    let worker = job.attempts.last().map(|attempt| format!(" on {}", attempt.worker));
    let progress = job.progress.as_ref().map(|p| format!(", {} % {}", p.percent, p.message));
    let (worker, progress) = (worker.unwrap_or_default(), progress.unwrap_or_default());
    sanitize(&format!("{} as job {}{worker}{progress}", job.operation, job.id))
}

async fn set_paused(
    transport: &HttpTransport,
    resource: &ResourcePath,
    verb: &str,
    reason: Option<String>,
    output: Output,
) -> Done {
    let body = ReasonRequest { reason };
    let answer: PauseResponse =
        transport.post(&resource.route(verb), None, &body, Duration::ZERO).await?;
    let result = if answer.paused { "paused" } else { "resumed" };
    print_result(resource, result, &answer, output)
}

/// Prints the result: as a message on stderr, or as JSON on stdout.
fn print_result(
    resource: &ResourcePath,
    result: &str,
    answer: &impl Serialize,
    output: Output,
) -> Done {
    match output {
        Output::Json => print_json(answer)?,
        Output::Table => anstream::eprintln!("{resource}: {result}"),
    }
    Ok(ExitCode::SUCCESS)
}
