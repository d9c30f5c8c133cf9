//! `tenure job`: submits, shows, follows, cancels and retries jobs.
//!
//! Verbs that are a single request are in this file, each of the others in its own. Only `cancel`
//! stops a job.

mod follow;
mod logs;
mod show;
mod submit;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::http::HttpTransport;
use tenure_core::{JobId, JobState};
use tenure_wire::{CancelResponse, JobInfo, KindInfo, ListResponse, OperationInfo, ReasonRequest};

pub(super) use submit::{parse_at, verdict_text};

use super::why;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::listing::{Empty, fetch, print_more_hint};
use tenure_cli_kit::text::{age, cell, format_duration, print_line, sanitize, table};
use tenure_cli_kit::{Done, JobArg, Output, print_json};
use tenure_cli_kit::{clock, color, exit};

/// Maximum wait of one request, which is repeated until the job has finished.
const WAIT_MAX: Duration = Duration::from_secs(20);

const NO_JOBS: Empty<'_> = Empty {
    none: "no jobs",
    item: "job",
    hint: "see: tenure job submit --help",
    hint_in_one_tenant: true,
    list: "tenure job ls",
};

/// Submit, show, cancel and retry jobs
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure job submit database/orders create --arg size:=3 --follow
  tenure job ls --kind database --state dead
  tenure job why 019a2b3c4d5e6f708192a3b4c5d6e7f8
  tenure job logs -f 019a2b3c4d5e6f708192a3b4c5d6e7f8
  tenure job cancel 019a2b3c4d5e6f708192a3b4c5d6e7f8 --reason \"wrong size\" --wait")]
pub(super) enum Job {
    Submit(submit::Submit),
    /// List jobs, newest first
    Ls(Ls),
    /// Show a job with its attempts
    Show {
        /// Id of the job, or at least 8 digits from its start or its end
        id: JobArg,
        /// Follow the job until it finishes, then show it; exits like `submit --follow`
        #[arg(long, short)]
        follow: bool,
    },
    Logs(logs::Logs),
    /// Explain what a job is waiting for
    Why {
        /// Id of the job, or at least 8 digits from its start or its end
        id: JobArg,
    },
    /// Cancel a job
    ///
    /// A waiting job is cancelled immediately. A running job is asked to stop, which may take its
    /// worker a moment. Cancelling a job that has finished otherwise is refused.
    Cancel {
        /// Id of the job, or at least 8 digits from its start or its end
        id: JobArg,
        /// Reason, recorded with the job
        #[arg(long, default_value = "")]
        reason: String,
        /// Wait until the job has stopped
        #[arg(long)]
        wait: bool,
    },
    Retry(submit::Retry),
}

/// Which jobs to list
#[derive(Args)]
pub(super) struct Ls {
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only this resource name
    #[arg(long)]
    name: Option<String>,
    /// Only this group of a grouped kind
    #[arg(long, requires = "kind")]
    group: Option<String>,
    /// Only this operation
    #[arg(long)]
    operation: Option<String>,
    /// Only this state: queued, backoff, running, cancelling, succeeded, failed, dead, …
    #[arg(long)]
    state: Option<JobState>,
    /// Maximum number of jobs
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

impl Job {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        match self {
            Self::Submit(submit) => submit.run(server, output).await,
            Self::Ls(ls) => ls.run(server, output).await,
            Self::Show { id, follow } => show::run(server, id, *follow, output).await,
            Self::Logs(logs) => logs.run(&server.transport()?, output).await,
            Self::Why { id } => why::print_job(&server.transport()?, id, output).await,
            Self::Cancel { id, reason, wait } => {
                cancel(&server.transport()?, id, reason, *wait, output).await
            }
            Self::Retry(retry) => retry.run(server, output).await,
        }
    }
}

