//! Loading the replica when a server starts or when its replica does not match the journal.

use tenure_core::session::SessionEnd;
use tenure_core::{Session, SessionId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::catch_up::{admit_records, entries_sql};
use super::client::{Param, PgClient};
use super::failure::Failure;
use super::incarnation::{Identity, JournalProbe, identity_columns};
use super::journal::DecodedEntry;
use super::replica::Replica;
use super::rows::{FLUSHED, HEAD, NOW, RECORD_COLUMNS, parse_body, parse_session};
use super::{Shared, corrupt};
use crate::store::{Hint, Result};

/// Makes all statements of a transaction see the same snapshot.
pub(super) const REPEATABLE_READ: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";

impl Shared {
    /// Builds a replica from the projection and the journal, in one database snapshot.
    pub(super) async fn load(&self, client: &PgClient) -> std::result::Result<Replica, Failure> {
        client.begin_with(REPEATABLE_READ).await?;
        let last_seen = self.identity().last_seen.id;
        let sql = format!(
            "SELECT {FLUSHED}, {HEAD}, (SELECT nonce FROM tenure.journal WHERE id = $1), \
             (SELECT value::bigint FROM tenure.meta WHERE key = 'born'), {NOW}, \
             (SELECT value FROM tenure.meta WHERE key = 'floors'), {}",
            identity_columns(None)
        );
        let rows = client.query_typed(&sql, &[(&last_seen as _, Type::INT8)]).await?;
        let row = rows.first().ok_or_else(|| corrupt("the clock", &"no row"))?;
        let (flushed, head): (i64, i64) = (row.get(0), row.get(1));
        let born = row.get::<_, Option<i64>>(3).unwrap_or(0);
        let probe = JournalProbe { head, nonce: row.get(2) };
        let incarnation = self.advance_identity(Identity::parse(row, 6)?, probe)?;
        let sessions = self.read_paged(client, SESSIONS, None, |rows| {
            rows.iter().map(parse_session).collect::<Result<Vec<_>>>()
        });
        let mut sessions: Vec<Session> = sessions.await?.into_iter().flatten().collect();
        let mut ended = Vec::new();
        if born >= flushed {
            end_sessions(&mut sessions, &mut ended);
        }
        let entry = client.query_typed(&entries_sql(), &[number(&flushed), number(&1)]).await?;
        let entry = entry.first().filter(|row| row.get::<_, i64>(0) == flushed);
        let missing = || corrupt("the journal", &format!("entry {flushed} is missing"));
        let position = DecodedEntry::parse(entry.ok_or_else(missing)?, 0)?.position;
        let mut replica = Replica::new(incarnation, sessions, position);
        if let Some(floors) = row.get::<_, Option<&str>>(5) {
            replica.ledger.set_floors(parse_body("the token floors", floors)?);
        }
        for (condition, since) in [(LIVE, None), (CHANGED_SINCE_FLUSH, Some(&flushed))] {
            let sql = format!(
                "SELECT {RECORD_COLUMNS} FROM tenure.resources r WHERE {condition} AND r.key > $1 \
                 ORDER BY r.key LIMIT $2"
            );
            self.read_paged(client, &sql, since, |rows| admit_records(&mut replica, rows)).await?;
        }
        while replica.position.id < head {
            let params = [number(&replica.position.id), number(&PAGE_ROWS)];
            let rows = client.query_typed(&entries_sql(), &params).await?;
            for row in rows.iter().skip(1) {
                let mut entry = DecodedEntry::parse(row, 0)?;
                if entry.position.id <= born {
                    end_sessions(&mut entry.sessions, &mut ended);
                }
                replica.apply(entry)?;
            }
        }
        client.batch_execute("COMMIT").await?;
        replica.mark_ended(&ended);
        // Resources that have become due since the last entry are ready now.
        let now = self.now(row.get(4)).max(replica.position.at);
        replica.ledger.declare(self.kinds(), now);
        self.identity().last_seen = replica.position;
        // Waiting requests may have missed wake-ups in the meantime.
        self.hints.send(Hint::Lagged).ok();
        Ok(replica)
    }

    /// Reads rows page by page, to keep every statement short. Each page starts after the first
    /// column of the last row of the previous page.
    async fn read_paged<T>(
        &self,
        client: &PgClient,
        sql: &str,
        since: Option<&i64>,
        mut read: impl FnMut(&[Row]) -> Result<T>,
    ) -> std::result::Result<Vec<T>, Failure> {
        let (mut after, mut pages) = (String::new(), Vec::new());
        loop {
            let mut params = vec![(&after as _, Type::TEXT), number(&PAGE_ROWS)];
            params.extend(since.map(number));
            let rows = client.query_typed(sql, &params).await?;
            let Some(last) = rows.last() else { return Ok(pages) };
            after = last.get(0);
            pages.push(read(&rows)?);
        }
    }
}

/// Number of rows that one statement reads.
const PAGE_ROWS: i64 = 1_000;

const SESSIONS: &str = "\
    SELECT id, body, expires_at, kinds, asked_at, claims FROM tenure.sessions \
    WHERE id > $1 ORDER BY id LIMIT $2";

/// Selects resources with a holder, a waiter or a job.
const LIVE: &str = "r.live";

/// Selects the other resources that changed in entries that have not been flushed.
const CHANGED_SINCE_FLUSH: &str = "\
    NOT r.live AND r.key = ANY(ARRAY(SELECT split_part(line, ' ', 1) FROM tenure.journal, \
        unnest(string_to_array(held, E'\\n')) AS line WHERE id > $3))";

fn number(value: &i64) -> Param<'_> {
    (value, Type::INT8)
}

/// Ends the sessions of an earlier incarnation: a holder whose grant was lost in the restore must
/// not run beside the holder in the old rows.
fn end_sessions(sessions: &mut [Session], ended: &mut Vec<SessionId>) {
    for session in sessions.iter_mut().filter(|session| session.ended.is_none()) {
        session.ended = Some(SessionEnd::Expired);
        ended.push(session.id);
    }
}
