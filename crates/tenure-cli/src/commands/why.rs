//! `tenure why`: what a job or a resource waits for, in one sentence and its facts.

use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use tenure::http::HttpTransport;
use tenure_core::JobId;
use tenure_wire::WhyAnswer;

use super::resource::ResourcePath;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::text::{facts, human, out, plain};
use tenure_cli_kit::{Done, Output, print_json};

/// Say what a job or a resource waits for
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure why database/orders
  tenure why 019a2b3c4d5e6f708192a3b4c5d6e7f8 -o json")]
pub(super) struct Why {
    /// KIND/NAME, or the id of a job
    #[arg(value_name = "KIND/NAME|JOB")]
    subject: Subject,
}

#[derive(Clone, Debug)]
enum Subject {
    Job(JobId),
    Resource(ResourcePath),
}

impl FromStr for Subject {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return text.parse().map(Self::Resource);
        }
        let why = |error| format!("neither KIND/NAME nor the id of a job: {error}");
        text.parse().map(Self::Job).map_err(why)
    }
}

impl Why {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let link = server.link()?;
        match &self.subject {
            Subject::Job(id) => of_job(&link, *id, output).await,
            Subject::Resource(resource) => of_resource(&link, resource, output).await,
        }
    }
}

pub(super) async fn of_job(link: &HttpTransport, id: JobId, output: Output) -> Done {
    let answer = ask_job(link, id).await?;
    print(&format!("job {id}"), &answer, output)
}

/// What a job waits for.
pub(super) async fn ask_job(link: &HttpTransport, id: JobId) -> Result<WhyAnswer, tenure::Error> {
    link.get(&format!("/v1/jobs/{id}/why")).await
}

pub(super) async fn of_resource(
    link: &HttpTransport,
    resource: &ResourcePath,
    output: Output,
) -> Done {
    let answer: WhyAnswer = link.get(&resource.route("/why")).await?;
    print(&resource.to_string(), &answer, output)
}

fn print(subject: &str, answer: &WhyAnswer, output: Output) -> Done {
    match output {
        Output::Json => print_json(answer)?,
        Output::Table => {
            out(&format!("{subject}: {}", plain(&answer.text)))?;
            let facts = facts_of(answer);
            if !facts.is_empty() {
                out(&facts)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the sentence leaves out, or says only in passing.
fn facts_of(answer: &WhyAnswer) -> String {
    let asked = |asked: &tenure_wire::AskedAnswer| {
        format!("{} at {}: {}", plain(&asked.by), asked.at, plain(&asked.reason))
    };
    let behind = answer.behind.as_ref().map(|behind| {
        let (job, operation, state) = (behind.job, plain(&behind.operation), behind.state.as_str());
        let worker = behind.worker.as_ref().map(|worker| format!(" on {}", plain(worker)));
        let (worker, since) = (worker.unwrap_or_default(), human(behind.for_ms));
        format!("job {job}, {operation}, {state}{worker} for {since}")
    });
    let held = answer.held_by.as_ref().map(|tenure| {
        let (lock, holder, token) = (&tenure.lock, plain(&tenure.holder.name), tenure.token);
        format!("{lock} by {holder} since {}, token {token}", tenure.since)
    });
    let progress = answer.progress.as_ref();
    let cap = answer.running.zip(answer.max).map(|(running, max)| format!("{running} of {max}"));
    facts(&[
        ("job", answer.job.map(|job| job.to_string())),
        ("worker", answer.worker.as_deref().map(plain)),
        ("token", answer.token.map(|token| token.to_string())),
        ("progress", progress.map(|p| format!("{} % {}", p.percent, plain(&p.message)))),
        ("asked to stop by", answer.cancel.as_ref().map(asked)),
        ("paused by", answer.paused.as_ref().map(asked)),
        ("attempts so far", answer.attempt.map(|n| n.to_string())),
        ("error", answer.error.as_ref().map(|e| plain(&format!("{}: {}", e.code, e.message)))),
        ("state", answer.state.clone()),
        ("may start from", answer.from.as_ref().map(|from| from.join(", "))),
        ("behind", behind),
        ("held", held),
        ("running", cap),
        ("workers", answer.workers.map(|n| n.to_string())),
    ])
}
