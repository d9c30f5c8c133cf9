//! Reading all that lives, when a server starts or has lost track of the journal.

use tenure_core::session::Over;
use tenure_core::{Session, SessionId};
use tokio_postgres::types::Type;

use super::conn::{Conn, Param};
use super::failure::Failure;
use super::journal::Change;
use super::life::{self, Life, Trace};
use super::look::{admit_rows, entries_sql};
use super::replica::Replica;
use super::rows::parse_session;
use super::{Shared, corrupt};
use crate::store::Result;

/// All statements of the transaction see the same instant.
pub(super) const SNAPSHOT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";

const CLOCK: &str = "\
    SELECT (SELECT max(position) FROM tenure.flushes), (SELECT max(id) FROM tenure.journal), \
           (SELECT nonce FROM tenure.journal WHERE id = $1), \
           (SELECT value::bigint FROM tenure.meta WHERE key = 'born'), \
           (extract(epoch FROM clock_timestamp()) * 1000)::bigint, ";

impl Shared {
    /// What the tables and the journal tell, all at one instant.
    pub(super) async fn load(&self, client: &Conn) -> std::result::Result<Replica, Failure> {
        client.begin_with(SNAPSHOT).await?;
        let mark = self.life().mark.id;
        let clock = format!("{CLOCK}{}", life::columns(None));
        let rows = client.query_typed(&clock, &[(&mark as _, Type::INT8)]).await?;
        let row = rows.first().ok_or_else(|| corrupt("the clock", &"no row"))?;
        let (flushed, head): (i64, i64) = (row.get(0), row.get(1));
        let born = row.get::<_, Option<i64>>(3).unwrap_or(0);
        let trace = Trace { head, nonce: row.get(2) };
        let incarnation = self.life().follow(Life::parse(row, 5)?, trace)?;
        let (from, all) = ([number(&flushed)], [number(&flushed), number(&i64::MAX)]);
        let (entries, sql) = (entries_sql(), (SESSIONS, LIVE));
        let (entries, sessions, records) = tokio::join!(
            biased;
            client.query_typed(&entries, &all),
            client.query_typed(sql.0, &[]),
            client.query_typed(sql.1, &from),
        );
        let (entries, sessions, records) = (entries?, sessions?, records?);
        // Reading them takes its time, and nobody has to wait for it.
        client.batch_execute("COMMIT").await?;
        let mut changes =
            entries.iter().map(|row| Change::parse(row, 0)).collect::<Result<Vec<_>>>()?;
        if changes.first().is_none_or(|change| change.after.id != flushed) {
            return Err(corrupt("the journal", &format!("entry {flushed} is missing")).into());
        }
        let position = changes.remove(0).after;
        let mut ended = Vec::new();
        let mut sessions = sessions.iter().map(parse_session).collect::<Result<Vec<_>>>()?;
        if born >= flushed {
            end_all(&mut sessions, &mut ended);
        }
        for change in changes.iter_mut().filter(|change| change.after.id <= born) {
            end_all(&mut change.sessions, &mut ended);
        }
        let mut replica = Replica::new(incarnation, sessions, position);
        admit_rows(&mut replica, &records)?;
        for change in changes {
            replica.follow(change);
        }
        replica.ended(&ended);
        // What has come due since the last entry is ready now.
        let now = self.time(row.get(4)).max(replica.position.at);
        replica.ledger.declare(self.kinds(), now);
        self.life().mark = replica.position;
        Ok(replica)
    }
}

const SESSIONS: &str = "SELECT body, expires_at, kinds, asked_at, claims FROM tenure.sessions";

/// The resources that live, and those that entries are about which the tables do not tell yet.
const LIVE: &str = "\
    SELECT key, body FROM tenure.resources WHERE live \
    UNION ALL SELECT key, body FROM tenure.resources WHERE NOT live AND key = ANY(ARRAY( \
        SELECT unnest(keys) FROM tenure.journal WHERE id > $1))";

fn number(value: &i64) -> Param<'_> {
    (value, Type::INT8)
}

/// Ends sessions of a life that is over: who got a lock in the time that was forgotten must not go
/// on beside who has it in the old rows.
fn end_all(sessions: &mut [Session], ended: &mut Vec<SessionId>) {
    for session in sessions.iter_mut().filter(|session| session.over.is_none()) {
        session.over = Some(Over::Lapsed);
        ended.push(session.id);
    }
}
