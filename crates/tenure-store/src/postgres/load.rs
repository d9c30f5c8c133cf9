//! Reading all that lives, when a server starts or has lost track of the journal.

use tenure_core::session::SessionEnd;
use tenure_core::{Session, SessionId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::conn::{Conn, Param};
use super::failure::Failure;
use super::journal::Change;
use super::life::{self, Life, Trace};
use super::look::{admit_rows, entries_sql};
use super::replica::Replica;
use super::rows::{FLUSHED, HEAD, NOW, RECORD, parse_session};
use super::{Shared, corrupt};
use crate::store::{Hint, Result};

/// All statements of the transaction see the same instant.
pub(super) const SNAPSHOT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";

impl Shared {
    /// What the tables and the journal tell, all at one instant.
    pub(super) async fn load(&self, client: &Conn) -> std::result::Result<Replica, Failure> {
        client.begin_with(SNAPSHOT).await?;
        let mark = self.life().mark.id;
        let clock = format!(
            "SELECT {FLUSHED}, {HEAD}, (SELECT nonce FROM tenure.journal WHERE id = $1), \
             (SELECT value::bigint FROM tenure.meta WHERE key = 'born'), {NOW}, {}",
            life::columns(None)
        );
        let rows = client.query_typed(&clock, &[(&mark as _, Type::INT8)]).await?;
        let row = rows.first().ok_or_else(|| corrupt("the clock", &"no row"))?;
        let (flushed, head): (i64, i64) = (row.get(0), row.get(1));
        let born = row.get::<_, Option<i64>>(3).unwrap_or(0);
        let trace = Trace { head, nonce: row.get(2) };
        let incarnation = self.life().follow(Life::parse(row, 5)?, trace)?;
        let sessions = self.pages(client, SESSIONS, None, |rows| {
            rows.iter().map(parse_session).collect::<Result<Vec<_>>>()
        });
        let mut sessions: Vec<Session> = sessions.await?.into_iter().flatten().collect();
        let mut ended = Vec::new();
        if born >= flushed {
            end_all(&mut sessions, &mut ended);
        }
        let entry = client.query_typed(&entries_sql(), &[number(&flushed), number(&1)]).await?;
        let entry = entry.first().filter(|row| row.get::<_, i64>(0) == flushed);
        let missing = || corrupt("the journal", &format!("entry {flushed} is missing"));
        let position = Change::parse(entry.ok_or_else(missing)?, 0)?.after;
        let mut replica = Replica::new(incarnation, sessions, position);
        for (which, since) in [(LIVE, None), (TOUCHED, Some(&flushed))] {
            let sql = format!(
                "SELECT {RECORD} FROM tenure.resources r WHERE {which} AND r.key > $1 \
                 ORDER BY r.key LIMIT $2"
            );
            self.pages(client, &sql, since, |rows| admit_rows(&mut replica, rows)).await?;
        }
        while replica.position.id < head {
            let from = replica.position.id;
            let rows = client.query_typed(&entries_sql(), &[number(&from), number(&PAGE)]).await?;
            for row in rows.iter().skip(1) {
                let mut change = Change::parse(row, 0)?;
                if change.after.id <= born {
                    end_all(&mut change.sessions, &mut ended);
                }
                replica.follow(change)?;
            }
        }
        client.batch_execute("COMMIT").await?;
        replica.ended(&ended);
        // What has come due since the last entry is ready now.
        let now = self.time(row.get(4)).max(replica.position.at);
        replica.ledger.declare(self.kinds(), now);
        self.life().mark = replica.position;
        // Whoever waits may have missed something meanwhile.
        self.hints.send(Hint::Missed).ok();
        Ok(replica)
    }

    /// Reads rows page by page, so that no statement takes long; each page goes on after the last
    /// text of the one before.
    async fn pages<T>(
        &self,
        client: &Conn,
        sql: &str,
        since: Option<&i64>,
        mut read: impl FnMut(&[Row]) -> Result<T>,
    ) -> std::result::Result<Vec<T>, Failure> {
        let (mut after, mut pages) = (String::new(), Vec::new());
        loop {
            let mut params = vec![(&after as _, Type::TEXT), number(&PAGE)];
            params.extend(since.map(number));
            let rows = client.query_typed(sql, &params).await?;
            let Some(last) = rows.last() else { return Ok(pages) };
            after = last.get(0);
            pages.push(read(&rows)?);
        }
    }
}

/// Most rows of one statement.
const PAGE: i64 = 1_000;

const SESSIONS: &str = "\
    SELECT id, body, expires_at, kinds, asked_at, claims FROM tenure.sessions \
    WHERE id > $1 ORDER BY id LIMIT $2";

/// The resources that live.
const LIVE: &str = "r.live";

/// Those that do not, and that entries are about which the tables do not tell yet.
const TOUCHED: &str = "\
    NOT r.live AND r.key = ANY(ARRAY(SELECT split_part(line, ' ', 1) FROM tenure.journal, \
        unnest(string_to_array(held, E'\\n')) AS line WHERE id > $3))";

fn number(value: &i64) -> Param<'_> {
    (value, Type::INT8)
}

/// Ends sessions of a life that is over: who got a lock in the time that was forgotten must not go
/// on beside who has it in the old rows.
fn end_all(sessions: &mut [Session], ended: &mut Vec<SessionId>) {
    for session in sessions.iter_mut().filter(|session| session.ended.is_none()) {
        session.ended = Some(SessionEnd::Expired);
        ended.push(session.id);
    }
}
