//! `tenure why`: explains what a job or a resource is waiting for.

use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use tenure::http::HttpTransport;
use tenure_core::JobId;
use tenure_wire::WhyResponse;

use super::resource::ResourcePath;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::text::{field_list, format_duration, print_line, sanitize};
use tenure_cli_kit::{Done, JobArg, Output, hint, print_json};

/// Explain what a job or a resource is waiting for
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure why database/orders
  tenure why 019a2b3c4d5e6f708192a3b4c5d6e7f8 -o json")]
pub(super) struct Why {
    /// KIND/NAME, or the id of a job or at least 8 digits from its start or its end
    #[arg(value_name = "KIND/NAME|JOB")]
    subject: Subject,
}

#[derive(Clone, Debug)]
enum Subject {
    Job(JobArg),
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
        let transport = server.transport()?;
        match &self.subject {
            Subject::Job(id) => print_job(&transport, id, output).await,
            Subject::Resource(resource) => print_resource(&transport, resource, output).await,
        }
    }
}

pub(super) async fn print_job(transport: &HttpTransport, id: &JobArg, output: Output) -> Done {
    let id = id.resolve(transport, None).await?;
    let answer = explain_job(transport, id).await?;
    print(&format!("job {id}"), &answer, output)
}

/// Returns what a job is waiting for.
pub(super) async fn explain_job(
    transport: &HttpTransport,
    id: JobId,
) -> Result<WhyResponse, tenure::Error> {
    transport.get(&format!("/v1/jobs/{id}/why")).await
}

pub(super) async fn print_resource(
    transport: &HttpTransport,
    resource: &ResourcePath,
    output: Output,
) -> Done {
    let answer: WhyResponse = transport.get(&resource.route("/why")).await?;
    print(&resource.to_string(), &answer, output)
}

fn print(subject: &str, answer: &WhyResponse, output: Output) -> Done {
    match output {
        Output::Json => print_json(answer)?,
        Output::Table => {
            let text = hint::complete(&sanitize(&answer.text));
            print_line(&format!("{subject}: {text}"))?;
            let details = format_details(answer);
            if !details.is_empty() {
                print_line(&details)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the details behind the sentence.
fn format_details(answer: &WhyResponse) -> String {
    let request = |request: &tenure_wire::RequestedByInfo| {
        format!("{} at {}: {}", sanitize(&request.by), request.at, sanitize(&request.reason))
    };
    let behind = answer.behind.as_ref().map(|behind| {
        let (job, operation, state) =
            (behind.job, sanitize(&behind.operation), behind.state.as_str());
        let worker = behind.worker.as_ref().map(|worker| format!(" on {}", sanitize(worker)));
        let (worker, since) = (worker.unwrap_or_default(), format_duration(behind.for_ms));
        format!("job {job}, {operation}, {state}{worker} for {since}")
    });
    let held = answer.held_by.as_ref().map(|tenure| {
        let (lock, holder, token) = (&tenure.lock, sanitize(&tenure.holder.name), tenure.token);
        format!("{lock} by {holder} since {}, token {token}", tenure.since)
    });
    let progress = answer.progress.as_ref();
    let cap = answer.running.zip(answer.max).map(|(running, max)| format!("{running} of {max}"));
    field_list(&[
        ("job", answer.job.map(|job| job.to_string())),
        ("worker", answer.worker.as_deref().map(sanitize)),
        ("token", answer.token.map(|token| token.to_string())),
        ("progress", progress.map(|p| format!("{} % {}", p.percent, sanitize(&p.message)))),
        ("asked to stop by", answer.cancel.as_ref().map(request)),
        ("paused by", answer.paused.as_ref().map(request)),
        ("attempts so far", answer.attempt.map(|n| n.to_string())),
        ("error", answer.error.as_ref().map(|e| sanitize(&format!("{}: {}", e.code, e.message)))),
        ("state", answer.state.clone()),
        ("may start from", answer.from.as_ref().map(|from| from.join(", "))),
        ("behind", behind),
        ("held", held),
        ("running", cap),
        ("workers", answer.workers.map(|n| n.to_string())),
    ])
}
