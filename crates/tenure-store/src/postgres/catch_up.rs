//! Catch-up: reading the journal tail and applying it to the replica.

use tenure_core::map::Set;
use tenure_core::{Command, JobId, Millis, ResourceKey};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Work;
use super::client::{Param, PgClient};
use super::failure::Failure;
use super::incarnation::{Identity, JournalProbe, identity_columns};
use super::journal::{self, DecodedEntry};
use super::load::REPEATABLE_READ;
use super::replica::Replica;
use super::rows::{FLUSHED, NOW, RECORD_COLUMNS, parse_key, parse_record, text};
use super::{Shared, corrupt, read};
use crate::store::Result;

/// Advisory lock of the server that appends to the journal.
pub(super) const WRITER_LOCK: i64 = 7_117_001;
/// Advisory lock that all user transactions that rely on a tenure hold in shared mode.
const FENCE_LOCK: i64 = 7_117_002;
/// Maximum number of entries that one catch-up applies. A replica that is further behind lets other
/// servers write in between.
const CATCH_UP_ENTRIES_MAX: i64 = 1_000;

/// What a transaction reads once it has the writer lock.
pub(super) struct JournalTail {
    /// One row per journal entry, each prefixed by the clock, the fences and the identity.
    rows: Vec<Row>,
    /// Records that the commands need and the replica does not have.
    records: Vec<Row>,
    /// Finished jobs that the commands name.
    pub(super) finished_jobs: Vec<Row>,
}

/// Index of the first entry column in a row of the tail.
const ENTRY_COLUMN: usize = 6;

impl JournalTail {
    /// Whether the journal may have more entries than were read.
    pub(super) fn may_have_more(&self) -> bool {
        i64::try_from(self.rows.len()).is_ok_and(|rows| rows > CATCH_UP_ENTRIES_MAX)
    }
}

impl Shared {
    /// Begins a transaction, takes the writer lock and reads the journal tail.
    pub(super) async fn lock_and_read_tail(
        &self,
        client: &PgClient,
        replica: &Replica,
        work: &Work,
    ) -> std::result::Result<JournalTail, Failure> {
        let (keys, jobs) = missing_from_replica(replica, work);
        let lock = format!("SELECT pg_advisory_xact_lock({WRITER_LOCK})");
        let rows = format!(
            "SELECT now.*, entry.* FROM ( \
                 SELECT {NOW}, \
                 CASE WHEN NOT pg_try_advisory_xact_lock({FENCE_LOCK}) THEN ARRAY( \
                     SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks \
                     WHERE locktype = 'advisory' AND objsubid = 1 AND granted \
                     AND mode = 'ShareLock' AND database = \
                         (SELECT oid FROM pg_database WHERE datname = current_database()) \
                 ) END, {FLUSHED}, {}) AS now \
             LEFT JOIN LATERAL ({}) AS entry ON true ORDER BY entry.id",
            identity_columns(client.server_id()),
            entries_sql()
        );
        let params = tail_params(replica);
        let finished_jobs =
            "SELECT key, body FROM tenure.jobs WHERE id = ANY($1) AND ended IS NOT NULL";
        let (begun, rows, records, finished_jobs) = tokio::join!(
            biased;
            client.begin_with(&lock),
            client.query_typed(&rows, &params),
            query_records(client, &keys, &jobs),
            read::query_by_ids(client, finished_jobs, &jobs),
        );
        begun?;
        Ok(JournalTail { rows: rows?, records: records?, finished_jobs: finished_jobs? })
    }

    /// Checks that the tail continues from the replica's position. Returns the time and the entries
    /// of other servers.
    pub(super) fn decode_tail(
        &self,
        client: &PgClient,
        replica: &mut Replica,
        tail: &JournalTail,
    ) -> std::result::Result<(Millis, Vec<DecodedEntry>), Failure> {
        let first = tail.rows.first().ok_or_else(|| corrupt("the clock", &"no row"))?;
        let fences: Option<Vec<i64>> = first.get(1);
        replica.ledger.set_fences(fences.unwrap_or_default());
        let identity = Identity::parse(first, 3)?;
        client.cache_server_id(identity.server_id());
        let id = |row: &Row| row.get::<_, Option<i64>>(ENTRY_COLUMN).unwrap_or(-1);
        let has_position = id(first) == replica.position.id;
        let probe = JournalProbe {
            head: tail.rows.last().map_or(-1, id),
            nonce: has_position.then(|| first.get(ENTRY_COLUMN + 1)),
        };
        let incarnation = self.advance_identity(identity, probe)?;
        if incarnation != replica.ledger.world().incarnation || !has_position {
            return Err(Failure::Stale);
        }
        let entries = tail.rows.iter().skip(1).map(|row| DecodedEntry::parse(row, ENTRY_COLUMN));
        let entries = entries.collect::<Result<Vec<_>>>()?;
        let flushed: i64 = first.get(2);
        if flushed < replica.backlog.flushed.max(replica.backlog.flushed_at_least) {
            return Err(Failure::Stale);
        }
        replica.mark_flushed(flushed);
        let last = entries.last().map_or(replica.position.at, |entry| entry.position.at);
        Ok((self.now(first.get(0)).max(last), entries))
    }

