//! Writing what a batch changed: a few statements from arrays, and the commit, sent at once.

use std::collections::BTreeMap;

use tenure_core::ready::Place;
use tenure_core::{Job, Millis, Record, ResourceKey, Session};
use tokio_postgres::types::Type;

use super::batch::{Failure, Touched};
use super::bigint;
use super::columns::Columns;
use super::conn::Conn;
use super::load::{Loaded, Stored, place};
use crate::ledger::Batch;
use crate::store::durable;

/// A session that asked for jobs is written when so much time has passed, or more has changed.
const ASKED_MS: u64 = 1_000;
/// Most lines of history that come after the body of a row.
const LINES_MAX: u64 = 32;
/// The number of the lock that writers of history share, and that who reads it to its end takes
/// alone, to know that nobody is about to append something earlier.
pub(super) const APPENDING: i64 = 7_117_000;

/// Writes all that changed and commits; says whether anything had.
pub(super) async fn all(
    client: &Conn,
    loaded: &mut Loaded,
    batch: &Batch,
    touched: &Touched,
    (server, number): (&String, i64),
) -> Result<bool, Failure> {
    let (sessions, gone) = sessions(loaded, batch);
    let blank = blank(loaded);
    let (unlocked, locks) = locks(loaded, batch);
    let (unqueued, waiters) = waiters(loaded, batch);
    let jobs = jobs(loaded, batch, touched);
    let (history, logs) = (history(batch), logs(batch));
    let resources = resources(loaded, batch);
    let columns = [&sessions, &gone, &resources, &unlocked, &locks, &unqueued, &waiters, &jobs];
    if columns.iter().all(|c| c.is_empty()) && history.is_empty() && logs.is_empty() {
        client.batch_execute("ROLLBACK").await?;
        return Ok(false);
    }
    let now = bigint(loaded.now);
    let mark = [
        (server as _, Type::TEXT),
        (&number as _, Type::INT8),
        (&now as _, Type::INT8),
        (&APPENDING as _, Type::INT8),
    ];
    let results = tokio::join!(
        biased;
        client.execute_typed(MARK, &mark),
        sessions.run(client, UPSERT_SESSIONS),
        gone.run(client, "DELETE FROM tenure.sessions WHERE id = ANY($1)"),
        resources.run(client, UPDATE_RESOURCES),
        blank.run(client, "DELETE FROM tenure.resources WHERE key = ANY($1)"),
        unlocked.run(client, "DELETE FROM tenure.locks WHERE key = ANY($1)"),
        locks.run(client, INSERT_LOCKS),
        unqueued.run(client, "DELETE FROM tenure.waiters WHERE key = ANY($1)"),
        waiters.run(client, INSERT_WAITERS),
        jobs.run(client, UPSERT_JOBS),
        history.run(client, INSERT_HISTORY),
        logs.run(client, INSERT_LOGS),
        client.batch_execute("COMMIT"),
    );
    let (a, b, c, d, e, f, g, h, i, j, k, l, committed) = results;
    for written in [a, b, c, d, e, f, g, h, i, j, k, l] {
        written?;
    }
    committed?;
    Ok(true)
}

const MARK: &str = "\
    WITH appending AS (SELECT pg_advisory_xact_lock_shared($4)) \
    INSERT INTO tenure.servers (id, batch, seen) SELECT $1, $2, $3 FROM appending \
    ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, seen = excluded.seen";

const UPSERT_SESSIONS: &str = "\
    INSERT INTO tenure.sessions \
        (id, tenant, name, over, body, kinds, claims, ttl_ms, expires_at, asked_at, over_at) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
                         $7::text[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[]) \
    ON CONFLICT (id) DO UPDATE SET over = excluded.over, body = excluded.body, \
        over_at = coalesce(sessions.over_at, excluded.over_at), \
        kinds = excluded.kinds, claims = excluded.claims, ttl_ms = excluded.ttl_ms, \
        expires_at = excluded.expires_at, asked_at = excluded.asked_at";

