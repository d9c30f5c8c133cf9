//! Bringing the tables up to the journal, a few times a second, beside everything else.
//!
//! What changed often since the last time is written once. One process at a time does it, whoever
//! comes first; the rows are those of one position of the journal, and the position is written with
//! them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::{Job, ResourceKey, Session};
use tokio_postgres::types::Type;

use super::columns::{Columns, made, own, there};
use super::conn::Conn;
use super::failure::Failure;
use super::journal::json;
use super::pages::{self, PendingLine};
use super::replica::{Over, ResourceRow, Snapshot};
use super::rows::FLUSHED;
use super::{Shared, bigint, corrupt, counter};
use crate::store::{Result, StoreError, durable};

/// The number of the lock of whoever brings the tables up to the journal.
pub(super) const FLUSHER: i64 = 7_117_003;
/// How long what changed is left to change again.
const FLUSH_EVERY: Duration = Duration::from_millis(400);
/// When there is more to tell than this, it is told without leaving it to change again.
const PENDING_MUCH: usize = 50_000;
/// When there is more to tell than this, whoever would add to it waits.
const PENDING_MAX: usize = 200_000;
/// How often it is tried anew when another server came between.
const TRIES_MAX: usize = 5;
/// Most rows of one statement.
const ROWS_MAX: usize = 5_000;

/// Brings the tables up to the journal for as long as the store lasts.
pub(super) async fn run(store: Weak<Shared>, wanted: Arc<tokio::sync::Notify>) {
    let (mut seen, mut hurry) = (0, false);
    loop {
        wanted.notified().await;
        if !std::mem::take(&mut hurry) {
            tokio::time::sleep(FLUSH_EVERY).await;
        }
        let Some(store) = store.upgrade() else { return };
        let flushed = store.flushed().await;
        if flushed > std::mem::replace(&mut seen, flushed) {
            // Another server does it. It is enough to see that it goes on.
            wanted.notify_one();
            continue;
        }
        let wrote = store.flush().await;
        let failed = store.flush_fails.swap(wrote.is_err(), Ordering::Relaxed);
        match &wrote {
            Err(error) if !failed => {
                tracing::warn!(%error, "cannot bring the tables up to the journal; trying again");
            }
            Ok(_) if failed => tracing::info!("the tables are brought up to the journal again"),
            _ => {}
        }
        if wrote.is_err() {
            wanted.notify_one();
        }
        // Where another server was quicker it goes on being so.
        hurry = matches!(wrote, Ok(true)) && store.to_tell().await > PENDING_MUCH;
        seen = store.flushed().await;
    }
}

impl Shared {
    /// Waits while there is too much to tell the tables.
    pub(super) async fn room(&self) {
        if self.to_tell().await <= PENDING_MAX {
            return;
        }
        // Whoever is telling them now may make enough room.
        drop(self.flushing.lock().await);
        if self.flush_fails.load(Ordering::Relaxed) {
            return;
        }
        if self.to_tell().await > PENDING_MAX
            && let Err(error) = self.flush().await
        {
            tracing::warn!(%error, "cannot bring the tables up to the journal");
        }
    }

    /// How much the tables have to be told, as far as this process knows.
    async fn to_tell(&self) -> usize {
        self.writer.state.lock().await.any().map_or(0, |replica| replica.to_tell())
    }

    /// Up to which entry the tables have been told, as far as this process knows.
    async fn flushed(&self) -> i64 {
        let mut state = self.writer.state.lock().await;
        state.settled().map_or(0, |replica| replica.pending.flushed)
    }

    /// Brings the tables up to where this process is in the journal. Says whether it had to:
    /// another server may have done it.
    pub(super) async fn flush(&self) -> Result<bool> {
        self.to_the_end(&self.beside, |me| async move { me.flush_now().await }).await
    }

