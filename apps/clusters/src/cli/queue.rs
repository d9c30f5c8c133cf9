//! `tenure cluster queue`

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure_cli_kit::text::{count, field_list, print_line, sanitize};
use tenure_cli_kit::{CliContext, Done, Output, hint, print_json};

use crate::wire::{QueueResponse, RedriveQueueResponse};

/// Show the queue on SQS, or send its dead messages again
///
/// A message only wakes a worker: jobs are in the store, so a lost or dead message loses nothing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster queue
  tenure cluster queue --redrive                 send the messages of the dead-letter queue again")]
pub(super) struct Queue {
    /// Send the messages of the dead-letter queue again
    #[arg(long)]
    redrive: bool,
}

impl Queue {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let transport = cx.server.transport()?;
        if self.redrive {
            let body = serde_json::json!({});
            let path = "/v1/clusters/queue/redrive";
            let answer: RedriveQueueResponse =
                transport.post(path, None, &body, Duration::ZERO).await?;
            match cx.output {
                Output::Json => print_json(&answer)?,
                Output::Table => print_line(&redriven(answer))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        let queue: QueueResponse = transport.get("/v1/clusters/queue").await?;
        match cx.output {
            Output::Json => print_json(&queue)?,
            Output::Table => print(&queue)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn redriven(answer: RedriveQueueResponse) -> String {
    let messages = |n: u64| count(usize::try_from(n).unwrap_or(usize::MAX), "message");
    match answer.unreadable {
        0 => format!("sent {} again", messages(answer.sent)),
        n => format!("sent {} again; {n} cannot be read and stay", messages(answer.sent)),
    }
}

fn print(queue: &QueueResponse) -> anyhow::Result<()> {
    print_line(&field_list(&[
        ("queue", Some(sanitize(&queue.queue))),
        ("waiting", Some(queue.waiting.to_string())),
        ("in flight", Some(queue.in_flight.to_string())),
        ("dead-letter queue", Some(sanitize(&queue.dead_letter_queue))),
        ("dead letters", Some(queue.dead_letters.to_string())),
    ]))?;
    for problem in &queue.problems {
        anstream::eprintln!("{}", sanitize(problem));
    }
    if queue.dead_letters > 0 {
        hint::print("send them again with `tenure cluster queue --redrive`");
    }
    Ok(())
}
