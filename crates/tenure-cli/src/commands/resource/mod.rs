//! `tenure resource`: what resources are like, what happened to them, and what may happen.

mod history;

use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use tenure::http::HttpTransport;
use tenure::{Error, Transport};
use tenure_core::{Command, LockPath, Outcome, ResourceAction};
use tenure_wire::{
    AskedAnswer, JobAnswer, PausedAnswer, PutAnswer, ReasonBody, ResourceAnswer, document,
};

use super::job::jobs_table;
use super::why;
use tenure_cli_kit::document::read;
use tenure_cli_kit::listing::{fetch, tell_more};
use tenure_cli_kit::text::{age, cell, facts, out, plain, table};
use tenure_cli_kit::{Done, Output, print_json};
use tenure_cli_kit::{ServerArgs, process_name};

/// Look at resources, pause and change them
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure resource ls --kind database --state FAILED
  tenure resource show database/orders
  tenure resource history database/orders
  tenure resource pause database/orders --reason \"disk is being replaced\"
  tenure resource put database/orders --spec '{\"size\": 3}'")]
pub(super) enum ResourceVerb {
    /// List resources
    Ls(Ls),
    /// Show a resource with the jobs that are not over
    Show {
        /// KIND/NAME
        resource: ResourcePath,
    },
    /// Show what happened to a resource, oldest first
    History {
        /// KIND/NAME
        resource: ResourcePath,
        /// At most so many, the latest
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Say what a resource waits for
    Why {
        /// KIND/NAME
        resource: ResourcePath,
    },
    /// Let nothing start on a resource; what runs goes on
    Pause {
        /// KIND/NAME
        resource: ResourcePath,
        /// Why; shown to everybody who asks why nothing starts
        #[arg(long)]
        reason: String,
    },
    /// Let things start again
    Resume {
        /// KIND/NAME
        resource: ResourcePath,
        /// Why; kept in the history
        #[arg(long)]
        reason: Option<String>,
    },
    /// Say what a resource should be like; makes it known if it is not
    Put {
        /// KIND/NAME
        resource: ResourcePath,
        /// What it should be like: JSON, @FILE, or - for stdin
        #[arg(long, value_name = "JSON")]
        spec: String,
    },
    /// Forget a resource, but for its tokens and its history
    Delete {
        /// KIND/NAME
        resource: ResourcePath,
    },
}

/// Which resources to list
#[derive(Args)]
pub(super) struct Ls {
    /// Only of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only in this state
    #[arg(long)]
    state: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// A resource as people write it: `KIND/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResourcePath {
    kind: String,
    name: String,
}

impl ResourcePath {
    /// The route of the resource, or of something below it.
    pub(super) fn route(&self, below: &str) -> String {
        format!("/v1/resources/{}/{}{below}", self.kind, self.name)
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
                history::run(&server.link()?, resource, *limit, output).await
            }
            Self::Why { resource } => why::of_resource(&server.link()?, resource, output).await,
            Self::Pause { resource, reason } => {
                let reason = Some(reason.clone());
                paused(&server.link()?, resource, "/pause", reason, output).await
            }
            Self::Resume { resource, reason } => {
                paused(&server.link()?, resource, "/resume", reason.clone(), output).await
            }
            Self::Put { resource, spec } => put(server, resource, spec, output).await,
            Self::Delete { resource } => delete(server, resource, output).await,
        }
    }
}