/// Sessions to write, and those that are gone.
fn sessions(loaded: &Loaded, batch: &Batch) -> (Columns, Columns) {
    let (mut kept, mut gone) = (Columns::new(7, 4), Columns::new(1, 0));
    for id in &batch.sessions {
        let before = loaded.sessions.get(id);
        let Some(session) = loaded.world.sessions.get(*id) else {
            if before.is_some() {
                gone.push([Some(id.to_string())], []);
            }
            continue;
        };
        if before.is_some_and(|before| !is_worth_writing(before, session)) {
            continue;
        }
        let worker = session.worker.as_ref();
        let texts = [
            Some(id.to_string()),
            Some(session.tenant.to_string()),
            Some(session.name.to_string()),
            session.over.map(|over| format!("{over:?}").to_lowercase()),
            Some(durable(session)),
            worker.map(|worker| json(&worker.kinds)),
            worker.map(|worker| json(&worker.claims)),
        ];
        let ttl = i64::try_from(session.ttl_ms).unwrap_or(i64::MAX);
        let asked_at = worker.map(|worker| bigint(worker.asked_at));
        let over_at = session.over.map(|_| bigint(loaded.now));
        kept.push(texts, [Some(ttl), Some(bigint(session.expires_at)), asked_at, over_at]);
    }
    (kept, gone)
}

fn json(texts: &impl serde::Serialize) -> String {
    serde_json::to_string(texts).expect("a list is plain JSON")
}

/// Whether more has changed than that it asked for jobs a moment later.
fn is_worth_writing(before: &Session, after: &Session) -> bool {
    let (Some(was), Some(is)) = (&before.worker, &after.worker) else { return before != after };
    if is.asked_at.since(was.asked_at) >= ASKED_MS {
        return true;
    }
    let mut after = after.clone();
    if let Some(worker) = &mut after.worker {
        worker.asked_at = was.asked_at;
    }
    *before != after
}

const UPDATE_RESOURCES: &str = "\
    UPDATE tenure.resources r SET version = r.version + 1, token = new.token, \
        running = new.running, priority = new.priority, ready_since = new.ready_since, \
        wake_at = new.wake_at, state = new.state, body_n = coalesce(new.body_n, r.body_n), \
        body = coalesce(new.body, r.body) \
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], \
                $7::bigint[], $8::bigint[], $9::bigint[]) \
        AS new (key, state, body, token, running, priority, ready_since, wake_at, body_n) \
    WHERE r.key = new.key";

/// Resources to write: those that changed, and those of which something else is known. The body is
/// written only if history does not tell the change, or if it would have to tell much.
fn resources(loaded: &mut Loaded, batch: &Batch) -> Columns {
    let mut columns = Columns::new(3, 6);
    for (key, stored) in &mut loaded.stored {
        let Some(record) = loaded.world.records.get(key) else { continue };
        let mut place = place(&loaded.world, key, record);
        if loaded.world.kinds.get(key.kind()).is_none() && !record.lane().is_empty() {
            // A server that knows the kind knows better.
            place = Place { running: place.running, ..stored.place };
        }
        if place == stored.place && batch.records.binary_search(key).is_err() {
            continue;
        }
        let n = record.chain.n;
        let whole = batch.untold.contains(key) || n - stored.body_n >= LINES_MAX;
        stored.version += 1;
        stored.body_n = if whole { n } else { stored.body_n };
        let state = record.resource.as_ref().map(|resource| resource.state.to_string());
        let body = whole.then(|| json(record));
        columns.push(
            [Some(key.as_str().to_owned()), state, body],
            [
                Some(i64::try_from(record.token.0).unwrap_or(i64::MAX)),
                Some(i64::try_from(place.running).unwrap_or(i64::MAX)),
                place.ready.map(|(priority, _)| i64::from(priority)),
                place.ready.map(|(_, since)| bigint(since)),
                place.later.map(bigint),
                whole.then(|| i64::try_from(n).unwrap_or(i64::MAX)),
            ],
        );
    }
    columns
}

/// Rows that were only made to be locked.
fn blank(loaded: &Loaded) -> Columns {
    let mut columns = Columns::new(1, 0);
    for (key, record) in &loaded.world.records {
        if **record == Record::new(key) && loaded.stored.contains_key(key) {
            columns.push([Some(key.as_str().to_owned())], []);
        }
    }
    columns
}

const INSERT_LOCKS: &str = "\
    INSERT INTO tenure.locks (key, lock, session, request, purpose, job, token, since) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
                         $7::bigint[], $8::bigint[])";

/// The records that changed, with what was stored of them.
fn changed<'a>(
    loaded: &'a Loaded,
    batch: &'a Batch,
) -> impl Iterator<Item = (&'a ResourceKey, &'a Record, &'a Stored)> {
    batch
        .records
        .iter()
        .filter_map(|key| Some((key, &**loaded.world.records.get(key)?, loaded.stored.get(key)?)))
}

