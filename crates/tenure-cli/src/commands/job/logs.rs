//! `tenure job logs`: what workers wrote, as they wrote it.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure::http::HttpTransport;
use tenure_core::JobId;
use tenure_wire::{JobAnswer, LogAnswer};

use super::{WAIT, look};
use tenure_cli_kit::log_reader::{Reader, for_people};
use tenure_cli_kit::{Done, Output};

/// Print what the workers of a job wrote
///
/// With `-o json` each piece is one line of JSON, and has all of it. Otherwise the lines are left
/// out in which a run of a pipeline notes its steps; `tenure pipeline show` tells them.
#[derive(Args)]
pub(in crate::commands) struct Logs {
    /// The job
    id: JobId,
    /// Go on until the job is over
    #[arg(long, short)]
    follow: bool,
    /// Only of this attempt, counted from 1
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
}

impl Logs {
    pub(super) async fn run(&self, link: &HttpTransport, output: Output) -> Done {
        let mut reader = Reader::new(self.id, self.attempt);
        let mut shown = 0;
        loop {
            // Before the log: what was written before the end is there then.
            let over =
                !self.follow || self.is_finished(&look(link, self.id, Duration::ZERO).await?);
            let wait = if over { Duration::ZERO } else { WAIT };
            let pieces = reader.next(link, wait).await?;
            for piece in &pieces {
                print(piece, &mut shown, output)?;
            }
            if over && pieces.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    /// Whether nothing more is to come.
    fn is_finished(&self, job: &JobAnswer) -> bool {
        let this = |n| job.attempts.iter().rfind(|attempt| attempt.n == n);
        let ended = self.attempt.and_then(this).is_some_and(|attempt| attempt.ended_at.is_some());
        job.state.is_finished() || ended
    }
}

/// Prints a piece; `shown` is the attempt that was named last.
fn print(piece: &LogAnswer, shown: &mut u32, output: Output) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    if output == Output::Json {
        writeln!(stdout, "{}", serde_json::to_string(piece)?)?;
        return Ok(stdout.flush()?);
    }
    let text = for_people(&piece.text);
    if text.is_empty() {
        return Ok(());
    }
    if *shown != piece.attempt {
        anstream::eprintln!("attempt {}:", piece.attempt);
        *shown = piece.attempt;
    }
    let end = if text.ends_with('\n') { "" } else { "\n" };
    write!(stdout, "{text}{end}")?;
    Ok(stdout.flush()?)
}
