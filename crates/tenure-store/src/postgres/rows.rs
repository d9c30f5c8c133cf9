//! Parsing of SQL rows.

use tenure_core::history::Entry;
use tenure_core::session::Worker;
use tenure_core::{Job, Millis, Record, ResourceKey, Session, Text};
use tokio_postgres::Row;

use super::pages;
use super::{Shared, corrupt, millis};
use crate::store::Result;

/// SQL expression for the database clock.
pub(super) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
/// SQL expression for the journal entry up to which the projection is flushed.
pub(super) const FLUSHED: &str = "(SELECT max(position) FROM tenure.flushes)";
/// SQL expression for the newest journal entry.
pub(super) const HEAD: &str = "(SELECT max(id) FROM tenure.journal)";

/// The columns of `tenure.resources r` for [`parse_record`]: the record, and the history pages
/// after it if it lags.
pub(super) const RECORD_COLUMNS: &str = "r.key, r.record, CASE WHEN r.n > r.told THEN ARRAY( \
    SELECT h.lines FROM tenure.pages h WHERE h.key = r.key AND h.n > r.told ORDER BY h.n) END";

/// Returns the SQL text of an id or key.
pub(super) fn text<T: ToString + ?Sized>(id: &T) -> String {
    id.to_string()
}

pub(super) fn parse_key(text: &str) -> Result<ResourceKey> {
    text.parse().map_err(|error| corrupt(&format!("the key {text:?}"), &error))
}

pub(super) fn parse_body<'a, T: serde::Deserialize<'a>>(what: &str, body: &'a str) -> Result<T> {
    serde_json::from_str(body).map_err(|error| corrupt(what, &error))
}

/// Parses a session with its worker.
pub(super) fn parse_session(row: &Row) -> Result<Session> {
    let mut session: Session = parse_body("a session", row.get(1))?;
    session.expires_at = millis(row.get(2));
    if let (Some(kinds), Some(asked_at)) = (row.get::<_, Option<&str>>(3), row.get(4)) {
        let kinds: Vec<Text> = parse_body("the kinds of a session", kinds)?;
        let claims: Option<&str> = row.get(5);
        let claims = claims.map(|claims| parse_body("the claims of a session", claims));
        let claims = claims.transpose()?.unwrap_or_default();
        session.worker = Some(Box::new(Worker { kinds, polled_at: millis(asked_at), claims }));
    }
    Ok(session)
}

/// Parses a history event.
pub(super) fn parse_event(line: &str) -> Result<Entry> {
    Entry::parse(line).map_err(|error| corrupt("a history event", &error))
}

/// Parses [`RECORD_COLUMNS`] and replays the events that the record lacks.
pub(super) fn parse_record(row: &Row) -> Result<Box<Record>> {
    let mut record: Box<Record> =
        parse_body(&format!("resource {}", row.get::<_, &str>(0)), row.get(1))?;
    let pages: Option<Vec<&str>> = row.get(2);
    for item in pages.iter().flatten().flat_map(|page| pages::parse_items(page)) {
        let (_, hash, line) = item?;
        record.replay(&parse_event(line)?, hash);
    }
    Ok(record)
}

/// Parses a job from the columns `key` and `body`.
pub(super) fn parse_job(row: &Row) -> Result<(ResourceKey, Box<Job>)> {
    Ok((parse_key(row.get(0))?, parse_body("a job", row.get(1))?))
}

impl Shared {
    /// Returns the current time: the given database time, unless a test has set another clock.
    pub(super) fn now(&self, database: i64) -> Millis {
        self.clock.as_ref().map_or_else(|| millis(database), |clock| clock.now())
    }
}
