//! Lists and lookups for the API.
//!
//! Live state is read from the replica after it has caught up with the journal. Finished jobs,
//! history and logs are read from the projection after it has been flushed.

use std::time::Instant;

use async_trait::async_trait;
use tenure_core::ready::GroupCounts;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{JobId, JobState, Millis, ResourceKey, TenureView, Text};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Work;
use super::catch_up::query_records;
use super::client::PgClient;
use super::connection::unavailable;
use super::pages;
use super::replica::Replica;
use super::rows::{
    HEAD, NOW, RECORD_COLUMNS, parse_body, parse_job, parse_key, parse_record, text,
};
use super::{Shared, corrupt, millis};
use crate::census::Census;
use crate::clock::stopwatch;
use crate::store::{
    HistoryQuery, HistoryRow, JobPage, JobQuery, JobView, LogLine, LogQuery, Page, Reads,
    ResourceDetail, ResourceQuery, ResourceView, Result, StoreError, TenureQuery, WorkerView,
    key_range, matches_group,
};
use crate::view;

/// Maximum number of attempts to show a resource that is admitted and evicted concurrently.
const SHOW_ATTEMPTS_MAX: usize = 5;

/// The head of the journal and the database time at a query.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// Just before the query was sent.
    queried_at: Instant,
    now: Millis,
    id: i64,
}

/// Runs a query on ids, unless there are none.
pub(super) async fn query_by_ids(
    client: &PgClient,
    sql: &str,
    ids: &[String],
) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    client.query_typed(sql, &[(&ids as _, Type::TEXT_ARRAY)]).await
}

impl Shared {
    /// Reads the replica after it has caught up with the current head of the journal.
    pub(super) async fn read_replica<T>(
        &self,
        read: impl FnOnce(&mut Replica, Millis) -> T,
    ) -> Result<T> {
        let Head { now, id: head, .. } = self.head().await?;
        {
            let mut state = self.writer.state.lock().await;
            let current = state.settled_replica().filter(|replica| replica.position.id >= head);
            if let Some(replica) = current {
                return Ok(read(replica, now.max(replica.position.at)));
            }
        }
        self.execute(Work::CatchUp).await?;
        let mut state = self.writer.state.lock().await;
        let broken = || StoreError::unavailable("the connection broke during the read");
        let replica = state.settled_replica().ok_or_else(broken)?;
        Ok(read(replica, now.max(replica.position.at)))
    }

    /// Returns a journal head that was queried after this call. Concurrent callers share one query.
    async fn head(&self) -> Result<Head> {
        let called_at = stopwatch();
        let mut last = self.head.lock().await;
        if let Some(head) = last.filter(|head| head.queried_at >= called_at) {
            return Ok(head);
        }
        let queried_at = stopwatch();
        let sql = format!("SELECT {NOW}, {HEAD}");
        let row = self.reader.query_one(&sql, &[]).await?;
        let head = Head { queried_at, now: self.now(row.get(0)), id: row.get(1) };
        *last = Some(head);
        Ok(head)
    }

    /// Flushes the projection up to the current head of the journal.
    pub(super) async fn flush_to_head(&self) -> Result<()> {
        self.read_replica(|_, _| ()).await?;
        self.flush().await?;
        Ok(())
    }

    async fn query_jobs(&self, query: &JobQuery) -> Result<Vec<Row>> {
        let sql = "SELECT key, body FROM tenure.jobs WHERE id < $1 AND ($2 = '' OR state = $2) \
                   AND ($3 = '' OR operation = $3) AND ($4 = '' OR split_part(key, '/', 1) = $4) \
                   AND ($5 = '' OR split_part(key, '/', 2) = $5) \
                   AND ($6 = '' OR split_part(key, '/', 3) = $6) \
                   ORDER BY id DESC LIMIT $7";
        if query.group.is_some() {
            return self.query_jobs_of_group(query).await;
        }
        let below = query.after.map_or_else(|| "g".to_owned(), |id| text(&id));
        let state = query.state.map_or("", JobState::as_str);
        let (operation, tenant) = (or_empty(&query.operation), or_empty(&query.tenant));
        let (kind, name, rows) =
            (or_empty(&query.kind), or_empty(&query.name), sql_limit(query.limit + 1));
        let params = [
            (&below as _, Type::TEXT),
            (&state as _, Type::TEXT),
            (&operation as _, Type::TEXT),
            (&tenant as _, Type::TEXT),
            (&kind as _, Type::TEXT),
            (&name as _, Type::TEXT),
            (&rows as _, Type::INT8),
        ];
        self.reader.query(sql, &params).await
    }

