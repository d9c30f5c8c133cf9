//! The projection: SQL tables derived from the journal, flushed a few times a second.
//!
//! A flush writes each dirty row once, however often it has changed. One server flushes at a time,
//! under an advisory lock. The rows are those of one journal position, which is committed with
//! them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::map::Map;
use tenure_core::session::SessionEnd;
use tenure_core::{Job, ResourceKey, Session};
use tokio_postgres::types::Type;

use super::client::PgClient;
use super::columns::{Columns, borrowed, display, owned};
use super::failure::Failure;
use super::journal::json;
use super::pages::{self, UnflushedEvent};
use super::replica::{BacklogSnapshot, FinishedJob, ResourceRow};
use super::rows::FLUSHED;
use super::{Shared, bigint, corrupt, counter};
use crate::store::{Result, StoreError, session_json};

/// Advisory lock of the server that flushes.
pub(super) const FLUSH_LOCK: i64 = 7_117_003;
/// Delay before a flush, during which further changes of dirty rows are absorbed.
const FLUSH_INTERVAL: Duration = Duration::from_millis(400);
/// Backlog size above which the next flush starts without delay.
const BACKLOG_HIGH_ROWS: usize = 50_000;
/// Backlog size above which writers block.
const BACKLOG_MAX_ROWS: usize = 200_000;
/// Maximum number of attempts of a flush that loses races against other servers.
const FLUSH_ATTEMPTS_MAX: usize = 5;
/// Maximum number of rows of one statement.
const STATEMENT_ROWS_MAX: usize = 5_000;

/// Flushes the projection on request until the store is dropped.
pub(super) async fn run_projector(store: Weak<Shared>, requested: Arc<tokio::sync::Notify>) {
    let (mut last_flushed, mut skip_delay) = (0, false);
    loop {
        requested.notified().await;
        if !std::mem::take(&mut skip_delay) {
            tokio::time::sleep(FLUSH_INTERVAL).await;
        }
        let Some(store) = store.upgrade() else { return };
        let flushed = store.flushed_entry().await;
        if flushed > std::mem::replace(&mut last_flushed, flushed) {
            // Another server is flushing. Only check again that it makes progress.
            requested.notify_one();
            continue;
        }
        let result = store.flush().await;
        let was_failing = store.flush_failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !was_failing => {
                tracing::warn!(%error, "projection flush failed; retrying");
            }
            Ok(_) if was_failing => tracing::info!("projection flush succeeded again"),
            _ => {}
        }
        if result.is_err() {
            requested.notify_one();
        }
        // If another server won the race, leave the next flush to it.
        skip_delay = matches!(result, Ok(true)) && store.backlog_len().await > BACKLOG_HIGH_ROWS;
        last_flushed = store.flushed_entry().await;
    }
}

impl Shared {
    /// Blocks a writer while the backlog is full.
    pub(super) async fn wait_for_backlog_capacity(&self) {
        if self.backlog_len().await <= BACKLOG_MAX_ROWS {
            return;
        }
        // A running flush may free enough.
        drop(self.flush_lock.lock().await);
        if self.flush_failing.load(Ordering::Relaxed) {
            return;
        }
        if self.backlog_len().await > BACKLOG_MAX_ROWS
            && let Err(error) = self.flush().await
        {
            tracing::warn!(%error, "projection flush failed");
        }
    }

    /// Returns the size of this replica's backlog.
    async fn backlog_len(&self) -> usize {
        self.writer.state.lock().await.replica().map_or(0, |replica| replica.backlog_len())
    }

    /// Returns the entry up to which the projection is flushed, as far as this replica knows.
    async fn flushed_entry(&self) -> i64 {
        let mut state = self.writer.state.lock().await;
        state.settled_replica().map_or(0, |replica| replica.backlog.flushed)
    }

    /// Flushes the projection up to the position of the replica. Returns `false` if it was already
    /// flushed, possibly by another server.
    pub(super) async fn flush(&self) -> Result<bool> {
        let flush = |shared: Arc<Self>| async move { shared.flush_now().await };
        self.run_detached(&self.background_runtime, flush).await
    }

