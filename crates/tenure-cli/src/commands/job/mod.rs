//! `tenure job`: submit, look at, follow, cancel and retry jobs.
//!
//! Here are the verbs that are one request; the others have a file each. Nothing that is done here
//! stops a job, but `cancel`.

mod follow;
mod logs;
mod show;
mod submit;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::http::HttpTransport;
use tenure_core::{JobId, JobState};
use tenure_wire::{CancelAnswer, JobAnswer, ReasonBody};

use super::why;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::listing::{fetch, tell_more};
use tenure_cli_kit::text::{age, cell, human, out, plain, table};
use tenure_cli_kit::{Done, Output, print_json};
use tenure_cli_kit::{clock, exit};

/// How long one answer is waited for; it is asked again until the job is over.
const WAIT: Duration = Duration::from_secs(20);

/// Submit jobs, look at them, cancel and retry them
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
        /// The job
        id: JobId,
        /// Show its progress first, until it is over; exits as `submit --follow` does
        #[arg(long, short)]
        follow: bool,
    },
    Logs(logs::Logs),
    /// Say what a job waits for
    Why {
        /// The job
        id: JobId,
    },
    /// Stop a job
    ///
    /// One that waits is over at once. One that runs is asked to stop; its worker may need a
    /// moment. Cancelling a job that is over in another way is refused.
    Cancel {
        /// The job
        id: JobId,
        /// Why; kept with the job
        #[arg(long, default_value = "")]
        reason: String,
        /// Return when it has stopped
        #[arg(long)]
        wait: bool,
    },
    Retry(submit::Retry),
}

/// Which jobs to list
#[derive(Args)]
pub(super) struct Ls {
    /// Only of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only of this resource name
    #[arg(long)]
    name: Option<String>,
    /// Only of this operation
    #[arg(long)]
    operation: Option<String>,
    /// Only in this state: queued, backoff, running, cancelling, succeeded, failed, dead, …
    #[arg(long)]
    state: Option<JobState>,
    /// At most so many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

impl Job {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        match self {
            Self::Submit(submit) => submit.run(server, output).await,
            Self::Ls(ls) => ls.run(server, output).await,
            Self::Show { id, follow } => show::run(server, *id, *follow, output).await,
            Self::Logs(logs) => logs.run(&server.link()?, output).await,
            Self::Why { id } => why::of_job(&server.link()?, *id, output).await,
            Self::Cancel { id, reason, wait } => {
                cancel(&server.link()?, *id, reason, *wait, output).await
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
            ("operation", self.operation.clone()),
            ("state", self.state.map(|state| state.as_str().to_owned())),
        ];
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let list = fetch::<JobAnswer>(&server.link()?, "/v1/jobs", &filters, limit).await?;
        match output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => anstream::eprintln!("there is no such job"),
            Output::Table => {
                out(&jobs_table(&list.items, server.tenant()))?;
                tell_more(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Jobs as a table; the tenant is named where it is not the one that was asked for.
pub(super) fn jobs_table(jobs: &[JobAnswer], tenant: &str) -> String {
    let row = |job: &JobAnswer| {
        [
            job.id.to_string(),
            resource_of(job, tenant),
            job.operation.clone(),
            job.state.as_str().to_owned(),
            job.attempt.to_string(),
            age(&job.submitted_at),
            plain(&job.by),
            note(job),
        ]
    };
    let header = ["ID", "RESOURCE", "OPERATION", "STATE", "ATTEMPT", "AGE", "BY", "NOTE"];
    table(header, jobs.iter().map(row))
}

fn resource_of(job: &JobAnswer, tenant: &str) -> String {
    let JobAnswer { kind, name, .. } = job;
    if job.tenant == tenant {
        format!("{kind}/{name}")
    } else {
        format!("{}/{kind}/{name}", job.tenant)
    }
}

/// What is worth knowing about a job in a few words.
fn note(job: &JobAnswer) -> String {
    match (&job.progress, &job.error) {
        (Some(progress), _) if job.state.is_running() => {
            cell(&format!("{} % {}", progress.percent, progress.message))
        }
        (_, Some(error)) if job.state != JobState::Succeeded => {
            cell(&format!("{}: {}", error.code, error.message))
        }
        _ => due(job).unwrap_or_default(),
    }
}

/// When a job that waits may start, if that is later than now.
fn due(job: &JobAnswer) -> Option<String> {
    let waits = matches!(job.state, JobState::Queued | JobState::Backoff);
    let at = tenure_wire::parse_instant(&job.due_at).ok().filter(|_| waits)?;
    let left = at.since(clock::wall());
    (left > 0).then(|| format!("due in {}", human(left)))
}

async fn cancel(link: &HttpTransport, id: JobId, reason: &str, wait: bool, output: Output) -> Done {
    let body = ReasonBody { reason: Some(reason.to_owned()) };
    let path = format!("/v1/jobs/{id}/cancel");
    let mut answer: CancelAnswer = link.post(&path, None, &body, Duration::ZERO).await?;
    if wait {
        answer.state = over(link, id).await?.state;
    }
    match output {
        Output::Json => print_json(&answer)?,
        Output::Table => out(&format!("{} {id}", answer.state.as_str()))?,
    }
    Ok(match answer.state {
        JobState::Cancelled | JobState::Cancelling => ExitCode::SUCCESS,
        _ => ExitCode::from(exit::REFUSED),
    })
}

/// Waits until a job is over.
async fn over(link: &HttpTransport, id: JobId) -> Result<JobAnswer, tenure::Error> {
    loop {
        let job = look(link, id, WAIT).await?;
        if job.state.is_finished() {
            return Ok(job);
        }
    }
}

/// A job, as soon as it is over or `wait` has passed.
async fn look(link: &HttpTransport, id: JobId, wait: Duration) -> Result<JobAnswer, tenure::Error> {
    link.get_with_wait(&format!("/v1/jobs/{id}?wait_ms={}", wait.as_millis()), wait).await
}