impl Ls {
    async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let filters = [
            ("kind", self.kind.clone()),
            ("name", self.name.clone()),
            ("group", self.group.clone()),
            ("operation", self.operation.clone()),
            ("state", self.state.map(|state| state.as_str().to_owned())),
        ];
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let transport = server.transport()?;
        let list = fetch::<JobInfo>(&transport, "/v1/jobs", &filters, limit).await?;
        match output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => {
                print_without_jobs(NO_JOBS, server, &transport, &filters).await;
            }
            Output::Table => {
                print_line(&jobs_table(&list.items, server.tenant()))?;
                print_more_hint(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints the message about a list that the first job would fill, with a command that submits one.
pub(super) async fn print_without_jobs(
    empty: Empty<'_>,
    server: &ServerArgs,
    transport: &HttpTransport,
    filters: &[(&str, Option<String>)],
) {
    let is_filtered = filters.iter().any(|(_, value)| value.is_some());
    // Informational only: without an answer the general hint remains.
    let kinds = if is_filtered { None } else { transport.get("/v1/kinds").await.ok() };
    let hint = kinds.map(|kinds: ListResponse<KindInfo>| submit_hint(&kinds.items));
    Empty { hint: hint.as_deref().unwrap_or(empty.hint), ..empty }.print(server.tenant(), filters);
}

/// Returns the command that submits a job which a new resource allows. The kinds of apps have verbs
/// of their own.
fn submit_hint(kinds: &[KindInfo]) -> String {
    let of_app = |kind: &&KindInfo| super::is_verb(&kind.name);
    let first = kinds.iter().filter(|kind| !of_app(kind)).find_map(|kind| {
        let may_start =
            |one: &&OperationInfo| one.from.is_empty() || one.from.contains(&kind.initial);
        let name = if kind.grouped { "demo:1" } else { "demo" };
        Some((&kind.name, name, &kind.operations.iter().find(may_start)?.name))
    });
    first.map_or_else(
        || "no kinds are declared; declare one in the tenure.toml of the server".to_owned(),
        |(kind, name, operation)| format!("try: tenure job submit {kind}/{name} {operation}"),
    )
}

/// Formats jobs as a table. Resources of a tenant other than `tenant` include their tenant.
pub(super) fn jobs_table(jobs: &[JobInfo], tenant: &str) -> String {
    let row = |job: &JobInfo| {
        [
            job.id.to_string(),
            resource_name(job, tenant),
            job.operation.clone(),
            color::state(job.state.as_str()),
            job.attempt.to_string(),
            age(&job.submitted_at),
            sanitize(&job.by),
            note(job),
        ]
    };
    let header = ["ID", "RESOURCE", "OPERATION", "STATE", "ATTEMPT", "AGE", "BY", "NOTE"];
    table(header, jobs.iter().map(row))
}

fn resource_name(job: &JobInfo, tenant: &str) -> String {
    let JobInfo { kind, name, .. } = job;
    if job.tenant == tenant {
        format!("{kind}/{name}")
    } else {
        format!("{}/{kind}/{name}", job.tenant)
    }
}

/// Returns the progress, the error or the due time of a job.
fn note(job: &JobInfo) -> String {
    match (&job.progress, &job.error) {
        (Some(progress), _) if job.state.is_running() => {
            cell(&format!("{} % {}", progress.percent, progress.message))
        }
        (_, Some(error)) if job.state != JobState::Succeeded => {
            cell(&format!("{}: {}", error.code, error.message))
        }
        _ => due_in(job).unwrap_or_default(),
    }
}

/// Returns when a waiting job becomes due, if that is in the future.
fn due_in(job: &JobInfo) -> Option<String> {
    let is_waiting = matches!(job.state, JobState::Queued | JobState::Backoff);
    let at = tenure_wire::parse_instant(&job.due_at).ok().filter(|_| is_waiting)?;
    let left = at.since(clock::wall_time());
    (left > 0).then(|| format!("due in {}", format_duration(left)))
}

async fn cancel(
    transport: &HttpTransport,
    id: &JobArg,
    reason: &str,
    wait: bool,
    output: Output,
) -> Done {
    let id = id.resolve(transport, None).await?;
    let body = ReasonRequest { reason: Some(reason.to_owned()) };
    let path = format!("/v1/jobs/{id}/cancel");
    let mut answer: CancelResponse = transport.post(&path, None, &body, Duration::ZERO).await?;
    if wait {
        answer.state = wait_until_finished(transport, id).await?.state;
    }
    match output {
        Output::Json => print_json(&answer)?,
        Output::Table => print_line(&format!("{} {id}", color::state(answer.state.as_str())))?,
    }
    Ok(match answer.state {
        JobState::Cancelled | JobState::Cancelling => ExitCode::SUCCESS,
        _ => ExitCode::from(exit::REFUSED),
    })
}

/// Waits until a job has finished.
async fn wait_until_finished(
    transport: &HttpTransport,
    id: JobId,
) -> Result<JobInfo, tenure::Error> {
    loop {
        let job = get_job(transport, id, WAIT_MAX).await?;
        if job.state.is_finished() {
            return Ok(job);
        }
    }
}

/// Returns a job as soon as it has finished or `wait` has passed.
async fn get_job(
    transport: &HttpTransport,
    id: JobId,
    wait: Duration,
) -> Result<JobInfo, tenure::Error> {
    transport.get_with_wait(&format!("/v1/jobs/{id}?wait_ms={}", wait.as_millis()), wait).await
}