impl Ls {
    async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let filters = [("kind", self.kind.clone()), ("state", self.state.clone())];
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let list =
            fetch::<ResourceAnswer>(&server.link()?, "/v1/resources", &filters, limit).await?;
        match output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => {
                anstream::eprintln!("there is no such resource");
            }
            Output::Table => {
                out(&resources_table(&list.items, server.tenant()))?;
                tell_more(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn resources_table(resources: &[ResourceAnswer], tenant: &str) -> String {
    let row = |resource: &ResourceAnswer| {
        let ResourceAnswer { generation, observed_generation, .. } = resource;
        let running = resource.current_job.as_ref();
        let paused = resource.paused.as_ref();
        [
            named(resource, tenant),
            resource.state.clone(),
            age(&resource.since),
            format!("{observed_generation}/{generation}"),
            running.map(|job| format!("{} {}", job.operation, job.id)).unwrap_or_default(),
            resource.queue_length.to_string(),
            paused.map(|asked| cell(&asked.reason)).unwrap_or_default(),
        ]
    };
    let header = ["RESOURCE", "STATE", "SINCE", "GENERATION", "RUNNING", "WAITING", "PAUSED"];
    table(header, resources.iter().map(row))
}

fn named(resource: &ResourceAnswer, tenant: &str) -> String {
    let ResourceAnswer { kind, name, .. } = resource;
    match &resource.tenant {
        other if other != tenant => format!("{other}/{kind}/{name}"),
        _ => format!("{kind}/{name}"),
    }
}

async fn show(server: &ServerArgs, resource: &ResourcePath, output: Output) -> Done {
    let answer: ResourceAnswer = server.link()?.get(&resource.route("")).await?;
    match output {
        Output::Json => print_json(&answer)?,
        Output::Table => print(&answer, server.tenant())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(resource: &ResourceAnswer, tenant: &str) -> anyhow::Result<()> {
    let asked =
        |asked: &AskedAnswer| plain(&format!("{} at {}: {}", asked.by, asked.at, asked.reason));
    let since = format!("{} since {} ({})", resource.state, resource.since, age(&resource.since));
    let ResourceAnswer { generation, observed_generation, .. } = resource;
    out(&facts(&[
        ("resource", Some(named(resource, tenant))),
        ("state", Some(since)),
        ("generation", Some(format!("{generation}, observed {observed_generation}"))),
        ("paused by", resource.paused.as_ref().map(asked)),
        ("running", resource.current_job.as_ref().map(running)),
        ("waiting", Some(resource.queue_length.to_string())),
        ("spec", resource.spec.as_ref().map(Value::to_string)),
    ]))?;
    if !resource.queue.is_empty() {
        out("")?;
        out(&jobs_table(&resource.queue, tenant))?;
    }
    let hidden = resource.queue_length - resource.queue.len().min(resource.queue_length);
    if hidden > 0 {
        anstream::eprintln!("{hidden} more wait; see them with `tenure job ls`");
    }
    Ok(())
}

fn running(job: &JobAnswer) -> String {
    let worker = job.attempts.last().map(|attempt| format!(" on {}", attempt.worker));
    let progress = job.progress.as_ref().map(|p| format!(", {} % {}", p.percent, p.message));
    let (worker, progress) = (worker.unwrap_or_default(), progress.unwrap_or_default());
    plain(&format!("{} as job {}{worker}{progress}", job.operation, job.id))
}

async fn paused(
    link: &HttpTransport,
    resource: &ResourcePath,
    verb: &str,
    reason: Option<String>,
    output: Output,
) -> Done {
    let body = ReasonBody { reason };
    let answer: PausedAnswer =
        link.post(&resource.route(verb), None, &body, Duration::ZERO).await?;
    let said = if answer.paused { "paused" } else { "not paused any more" };
    done(resource, said, &answer, output)
}

async fn put(server: &ServerArgs, resource: &ResourcePath, spec: &str, output: Output) -> Done {
    let spec = document(&read("--spec", spec)?);
    let (link, by) = (server.link()?, process_name().into());
    let action = ResourceAction::Put { spec, by };
    let Outcome::Put { job, .. } = send(server, &link, resource, action).await? else {
        return Err(Error::Protocol("the answer is not about a resource".to_owned()).into());
    };
    let answer = PutAnswer { resource: link.get(&resource.route("")).await?, job };
    let generation = answer.resource.generation;
    let said = match job {
        Some(job) => format!("generation {generation}, job {job} brings it there"),
        None => format!("generation {generation}"),
    };
    done(resource, &said, &answer, output)
}

async fn delete(server: &ServerArgs, resource: &ResourcePath, output: Output) -> Done {
    let action = ResourceAction::Delete { by: process_name().into() };
    send(server, &server.link()?, resource, action).await?;
    done(resource, "deleted", &tenure_wire::DeletedAnswer { deleted: true }, output)
}

async fn send(
    server: &ServerArgs,
    link: &HttpTransport,
    resource: &ResourcePath,
    action: ResourceAction,
) -> anyhow::Result<Outcome> {
    let ResourcePath { kind, name } = resource;
    let key = tenure_core::ResourceKey::new(server.tenant(), kind, name).map_err(Error::from)?;
    match link.send(Command::Resource { key, action }, Duration::ZERO).await? {
        Outcome::Refused(refusal) => Err(Error::Refused(refusal).into()),
        outcome => Ok(outcome),
    }
}

/// Says what was done: to people as talk, to programs as data.
fn done(resource: &ResourcePath, said: &str, answer: &impl Serialize, output: Output) -> Done {
    match output {
        Output::Json => print_json(answer)?,
        Output::Table => anstream::eprintln!("{resource}: {said}"),
    }
    Ok(ExitCode::SUCCESS)
}