    async fn flush_now(&self) -> Result<bool> {
        let mut wanted = None;
        for _ in 0..TRIES_MAX {
            let _turn = self.flushing.lock().await;
            let snapshot = {
                let mut state = self.writer.state.lock().await;
                let Some(replica) = state.settled() else { return Err(unsettled()) };
                replica.snapshot()
            };
            let Some(snapshot) = snapshot else { return Ok(false) };
            let upto = *wanted.get_or_insert(snapshot.upto.id);
            let written = match self.write(&snapshot).await {
                Ok(written) => written,
                Err(failure) => {
                    self.flusher.discard().await;
                    return Err(failure.into_store());
                }
            };
            let mut state = self.writer.state.lock().await;
            let Some(replica) = state.settled() else { return Err(unsettled()) };
            if replica.nonce != snapshot.of {
                wanted = None;
                continue;
            }
            match written {
                Written::Here => {
                    replica.wrote(&snapshot);
                    return Ok(true);
                }
                // Another server was quicker, but may not have come as far.
                Written::Elsewhere(flushed) => {
                    replica.flushed(flushed);
                    if flushed >= upto {
                        return Ok(false);
                    }
                }
            }
        }
        Err(StoreError::Unavailable("other servers are always quicker".to_owned()))
    }

    /// Writes what the tables have not been told.
    async fn write(&self, snapshot: &Snapshot) -> std::result::Result<Written, Failure> {
        let link = &self.flusher;
        let rows = link.rows(&format!("SELECT {FLUSHED}"), &[]).await?;
        let flushed: i64 = rows.first().map_or(0, |row| row.get(0));
        let upto = snapshot.upto;
        if flushed >= upto.id {
            return Ok(Written::Elsewhere(flushed));
        }
        if flushed < snapshot.seen {
            return Err(Failure::Stale);
        }
        let statements = statements(snapshot, flushed);
        let client = link.client().await?;
        let begin = async {
            client.begin_with(&format!("SELECT pg_advisory_xact_lock({FLUSHER})")).await?;
            let sql = format!("SELECT {FLUSHED}, (SELECT nonce FROM tenure.journal WHERE id = $1)");
            let rows = client.query_typed(&sql, &[(&upto.id as _, Type::INT8)]).await?;
            let row = rows.into_iter().next();
            Ok::<_, Failure>(row.ok_or_else(|| corrupt("the journal", &"no row"))?)
        };
        let row = link.in_time(begin).await??;
        let (now, nonce): (i64, Option<i64>) = (row.get(0), row.get(1));
        if now != flushed || nonce != Some(upto.nonce) {
            // Somebody else was quicker, or this is another life.
            client.batch_execute("ROLLBACK").await?;
            let quicker = now > flushed;
            return if quicker { Ok(Written::Elsewhere(now)) } else { Err(Failure::Stale) };
        }
        for (sql, columns) in statements {
            link.in_time(columns.run(&client, sql)).await??;
        }
        link.in_time(finish(&client, snapshot, flushed)).await??;
        client.prepare().await.ok();
        Ok(Written::Here)
    }
}

/// Who has brought the tables up.
enum Written {
    /// We have, as far as we know.
    Here,
    /// Another server has, up to this entry.
    Elsewhere(i64),
}

fn unsettled() -> StoreError {
    StoreError::Unavailable("the connection broke, and it is not known what was written".to_owned())
}

/// Notes up to which entry the tables have been told, drops entries that nobody needs, and commits.
async fn finish(
    client: &Conn,
    snapshot: &Snapshot,
    flushed: i64,
) -> std::result::Result<(), tokio_postgres::Error> {
    let upto = snapshot.upto.id;
    // A range that begins where the last one ended: what was deleted before it may lie about for as
    // long as somebody has an old transaction.
    let (from, to) = snapshot.stale;
    let (note, old, drop) = (
        "INSERT INTO tenure.flushes VALUES ($1)",
        "DELETE FROM tenure.flushes WHERE position = $1",
        "DELETE FROM tenure.journal WHERE id > $1 AND id <= $2",
    );
    let number = |id| (id, Type::INT8);
    let (noting, cleaning) = ([number(&upto as _)], [number(&flushed as _)]);
    let dropping = [number(&from as _), number(&to as _)];
    let (noted, cleaned, dropped, committed) = tokio::join!(
        biased;
        client.execute_typed(note, &noting),
        client.execute_typed(old, &cleaning),
        client.execute_typed(drop, &dropping),
        // Said otherwise than for a batch, so that a log of the database tells them apart.
        client.batch_execute("END"),
    );
    noted?;
    cleaned?;
    dropped?;
    committed
}

