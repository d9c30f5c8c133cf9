//! Log text of jobs for people.

use std::time::Duration;

use tenure::http::HttpTransport;
use tenure::job::LogReader;

/// Passes all unread chunks that exist to `show`, without their data lines.
pub async fn read_available(
    reader: &mut LogReader,
    transport: &HttpTransport,
    mut show: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    loop {
        let chunks = reader.next(transport, Duration::ZERO).await?;
        if chunks.is_empty() {
            return Ok(());
        }
        chunks.iter().try_for_each(|chunk| show(&without_data_lines(&chunk.text)))?;
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
    use tenure::JobId;

    use super::*;
    use crate::testing::serve_responses;

    #[tokio::test]
    async fn a_page_with_only_other_attempts_does_not_end_the_log() {
        // Positions have no order: a tenant sees them encrypted.
        let chunk = |text| json!({ "position": 1, "attempt": 2, "at": "", "text": text });
        let first = json!({ "items": [chunk("early\n")], "next": 16_000 });
        let empty = json!({ "items": [], "next": 7 });
        let late = json!({ "items": [chunk("late\n")], "next": 9 });
        let last = json!({ "items": [], "next": 9 });
        let (transport, _) = serve_responses(vec![first, empty, late, last]).await;
        let mut reader = LogReader::new(JobId(1), Some(2));
        for text in ["early\n", "late\n"] {
            let chunks = reader.next(&transport, Duration::ZERO).await.unwrap();
            assert_eq!(chunks.iter().map(|chunk| &*chunk.text).collect::<Vec<_>>(), [text]);
        }
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