    async fn flush_now(&self) -> Result<bool> {
        let mut target = None;
        for _ in 0..FLUSH_ATTEMPTS_MAX {
            let _guard = self.flush_lock.lock().await;
            let snapshot = {
                let mut state = self.writer.state.lock().await;
                let Some(replica) = state.settled_replica() else { return Err(in_doubt()) };
                replica.snapshot_backlog()
            };
            let Some(snapshot) = snapshot else { return Ok(false) };
            let target_entry = *target.get_or_insert(snapshot.position.id);
            let flushed_by = match self.write(&snapshot).await {
                Ok(flushed_by) => flushed_by,
                Err(failure) => {
                    self.flush_connection.discard().await;
                    return Err(failure.into_store());
                }
            };
            let mut state = self.writer.state.lock().await;
            let Some(replica) = state.settled_replica() else { return Err(in_doubt()) };
            if replica.nonce != snapshot.replica_nonce {
                target = None;
                continue;
            }
            match flushed_by {
                FlushedBy::ThisServer => {
                    replica.mark_written(&snapshot);
                    return Ok(true);
                }
                // The other server may not have reached the target.
                FlushedBy::OtherServer(flushed) => {
                    replica.mark_flushed(flushed);
                    if flushed >= target_entry {
                        return Ok(false);
                    }
                }
            }
        }
        Err(StoreError::unavailable("flush lost every race against other servers"))
    }

    /// Writes a snapshot to the tables in one transaction.
    async fn write(&self, snapshot: &BacklogSnapshot) -> std::result::Result<FlushedBy, Failure> {
        let connection = &self.flush_connection;
        let rows = connection.query(&format!("SELECT {FLUSHED}"), &[]).await?;
        let flushed: i64 = rows.first().map_or(0, |row| row.get(0));
        let position = snapshot.position;
        if flushed >= position.id {
            return Ok(FlushedBy::OtherServer(flushed));
        }
        if flushed < snapshot.flushed_at_least {
            return Err(Failure::Stale);
        }
        let statements = build_statements(snapshot, flushed);
        let client = connection.client().await?;
        let begin = async {
            client.begin_with(&format!("SELECT pg_advisory_xact_lock({FLUSH_LOCK})")).await?;
            let sql = format!("SELECT {FLUSHED}, (SELECT nonce FROM tenure.journal WHERE id = $1)");
            let rows = client.query_typed(&sql, &[(&position.id as _, Type::INT8)]).await?;
            let row = rows.into_iter().next();
            Ok::<_, Failure>(row.ok_or_else(|| corrupt("the journal", &"no row"))?)
        };
        let row = connection.with_timeout(begin).await??;
        let (now, nonce): (i64, Option<i64>) = (row.get(0), row.get(1));
        if now != flushed || nonce != Some(position.nonce) {
            // Another server flushed first, or this is another incarnation.
            client.batch_execute("ROLLBACK").await?;
            let has_advanced = now > flushed;
            return if has_advanced {
                Ok(FlushedBy::OtherServer(now))
            } else {
                Err(Failure::Stale)
            };
        }
        for (sql, columns) in statements {
            connection.with_timeout(columns.execute(&client, sql)).await??;
        }
        connection.with_timeout(commit(&client, snapshot, flushed)).await??;
        client.prepare_recent().await.ok();
        Ok(FlushedBy::ThisServer)
    }
}

/// Which server flushed the projection.
enum FlushedBy {
    ThisServer,
    /// Another one, up to this entry.
    OtherServer(i64),
}

fn in_doubt() -> StoreError {
    StoreError::unavailable(
        "the connection broke during a commit; its outcome is unknown".to_owned(),
    )
}