/// Resources whose locks have other holders, and all that are held on them.
fn locks(loaded: &Loaded, batch: &Batch) -> (Columns, Columns) {
    let (mut before, mut after) = (Columns::new(1, 0), Columns::new(6, 2));
    for (key, record, stored) in changed(loaded, batch) {
        if record.tenures == stored.tenures {
            continue;
        }
        if !stored.tenures.is_empty() {
            before.push([Some(key.as_str().to_owned())], []);
        }
        for tenure in &record.tenures {
            let texts = [
                Some(key.as_str().to_owned()),
                Some(tenure.lock.to_string()),
                Some(tenure.session.to_string()),
                Some(tenure.request.to_string()),
                tenure.purpose.as_ref().map(ToString::to_string),
                tenure.job.map(|job| job.to_string()),
            ];
            let token = i64::try_from(tenure.token.0).unwrap_or(i64::MAX);
            after.push(texts, [Some(token), Some(bigint(tenure.since))]);
        }
    }
    (before, after)
}

const INSERT_WAITERS: &str = "\
    INSERT INTO tenure.waiters (key, request, session, since, until) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])";

/// Resources whose queue is another, and all who wait there.
fn waiters(loaded: &Loaded, batch: &Batch) -> (Columns, Columns) {
    let (mut before, mut after) = (Columns::new(1, 0), Columns::new(3, 2));
    for (key, record, stored) in changed(loaded, batch) {
        if record.queue.iter().eq(&stored.waiters) {
            continue;
        }
        if !stored.waiters.is_empty() {
            before.push([Some(key.as_str().to_owned())], []);
        }
        for waiter in &record.queue {
            let texts = [
                Some(key.as_str().to_owned()),
                Some(waiter.request.to_string()),
                Some(waiter.session.to_string()),
            ];
            after.push(texts, [Some(bigint(waiter.since)), Some(bigint(waiter.until))]);
        }
    }
    (before, after)
}

const UPSERT_JOBS: &str = "\
    INSERT INTO tenure.jobs (id, key, operation, state, previous, body, attempt, due, ended) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], \
                         $7::bigint[], $8::bigint[], $9::bigint[]) \
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, body = excluded.body, \
        attempt = excluded.attempt, due = excluded.due, ended = excluded.ended, \
        previous = excluded.previous";

fn jobs(loaded: &Loaded, batch: &Batch, touched: &Touched) -> Columns {
    let mut columns = Columns::new(6, 3);
    let mut push = |key: &ResourceKey, job: &Job, ended: Option<Millis>| {
        let texts = [
            Some(job.id.to_string()),
            Some(key.as_str().to_owned()),
            Some(job.operation.to_string()),
            Some(job.state.word().to_owned()),
            job.previous.map(|id| id.to_string()),
            Some(serde_json::to_string(job).expect("a job is plain JSON")),
        ];
        let attempt = Some(i64::from(job.attempt));
        columns.push(texts, [attempt, Some(bigint(job.due)), ended.map(bigint)]);
    };
    let mut last = BTreeMap::new();
    for (key, job) in &batch.finished {
        last.insert(job.id, (key, job));
    }
    for (key, job) in last.values() {
        push(key, job, Some(job.ended_at.unwrap_or_default()));
    }
    for (key, id) in touched.iter().filter(|(_, id)| !last.contains_key(id)) {
        let record = loaded.world.records.get(key);
        if let Some(job) = record.and_then(|record| record.job(*id)) {
            push(key, job, None);
        }
    }
    columns
}

const INSERT_HISTORY: &str = "\
    INSERT INTO tenure.history (key, line, n, at, hash) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bytea[])";

fn history(batch: &Batch) -> Columns {
    let mut columns = Columns::new(2, 2);
    for (key, sealed) in &batch.history {
        let n = i64::try_from(sealed.n).unwrap_or(i64::MAX);
        columns.push(
            [Some(key.as_str().to_owned()), Some(sealed.line.clone())],
            [Some(n), Some(bigint(sealed.at))],
        );
        columns.push_bytes(sealed.hash.0.to_vec());
    }
    columns
}

const INSERT_LOGS: &str = "\
    INSERT INTO tenure.logs (job, text, attempt, at) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])";

fn logs(batch: &Batch) -> Columns {
    let mut columns = Columns::new(2, 2);
    for piece in &batch.logs {
        columns.push(
            [Some(piece.job.to_string()), Some(piece.text.to_string())],
            [Some(i64::from(piece.attempt)), Some(bigint(piece.at))],
        );
    }
    columns
}
