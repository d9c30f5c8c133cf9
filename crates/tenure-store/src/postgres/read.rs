//! Lists and single rows, as the API shows them.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tenure_core::history::Hash;
use tenure_core::verify::Replay;
use tenure_core::{JobId, JobState, Millis, Record, ResourceKey, TenureView, Text};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Failure;
use super::cache::Known;
use super::conn::Conn;
use super::load::read_records;
use super::rows::{parse_job, parse_key, parse_session, text};
use super::write::APPENDING;
use super::{Postgres, corrupt, millis};
use crate::ledger::Ledger;
use crate::store::{
    HistoryQuery, JobPage, JobQuery, JobShown, Line, ListQuery, LogLine, LogQuery, Page, Reads,
    ResourceQuery, ResourceShown, Result, Shown, WorkerShown,
};
use crate::view;

/// The time of the database.
pub(super) const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// Rows of a query on ids, unless there are none.
pub(super) async fn unless_empty(
    client: &Conn,
    sql: &str,
    ids: &[String],
) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    client.query_typed(sql, &[(&ids as _, Type::TEXT_ARRAY)]).await
}

/// A hash as it is kept.
pub(super) fn hash(bytes: &[u8]) -> Result<Hash> {
    bytes.try_into().map(Hash).map_err(|error| corrupt("a hash", &error))
}

impl Postgres {
    /// Records, as they are now.
    async fn records(&self, keys: &[String]) -> Result<HashMap<ResourceKey, Known>> {
        let client = self.reader.link().client().await?;
        read_records(&client, keys).await.map_err(Failure::into_store)
    }

    /// A ledger of some resources and all living sessions, to look at only.
    async fn ledger(&self, keys: &[String]) -> Result<(Ledger, Millis)> {
        let sessions = "SELECT body, expires_at, kinds, asked_at, claims FROM tenure.sessions \
                        WHERE kinds IS NOT NULL OR id IN \
                        (SELECT session FROM tenure.locks WHERE key = ANY($1) \
                         UNION SELECT session FROM tenure.waiters WHERE key = ANY($1))";
        let params = [(&keys as _, Type::TEXT_ARRAY)];
        let (records, sessions, clock) = tokio::join!(
            self.records(keys),
            self.reader.rows(sessions, &params),
            self.reader.one(CLOCK, &[]),
        );
        let now = self.time(clock?.get(0));
        let mut ledger = Ledger::default();
        ledger.world.kinds = self.kinds();
        for row in &sessions? {
            ledger.world.sessions.insert(parse_session(row)?);
        }
        for (key, Known { record, .. }) in records? {
            if *record != Record::new(&key) {
                ledger.admit(&key, *record, now);
            }
        }
        Ok((ledger, now))
    }

    /// How many jobs of a kind run, of all tenants and of one.
    async fn running(&self, key: &ResourceKey) -> Result<(usize, usize)> {
        let sql = "SELECT coalesce(sum(running), 0)::bigint, \
                   coalesce(sum(running) FILTER (WHERE tenant = $2), 0)::bigint \
                   FROM tenure.resources WHERE kind = $1 AND running > 0";
        let (kind, tenant) = (key.kind(), key.tenant());
        let params = [(&kind as _, Type::TEXT), (&tenant as _, Type::TEXT)];
        let row = self.reader.one(sql, &params).await?;
        let count = |at: usize| usize::try_from(row.get::<_, i64>(at)).unwrap_or(0);
        Ok((count(0), count(1)))
    }
}

impl Postgres {
    /// Lines from a position on, as far as nobody is about to append something earlier.
    async fn scan(&self, after: u64, count: usize) -> Result<Vec<Row>> {
        let sql = "SELECT id, key, line, hash FROM tenure.history WHERE id > $1 AND id <= $2 \
                   ORDER BY id LIMIT $3";
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let read = async |horizon: i64| {
            let params = [
                (&after as _, Type::INT8),
                (&horizon as _, Type::INT8),
                (&limit(count) as _, Type::INT8),
            ];
            self.reader.rows(sql, &params).await
        };
        let rows = read(self.horizon.load(Ordering::Relaxed)).await?;
        if rows.len() == count {
            return Ok(rows);
        }
        // Alone for a moment: whoever was appending is done, and what was seen before is all there.
        let alone = "WITH alone AS MATERIALIZED (SELECT pg_advisory_xact_lock($1)) \
                     SELECT coalesce((SELECT max(id) FROM tenure.history), 0) FROM alone";
        let row = self.reader.one(alone, &[(&APPENDING as _, Type::INT8)]).await?;
        let horizon = self.horizon.fetch_max(row.get(0), Ordering::Relaxed).max(row.get(0));
        read(horizon).await
    }

