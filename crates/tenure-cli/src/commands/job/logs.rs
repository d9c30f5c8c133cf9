//! `tenure job logs`: what workers wrote, as they wrote it.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure::Error;
use tenure::http::HttpLink;
use tenure::wire::{JobAnswer, LogAnswer, LogsAnswer};
use tenure_core::JobId;

use super::{WAIT, look};
use crate::commands::{Done, Output};
use crate::text::query;

/// Most pieces that are asked for at once.
const PIECES: usize = 1_000;

/// Print what the workers of a job wrote
///
/// With `-o json` each piece is one line of JSON.
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
    pub(super) async fn run(&self, link: &HttpLink, output: Output) -> Done {
        let mut reader = Reader::new(self.id, self.attempt);
        let mut shown = 0;
        loop {
            // Before the log: what was written before the end is there then.
            let over = !self.follow || self.is_over(&look(link, self.id, Duration::ZERO).await?);
            let wait = if over { Duration::ZERO } else { WAIT };
            let pieces = reader.next(link, wait).await?;
            for piece in &pieces {
                if shown != piece.attempt && output == Output::Table {
                    anstream::eprintln!("attempt {}:", piece.attempt);
                    shown = piece.attempt;
                }
                print(piece, output)?;
            }
            if over && pieces.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    /// Whether nothing more is to come.
    fn is_over(&self, job: &JobAnswer) -> bool {
        let this = |n| job.attempts.iter().rfind(|attempt| attempt.n == n);
        let ended = self.attempt.and_then(this).is_some_and(|attempt| attempt.ended_at.is_some());
        job.state.is_over() || ended
    }
}

fn print(piece: &LogAnswer, output: Output) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match output {
        Output::Json => writeln!(stdout, "{}", serde_json::to_string(piece)?)?,
        Output::Table if piece.text.ends_with('\n') => write!(stdout, "{}", piece.text)?,
        Output::Table => writeln!(stdout, "{}", piece.text)?,
    }
    Ok(stdout.flush()?)
}

/// Reads a log from its beginning, each piece once.
pub(super) struct Reader {
    id: JobId,
    attempt: Option<u32>,
    after: u64,
}

impl Reader {
    pub(super) fn new(id: JobId, attempt: Option<u32>) -> Self {
        Self { id, attempt, after: 0 }
    }

    /// The next pieces, waiting for them; none if there are none yet.
    pub(super) async fn next(
        &mut self,
        link: &HttpLink,
        wait: Duration,
    ) -> Result<Vec<LogAnswer>, Error> {
        loop {
            let parts = [
                ("after", Some(self.after.to_string())),
                ("attempt", self.attempt.map(|n| n.to_string())),
                ("limit", Some(PIECES.to_string())),
                ("wait_ms", Some(wait.as_millis().to_string())),
            ];
            let path = query(&format!("/v1/jobs/{}/logs", self.id), &parts);
            let answer: LogsAnswer = link.get_within(&path, wait).await?;
            // Pieces of other attempts may have filled the answer: it goes on behind them.
            let moved = answer.next > self.after;
            self.after = answer.next;
            if !answer.items.is_empty() || !moved {
                return Ok(answer.items);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::canned::canned;

    #[tokio::test]
    async fn an_answer_full_of_other_attempts_is_not_the_end() {
        let piece = json!({ "position": 16_001, "attempt": 2, "at": "", "text": "late\n" });
        let nothing = json!({ "items": [], "next": 16_000 });
        let some = json!({ "items": [piece], "next": 16_001 });
        let last = json!({ "items": [], "next": 16_001 });
        let (link, _) = canned(vec![nothing, some, last]).await;
        let mut reader = Reader::new(JobId(1), Some(2));
        let texts = |pieces: Vec<LogAnswer>| pieces.into_iter().map(|piece| piece.text).collect();
        let read: Vec<String> = texts(reader.next(&link, Duration::ZERO).await.unwrap());
        assert_eq!(read, ["late\n"]);
        assert_eq!(reader.next(&link, Duration::ZERO).await.unwrap(), []);
    }
}
