//! `tenure job logs`: the output of a job's attempts.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure::http::HttpTransport;
use tenure_wire::{JobInfo, LogChunkInfo};

use super::{WAIT_MAX, get_job};
use tenure::job::LogReader;
use tenure_cli_kit::log_text::without_data_lines;
use tenure_cli_kit::{Done, JobArg, Output};

/// Print the log of a job
///
/// With `-o json`, prints each chunk of the log as one line of JSON. Otherwise leaves out the lines
/// that carry data for programs.
#[derive(Args)]
pub(in crate::commands) struct Logs {
    /// Id of the job, or at least 8 digits from its start or its end
    id: JobArg,
    /// Follow the log until the job finishes
    #[arg(long, short)]
    follow: bool,
    /// Only this attempt, counted from 1
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
}

impl Logs {
    pub(super) async fn run(&self, transport: &HttpTransport, output: Output) -> Done {
        let id = self.id.resolve(transport, None).await?;
        let mut reader = LogReader::new(id, self.attempt);
        let mut shown_attempt = 0;
        loop {
            // Read the job before its log: the log is complete once the job has finished.
            let finished =
                !self.follow || self.is_finished(&get_job(transport, id, Duration::ZERO).await?);
            let wait = if finished { Duration::ZERO } else { WAIT_MAX };
            let chunks = reader.next(transport, wait).await?;
            for chunk in &chunks {
                print(chunk, &mut shown_attempt, output)?;
            }
            if finished && chunks.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    /// Returns whether the log is complete.
    fn is_finished(&self, job: &JobInfo) -> bool {
        let find = |n| job.attempts.iter().rfind(|attempt| attempt.n == n);
        let ended = self.attempt.and_then(find).is_some_and(|attempt| attempt.ended_at.is_some());
        job.state.is_finished() || ended
    }
}

/// Prints a chunk, with a heading if its attempt is not `shown_attempt`.
fn print(chunk: &LogChunkInfo, shown_attempt: &mut u32, output: Output) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    if output == Output::Json {
        writeln!(stdout, "{}", serde_json::to_string(chunk)?)?;
        return Ok(stdout.flush()?);
    }
    let text = without_data_lines(&chunk.text);
    if text.is_empty() {
        return Ok(());
    }
    if *shown_attempt != chunk.attempt {
        anstream::eprintln!("attempt {}:", chunk.attempt);
        *shown_attempt = chunk.attempt;
    }
    let end = if text.ends_with('\n') { "" } else { "\n" };
    write!(stdout, "{text}{end}")?;
    Ok(stdout.flush()?)
}
