//! Incremental reading of a job's log.

use std::time::Duration;

use tenure::Error;
use tenure::http::HttpTransport;
use tenure_core::JobId;
use tenure_wire::{LogChunkInfo, LogResponse};

use crate::text::query;

/// Maximum number of chunks per request.
const CHUNKS_MAX: usize = 1_000;

/// Reads the log of a job from its beginning, each chunk once.
pub struct LogReader {
    id: JobId,
    attempt: Option<u32>,
    after: u64,
}

impl LogReader {
    /// Creates a reader of the log of a job, or of one of its attempts.
    #[must_use]
    pub fn new(id: JobId, attempt: Option<u32>) -> Self {
        Self { id, attempt, after: 0 }
    }

    /// Returns the next chunks, waiting up to `wait` for the first; none if there are none yet.
    pub async fn next(
        &mut self,
        transport: &HttpTransport,
        wait: Duration,
    ) -> Result<Vec<LogChunkInfo>, Error> {
        loop {
            let parts = [
                ("after", Some(self.after.to_string())),
                ("attempt", self.attempt.map(|n| n.to_string())),
                ("limit", Some(CHUNKS_MAX.to_string())),
                ("wait_ms", Some(wait.as_millis().to_string())),
            ];
            let path = query(&format!("/v1/jobs/{}/logs", self.id), &parts);
            let answer: LogResponse = transport.get_with_wait(&path, wait).await?;
            // A page may hold only chunks of other attempts, which the server leaves out.
            let advanced = answer.next > self.after;
            self.after = answer.next;
            if !answer.items.is_empty() || !advanced {
                return Ok(answer.items);
            }
        }
    }

    /// Passes all unread chunks that exist to `show`, without their data lines.
    pub async fn read_available(
        &mut self,
        transport: &HttpTransport,
        mut show: impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        loop {
            let chunks = self.next(transport, Duration::ZERO).await?;
            if chunks.is_empty() {
                return Ok(());
            }
            chunks.iter().try_for_each(|chunk| show(&without_data_lines(&chunk.text)))?;
        }
    }
}

/// Returns a chunk without its machine-readable lines. Chunks consist of whole lines.
pub fn without_data_lines(text: &str) -> String {
    text.split_inclusive('\n')
        .filter(|line| !line.starts_with(tenure_wire::LOG_DATA_PREFIX))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::serve_responses;

    #[tokio::test]
    async fn a_page_with_only_other_attempts_does_not_end_the_log() {
        let chunk = json!({ "position": 16_001, "attempt": 2, "at": "", "text": "late\n" });
        let empty = json!({ "items": [], "next": 16_000 });
        let some = json!({ "items": [chunk], "next": 16_001 });
        let last = json!({ "items": [], "next": 16_001 });
        let (transport, _) = serve_responses(vec![empty, some, last]).await;
        let mut reader = LogReader::new(JobId(1), Some(2));
        let texts =
            |chunks: Vec<LogChunkInfo>| chunks.into_iter().map(|chunk| chunk.text).collect();
        let read: Vec<String> = texts(reader.next(&transport, Duration::ZERO).await.unwrap());
        assert_eq!(read, ["late\n"]);
        assert_eq!(reader.next(&transport, Duration::ZERO).await.unwrap(), []);
    }

    #[test]
    fn data_lines_are_removed() {
        let data = format!(r#"{}{{"steps":["load"]}}"#, tenure_wire::LOG_DATA_PREFIX);
        assert_eq!(without_data_lines(&data), "");
        let text = format!("load | a\r\n{data}\nload | ::step b\n::steps\nno end");
        assert_eq!(without_data_lines(&text), "load | a\r\nload | ::step b\n::steps\nno end");
    }
}
