//! What a transaction finds when it has the turn, and catching up with it.

use tenure_core::map::Set;
use tenure_core::{Command, JobId, Millis, ResourceKey};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Work;
use super::conn::{Conn, Param};
use super::failure::Failure;
use super::journal::{self, Change};
use super::life::{self, Life, Trace};
use super::load::SNAPSHOT;
use super::replica::Replica;
use super::rows::{FLUSHED, NOW, RECORD, parse_key, parse_record, text};
use super::{Shared, corrupt, read};
use crate::store::Result;

/// The number of the lock of whoever appends to the journal.
pub(super) const WRITER: i64 = 7_117_001;
/// The number of the lock that all share whose transactions rely on a tenure.
const FENCED: i64 = 7_117_002;
/// Most entries that are followed at once: whoever is further behind lets others go first.
const ENTRIES_MAX: i64 = 1_000;

/// What a transaction finds when it has the turn.
pub(super) struct Looked {
    /// The time and the like, and in each row an entry.
    rows: Vec<Row>,
    records: Vec<Row>,
    pub(super) past: Vec<Row>,
}

/// Where the columns of an entry begin.
const ENTRY: usize = 6;

impl Looked {
    /// Whether there may be more entries than were read.
    pub(super) fn is_behind(&self) -> bool {
        i64::try_from(self.rows.len()).is_ok_and(|rows| rows > ENTRIES_MAX)
    }
}

impl Shared {
    /// Begins a transaction, waits for the turn, and reads what there is to know.
    pub(super) async fn look(
        &self,
        client: &Conn,
        replica: &Replica,
        work: &Work,
    ) -> std::result::Result<Looked, Failure> {
        let (keys, jobs) = unknown(replica, work);
        let turn = format!("SELECT pg_advisory_xact_lock({WRITER})");
        let rows = format!(
            "SELECT now.*, entry.* FROM ( \
                 SELECT {NOW}, \
                 CASE WHEN NOT pg_try_advisory_xact_lock({FENCED}) THEN ARRAY( \
                     SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks \
                     WHERE locktype = 'advisory' AND objsubid = 1 AND granted \
                     AND mode = 'ShareLock' AND database = \
                         (SELECT oid FROM pg_database WHERE datname = current_database()) \
                 ) END, {FLUSHED}, {}) AS now \
             LEFT JOIN LATERAL ({}) AS entry ON true ORDER BY entry.id",
            life::columns(client.host()),
            entries_sql()
        );
        let from = from(replica);
        let past = "SELECT key, body FROM tenure.jobs WHERE id = ANY($1) AND ended IS NOT NULL";
        let (begun, rows, records, past) = tokio::join!(
            biased;
            client.begin_with(&turn),
            client.query_typed(&rows, &from),
            record_rows(client, &keys, &jobs),
            read::unless_empty(client, past, &jobs),
        );
        begun?;
        Ok(Looked { rows: rows?, records: records?, past: past? })
    }

    /// Sees whether the journal goes on where we are. Gives the time, and what others have changed.
    pub(super) fn catch_up(
        &self,
        client: &Conn,
        replica: &mut Replica,
        looked: &Looked,
    ) -> std::result::Result<(Millis, Vec<Change>), Failure> {
        let now = looked.rows.first().ok_or_else(|| corrupt("the clock", &"no row"))?;
        let fences: Option<Vec<i64>> = now.get(1);
        replica.ledger.fence(fences.unwrap_or_default());
        let seen = Life::parse(now, 3)?;
        client.note_host(seen.host());
        let id = |row: &Row| row.get::<_, Option<i64>>(ENTRY).unwrap_or(-1);
        let mine = id(now) == replica.position.id;
        let trace = Trace {
            head: looked.rows.last().map_or(-1, id),
            nonce: mine.then(|| now.get(ENTRY + 1)),
        };
        let incarnation = self.life().follow(seen, trace)?;
        if incarnation != replica.ledger.world().incarnation || !mine {
            return Err(Failure::Stale);
        }
        let changes = looked.rows.iter().skip(1).map(|row| Change::parse(row, ENTRY));
        let changes = changes.collect::<Result<Vec<_>>>()?;
        let flushed: i64 = now.get(2);
        if flushed < replica.pending.flushed.max(replica.pending.seen) {
            return Err(Failure::Stale);
        }
        replica.flushed(flushed);
        let last = changes.last().map_or(replica.position.at, |change| change.after.at);
        Ok((self.time(now.get(0)).max(last), changes))
    }

    /// Follows what others have written so far, without the turn: who has it need not wait for us.
    pub(super) async fn follow_aside(
        &self,
        client: &Conn,
        replica: &mut Replica,
    ) -> std::result::Result<(), Failure> {
        let (entries, from) = (entries_sql(), from(replica));
        let (begun, rows) = tokio::join!(
            biased;
            client.begin_with(SNAPSHOT),
            client.query_typed(&entries, &from),
        );
        begun?;
        let changes = rows?.iter().map(|row| Change::parse(row, 0)).collect::<Result<Vec<_>>>()?;
        let mut changes = changes.into_iter();
        let here = changes.next().map(|change| (change.after.id, change.after.nonce));
        let changes: Vec<Change> = changes.collect();
        replica.crowded = !changes.is_empty();
        if here == Some((replica.position.id, replica.position.nonce)) {
            self.follow(client, replica, changes).await?;
        }
        client.batch_execute("COMMIT").await?;
        Ok(())
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
        self.follow(client, replica, changes).await
    }

    async fn follow(
        &self,
        client: &Conn,
        replica: &mut Replica,
        changes: Vec<Change>,
    ) -> std::result::Result<(), Failure> {
        let unknown: Set<&ResourceKey> =
            changes.iter().flat_map(Change::keys).filter(|key| !replica.ledger.has(key)).collect();
        let unknown: Vec<String> = unknown.into_iter().map(text).collect();
        admit_rows(replica, &record_rows(client, &unknown, &[]).await?)?;
        replica.crowded |= !changes.is_empty();
        for change in changes {
            replica.follow(change)?;
        }
        self.life().mark = replica.position;
        Ok(())
    }
}

/// From which entry on, and how many.
fn from(replica: &Replica) -> [Param<'_>; 2] {
    const MOST: i64 = ENTRIES_MAX + 1;
    [(&replica.position.id as _, Type::INT8), (&MOST as _, Type::INT8)]
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
    let sql = format!(
        "SELECT {RECORD} FROM tenure.resources r WHERE r.key = ANY(ARRAY( \
             SELECT unnest($1::text[]) UNION ALL SELECT key FROM tenure.jobs WHERE id = ANY($2)))"
    );
    let params = [(&keys as _, Type::TEXT_ARRAY), (&jobs as _, Type::TEXT_ARRAY)];
    client.query_typed(&sql, &params).await
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
fn unknown(replica: &Replica, work: &Work) -> (Vec<String>, Vec<String>) {
    let Work::Apply(commands) = work else { return (Vec::new(), Vec::new()) };
    let ledger = &replica.ledger;
    let keys: Set<&ResourceKey> =
        commands.iter().filter_map(Command::key).filter(|key| !ledger.has(key)).collect();
    let jobs: Set<JobId> =
        commands.iter().filter_map(Command::job).filter(|id| !ledger.has_job(*id)).collect();
    (keys.into_iter().map(text).collect(), jobs.iter().map(text).collect())
}
