//! `tenure job submit` and `tenure job retry`: new jobs, and following them.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::http::HttpTransport;
use tenure_core::{JobId, Verdict};
use tenure_wire::{ReasonBody, SubmitAnswer, SubmitBody, instant, parse_instant};
use tokio::signal::unix::{SignalKind, signal};

use super::follow::{ending, exit_code, follow};
use crate::commands::resource::ResourcePath;
use crate::commands::why::ask_job;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::document::{Arg, arguments};
use tenure_cli_kit::text::{out, parse_duration, plain};
use tenure_cli_kit::{Done, Output, print_json};
use tenure_cli_kit::{clock, exit};

/// Ask for an operation on a resource
///
/// Prints the verdict and the id of the job that counts: `started` when nothing is in its way,
/// `queued`, `attached` when it joined a job that is there, `replaced` when it took the place of
/// jobs that waited. A kind may also refuse it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure job submit database/orders create --arg size:=3 --arg zone=b
  tenure job submit database/orders create --args @orders.json --follow
  tenure job submit pipeline/billing run --in 30m --priority 10
  tenure job submit pipeline/billing run --at 2030-01-31T03:00:00Z --idempotency-key jan-30

With --follow it exits with 0 when the job succeeded, 1 when it failed or is a dead letter, 5 when
it was cancelled or superseded. Ctrl-C stops following, not the job, and exits with 130.")]
pub(in crate::commands) struct Submit {
    /// KIND/NAME
    resource: ResourcePath,
    /// The operation, one of those that the kind declares
    operation: String,
    /// All arguments: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON")]
    args: Option<String>,
    /// One argument: NAME=TEXT, or NAME:=JSON for what is not a text
    #[arg(long, value_name = "NAME=TEXT")]
    arg: Vec<Arg>,
    /// Higher goes first among the jobs of the tenant
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Not before this instant, for example 2030-01-31T03:00:00Z
    #[arg(long, value_name = "INSTANT", value_parser = parse_at, conflicts_with = "after")]
    at: Option<String>,
    /// Not before so long from now, by this machine's clock
    #[arg(long = "in", id = "after", value_name = "DUR", value_parser = parse_duration)]
    after: Option<Duration>,
    /// Show its progress until it is over
    #[arg(long, short)]
    follow: bool,
    /// Repeating a submit with the same key gives the same job [default: a new one each time]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

fn parse_at(text: &str) -> Result<String, String> {
    let hint = |why| format!("not an instant like 2030-01-31T03:00:00Z: {why}");
    parse_instant(text).map(instant).map_err(hint)
}

/// Try a job again that is over or rests
///
/// A job that is over is submitted again, as a new job with the same arguments; the policies of
/// its kind hold for it as for any other. One that rests between two attempts is tried at once.
#[derive(Args)]
pub(in crate::commands) struct Retry {
    /// The job
    id: JobId,
    /// Why; kept in the history
    #[arg(long)]
    reason: String,
    /// Show the progress of the job that counts until it is over
    #[arg(long, short)]
    follow: bool,
}

impl Submit {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let body = SubmitBody {
            operation: self.operation.clone(),
            args: arguments(self.args.as_deref(), &self.arg)?,
            priority: self.priority,
            run_at: self.at.clone().or_else(|| self.after.map(clock::wall_in)),
        };
        let key = self.idempotency_key.clone();
        let ask = Ask { path: self.resource.route("/jobs"), key, follow: self.follow };
        let again = |key| format!("repeat it with --idempotency-key {key}");
        ask.run(&server.link()?, &body, output, again).await
    }
}

impl Retry {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let body = ReasonBody { reason: Some(self.reason.clone()) };
        let path = format!("/v1/jobs/{}/retry", self.id);
        let ask = Ask { path, key: None, follow: self.follow };
        let again = |_| format!("look at `tenure job show {}` first", self.id);
        ask.run(&server.link()?, &body, output, again).await
    }
}

/// A request that gives a job.
struct Ask {
    path: String,
    key: Option<String>,
    follow: bool,
}

impl Ask {
    /// Sends it and shows what it came to; `again` says what to do when there is no answer.
    async fn run(
        self,
        link: &HttpTransport,
        body: &impl Serialize,
        output: Output,
        again: impl Fn(String) -> String,
    ) -> Done {
        let key = self.key.unwrap_or_else(|| tenure_store::random::request_id().to_string());
        let sent = link.post(&self.path, Some(key.clone()), body, Duration::ZERO).await;
        let mut answer: SubmitAnswer = sent.inspect_err(|error| {
            if error.is_unavailable() {
                anstream::eprintln!("it may have been submitted all the same; {}", again(key));
            }
        })?;
        // Listened to before the verdict is seen: from then on Ctrl-C only stops following.
        let interrupt = self.follow.then(|| signal(SignalKind::interrupt())).transpose()?;
        if output == Output::Table {
            tell(link, &answer).await?;
        }
        let mut code = ExitCode::SUCCESS;
        if let Some(interrupt) = interrupt {
            match follow(link, &answer.job, interrupt).await? {
                Some(job) => {
                    anstream::eprintln!("{}", ending(&job));
                    (code, answer.job) = (exit_code(job.state), job);
                    if output == Output::Table {
                        out(&format!("{} {}", answer.job.state.as_str(), answer.job.id))?;
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

/// Says what a submit came to, and what the job waits for if it does not start.
async fn tell(link: &HttpTransport, answer: &SubmitAnswer) -> anyhow::Result<()> {
    let id = answer.job.id;
    out(&format!("{} {id}", answer.verdict.as_str()))?;
    // Only talk: the job is there whatever this gives.
    let why = ask_job(link, id).await.ok();
    let starts = |why: &str| matches!(why, "ready" | "running" | "succeeded");
    let started = answer.verdict == Verdict::Started;
    if let Some(why) = why.filter(|why| !(started && starts(&why.why))) {
        anstream::eprintln!("{}", plain(&why.text));
    }
    Ok(())
}