    async fn jobs_of_all(&self, query: &JobQuery) -> Result<Vec<Row>> {
        let sql = "SELECT key, body FROM tenure.jobs WHERE id < $1 AND ($2 = '' OR state = $2) \
                   AND ($3 = '' OR operation = $3) AND ($4 = '' OR split_part(key, '/', 1) = $4) \
                   AND ($5 = '' OR split_part(key, '/', 2) = $5) \
                   AND ($6 = '' OR split_part(key, '/', 3) = $6) \
                   ORDER BY id DESC LIMIT $7";
        let below = query.after.map_or_else(|| "g".to_owned(), |id| text(&id));
        let state = query.state.map_or("", JobState::word);
        let (operation, tenant) = (or(&query.operation), or(&query.tenant));
        let (kind, name, rows) = (or(&query.kind), or(&query.name), limit(query.limit + 1));
        let params = [
            (&below as _, Type::TEXT),
            (&state as _, Type::TEXT),
            (&operation as _, Type::TEXT),
            (&tenant as _, Type::TEXT),
            (&kind as _, Type::TEXT),
            (&name as _, Type::TEXT),
            (&rows as _, Type::INT8),
        ];
        self.reader.rows(sql, &params).await
    }

    /// Jobs of one resource: those that are not over, newest first, then the others, from the one
    /// that was over last. A page that ended with one of them goes on with the one before.
    async fn jobs_of(&self, key: &ResourceKey, query: &JobQuery) -> Result<Vec<Row>> {
        let sql = "\
            WITH RECURSIVE after AS (SELECT previous, ended FROM tenure.jobs \
                                     WHERE id = $2 AND ended IS NOT NULL), \
            walk (id, previous, n) AS ( \
                SELECT j.id, j.previous, 1::bigint FROM tenure.jobs j WHERE j.id = \
                    CASE WHEN EXISTS (SELECT FROM after) \
                         THEN (SELECT previous FROM after) ELSE $3 END \
                UNION ALL \
                SELECT j.id, j.previous, walk.n + 1 FROM walk \
                JOIN tenure.jobs j ON j.id = walk.previous), \
            listed (id, live, n) AS ( \
                SELECT id, 0, 0 FROM tenure.jobs WHERE key = $1 AND ended IS NULL \
                    AND ($2 = '' OR id < $2) AND NOT EXISTS (SELECT FROM after) \
                UNION ALL SELECT id, 1, n FROM walk) \
            SELECT j.key, j.body FROM listed l JOIN tenure.jobs j ON j.id = l.id \
            WHERE ($4 = '' OR j.state = $4) AND ($5 = '' OR j.operation = $5) \
            ORDER BY l.live, l.n, j.id DESC LIMIT $6";
        let mut records = self.records(&[text(key)]).await?;
        let Some(seen) = records.remove(key) else { return Ok(Vec::new()) };
        let last = seen.record.resource.and_then(|resource| resource.last_job).map(|id| text(&id));
        let key = key.as_str();
        let after = query.after.map(|id| text(&id)).unwrap_or_default();
        let (state, operation) = (query.state.map_or("", JobState::word), or(&query.operation));
        let params = [
            (&key as _, Type::TEXT),
            (&after as _, Type::TEXT),
            (&last as _, Type::TEXT),
            (&state as _, Type::TEXT),
            (&operation as _, Type::TEXT),
            (&limit(query.limit + 1) as _, Type::INT8),
        ];
        self.reader.rows(sql, &params).await
    }
}

fn or(text: &Option<Text>) -> String {
    text.as_deref().unwrap_or("").to_owned()
}