    /// Catches up without the writer lock, so that the current writer does not wait for this
    /// server.
    pub(super) async fn catch_up_unlocked(
        &self,
        client: &PgClient,
        replica: &mut Replica,
    ) -> std::result::Result<(), Failure> {
        let (sql, params) = (entries_sql(), tail_params(replica));
        let (begun, rows) = tokio::join!(
            biased;
            client.begin_with(REPEATABLE_READ),
            client.query_typed(&sql, &params),
        );
        begun?;
        let rows = rows?;
        let entries = rows.iter().map(|row| DecodedEntry::parse(row, 0));
        let mut entries = entries.collect::<Result<Vec<_>>>()?.into_iter();
        let first = entries.next().map(|entry| (entry.position.id, entry.position.nonce));
        let entries: Vec<DecodedEntry> = entries.collect();
        replica.has_concurrent_writers = !entries.is_empty();
        if first == Some((replica.position.id, replica.position.nonce)) {
            self.apply_entries(client, replica, entries).await?;
        }
        client.batch_execute("COMMIT").await?;
        Ok(())
    }

    /// Admits the records that were read, and applies the entries of other servers.
    pub(super) async fn apply_tail(
        &self,
        client: &PgClient,
        replica: &mut Replica,
        tail: &JournalTail,
        entries: Vec<DecodedEntry>,
    ) -> std::result::Result<(), Failure> {
        admit_records(replica, &tail.records)?;
        self.apply_entries(client, replica, entries).await
    }

    async fn apply_entries(
        &self,
        client: &PgClient,
        replica: &mut Replica,
        entries: Vec<DecodedEntry>,
    ) -> std::result::Result<(), Failure> {
        let keys = entries.iter().flat_map(DecodedEntry::keys);
        let missing: Set<&ResourceKey> =
            keys.filter(|key| !replica.ledger.has_record(key)).collect();
        let missing: Vec<String> = missing.into_iter().map(text).collect();
        admit_records(replica, &query_records(client, &missing, &[]).await?)?;
        replica.has_concurrent_writers |= !entries.is_empty();
        for entry in entries {
            replica.apply(entry)?;
        }
        self.identity().last_seen = replica.position;
        Ok(())
    }
}

/// Returns the parameters of [`entries_sql`] for the tail of a replica.
fn tail_params(replica: &Replica) -> [Param<'_>; 2] {
    const LIMIT: i64 = CATCH_UP_ENTRIES_MAX + 1;
    [(&replica.position.id as _, Type::INT8), (&LIMIT as _, Type::INT8)]
}

/// Returns the query for the journal from entry `$1` on. The body of that first entry, which the
/// replica already has, is left out.
pub(super) fn entries_sql() -> String {
    let (columns, body) = (journal::ENTRY_COLUMNS, "CASE WHEN id > $1 THEN body ELSE '' END");
    format!("SELECT {columns}, {body} FROM tenure.journal WHERE id >= $1 ORDER BY id LIMIT $2")
}

/// Queries the records of the named resources and of the resources of the named jobs.
pub(super) async fn query_records(
    client: &PgClient,
    keys: &[String],
    jobs: &[String],
) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
    if keys.is_empty() && jobs.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT {RECORD_COLUMNS} FROM tenure.resources r WHERE r.key = ANY(ARRAY( \
             SELECT unnest($1::text[]) UNION ALL SELECT key FROM tenure.jobs WHERE id = ANY($2)))"
    );
    let params = [(&keys as _, Type::TEXT_ARRAY), (&jobs as _, Type::TEXT_ARRAY)];
    client.query_typed(&sql, &params).await
}

/// Admits records that the replica does not have.
pub(super) fn admit_records(replica: &mut Replica, rows: &[Row]) -> Result<()> {
    let at = replica.position.at;
    for row in rows {
        let key = parse_key(row.get(0))?;
        if !replica.ledger.has_record(&key) {
            replica.ledger.insert_record(&key, parse_record(row)?, at);
        }
    }
    Ok(())
}

/// Returns the resources and jobs that the commands name and the replica does not have.
fn missing_from_replica(replica: &Replica, work: &Work) -> (Vec<String>, Vec<String>) {
    let Work::Apply(commands) = work else { return (Vec::new(), Vec::new()) };
    let ledger = &replica.ledger;
    let keys: Set<&ResourceKey> =
        commands.iter().filter_map(Command::key).filter(|key| !ledger.has_record(key)).collect();
    let jobs: Set<JobId> =
        commands.iter().filter_map(Command::job).filter(|id| !ledger.has_live_job(*id)).collect();
    (keys.into_iter().map(text).collect(), jobs.iter().map(text).collect())
}
