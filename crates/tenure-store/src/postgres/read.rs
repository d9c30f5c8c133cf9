//! Lists and single rows, as the API shows them.
//!
//! What lives is in memory, which catches up with the journal first; what is over is in the tables,
//! which are brought up to the journal first.

use std::time::Instant;

use async_trait::async_trait;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{JobId, JobState, Millis, ResourceKey, SessionId, TenureView, Text};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Work;
use super::conn::Conn;
use super::link::unavailable;
use super::look::record_rows;
use super::pages;
use super::replica::Replica;
use super::rows::{HEAD, NOW, RECORD, parse_job, parse_key, parse_record, text};
use super::{Shared, corrupt, millis};
use crate::census::Census;
use crate::clock::stopwatch;
use crate::store::{
    HistoryQuery, JobPage, JobQuery, JobShown, Line, ListQuery, LogLine, LogQuery, Page, Reads,
    ResourceQuery, ResourceShown, Result, Shown, StoreError, WorkerShown,
};
use crate::view;

/// How often a resource that comes and goes is looked for.
const TRIES_MAX: usize = 5;

/// Where the journal was, and the time of the database.
#[derive(Clone, Copy)]
pub(super) struct Head {
    asked: Instant,
    now: Millis,
    id: i64,
}

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

impl Shared {
    /// Looks at what is in memory when it has all that the journal had a moment ago.
    pub(super) async fn up_to_date<T>(
        &self,
        look: impl FnOnce(&mut Replica, Millis) -> T,
    ) -> Result<T> {
        let Head { now, id: head, .. } = self.head().await?;
        {
            let mut state = self.writer.state.lock().await;
            let there = state.settled().filter(|replica| replica.position.id >= head);
            if let Some(replica) = there {
                return Ok(look(replica, now.max(replica.position.at)));
            }
        }
        self.change(Work::Follow).await?;
        let mut state = self.writer.state.lock().await;
        let away = || StoreError::Unavailable("the connection broke meanwhile".to_owned());
        let replica = state.settled().ok_or_else(away)?;
        Ok(look(replica, now.max(replica.position.at)))
    }

    /// Where the journal is, as the database said after this was asked. Whoever asks while another
    /// waits for the answer to that shares the next one.
    async fn head(&self) -> Result<Head> {
        let asked = stopwatch();
        let mut last = self.head.lock().await;
        if let Some(head) = last.filter(|head| head.asked >= asked) {
            return Ok(head);
        }
        let asked = stopwatch();
        let sql = format!("SELECT {NOW}, {HEAD}");
        let row = self.reader.one(&sql, &[]).await?;
        let head = Head { asked, now: self.time(row.get(0)), id: row.get(1) };
        *last = Some(head);
        Ok(head)
    }

    /// Sees to it that the tables have all that the journal had a moment ago.
    pub(super) async fn tables_up(&self) -> Result<()> {
        self.up_to_date(|_, _| ()).await?;
        self.flush().await?;
        Ok(())
    }

