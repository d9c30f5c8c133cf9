//! Pruning of jobs and history by age.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::history::Entry;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{Command, JobId, Millis};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Work;
use super::client::PgClient;
use super::columns::{Columns, borrowed, owned};
use super::failure::Failure;
use super::journal::json;
use super::pages::{self, Page};
use super::projection::FLUSH_LOCK;
use super::rows::{NOW, RECORD_COLUMNS, parse_body, parse_event, parse_key, parse_record};
use super::{Shared, bigint, corrupt, counter};
use crate::forget;
use crate::store::{HistoryRow, Pruned, Result, Retention};

impl Shared {
    /// Deletes jobs, history and resources that have exceeded their retention.
    pub(super) async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.flush_to_head().await?;
        let prune = move |shared: Arc<Self>| async move { shared.prune_now(keep).await };
        let (mut pruned, commands) = self.run_detached(&self.background_runtime, prune).await?;
        if !commands.is_empty() {
            pruned.resources = forget::count(&self.execute(Work::Apply(commands)).await?.outcomes);
        }
        Ok(pruned)
    }

    async fn prune_now(&self, keep: Retention) -> Result<(Pruned, Vec<Command>)> {
        let _guard = self.flush_lock.lock().await;
        let client = self.flush_connection.client().await?;
        let pruned = self.prune_with(&client, keep).await;
        if pruned.is_err() {
            self.flush_connection.discard().await;
        }
        pruned.map_err(Failure::into_store)
    }

    async fn prune_with(
        &self,
        client: &PgClient,
        keep: Retention,
    ) -> std::result::Result<(Pruned, Vec<Command>), Failure> {
        let clock = client.query_typed(&format!("SELECT {NOW}"), &[]).await?;
        let clock = clock.first().ok_or_else(|| corrupt("the clock", &"no row"))?;
        let now = self.now(clock.get(0));
        let rows = i64::try_from(keep.rows_max).unwrap_or(i64::MAX);
        let before = |ms: u64| bigint(Millis(now.0.saturating_sub(ms)));
        let mut jobs =
            self.prune_jobs(client, before(keep.jobs_ms), before(keep.dead_ms), rows).await?;
        jobs += self.prune_ephemeral_jobs(client, keep.rows_max - jobs, now).await?;
        let lines = self.prune_events(client, before(keep.history_ms), rows).await?;
        let commands = self.forgettable(client, keep.rows_max, now).await?;
        Ok((Pruned { jobs, lines, resources: 0 }, commands))
    }

    async fn prune_jobs(
        &self,
        client: &PgClient,
        ended: i64,
        dead: i64,
        rows: i64,
    ) -> std::result::Result<usize, Failure> {
        let below = JobId::first_at(super::millis(ended.max(dead))).to_string();
        let sql = "\
            WITH gone AS (SELECT id FROM tenure.jobs WHERE id < $1 \
                          AND ended < CASE WHEN state = 'dead' THEN $3 ELSE $2 END \
                          ORDER BY id LIMIT $4), \
                 logs AS (DELETE FROM tenure.logs WHERE job IN (SELECT id FROM gone)) \
            DELETE FROM tenure.jobs WHERE id IN (SELECT id FROM gone)";
        let params = [
            (&below as _, Type::TEXT),
            (&ended as _, Type::INT8),
            (&dead as _, Type::INT8),
            (&rows as _, Type::INT8),
        ];
        let jobs = client.execute_typed(sql, &params).await?;
        Ok(usize::try_from(jobs).unwrap_or(usize::MAX))
    }

    /// Folds the oldest events into the bases of their resources and deletes them.
    async fn prune_events(
        &self,
        client: &PgClient,
        before: i64,
        rows: i64,
    ) -> std::result::Result<usize, Failure> {
        client.begin().await?;
        client.batch_execute(&format!("SELECT pg_advisory_xact_lock({FLUSH_LOCK})")).await?;
        let params = [(&i64::MIN as _, Type::INT8), (&rows as _, Type::INT8)];
        let pages = client.query_typed(pages::OLDEST, &params).await?;
        let expired = expired_events(&pages, rows, before)?;
        let mut by_key: BTreeMap<&str, Vec<&ExpiredEvent>> = BTreeMap::new();
        for event in &expired {
            by_key.entry(event.line.key.as_str()).or_default().push(event);
        }
        let keys: Vec<&str> = by_key.keys().copied().collect();
        let sql = format!(
            "SELECT {RECORD_COLUMNS}, r.told, r.base FROM tenure.resources r WHERE r.key = ANY($1)"
        );
        let rows = client.query_typed(&sql, &[(&keys as _, Type::TEXT_ARRAY)]).await?;
        let mut updates = Columns::new(3, 1);
        for row in &rows {
            let key: &str = row.get(0);
            let events = &by_key[key];
            let (mut body, mut record_n): (_, i64) = (None, row.get(3));
            if events.iter().any(|event| counter(event.entry.n) > record_n) {
                // The record lags behind these events, so it has to be brought up to date first.
                let record = parse_record(row)?;
                (body, record_n) = (owned(json(&record)), counter(record.chain.n));
            }
            let base = owned(fold(key, row.get(4), events)?);
            updates.push([borrowed(key), base, body], [Some(record_n)]);
        }
        let update = "\
            UPDATE tenure.resources r \
            SET base = new.base, record = coalesce(new.record, r.record), told = new.told \
            FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) \
                AS new (key, base, record, told) WHERE r.key = new.key";
        updates.execute(client, update).await?;
        delete_events(client, &pages, &expired).await?;
        client.batch_execute("COMMIT").await?;
        Ok(expired.len())
    }
}