type Statements<'a> = Vec<(&'static str, Columns<'a>)>;

/// What has to be written of what changed after an entry.
fn statements(snapshot: &Snapshot, after: i64) -> Statements<'_> {
    let (kept, gone) = sessions(snapshot, after);
    let resources = Resources::of(snapshot, after);
    let (new, jobs) = jobs(snapshot, after);
    let all = [
        (UPSERT_SESSIONS, kept),
        ("DELETE FROM tenure.sessions WHERE id = ANY($1)", gone),
        (UPSERT_RESOURCES, resources.whole),
        (UPDATE_RESOURCES, resources.moved),
        ("DELETE FROM tenure.locks WHERE key = ANY($1)", resources.keys.clone()),
        (INSERT_LOCKS, resources.locks),
        ("DELETE FROM tenure.waiters WHERE key = ANY($1)", resources.keys),
        (INSERT_WAITERS, resources.waiters),
        (INSERT_JOBS, new),
        (UPSERT_JOBS, jobs),
        (pages::INSERT, pages::of(lines(snapshot, after))),
        (INSERT_LOGS, logs(snapshot, after)),
    ];
    let mut parts = Statements::new();
    for (sql, columns) in all {
        parts.extend(columns.split(ROWS_MAX).into_iter().map(|part| (sql, part)));
    }
    parts
}

const UPSERT_SESSIONS: &str = "\
    INSERT INTO tenure.sessions \
        (id, tenant, name, over, body, kinds, claims, ttl_ms, expires_at, asked_at) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
                         $7::text[], $8::bigint[], $9::bigint[], $10::bigint[]) \
    ON CONFLICT (id) DO UPDATE SET over = excluded.over, body = excluded.body, \
        kinds = excluded.kinds, claims = excluded.claims, ttl_ms = excluded.ttl_ms, \
        expires_at = excluded.expires_at, asked_at = excluded.asked_at";

/// Sessions to write, and those that are gone.
fn sessions(snapshot: &Snapshot, after: i64) -> (Columns<'_>, Columns<'_>) {
    let (mut kept, mut gone) = (Columns::new(7, 3), Columns::new(1, 0));
    for (_, id, session) in snapshot.sessions.iter().filter(|(at, _, _)| *at > after) {
        match session {
            Some(session) => push_session(&mut kept, session),
            None => gone.push([made(id)], []),
        }
    }
    (kept, gone)
}

fn push_session<'a>(columns: &mut Columns<'a>, session: &'a Session) {
    let worker = session.worker.as_ref();
    let texts = [
        made(&session.id),
        there(&session.tenant),
        there(&session.name),
        session.ended.and_then(|over| own(over.as_str().to_owned())),
        own(durable(session)),
        worker.and_then(|worker| own(json(&worker.kinds))),
        worker.and_then(|worker| own(json(&worker.claims))),
    ];
    let ttl = counter(session.ttl_ms);
    let asked_at = worker.map(|worker| bigint(worker.polled_at));
    columns.push(texts, [Some(ttl), Some(bigint(session.expires_at)), asked_at]);
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

/// What is to be written of resources.
struct Resources<'a> {
    /// Rows with their records.
    whole: Columns<'a>,
    /// Rows that keep the records that they have.
    moved: Columns<'a>,
    keys: Columns<'a>,
    locks: Columns<'a>,
    waiters: Columns<'a>,
}

impl<'a> Resources<'a> {
    fn of(snapshot: &'a Snapshot, after: i64) -> Self {
        let mut all = Self {
            whole: Columns::new(6, 4),
            moved: Columns::new(2, 4),
            keys: Columns::new(1, 0),
            locks: Columns::new(6, 2),
            waiters: Columns::new(3, 2),
        };
        for row in snapshot.records.iter().filter(|row| row.at > after) {
            all.push(row);
        }
        all
    }

