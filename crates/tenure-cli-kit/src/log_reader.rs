//! The log of a job, read piece by piece, and what of it is for people.

use std::time::Duration;

use tenure::Error;
use tenure::http::HttpTransport;
use tenure_core::JobId;
use tenure_wire::{LogAnswer, LogsAnswer};

use crate::text::query;

/// Most pieces that are asked for at once.
const PIECES: usize = 1_000;

/// Reads a log from its beginning, each piece once.
pub struct Reader {
    id: JobId,
    attempt: Option<u32>,
    after: u64,
}

impl Reader {
    /// Reads the log of a job, or of one of its attempts.
    #[must_use]
    pub fn new(id: JobId, attempt: Option<u32>) -> Self {
        Self { id, attempt, after: 0 }
    }

    /// The next pieces, waiting for them; none if there are none yet.
    pub async fn next(
        &mut self,
        link: &HttpTransport,
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
            let answer: LogsAnswer = link.get_with_wait(&path, wait).await?;
            // Pieces of other attempts may have filled the answer: it goes on behind them.
            let moved = answer.next > self.after;
            self.after = answer.next;
            if !answer.items.is_empty() || !moved {
                return Ok(answer.items);
            }
        }
    }

    /// All that is there and was not read yet, as far as it is for people.
    pub async fn rest(
        &mut self,
        link: &HttpTransport,
        mut show: impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        loop {
            let pieces = self.next(link, Duration::ZERO).await?;
            if pieces.is_empty() {
                return Ok(());
            }
            pieces.iter().try_for_each(|piece| show(&for_people(&piece.text)))?;
        }
    }
}

/// A piece without the lines that are data. A piece has whole lines.
pub fn for_people(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with(tenure_wire::LOG_MARK)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::canned;

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

    #[test]
    fn lines_with_data_are_not_shown_to_people() {
        let data = format!(r#"{}{{"steps":["load"]}}"#, tenure_wire::LOG_MARK);
        assert_eq!(for_people(&data), "");
        let text = format!("load | a\r\n{data}\nload | ::step b\n::steps\nno end");
        assert_eq!(for_people(&text), "load | a\r\nload | ::step b\n::steps\nno end");
    }
}