    /// Queries the jobs of a group. With a tenant and a kind the cost does not depend on others.
    async fn query_jobs_of_group(&self, query: &JobQuery) -> Result<Vec<Row>> {
        let sql = format!(
            "SELECT key, body FROM tenure.jobs WHERE strpos(key, ':') > 0 \
             AND key >= $1 AND key < $2 AND ({GROUP_OF_KEY}) = $3 \
             AND id < $4 AND ($5 = '' OR state = $5) AND ($6 = '' OR operation = $6) \
             AND ($7 = '' OR split_part(key, '/', 1) = $7) \
             AND ($8 = '' OR split_part(key, '/', 2) = $8) \
             AND ($9 = '' OR split_part(key, '/', 3) = $9) ORDER BY id DESC LIMIT $10"
        );
        let (tenant, kind, group) = (&query.tenant, &query.kind, &query.group);
        let (from, to) = key_range(tenant.as_ref(), kind.as_ref(), group.as_ref());
        let below = query.after.map_or_else(|| "g".to_owned(), |id| text(&id));
        let state = query.state.map_or("", JobState::as_str);
        let (operation, group) = (or_empty(&query.operation), or_empty(group));
        let (tenant, kind, name) = (or_empty(tenant), or_empty(kind), or_empty(&query.name));
        let params = [
            (&from as _, Type::TEXT),
            (&to as _, Type::TEXT),
            (&group as _, Type::TEXT),
            (&below as _, Type::TEXT),
            (&state as _, Type::TEXT),
            (&operation as _, Type::TEXT),
            (&tenant as _, Type::TEXT),
            (&kind as _, Type::TEXT),
            (&name as _, Type::TEXT),
            (&sql_limit(query.limit + 1) as _, Type::INT8),
        ];
        self.reader.query(&sql, &params).await
    }

    /// Queries the jobs of one resource: live ones, newest first, then finished ones, last finished
    /// first. Finished jobs are linked by `previous`, so a page continues from the last job of the
    /// page before.
    async fn query_jobs_of_resource(
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
        let (state, operation) =
            (query.state.map_or("", JobState::as_str), or_empty(&query.operation));
        let params = [
            (&live as _, Type::TEXT_ARRAY),
            (&after as _, Type::TEXT),
            (&last as _, Type::TEXT),
            (&state as _, Type::TEXT),
            (&operation as _, Type::TEXT),
            (&sql_limit(query.limit + 1) as _, Type::INT8),
        ];
        self.reader.query(sql, &params).await
    }
}

fn or_empty(text: &Option<Text>) -> String {
    text.as_deref().unwrap_or("").to_owned()
}

/// SQL expression for the group of a key: what precedes the last colon of the name.
const GROUP_OF_KEY: &str = "substring(split_part(key, '/', 3) FROM '^(.+):[^:]*$')";

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn column_key(row: &Row, at: usize) -> Result<ResourceKey> {
    row.get::<_, &str>(at).parse().map_err(|error| corrupt("a key", &error))
}

fn job_view(row: &Row) -> Result<JobView> {
    let (key, job) = parse_job(row)?;
    Ok(JobView { key, job })
}

#[async_trait]
impl Reads for Shared {
    async fn tenures(&self, query: TenureQuery) -> Result<Page<TenureView>> {
        self.read_replica(|replica, now| replica.ledger.tenures(&query, now)).await
    }