/// Records the flushed position, truncates the journal and commits.
async fn commit(
    client: &PgClient,
    snapshot: &BacklogSnapshot,
    flushed: i64,
) -> std::result::Result<(), tokio_postgres::Error> {
    let position = snapshot.position.id;
    // The range starts where the last truncation ended: scanning from the start would visit dead
    // rows that vacuum cannot remove while an old transaction is open.
    let (from, to) = snapshot.truncate;
    let (insert, delete, truncate) = (
        "INSERT INTO tenure.flushes VALUES ($1)",
        "DELETE FROM tenure.flushes WHERE position = $1",
        "DELETE FROM tenure.journal WHERE id > $1 AND id <= $2",
    );
    let number = |id| (id, Type::INT8);
    let (insert_params, delete_params) = ([number(&position as _)], [number(&flushed as _)]);
    let truncate_params = [number(&from as _), number(&to as _)];
    let (inserted, deleted, truncated, committed) = tokio::join!(
        biased;
        client.execute_typed(insert, &insert_params),
        client.execute_typed(delete, &delete_params),
        client.execute_typed(truncate, &truncate_params),
        // `END` rather than `COMMIT`, to distinguish flushes from batches in the server log.
        client.batch_execute("END"),
    );
    inserted?;
    deleted?;
    truncated?;
    committed
}

type Statements<'a> = Vec<(&'static str, Columns<'a>)>;

/// Builds the statements that write everything that changed after entry `after`.
fn build_statements(snapshot: &BacklogSnapshot, after: i64) -> Statements<'_> {
    let (sessions, removed_sessions) = session_columns(snapshot, after);
    let resources = ResourceColumns::new(snapshot, after);
    let (new_jobs, other_jobs) = job_columns(snapshot, after);
    let (forgotten, floors) = forgotten_columns(snapshot, after);
    let all = [
        // Before the rows of resources with the same names.
        ("DELETE FROM tenure.pages WHERE key = ANY($1)", forgotten.clone()),
        ("DELETE FROM tenure.resources WHERE key = ANY($1)", forgotten),
        (UPSERT_FLOORS, floors),
        (UPSERT_SESSIONS, sessions),
        ("DELETE FROM tenure.sessions WHERE id = ANY($1)", removed_sessions),
        (UPSERT_RESOURCES, resources.with_record),
        (UPDATE_RESOURCES, resources.without_record),
        ("DELETE FROM tenure.locks WHERE key = ANY($1)", resources.keys.clone()),
        (INSERT_LOCKS, resources.locks),
        ("DELETE FROM tenure.waiters WHERE key = ANY($1)", resources.keys),
        (INSERT_WAITERS, resources.waiters),
        (INSERT_JOBS, new_jobs),
        (UPSERT_JOBS, other_jobs),
        (pages::INSERT, pages::build_pages(events(snapshot, after))),
        (INSERT_LOGS, log_columns(snapshot, after)),
    ];
    let mut statements = Statements::new();
    for (sql, columns) in all {
        let chunks = columns.split(STATEMENT_ROWS_MAX).into_iter();
        statements.extend(chunks.map(|chunk| (sql, chunk)));
    }
    statements
}

const UPSERT_SESSIONS: &str = "\
    INSERT INTO tenure.sessions \
        (id, tenant, name, over, body, kinds, claims, ttl_ms, expires_at, asked_at) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
                         $7::text[], $8::bigint[], $9::bigint[], $10::bigint[]) \
    ON CONFLICT (id) DO UPDATE SET over = excluded.over, body = excluded.body, \
        kinds = excluded.kinds, claims = excluded.claims, ttl_ms = excluded.ttl_ms, \
        expires_at = excluded.expires_at, asked_at = excluded.asked_at";

/// Returns the sessions to upsert and those to delete.
fn session_columns(snapshot: &BacklogSnapshot, after: i64) -> (Columns<'_>, Columns<'_>) {
    let (mut upserted, mut removed) = (Columns::new(7, 3), Columns::new(1, 0));
    for (_, id, session) in snapshot.sessions.iter().filter(|(entry, _, _)| *entry > after) {
        match session {
            Some(session) => push_session(&mut upserted, session),
            None => removed.push([display(id)], []),
        }
    }
    (upserted, removed)
}

fn push_session<'a>(columns: &mut Columns<'a>, session: &'a Session) {
    let worker = session.worker.as_ref();
    let texts = [
        display(&session.id),
        borrowed(&session.tenant),
        borrowed(&session.name),
        session.ended.and_then(|over| borrowed(end_reason(over))),
        owned(session_json(session)),
        worker.and_then(|worker| owned(json(&worker.kinds))),
        worker.and_then(|worker| owned(json(&worker.claims))),
    ];
    let ttl = counter(session.ttl_ms);
    let asked_at = worker.map(|worker| bigint(worker.polled_at));
    columns.push(texts, [Some(ttl), Some(bigint(session.expires_at)), asked_at]);
}