    fn push(&mut self, row: &'a ResourceRow) {
        let (key, state) = (&row.key, row.state.as_deref().and_then(there));
        let running = i64::try_from(row.running).unwrap_or(i64::MAX);
        let numbers = [
            Some(counter(row.token.0)),
            Some(running),
            Some(i64::from(row.live)),
            Some(counter(row.n)),
        ];
        match &row.record {
            Some(record) => {
                let [tenant, kind, name] = [key.tenant(), key.kind(), key.name()].map(there);
                let texts = [there(key.as_str()), tenant, kind, name, state, own(json(record))];
                self.whole.push(texts, numbers);
            }
            None => self.moved.push([there(key.as_str()), state], numbers),
        }
        self.keys.push([there(key.as_str())], []);
        for tenure in &row.tenures {
            let texts = [
                there(key.as_str()),
                made(&tenure.lock),
                made(&tenure.session),
                made(&tenure.request),
                tenure.purpose.as_deref().and_then(there),
                tenure.job.as_ref().and_then(made),
            ];
            self.locks.push(texts, [Some(counter(tenure.token.0)), Some(bigint(tenure.since))]);
        }
        for waiter in &row.queue {
            let texts = [there(key.as_str()), made(&waiter.request), made(&waiter.session)];
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

/// Jobs that the tables know nothing of, and others: most are over before they are told of.
fn jobs<'a>(snapshot: &'a Snapshot, after: i64) -> (Columns<'a>, Columns<'a>) {
    let (mut new, mut others) = (Columns::new(6, 3), Columns::new(6, 3));
    let mut push = |key: &'a ResourceKey, job: &'a Job| {
        let is_new = snapshot.new.get(&job.id).is_some_and(|with| *with > after);
        push_job(if is_new { &mut new } else { &mut others }, key, job);
    };
    for (_, key, job) in snapshot.live.iter().filter(|(at, _, _)| *at > after) {
        push(key, job);
    }
    let mut over: Vec<&Over> =
        snapshot.over.iter().filter(|(at, _)| *at > after).map(|(_, over)| &**over).collect();
    // In the order of their ids, which is how the index has them.
    over.sort_unstable_by_key(|over| over.job.id);
    for over in over {
        push(&over.key, &over.job);
    }
    (new, others)
}

fn push_job<'a>(columns: &mut Columns<'a>, key: &'a ResourceKey, job: &'a Job) {
    let texts = [
        made(&job.id),
        there(key.as_str()),
        there(&job.operation),
        there(job.state.as_str()),
        job.previous.as_ref().and_then(made),
        own(json(job)),
    ];
    let over = job.state.is_finished().then(|| bigint(job.ended_at.unwrap_or_default()));
    columns.push(texts, [Some(i64::from(job.attempt)), Some(bigint(job.due)), over]);
}

/// The lines of history that have to be told, in order.
fn lines(snapshot: &Snapshot, after: i64) -> impl Iterator<Item = PendingLine<'_>> {
    let entries = snapshot.lines.iter().filter(move |lines| lines.entry > after);
    entries.flat_map(|lines| lines.each())
}

const INSERT_LOGS: &str = "\
    INSERT INTO tenure.logs (job, text, id, attempt, at) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])";

fn logs(snapshot: &Snapshot, after: i64) -> Columns<'_> {
    let mut columns = Columns::new(2, 3);
    for log in snapshot.logs.iter().filter(|log| log.entry > after) {
        let piece = &log.piece;
        columns.push(
            [made(&piece.job), there(&piece.text)],
            [Some(log.position), Some(i64::from(piece.attempt)), Some(bigint(piece.at))],
        );
    }
    columns
}

#[cfg(test)]
mod tests {
    use tenure_core::{Command, SessionId};

    use crate::postgres::Postgres;
    use crate::store::Store as _;

    #[tokio::test(flavor = "multi_thread")]
    async fn whoever_is_behind_is_content_with_what_another_server_has_told() {
        let server = tenure_testbed::shared();
        let url = server.url(&server.new_database().expect("a new database"));
        let [a, b] = [Postgres::open(&url).await, Postgres::open(&url).await]
            .map(|store| store.expect("the server is there"));
        for (store, session) in [(&a, 1), (&b, 2)] {
            let session = SessionId(session);
            let (tenant, name) = ("t".into(), "s".into());
            let open = Command::Open { session, tenant, name, ttl_ms: 60_000 };
            store.apply(vec![open]).await.expect("it is there");
        }
        b.shared.flush().await.expect("nobody is in the way");
        assert!(!a.shared.flush().await.expect("there is nothing left to tell"));
    }
}