    async fn jobs_of_all(&self, query: &JobQuery) -> Result<Vec<Row>> {
        let sql = "SELECT key, body FROM tenure.jobs WHERE id < $1 AND ($2 = '' OR state = $2) \
                   AND ($3 = '' OR operation = $3) AND ($4 = '' OR split_part(key, '/', 1) = $4) \
                   AND ($5 = '' OR split_part(key, '/', 2) = $5) \
                   AND ($6 = '' OR split_part(key, '/', 3) = $6) \
                   ORDER BY id DESC LIMIT $7";
        let below = query.after.map_or_else(|| "g".to_owned(), |id| text(&id));
        let state = query.state.map_or("", JobState::as_str);
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
    async fn jobs_of(
        &self,
        live: &[JobId],
        last: Option<JobId>,
        query: &JobQuery,
    ) -> Result<Vec<Row>> {
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
                SELECT id, 0, 0 FROM unnest($1::text[]) AS live (id) \
                    WHERE NOT EXISTS (SELECT FROM after) \
                UNION ALL SELECT id, 1, n FROM walk) \
            SELECT j.key, j.body FROM listed l JOIN tenure.jobs j ON j.id = l.id \
            WHERE ($4 = '' OR j.state = $4) AND ($5 = '' OR j.operation = $5) \
            ORDER BY l.live, l.n, j.id DESC LIMIT $6";
        let live: Vec<String> = live.iter().map(text).collect();
        let last = last.map(|id| text(&id));
        let after = query.after.map(|id| text(&id)).unwrap_or_default();
        let (state, operation) = (query.state.map_or("", JobState::as_str), or(&query.operation));
        let params = [
            (&live as _, Type::TEXT_ARRAY),
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

fn shown(row: &Row) -> Result<JobShown> {
    let (key, job) = parse_job(row)?;
    Ok(JobShown { key, job })
}

#[async_trait]
impl Reads for Shared {
    async fn list(&self, query: ListQuery) -> Result<Page<TenureView>> {
        self.up_to_date(|replica, now| replica.ledger.list(&query, now)).await
    }

    async fn show(&self, key: &ResourceKey) -> Result<Option<Shown>> {
        for _ in 0..TRIES_MAX {
            let look =
                |replica: &mut Replica, now| (replica.ledger.show(key, now), replica.position);
            let (shown, position) = self.up_to_date(look).await?;
            if shown.is_some() {
                return Ok(shown);
            }
            let client = self.reader.link().client().await?;
            let rows =
                record_rows(&client, &[text(key)], &[]).await.map_err(|e| unavailable(&e))?;
            let Some(row) = rows.first() else { return Ok(None) };
            let record = parse_record(row)?;
            // If the journal has gone on, the row may be another by now.
            if let Some(replica) = self.writer.state.lock().await.settled()
                && replica.position == position
                && !replica.ledger.has(key)
            {
                replica.ledger.admit(key, record, position.at);
            }
        }
        Err(StoreError::Unavailable("it comes and goes".to_owned()))
    }

    async fn keys(&self, after: Option<ResourceKey>, count: usize) -> Result<Vec<ResourceKey>> {
        self.tables_up().await?;
        let sql = "SELECT key FROM tenure.resources WHERE key > $1 ORDER BY key LIMIT $2";
        let after = after.as_ref().map_or("", ResourceKey::as_str);
        let params = [(&after as _, Type::TEXT), (&limit(count) as _, Type::INT8)];
        self.reader.rows(sql, &params).await?.iter().map(|row| key(row, 0)).collect()
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<Line>> {
        self.tables_up().await?;
        pages::read(&self.reader, &query).await
    }

    async fn bases(
        &self,
        after: Option<ResourceKey>,
        count: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
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
        let look = |replica: &mut Replica, _| {
            let over = || replica.finished(id).map(|(key, job)| JobShown { key, job });
            replica.ledger.job(id).or_else(over)
        };
        if let Some(shown) = self.up_to_date(look).await? {
            return Ok(Some(shown));
        }
        let sql = "SELECT key, body FROM tenure.jobs WHERE id = $1";
        let id = id.to_string();
        let rows = self.reader.rows(sql, &[(&id as _, Type::TEXT)]).await?;
        rows.first().map(shown).transpose()
    }

    async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        self.tables_up().await?;
        let rows = match query.resource() {
            Some(key) => {
                let Some(shown) = self.show(&key).await? else { return Ok(JobPage::default()) };
                let last = shown.record.resource.as_ref().and_then(|r| r.last_job);
                let lane = shown.record.lane().iter().map(|job| job.id);
                let live = lane.filter(|id| query.after.is_none_or(|after| *id < after));
                self.jobs_of(&live.collect::<Vec<_>>(), last, &query).await?
            }
            None => self.jobs_of_all(&query).await?,
        };
        let items = rows.iter().map(shown).collect::<Result<Vec<_>>>()?;
        Ok(view::finish(items, query.limit))
    }

    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceShown>> {
        self.tables_up().await?;
        let sql = format!(
            "SELECT {RECORD} FROM tenure.resources r WHERE r.state IS NOT NULL AND r.key > $1 \
             AND r.key >= $2 AND r.key < $3 AND ($4 = '' OR r.kind = $4) \
             AND ($5 = '' OR r.state = $5) ORDER BY r.key LIMIT $6"
        );
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
        let rows = self.reader.rows(&sql, &params).await?;
        let shown = |row: &Row| {
            let resource = parse_record(row)?.resource;
            let resource = resource.ok_or_else(|| corrupt("a resource", &"it has no state"))?;
            Ok(ResourceShown { key: parse_key(row.get(0))?, resource })
        };
        let mut items = rows.iter().map(shown).collect::<Result<Vec<_>>>()?;
        let more = items.len() > query.limit;
        items.truncate(query.limit);
        let next = items.last().filter(|_| more).map(|shown| shown.key.clone());
        Ok(Page { items, next })
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        self.tables_up().await?;
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

    async fn session(&self, id: SessionId) -> Result<Option<Text>> {
        self.up_to_date(|replica, _| replica.ledger.tenant_of(id)).await
    }

    async fn workers(&self) -> Result<Vec<WorkerShown>> {
        self.up_to_date(|replica, now| replica.ledger.workers(now)).await
    }

    async fn census(&self) -> Result<Census> {
        self.tables_up().await?;
        let look = |replica: &mut Replica, now| replica.ledger.census(None, now);
        let (mut census, mut next) = self.up_to_date(look).await?;
        while let Some(after) = next {
            let look = |replica: &mut Replica, now| replica.ledger.census(Some(&after), now);
            let (part, further) = self.up_to_date(look).await?;
            census.merge(part);
            next = further;
        }
        let sql = "SELECT split_part(key, '/', 1) || '/' || split_part(key, '/', 2), count(*), \
                   min(ended) FROM tenure.jobs WHERE state = 'dead' GROUP BY 1";
        for row in self.reader.rows(sql, &[]).await? {
            let count = usize::try_from(row.get::<_, i64>(1)).unwrap_or(0);
            census.add_dead(row.get(0), count, millis(row.get(2)));
        }
        Ok(census)
    }
}