/// All keys of a tenant, or of a kind of it: the character after the slash is the zero.
fn range(tenant: Option<&Text>, kind: Option<&Text>) -> (String, String) {
    match (tenant, kind) {
        (Some(tenant), Some(kind)) => (format!("{tenant}/{kind}/"), format!("{tenant}/{kind}0")),
        (Some(tenant), None) => (format!("{tenant}/"), format!("{tenant}0")),
        (None, _) => (String::new(), char::MAX.to_string()),
    }
}

fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn key(row: &Row, at: usize) -> Result<ResourceKey> {
    row.get::<_, &str>(at).parse().map_err(|error| corrupt("a key", &error))
}

fn line(row: &Row) -> Result<Line> {
    let position = u64::try_from(row.get::<_, i64>(0)).unwrap_or(0);
    Ok(Line { position, key: key(row, 1)?, text: row.get(2), hash: hash(row.get(3))? })
}

fn shown(row: &Row) -> Result<JobShown> {
    let (key, job) = parse_job(row)?;
    Ok(JobShown { key, job })
}

#[async_trait]
impl Reads for Postgres {
    async fn list(&self, query: ListQuery) -> Result<Page<TenureView>> {
        let sql = "SELECT DISTINCT l.key FROM tenure.locks l \
                   LEFT JOIN tenure.sessions s ON s.id = l.session \
                   WHERE l.key > $1 AND l.key >= $2 \
                   AND l.key < $3 AND ($4 = '' OR split_part(l.key, '/', 2) = $4) \
                   AND ($5 = '' OR split_part(l.key, '/', 3) = $5) AND ($6 = '' OR s.name = $6) \
                   ORDER BY 1 LIMIT $7";
        let after = query.after.as_ref().map_or("", ResourceKey::as_str);
        let (from, to) = range(query.tenant.as_ref(), query.kind.as_ref());
        let (kind, name, holder) = (or(&query.kind), or(&query.name), or(&query.holder));
        let rows = limit(query.limit + 1);
        let params = [
            (&after as _, Type::TEXT),
            (&from as _, Type::TEXT),
            (&to as _, Type::TEXT),
            (&kind as _, Type::TEXT),
            (&name as _, Type::TEXT),
            (&holder as _, Type::TEXT),
            (&rows as _, Type::INT8),
        ];
        let rows = self.reader.rows(sql, &params).await?;
        let keys: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let (ledger, now) = self.ledger(&keys).await?;
        Ok(ledger.list(&ListQuery { after: None, ..query }, now))
    }

    async fn show(&self, key: &ResourceKey) -> Result<Option<Shown>> {
        let (ledger, now) = self.ledger(&[text(key)]).await?;
        let Some(mut shown) = ledger.show(key, now) else { return Ok(None) };
        shown.around.running = self.running(key).await?;
        Ok(Some(shown))
    }

