//! What a transaction finds when it has the turn, and catching up with it.

use std::collections::HashSet;

use tenure_core::{Command, JobId, Millis, ResourceKey};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Work;
use super::conn::Conn;
use super::failure::Failure;
use super::journal::{self, Change};
use super::life::{self, Life, Trace};
use super::replica::Replica;
use super::rows::{parse_key, parse_record, text};
use super::{Shared, corrupt, read};
use crate::store::Result;

/// The number of the lock of whoever appends to the journal.
pub(super) const WRITER: i64 = 7_117_001;
/// The number of the lock that all share whose transactions rely on a tenure.
const FENCED: i64 = 7_117_002;
/// Most entries that are followed at once: whoever is further behind lets others go first.
pub(super) const ENTRIES_MAX: usize = 1_000;

/// What a transaction finds when it has the turn.
pub(super) struct Looked {
    clock: Row,
    pub(super) entries: Vec<Row>,
    records: Vec<Row>,
    pub(super) past: Vec<Row>,
}

impl Shared {
    /// Begins a transaction, waits for the turn, and reads what there is to know.
    pub(super) async fn look(
        &self,
        client: &Conn,
        replica: &Replica,
        work: &Work<'_>,
    ) -> std::result::Result<Looked, Failure> {
        let (keys, jobs) = unknown(replica, work);
        let turn = format!("SELECT pg_advisory_xact_lock({WRITER})");
        let clock = format!(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, \
             CASE WHEN NOT pg_try_advisory_xact_lock({FENCED}) THEN ARRAY( \
                 SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks \
                 WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock' AND granted \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             ) END, (SELECT max(position) FROM tenure.flushes), {}",
            life::COLUMNS
        );
        let entries = entries_sql();
        let most = i64::try_from(ENTRIES_MAX).unwrap_or(i64::MAX) + 1;
        let from = [(&replica.position.id as _, Type::INT8), (&most as _, Type::INT8)];
        let past = "SELECT key, body FROM tenure.jobs WHERE id = ANY($1) AND ended IS NOT NULL";
        let (begun, turn, clock, entries, records, past) = tokio::join!(
            biased;
            client.begin(),
            client.query_typed(&turn, &[]),
            client.query_typed(&clock, &[]),
            client.query_typed(&entries, &from),
            record_rows(client, &keys, &jobs),
            read::unless_empty(client, past, &jobs),
        );
        begun?;
        turn?;
        let clock = clock?.pop().ok_or_else(|| corrupt("the clock", &"no row"))?;
        Ok(Looked { clock, entries: entries?, records: records?, past: past? })
    }

    /// Sees whether the journal goes on where we are. Gives the time, and what others have changed.
    pub(super) fn catch_up(
        &self,
        replica: &mut Replica,
        looked: &Looked,
    ) -> std::result::Result<(Millis, Vec<Change>), Failure> {
        let fences: Option<Vec<i64>> = looked.clock.get(1);
        replica.ledger.fenced = fences.into_iter().flatten().collect();
        let seen = Life::parse(&looked.clock, 3)?;
        let changes = self.trace(replica, seen, &looked.entries)?;
        let flushed: i64 = looked.clock.get(2);
        if flushed > replica.pending.flushed {
            replica.flushed(flushed, 0);
        }
        let last = changes.last().map_or(replica.position.at, |change| change.after.at);
        Ok((self.time(looked.clock.get(0)).max(last), changes))
    }

    /// Sees whether the journal goes on where we are. Gives what others have changed.
    fn trace(
        &self,
        replica: &Replica,
        seen: Life,
        entries: &[Row],
    ) -> std::result::Result<Vec<Change>, Failure> {
        let id = |row: &Row| row.get::<_, i64>(0);
        let mine = entries.first().filter(|row| id(row) == replica.position.id);
        let trace =
            Trace { head: entries.last().map_or(-1, id), nonce: mine.map(|row| row.get(1)) };
        let incarnation = self.life().follow(seen, trace)?;
        if incarnation != replica.ledger.world().incarnation || mine.is_none() {
            return Err(Failure::Stale);
        }
        Ok(entries[1..].iter().map(Change::parse).collect::<Result<_>>()?)
    }

    /// Takes in what was read, and follows what others have changed.
    pub(super) async fn follow_all(
        &self,
        client: &Conn,
        replica: &mut Replica,
        looked: &Looked,
        changes: Vec<Change>,
    ) -> std::result::Result<(), Failure> {
        admit_rows(replica, &looked.records)?;
        let unknown: HashSet<&ResourceKey> =
            changes.iter().flat_map(Change::keys).filter(|key| !replica.ledger.has(key)).collect();
        let unknown: Vec<String> = unknown.into_iter().map(text).collect();
        admit_rows(replica, &record_rows(client, &unknown, &[]).await?)?;
        for change in changes {
            replica.follow(change);
        }
        self.life().mark = replica.position;
        Ok(())
    }
}

/// The statement that reads the journal from an entry on, which itself is known.
pub(super) fn entries_sql() -> String {
    let (columns, body) = (journal::COLUMNS, "CASE WHEN id > $1 THEN body ELSE '' END");
    format!("SELECT {columns}, {body} FROM tenure.journal WHERE id >= $1 ORDER BY id LIMIT $2")
}

/// Rows of resources that are named, or that jobs are of.
pub(super) async fn record_rows(
    client: &Conn,
    keys: &[String],
    jobs: &[String],
) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
    if keys.is_empty() && jobs.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT key, body FROM tenure.resources WHERE key = ANY(ARRAY( \
                   SELECT unnest($1::text[]) \
                   UNION ALL SELECT key FROM tenure.jobs WHERE id = ANY($2)))";
    let params = [(&keys as _, Type::TEXT_ARRAY), (&jobs as _, Type::TEXT_ARRAY)];
    client.query_typed(sql, &params).await
}

/// Takes in records that are not at hand.
pub(super) fn admit_rows(replica: &mut Replica, rows: &[Row]) -> Result<()> {
    let at = replica.position.at;
    for row in rows {
        let key = parse_key(row.get(0))?;
        if !replica.ledger.has(&key) {
            replica.ledger.admit(&key, parse_record(row)?, at);
        }
    }
    Ok(())
}

/// The resources and jobs that commands name and that are not at hand.
fn unknown(replica: &Replica, work: &Work<'_>) -> (Vec<String>, Vec<String>) {
    let Work::Apply(commands) = work else { return (Vec::new(), Vec::new()) };
    let ledger = &replica.ledger;
    let keys: HashSet<&ResourceKey> =
        commands.iter().filter_map(Command::key).filter(|key| !ledger.has(key)).collect();
    let jobs: HashSet<JobId> =
        commands.iter().filter_map(Command::job).filter(|id| !ledger.has_job(*id)).collect();
    (keys.into_iter().map(text).collect(), jobs.iter().map(text).collect())
}