/// A history event past its retention.
struct ExpiredEvent {
    /// The index of its page.
    page: usize,
    line: HistoryRow,
    entry: Entry,
}

/// Returns at most `limit` of the oldest events of the pages, all older than `before`.
fn expired_events(pages: &[Row], limit: i64, before: i64) -> Result<Vec<ExpiredEvent>> {
    let mut all = Vec::new();
    for (page, row) in pages.iter().enumerate() {
        for line in pages::parse_page(&parse_key(row.get(1))?, row.get(2)) {
            all.push((page, line?));
        }
    }
    all.sort_unstable_by_key(|(_, line)| line.position);
    let mut expired = Vec::new();
    for (page, line) in all.into_iter().take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        let entry = parse_event(&line.text)?;
        if bigint(entry.at) >= before {
            break;
        }
        expired.push(ExpiredEvent { page, line, entry });
    }
    Ok(expired)
}

/// Deletes events and rewrites the pages that are not empty afterwards.
async fn delete_events(
    client: &PgClient,
    pages: &[Row],
    expired: &[ExpiredEvent],
) -> std::result::Result<(), Failure> {
    let mut expired_counts: BTreeMap<usize, usize> = BTreeMap::new();
    for event in expired {
        *expired_counts.entry(event.page).or_default() += 1;
    }
    let (mut deleted, mut rewritten) = (Columns::new(1, 1), Page::columns());
    for (page, count) in expired_counts {
        let row = &pages[page];
        let (key, n): (&str, i64) = (row.get(1), row.get(3));
        deleted.push([borrowed(key)], [Some(n)]);
        let mut rest = Page::new(key);
        for line in pages::parse_page(&parse_key(key)?, row.get(2)).skip(count) {
            let line = line?;
            // A page stores only the number of its last event, which stays.
            rest.push(counter(line.position), line.hash, &line.text, n.unsigned_abs());
        }
        rest.add_to(row.get(0), &mut rewritten);
    }
    let delete = "DELETE FROM tenure.pages p \
                  USING unnest($1::text[], $2::bigint[]) AS old (key, n) \
                  WHERE p.key = old.key AND p.n = old.n";
    deleted.execute(client, delete).await?;
    rewritten.execute(client, pages::INSERT).await?;
    Ok(())
}

/// Folds events into the base of their resource. Returns the new base as JSON.
fn fold(key: &str, base: Option<&str>, events: &[&ExpiredEvent]) -> Result<String> {
    let mut replay = match base {
        Some(base) => parse_body("a base", base)?,
        None => ChainCheckpoint::new(&parse_key(key)?),
    };
    for ExpiredEvent { line, .. } in events {
        replay.fold(&line.text, line.hash).map_err(|error| corrupt("a history event", &error))?;
    }
    Ok(serde_json::to_string(&replay).expect("base serializes to JSON"))
}
