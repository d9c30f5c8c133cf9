//! Reading values back from rows.

use tenure_core::history::Entry;
use tenure_core::session::Worker;
use tenure_core::{Job, Millis, Record, ResourceKey, Session, Text};
use tokio_postgres::Row;

use super::pages;
use super::{Shared, corrupt, millis};
use crate::store::Result;

/// The time of the database, as an expression.
pub(super) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
/// Up to which entry of the journal the tables tell, as an expression.
pub(super) const FLUSHED: &str = "(SELECT max(position) FROM tenure.flushes)";
/// The last entry of the journal, as an expression.
pub(super) const HEAD: &str = "(SELECT max(id) FROM tenure.journal)";

/// What [`parse_record`] needs of a row `r` of resources, whose record may be behind its history.
pub(super) const RECORD: &str = "r.key, r.record, CASE WHEN r.n > r.told THEN ARRAY( \
    SELECT h.lines FROM tenure.pages h WHERE h.key = r.key AND h.n > r.told ORDER BY h.n) END";

/// An id or the like, as the tables have it.
pub(super) fn text<T: ToString + ?Sized>(id: &T) -> String {
    id.to_string()
}

pub(super) fn parse_key(text: &str) -> Result<ResourceKey> {
    text.parse().map_err(|error| corrupt(&format!("the key {text:?}"), &error))
}

pub(super) fn parse_body<'a, T: serde::Deserialize<'a>>(what: &str, body: &'a str) -> Result<T> {
    serde_json::from_str(body).map_err(|error| corrupt(what, &error))
}

/// A session, with what it says of itself when it claims jobs.
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

/// A line of history.
pub(super) fn parse_line(line: &str) -> Result<Entry> {
    Entry::parse(line).map_err(|error| corrupt("a line", &error))
}

/// A record from the columns of [`RECORD`].
pub(super) fn parse_record(row: &Row) -> Result<Box<Record>> {
    let mut record: Box<Record> =
        parse_body(&format!("resource {}", row.get::<_, &str>(0)), row.get(1))?;
    let pages: Option<Vec<&str>> = row.get(2);
    for part in pages.iter().flatten().flat_map(|page| pages::parts(page)) {
        let (_, hash, line) = part?;
        record.replay(&parse_line(line)?, hash);
    }
    Ok(record)
}

/// A job from its key and body.
pub(super) fn parse_job(row: &Row) -> Result<(ResourceKey, Box<Job>)> {
    Ok((parse_key(row.get(0))?, parse_body("a job", row.get(1))?))
}

impl Shared {
    /// The time: what the database says, unless a test says otherwise.
    pub(super) fn time(&self, database: i64) -> Millis {
        self.clock.as_ref().map_or_else(|| millis(database), |clock| clock.now())
    }
}