    async fn keys(&self, after: Option<ResourceKey>, count: usize) -> Result<Vec<ResourceKey>> {
        let sql = "SELECT key FROM tenure.resources WHERE key > $1 ORDER BY key LIMIT $2";
        let after = after.as_ref().map_or("", ResourceKey::as_str);
        let params = [(&after as _, Type::TEXT), (&limit(count) as _, Type::INT8)];
        self.reader.rows(sql, &params).await?.iter().map(|row| key(row, 0)).collect()
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<Line>> {
        let below = |before: Option<u64>| {
            before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX))
        };
        let rows = match &query {
            HistoryQuery::Of { key, before, limit: count } => {
                let sql = "SELECT id, key, line, hash FROM tenure.history \
                           WHERE key = $1 AND id < $2 ORDER BY n DESC LIMIT $3";
                let key = key.as_str();
                let params = [
                    (&key as _, Type::TEXT),
                    (&below(*before) as _, Type::INT8),
                    (&limit(*count) as _, Type::INT8),
                ];
                self.reader.rows(sql, &params).await?
            }
            HistoryQuery::Newest { tenant, before, limit: count } => {
                let sql = "SELECT id, key, line, hash FROM tenure.history WHERE id < $1 \
                           AND ($2 = '' OR split_part(key, '/', 1) = $2) \
                           ORDER BY id DESC LIMIT $3";
                let tenant = tenant.as_deref().unwrap_or("");
                let params = [
                    (&below(*before) as _, Type::INT8),
                    (&tenant as _, Type::TEXT),
                    (&limit(*count) as _, Type::INT8),
                ];
                self.reader.rows(sql, &params).await?
            }
            HistoryQuery::Scan { after, limit } => self.scan(*after, *limit).await?,
        };
        rows.iter().map(line).collect()
    }

    async fn bases(
        &self,
        after: Option<ResourceKey>,
        count: usize,
    ) -> Result<Vec<(ResourceKey, Replay)>> {
        let sql = "SELECT key, base FROM tenure.resources WHERE base IS NOT NULL AND key > $1 \
                   ORDER BY key LIMIT $2";
        let after = after.as_ref().map_or("", ResourceKey::as_str);
        let params = [(&after as _, Type::TEXT), (&limit(count) as _, Type::INT8)];
        let base = |row: &Row| {
            let replay = serde_json::from_str(row.get(1)).map_err(|e| corrupt("a base", &e))?;
            Ok((key(row, 0)?, replay))
        };
        self.reader.rows(sql, &params).await?.iter().map(base).collect()
    }

    async fn job(&self, id: JobId) -> Result<Option<JobShown>> {
        let sql = "SELECT key, body FROM tenure.jobs WHERE id = $1";
        let id = id.to_string();
        let rows = self.reader.rows(sql, &[(&id as _, Type::TEXT)]).await?;
        rows.first().map(shown).transpose()
    }

    async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        let rows = match query.resource() {
            Some(key) => self.jobs_of(&key, &query).await?,
            None => self.jobs_of_all(&query).await?,
        };
        let items = rows.iter().map(shown).collect::<Result<Vec<_>>>()?;
        Ok(view::finish(items, query.limit))
    }

    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceShown>> {
        let sql = "SELECT key FROM tenure.resources WHERE state IS NOT NULL AND key > $1 \
                   AND key >= $2 AND key < $3 AND ($4 = '' OR kind = $4) \
                   AND ($5 = '' OR state = $5) ORDER BY key LIMIT $6";
        let after = query.after.as_ref().map_or("", ResourceKey::as_str);
        let (from, to) = range(query.tenant.as_ref(), query.kind.as_ref());
        let (kind, state) = (or(&query.kind), or(&query.state));
        let params = [
            (&after as _, Type::TEXT),
            (&from as _, Type::TEXT),
            (&to as _, Type::TEXT),
            (&kind as _, Type::TEXT),
            (&state as _, Type::TEXT),
            (&limit(query.limit + 1) as _, Type::INT8),
        ];
        let rows = self.reader.rows(sql, &params).await?;
        let mut keys: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let more = keys.len() > query.limit;
        keys.truncate(query.limit);
        let next = keys.last().filter(|_| more).map(|key| parse_key(key)).transpose()?;
        let shown = |(key, known): (ResourceKey, Known)| {
            Some(ResourceShown { key, resource: known.record.resource? })
        };
        let mut items: Vec<_> = self.records(&keys).await?.into_iter().filter_map(shown).collect();
        items.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Page { items, next })
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        let sql = "SELECT id, attempt, at, text FROM tenure.logs WHERE job = $1 AND id > $2 \
                   ORDER BY id LIMIT $3";
        let job = query.job.to_string();
        let after = i64::try_from(query.after).unwrap_or(i64::MAX);
        let params = [
            (&job as _, Type::TEXT),
            (&after as _, Type::INT8),
            (&limit(query.limit) as _, Type::INT8),
        ];
        let rows = self.reader.rows(sql, &params).await?;
        let line = |row: &Row| LogLine {
            position: u64::try_from(row.get::<_, i64>(0)).unwrap_or(0),
            attempt: u32::try_from(row.get::<_, i64>(1)).unwrap_or(0),
            at: millis(row.get(2)),
            text: row.get::<_, String>(3).into(),
        };
        Ok(rows.iter().map(line).collect())
    }

    async fn workers(&self) -> Result<Vec<WorkerShown>> {
        let sql = "SELECT DISTINCT key FROM tenure.locks WHERE job IS NOT NULL";
        let rows = self.reader.rows(sql, &[]).await?;
        let keys: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let (ledger, now) = self.ledger(&keys).await?;
        Ok(ledger.workers(now))
    }
}