/// Returns the value of the column `over`.
fn end_reason(over: SessionEnd) -> &'static str {
    match over {
        SessionEnd::Expired => "lapsed",
        SessionEnd::Closed => "closed",
    }
}

const UPSERT_RESOURCES: &str = "\
    INSERT INTO tenure.resources \
        (key, tenant, kind, name, state, record, token, running, live, n, told) \
    SELECT key, tenant, kind, name, state, record, token, running, live = 1, n, n \
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
                $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[]) \
        AS new (key, tenant, kind, name, state, record, token, running, live, n) \
    ON CONFLICT (key) DO UPDATE SET state = excluded.state, record = excluded.record, \
        token = excluded.token, running = excluded.running, live = excluded.live, \
        n = excluded.n, told = excluded.told";

const UPDATE_RESOURCES: &str = "\
    UPDATE tenure.resources r SET state = new.state, token = new.token, \
        running = new.running, live = new.live = 1, n = new.n \
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) \
        AS new (key, state, token, running, live, n) WHERE r.key = new.key";

const INSERT_LOCKS: &str = "\
    INSERT INTO tenure.locks (key, lock, session, request, purpose, job, token, since) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
                         $7::bigint[], $8::bigint[])";

const INSERT_WAITERS: &str = "\
    INSERT INTO tenure.waiters (key, request, session, since, until) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])";

/// The columns of resources, locks and waiters.
struct ResourceColumns<'a> {
    /// Rows to upsert with their records.
    with_record: Columns<'a>,
    /// Rows to update that keep their records.
    without_record: Columns<'a>,
    keys: Columns<'a>,
    locks: Columns<'a>,
    waiters: Columns<'a>,
}

impl<'a> ResourceColumns<'a> {
    fn new(snapshot: &'a BacklogSnapshot, after: i64) -> Self {
        let mut all = Self {
            with_record: Columns::new(6, 4),
            without_record: Columns::new(2, 4),
            keys: Columns::new(1, 0),
            locks: Columns::new(6, 2),
            waiters: Columns::new(3, 2),
        };
        for row in snapshot.records.iter().filter(|row| row.entry > after) {
            all.push(row);
        }
        all
    }

    fn push(&mut self, row: &'a ResourceRow) {
        let (key, state) = (&row.key, row.state.as_deref().and_then(borrowed));
        let running = i64::try_from(row.running).unwrap_or(i64::MAX);
        let numbers = [
            Some(counter(row.token.0)),
            Some(running),
            Some(i64::from(row.live)),
            Some(counter(row.n)),
        ];
        match &row.record {
            Some(record) => {
                let [tenant, kind, name] = [key.tenant(), key.kind(), key.name()].map(borrowed);
                let texts =
                    [borrowed(key.as_str()), tenant, kind, name, state, owned(json(record))];
                self.with_record.push(texts, numbers);
            }
            None => self.without_record.push([borrowed(key.as_str()), state], numbers),
        }
        self.keys.push([borrowed(key.as_str())], []);
        for tenure in &row.tenures {
            let texts = [
                borrowed(key.as_str()),
                display(&tenure.lock),
                display(&tenure.session),
                display(&tenure.request),
                tenure.purpose.as_deref().and_then(borrowed),
                tenure.job.as_ref().and_then(display),
            ];
            self.locks.push(texts, [Some(counter(tenure.token.0)), Some(bigint(tenure.since))]);
        }
        for waiter in &row.queue {
            let texts =
                [borrowed(key.as_str()), display(&waiter.request), display(&waiter.session)];
            self.waiters.push(texts, [Some(bigint(waiter.since)), Some(bigint(waiter.until))]);
        }
    }
}

const INSERT_JOBS: &str = "\
    INSERT INTO tenure.jobs (id, key, operation, state, previous, body, attempt, due, ended) \
    SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), \
           unnest($5::text[]), unnest($6::text[]), unnest($7::bigint[]), unnest($8::bigint[]), \
           unnest($9::bigint[])";

