//! `tenure job submit` and `tenure job retry`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::Error;
use tenure::http::{HttpTransport, Method, RequestOptions};
use tenure_core::{JobState, Verdict};
use tenure_wire::{ReasonRequest, SubmitRequest, SubmitResponse, instant, parse_instant};
use tokio::signal::unix::{SignalKind, signal};

use super::follow::{describe_end, exit_code, follow};
use crate::commands::resource::{Condition, ResourcePath};
use crate::commands::why::explain_job;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::document::{Arg, merge_args};
use tenure_cli_kit::text::{parse_duration, print_line, sanitize};
use tenure_cli_kit::{Done, JobArg, Output, print_json};
use tenure_cli_kit::{clock, color, exit, hint};

/// Submit a job: one operation on one resource
///
/// Prints the verdict and the id of the resulting job: `ready` if the next free worker takes it,
/// `queued` if it has to wait, `attached` if it joined an existing job, or `replaced` if it
/// replaced waiting jobs. The policies of the kind may also reject it. With `-o json` the verdict
/// of a ready job is `started`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure job submit database/orders create --arg size:=3 --arg zone=b
  tenure job submit database/orders create --args @orders.json --follow
  tenure job submit database/orders backup --in 30m --priority 10
  tenure job submit database/orders backup --at 2030-01-31T03:00:00Z --idempotency-key jan-31

With --follow, exits with 0 if the job succeeded, 1 if it failed or is a dead letter, 5 if it was
cancelled or superseded. Ctrl-C stops following, not the job, and exits with 130.")]
pub(in crate::commands) struct Submit {
    /// KIND/NAME
    resource: ResourcePath,
    /// Operation declared by the kind
    operation: String,
    /// All arguments: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON")]
    args: Option<String>,
    /// One argument: NAME=TEXT for a string, NAME:=JSON for any other value
    #[arg(long, value_name = "NAME=TEXT")]
    arg: Vec<Arg>,
    /// Priority among the jobs of the tenant; higher runs first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Earliest start, for example 2030-01-31T03:00:00Z
    #[arg(long, value_name = "INSTANT", value_parser = parse_at, conflicts_with = "after")]
    at: Option<String>,
    /// Earliest start as a delay from now, by the local clock
    #[arg(long = "in", id = "after", value_name = "DUR", value_parser = parse_duration)]
    after: Option<Duration>,
    /// Follow the job until it finishes
    #[arg(long, short)]
    follow: bool,
    /// Repeated submits with the same key return the same job [default: a random key]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    condition: Condition,
}

/// Parses an instant, for example of `--at`.
pub(in crate::commands) fn parse_at(text: &str) -> Result<String, String> {
    let hint = |why| format!("not an instant such as 2030-01-31T03:00:00Z: {why}");
    parse_instant(text).map(instant).map_err(hint)
}

/// Retry a job that has finished or is in backoff
///
/// A finished job is submitted again as a new job with the same arguments; the policies of its kind
/// apply to it. The next attempt of a job in backoff becomes due immediately.
#[derive(Args)]
pub(in crate::commands) struct Retry {
    /// Id of the job, or at least 8 digits from its start or its end
    id: JobArg,
    /// Reason, recorded in the history
    #[arg(long)]
    reason: String,
    /// Follow the resulting job until it finishes
    #[arg(long, short)]
    follow: bool,
}

impl Submit {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let body = SubmitRequest {
            operation: self.operation.clone(),
            args: merge_args(self.args.as_deref(), &self.arg)?,
            priority: self.priority,
            run_at: self.at.clone().or_else(|| self.after.map(clock::wall_time_in)),
        };
        let key = self.idempotency_key.clone();
        let (path, options) = (self.resource.route("/jobs"), self.condition.options(key));
        let request = JobRequest { path, options, follow: self.follow };
        let remedy = |key| match body.run_at.as_ref().filter(|_| self.after.is_some()) {
            // Repeated, the delay gives another time, that is another request.
            Some(at) => format!("retry with --idempotency-key {key} --at {at} instead of --in"),
            None => format!("retry with --idempotency-key {key}"),
        };
        request.run(&server.transport()?, &body, output, remedy).await
    }
}

impl Retry {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let body = ReasonRequest { reason: Some(self.reason.clone()) };
        let transport = server.transport()?;
        let id = self.id.resolve(&transport, None).await?;
        let path = format!("/v1/jobs/{id}/retry");
        let options = RequestOptions::default();
        let request = JobRequest { path, options, follow: self.follow };
        let remedy = |_| format!("check with `tenure job show {id}`");
        request.run(&transport, &body, output, remedy).await
    }
}

/// A request that creates a job.
struct JobRequest {
    path: String,
    options: RequestOptions,
    follow: bool,
}

impl JobRequest {
    /// Sends the request and prints the result. `remedy` says what to do if there is no answer.
    async fn run(
        self,
        transport: &HttpTransport,
        body: &impl Serialize,
        output: Output,
        remedy: impl Fn(String) -> String,
    ) -> Done {
        let mut options = self.options;
        let random_key = || tenure_store::random::request_id().to_string();
        let key = options.id.get_or_insert_with(random_key).clone();
        let sent =
            transport.call(Method::POST, &self.path, options, Some(body), Duration::ZERO).await;
        let mut answer: SubmitResponse = match sent {
            Err(Error::Unavailable(why)) => {
                let remedy = remedy(key);
                let why = format!("{why}. The job may have been submitted; {remedy}");
                return Err(Error::Unavailable(why).into());
            }
            sent => sent?,
        };
        // Installed before the verdict is printed: from then on Ctrl-C only stops following.
        let interrupt = self.follow.then(|| signal(SignalKind::interrupt())).transpose()?;
        if output == Output::Table {
            print_verdict(transport, &answer).await?;
        }
        let mut code = ExitCode::SUCCESS;
        if let Some(interrupt) = interrupt {
            match follow(transport, &answer.job, interrupt).await? {
                Some(job) => {
                    hint::print(&describe_end(&job));
                    (code, answer.job) = (exit_code(job.state), job);
                    if output == Output::Table {
                        let (id, state) = (answer.job.id, answer.job.state);
                        print_line(&format!("{} {id}", color::state(state.as_str())))?;
                    }
                }
                None => code = ExitCode::from(exit::INTERRUPTED),
            }
        }
        if output == Output::Json {
            print_json(&answer)?;
        }
        Ok(code)
    }
}

/// Returns the word for a verdict on a job in `state`. A job that may start is not running yet: no
/// worker has claimed it.
pub(in crate::commands) fn verdict_text(verdict: Verdict, state: JobState) -> &'static str {
    match (verdict, state) {
        (Verdict::Started, JobState::Queued) => "ready",
        _ => verdict.as_str(),
    }
}

/// Prints the verdict, and what the job waits for if it has not started.
async fn print_verdict(transport: &HttpTransport, answer: &SubmitResponse) -> anyhow::Result<()> {
    let id = answer.job.id;
    let verdict = color::state(verdict_text(answer.verdict, answer.job.state));
    print_line(&format!("{verdict} {id}"))?;
    // Informational only: the job is submitted even if this request fails.
    let why = explain_job(transport, id).await.ok();
    let runs = |why: &str| matches!(why, "ready" | "running" | "succeeded");
    let started = answer.verdict == Verdict::Started;
    if let Some(why) = why.filter(|why| !(started && runs(&why.why))) {
        hint::print(&sanitize(&why.text));
    }
    Ok(())
}
