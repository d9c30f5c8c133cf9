//! Dropping what is older than it has to be kept.

use std::collections::BTreeMap;

use tenure_core::history::Entry;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{JobId, Millis};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::columns::{Columns, own, there};
use super::conn::Conn;
use super::failure::Failure;
use super::flush::FLUSHER;
use super::journal::json;
use super::pages::{self, Page};
use super::rows::{NOW, RECORD, parse_body, parse_key, parse_line, parse_record};
use super::{Shared, bigint, corrupt, counter};
use crate::store::{Line, Pruned, Result, Retention};

impl Shared {
    pub(super) async fn prune_once(&self, keep: Retention) -> Result<Pruned> {
        self.tables_up().await?;
        self.to_the_end(&self.beside, move |me| async move { me.prune_now(keep).await }).await
    }

    async fn prune_now(&self, keep: Retention) -> Result<Pruned> {
        let _turn = self.flushing.lock().await;
        let client = self.flusher.client().await?;
        let pruned = self.prune(&client, keep).await;
        if pruned.is_err() {
            self.flusher.discard().await;
        }
        pruned.map_err(Failure::into_store)
    }

    async fn prune(&self, client: &Conn, keep: Retention) -> std::result::Result<Pruned, Failure> {
        let clock = client.query_typed(&format!("SELECT {NOW}"), &[]).await?;
        let clock = clock.first().ok_or_else(|| corrupt("the clock", &"no row"))?;
        let now = self.time(clock.get(0));
        let rows = i64::try_from(keep.rows_max).unwrap_or(i64::MAX);
        let before = |ms: u64| bigint(Millis(now.0.saturating_sub(ms)));
        let jobs =
            self.prune_jobs(client, before(keep.jobs_ms), before(keep.dead_ms), rows).await?;
        let lines = self.prune_lines(client, before(keep.history_ms), rows).await?;
        Ok(Pruned { jobs, lines })
    }

    async fn prune_jobs(
        &self,
        client: &Conn,
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

    /// Folds the oldest lines into what stands in their place.
    async fn prune_lines(
        &self,
        client: &Conn,
        before: i64,
        rows: i64,
    ) -> std::result::Result<usize, Failure> {
        client.begin().await?;
        client.batch_execute(&format!("SELECT pg_advisory_xact_lock({FLUSHER})")).await?;
        let params = [(&i64::MIN as _, Type::INT8), (&rows as _, Type::INT8)];
        let pages = client.query_typed(pages::OLDEST, &params).await?;
        let old = oldest(&pages, rows, before)?;
        let mut of: BTreeMap<&str, Vec<&Old>> = BTreeMap::new();
        for line in &old {
            of.entry(line.line.key.as_str()).or_default().push(line);
        }
        let keys: Vec<&str> = of.keys().copied().collect();
        let sql = format!(
            "SELECT {RECORD}, r.told, r.base FROM tenure.resources r WHERE r.key = ANY($1)"
        );
        let rows = client.query_typed(&sql, &[(&keys as _, Type::TEXT_ARRAY)]).await?;
        let mut kept = Columns::new(3, 1);
        for row in &rows {
            let key: &str = row.get(0);
            let lines = &of[key];
            let (mut whole, mut told): (_, i64) = (None, row.get(3));
            if lines.iter().any(|line| counter(line.entry.n) > told) {
                // A record that needs these lines has to tell them itself.
                let record = parse_record(row)?;
                (whole, told) = (own(json(&record)), counter(record.chain.n));
            }
            let base = own(fold(key, row.get(4), lines)?);
            kept.push([there(key), base, whole], [Some(told)]);
        }
        let update = "\
            UPDATE tenure.resources r \
            SET base = new.base, record = coalesce(new.record, r.record), told = new.told \
            FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) \
                AS new (key, base, record, told) WHERE r.key = new.key";
        kept.run(client, update).await?;
        drop_lines(client, &pages, &old).await?;
        client.batch_execute("COMMIT").await?;
        Ok(old.len())
    }
}

/// A line that is to go.
struct Old {
    /// The page that it is in.
    page: usize,
    line: Line,
    entry: Entry,
}

/// The oldest lines of pages, at most so many, and those only that are older than an instant.
fn oldest(pages: &[Row], most: i64, before: i64) -> Result<Vec<Old>> {
    let mut all = Vec::new();
    for (page, row) in pages.iter().enumerate() {
        for line in pages::lines(&parse_key(row.get(1))?, row.get(2)) {
            all.push((page, line?));
        }
    }
    all.sort_unstable_by_key(|(_, line)| line.position);
    let mut old = Vec::new();
    for (page, line) in all.into_iter().take(usize::try_from(most).unwrap_or(usize::MAX)) {
        let entry = parse_line(&line.text)?;
        if bigint(entry.at) >= before {
            break;
        }
        old.push(Old { page, line, entry });
    }
    Ok(old)
}

/// Drops lines. What is left of their pages are pages of their own.
async fn drop_lines(client: &Conn, pages: &[Row], old: &[Old]) -> std::result::Result<(), Failure> {
    let mut gone: BTreeMap<usize, usize> = BTreeMap::new();
    for line in old {
        *gone.entry(line.page).or_default() += 1;
    }
    let (mut dropped, mut left) = (Columns::new(1, 1), Page::columns());
    for (page, gone) in gone {
        let row = &pages[page];
        let (key, n): (&str, i64) = (row.get(1), row.get(3));
        dropped.push([there(key)], [Some(n)]);
        let mut rest = Page::new(key);
        for line in pages::lines(&parse_key(key)?, row.get(2)).skip(gone) {
            let line = line?;
            // Only the number of the last line of a page is kept, and that one stays.
            rest.push(counter(line.position), line.hash, &line.text, n.unsigned_abs());
        }
        rest.put(row.get(0), &mut left);
    }
    let delete = "DELETE FROM tenure.pages p \
                  USING unnest($1::text[], $2::bigint[]) AS old (key, n) \
                  WHERE p.key = old.key AND p.n = old.n";
    dropped.run(client, delete).await?;
    left.run(client, pages::INSERT).await?;
    Ok(())
}

fn fold(key: &str, base: Option<&str>, lines: &[&Old]) -> Result<String> {
    let mut replay = match base {
        Some(base) => parse_body("a base", base)?,
        None => ChainCheckpoint::new(&parse_key(key)?),
    };
    for Old { line, .. } in lines {
        replay.fold(&line.text, line.hash).map_err(|error| corrupt("a line", &error))?;
    }
    Ok(serde_json::to_string(&replay).expect("its keys are texts"))
}