const UPSERT_JOBS: &str = "\
    INSERT INTO tenure.jobs (id, key, operation, state, previous, body, attempt, due, ended) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
                         $7::bigint[], $8::bigint[], $9::bigint[]) \
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, body = excluded.body, \
        attempt = excluded.attempt, due = excluded.due, ended = excluded.ended, \
        previous = excluded.previous";

/// Returns the jobs without a row, which are inserted, and the others, which are upserted. Most
/// jobs finish before they are flushed for the first time.
fn job_columns<'a>(snapshot: &'a BacklogSnapshot, after: i64) -> (Columns<'a>, Columns<'a>) {
    let (mut new, mut others) = (Columns::new(6, 3), Columns::new(6, 3));
    let mut push = |key: &'a ResourceKey, job: &'a Job| {
        let is_new = snapshot.new_jobs.get(&job.id).is_some_and(|entry| *entry > after);
        push_job(if is_new { &mut new } else { &mut others }, key, job);
    };
    for (_, key, job) in snapshot.live_jobs.iter().filter(|(entry, _, _)| *entry > after) {
        push(key, job);
    }
    let finished = snapshot.finished_jobs.iter().filter(|(entry, _)| *entry > after);
    let mut finished: Vec<&FinishedJob> = finished.map(|(_, finished)| &**finished).collect();
    // Index order.
    finished.sort_unstable_by_key(|finished| finished.job.id);
    for FinishedJob { key, job } in finished {
        push(key, job);
    }
    (new, others)
}

fn push_job<'a>(columns: &mut Columns<'a>, key: &'a ResourceKey, job: &'a Job) {
    let texts = [
        display(&job.id),
        borrowed(key.as_str()),
        borrowed(&job.operation),
        borrowed(job.state.as_str()),
        job.previous.as_ref().and_then(display),
        owned(json(job)),
    ];
    let ended = job.state.is_finished().then(|| bigint(job.ended_at.unwrap_or_default()));
    columns.push(texts, [Some(i64::from(job.attempt)), Some(bigint(job.due)), ended]);
}

const UPSERT_FLOORS: &str = "\
    INSERT INTO tenure.meta (key, value) SELECT 'floors', unnest($1::text[]) \
    ON CONFLICT (key) DO UPDATE SET value = excluded.value";

/// Returns the resources to delete, and the token floors if there are any.
fn forgotten_columns(snapshot: &BacklogSnapshot, after: i64) -> (Columns<'_>, Columns<'_>) {
    let (mut forgotten, mut floors) = (Columns::new(1, 0), Columns::new(1, 0));
    for (_, key) in snapshot.forgotten.iter().filter(|(entry, _)| *entry > after) {
        forgotten.push([borrowed(key.as_str())], []);
    }
    if !snapshot.forgotten.is_empty() {
        floors.push([owned(json(&snapshot.floors))], []);
    }
    (forgotten, floors)
}

/// Returns the history events after entry `after`, in order.
fn events(snapshot: &BacklogSnapshot, after: i64) -> impl Iterator<Item = UnflushedEvent<'_>> {
    let forgotten: Map<&ResourceKey, i64> =
        snapshot.forgotten.iter().map(|(entry, key)| (key, *entry)).collect();
    let entries = snapshot.events.iter().filter(move |events| events.entry > after);
    entries.flat_map(move |events| {
        // What preceded it was forgotten, too.
        let first = |key| forgotten.get(key).copied().unwrap_or_default();
        events.iter().filter(|event| events.entry >= first(event.key)).collect::<Vec<_>>()
    })
}

const INSERT_LOGS: &str = "\
    INSERT INTO tenure.logs (job, text, id, attempt, at) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])";

fn log_columns(snapshot: &BacklogSnapshot, after: i64) -> Columns<'_> {
    let mut columns = Columns::new(2, 3);
    for log in snapshot.logs.iter().filter(|log| log.entry > after) {
        let piece = &log.piece;
        columns.push(
            [display(&piece.job), borrowed(&piece.text)],
            [Some(log.position), Some(i64::from(piece.attempt)), Some(bigint(piece.at))],
        );
    }
    columns
}

#[cfg(test)]
mod tests;