    async fn show(&self, key: &ResourceKey) -> Result<Option<ResourceDetail>> {
        for _ in 0..SHOW_ATTEMPTS_MAX {
            let read =
                |replica: &mut Replica, now| (replica.ledger.show(key, now), replica.position);
            let (shown, position) = self.read_replica(read).await?;
            if shown.is_some() {
                return Ok(shown);
            }
            let client = self.reader.connection().client().await?;
            let rows = query_records(&client, &[text(key)], &[]).await.map_err(unavailable)?;
            let Some(row) = rows.first() else { return Ok(None) };
            let record = parse_record(row)?;
            // If the journal has advanced, the row may be out of date.
            if let Some(replica) = self.writer.state.lock().await.settled_replica()
                && replica.position == position
                && !replica.ledger.has_record(key)
            {
                replica.ledger.insert_record(key, record, position.at);
            }
        }
        Err(StoreError::unavailable(format!("{key} keeps changing during the read")))
    }

    async fn keys(&self, after: Option<ResourceKey>, count: usize) -> Result<Vec<ResourceKey>> {
        self.flush_to_head().await?;
        let sql = "SELECT key FROM tenure.resources WHERE key > $1 ORDER BY key LIMIT $2";
        let after = after.as_ref().map_or("", ResourceKey::as_str);
        let params = [(&after as _, Type::TEXT), (&sql_limit(count) as _, Type::INT8)];
        self.reader.query(sql, &params).await?.iter().map(|row| column_key(row, 0)).collect()
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<HistoryRow>> {
        self.flush_to_head().await?;
        pages::read(&self.reader, &query).await
    }

    async fn checkpoints(
        &self,
        after: Option<ResourceKey>,
        count: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
        let sql = "SELECT key, base FROM tenure.resources WHERE base IS NOT NULL AND key > $1 \
                   ORDER BY key LIMIT $2";
        let after = after.as_ref().map_or("", ResourceKey::as_str);
        let params = [(&after as _, Type::TEXT), (&sql_limit(count) as _, Type::INT8)];
        let base = |row: &Row| {
            let replay = serde_json::from_str(row.get(1)).map_err(|e| corrupt("a base", &e))?;
            Ok((column_key(row, 0)?, replay))
        };
        self.reader.query(sql, &params).await?.iter().map(base).collect()
    }

    async fn checkpoint(&self, key: &ResourceKey) -> Result<Option<ChainCheckpoint>> {
        let sql = "SELECT base FROM tenure.resources WHERE base IS NOT NULL AND key = $1";
        let rows = self.reader.query(sql, &[(&key.as_str() as _, Type::TEXT)]).await?;
        rows.first().map(|row| parse_body("a base", row.get(0))).transpose()
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>> {
        let read = |replica: &mut Replica, _| {
            let finished = || replica.finished_job(id).map(|(key, job)| JobView { key, job });
            replica.ledger.job(id).or_else(finished)
        };
        if let Some(view) = self.read_replica(read).await? {
            return Ok(Some(view));
        }
        let sql = "SELECT key, body FROM tenure.jobs WHERE id = $1";
        let id = id.to_string();
        let rows = self.reader.query(sql, &[(&id as _, Type::TEXT)]).await?;
        rows.first().map(job_view).transpose()
    }

    async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        self.flush_to_head().await?;
        let rows = match query.resource() {
            Some(key) if !matches_group(&query.group, &key) => return Ok(JobPage::default()),
            Some(key) => {
                let Some(shown) = self.show(&key).await? else { return Ok(JobPage::default()) };
                let last = shown.record.resource.as_ref().and_then(|r| r.last_job);
                let lane = shown.record.lane().iter().map(|job| job.id);
                let live = lane.filter(|id| query.after.is_none_or(|after| *id < after));
                self.query_jobs_of_resource(&live.collect::<Vec<_>>(), last, &query).await?
            }
            None => self.query_jobs(&query).await?,
        };
        let items = rows.iter().map(job_view).collect::<Result<Vec<_>>>()?;
        Ok(view::truncate_page(items, query.limit))
    }

    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceView>> {
        self.flush_to_head().await?;
        let sql = format!(
            "SELECT {RECORD_COLUMNS} FROM tenure.resources r WHERE r.state IS NOT NULL \
             AND r.key > $1 AND r.key >= $2 AND r.key < $3 AND ($4 = '' OR r.kind = $4) \
             AND ($5 = '' OR r.state = $5) AND ($7 = '' OR ({GROUP_OF_KEY}) = $7) \
             ORDER BY r.key LIMIT $6"
        );
        let after = query.after.as_ref().map_or("", ResourceKey::as_str);
        let (from, to) =
            key_range(query.tenant.as_ref(), query.kind.as_ref(), query.group.as_ref());
        let (kind, state) = (or_empty(&query.kind), or_empty(&query.state));
        let group = or_empty(&query.group);
        let params = [
            (&after as _, Type::TEXT),
            (&from as _, Type::TEXT),
            (&to as _, Type::TEXT),
            (&kind as _, Type::TEXT),
            (&state as _, Type::TEXT),
            (&sql_limit(query.limit + 1) as _, Type::INT8),
            (&group as _, Type::TEXT),
        ];
        let rows = self.reader.query(&sql, &params).await?;
        let view = |row: &Row| {
            let resource = parse_record(row)?.resource;
            let resource = resource.ok_or_else(|| corrupt("a resource", &"it has no state"))?;
            Ok(ResourceView { key: parse_key(row.get(0))?, resource })
        };
        let mut items = rows.iter().map(view).collect::<Result<Vec<_>>>()?;
        let has_more = items.len() > query.limit;
        items.truncate(query.limit);
        let next = items.last().filter(|_| has_more).map(|view| view.key.clone());
        Ok(Page { items, next })
    }

    async fn group(&self, tenant: Text, kind: Text, group: Text) -> Result<GroupCounts> {
        let count = |replica: &mut Replica, _| replica.ledger.group(&tenant, &kind, &group);
        self.read_replica(count).await
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        self.flush_to_head().await?;
        let sql = "SELECT id, attempt, at, text FROM tenure.logs WHERE job = $1 AND id > $2 \
                   ORDER BY id LIMIT $3";
        let job = query.job.to_string();
        let after = i64::try_from(query.after).unwrap_or(i64::MAX);
        let params = [
            (&job as _, Type::TEXT),
            (&after as _, Type::INT8),
            (&sql_limit(query.limit) as _, Type::INT8),
        ];
        let rows = self.reader.query(sql, &params).await?;
        let line = |row: &Row| LogLine {
            position: u64::try_from(row.get::<_, i64>(0)).unwrap_or(0),
            attempt: u32::try_from(row.get::<_, i64>(1)).unwrap_or(0),
            at: millis(row.get(2)),
            text: row.get::<_, String>(3).into(),
        };
        Ok(rows.iter().map(line).collect())
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        self.read_replica(|replica, now| replica.ledger.workers(now)).await
    }

    async fn census(&self) -> Result<Census> {
        self.flush_to_head().await?;
        let read = |replica: &mut Replica, now| replica.ledger.census(None, now);
        let (mut census, mut next) = self.read_replica(read).await?;
        while let Some(after) = next {
            let read = |replica: &mut Replica, now| replica.ledger.census(Some(&after), now);
            let (part, following) = self.read_replica(read).await?;
            census.merge(part);
            next = following;
        }
        let sql = "SELECT split_part(key, '/', 1) || '/' || split_part(key, '/', 2), count(*), \
                   min(ended) FROM tenure.jobs WHERE state = 'dead' GROUP BY 1";
        for row in self.reader.query(sql, &[]).await? {
            let count = usize::try_from(row.get::<_, i64>(1)).unwrap_or(0);
            census.add_dead(row.get(0), count, millis(row.get(2)));
        }
        Ok(census)
    }
}
