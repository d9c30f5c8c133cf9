//! Forgetting resources, and pruning the jobs of ephemeral kinds.
//!
//! Both examine a bounded range of rows per call, in rotation.

use tenure_core::{Command, JobId, Millis, Text};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::client::PgClient;
use super::failure::Failure;
use super::pages;
use super::rows::{parse_event, parse_key};
use super::{Shared, bigint};
use crate::forget;
use crate::store::Result;

/// Maximum number of rows that one call examines.
const EXAMINED_MAX: i64 = 10_000;

/// How far the rows have been examined: the last key and the last job id.
#[derive(Default)]
pub(super) struct Examined {
    resource: String,
    job: String,
}

impl Shared {
    /// Returns the commands that forget resources, from the next range of rows. All history up to
    /// the position of the replica is flushed.
    pub(super) async fn forgettable(
        &self,
        client: &PgClient,
        max: usize,
        now: Millis,
    ) -> std::result::Result<Vec<Command>, Failure> {
        let after = self.examined().resource.clone();
        let kinds = self.kinds();
        let ephemeral: Vec<Text> =
            kinds.iter().filter(|k| k.ephemeral_ms.is_some()).map(|k| k.name.clone()).collect();
        let ephemeral: Vec<&str> = ephemeral.iter().map(|name| &**name).collect();
        // The range ends with a row of its own, which names its last key.
        let sql = "\
            WITH range AS (SELECT key, kind, n, state, live FROM tenure.resources \
                           WHERE key > $1 ORDER BY key LIMIT $2), \
                 idle AS (SELECT key, kind, n FROM range WHERE state IS NULL AND NOT live) \
            SELECT key, n, page.lines FROM idle LEFT JOIN LATERAL ( \
                SELECT p.lines FROM tenure.pages p WHERE p.key = idle.key \
                ORDER BY p.n DESC LIMIT 1) AS page ON true \
            WHERE page.lines IS NULL OR kind = ANY($3) \
            UNION ALL SELECT max(key), NULL, NULL FROM range";
        let params = [
            (&after as _, Type::TEXT),
            (&EXAMINED_MAX as _, Type::INT8),
            (&ephemeral as _, Type::TEXT_ARRAY),
        ];
        let rows = client.query_typed(sql, &params).await?;
        let (last, candidates) = rows.split_last().expect("the range ends with a row");
        let mut candidates: Vec<&Row> = candidates.iter().collect();
        candidates.sort_unstable_by_key(|row| row.get::<_, &str>(0));
        let mut end: Option<String> = last.get(0);
        let mut commands = Vec::new();
        for row in candidates {
            let key = parse_key(row.get(0))?;
            let last_at = row.get::<_, Option<&str>>(2).map(last_instant).transpose()?.flatten();
            if forget::may_forget(&kinds, &key, last_at, now) {
                commands.push(forget::command(&key, row.get::<_, i64>(1).unsigned_abs()));
            }
            if commands.len() == max {
                end = Some(row.get(0));
                break;
            }
        }
        self.examined().resource = end.unwrap_or_default();
        Ok(commands)
    }

    /// Deletes finished jobs of ephemeral kinds, from the next range of rows.
    pub(super) async fn prune_ephemeral_jobs(
        &self,
        client: &PgClient,
        max: usize,
        now: Millis,
    ) -> std::result::Result<usize, Failure> {
        let kinds = self.kinds();
        let ephemeral = kinds.iter().filter_map(|kind| Some((&*kind.name, kind.ephemeral_ms?)));
        let before = |ms: u64| Millis(now.0.saturating_sub(ms));
        let (names, ended): (Vec<&str>, Vec<i64>) =
            ephemeral.map(|(name, ms)| (name, bigint(before(ms)))).unzip();
        let Some(latest) = ended.iter().max().filter(|_| max > 0) else { return Ok(0) };
        let below = JobId::first_at(super::millis(*latest)).to_string();
        let after = self.examined().job.clone();
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let sql = "\
            WITH range AS (SELECT id, key, ended FROM tenure.jobs WHERE id > $1 AND id < $2 \
                           ORDER BY id LIMIT $3), \
                 gone AS (SELECT r.id FROM range r JOIN unnest($4::text[], $5::bigint[]) \
                              AS k (kind, ended) ON split_part(r.key, '/', 2) = k.kind \
                          WHERE r.ended < k.ended ORDER BY r.id LIMIT $6), \
                 logs AS (DELETE FROM tenure.logs WHERE job IN (SELECT id FROM gone)), \
                 jobs AS (DELETE FROM tenure.jobs WHERE id IN (SELECT id FROM gone)) \
            SELECT (SELECT count(*) FROM gone), (SELECT max(id) FROM gone), \
                   (SELECT count(*) FROM range), (SELECT max(id) FROM range)";
        let params = [
            (&after as _, Type::TEXT),
            (&below as _, Type::TEXT),
            (&EXAMINED_MAX as _, Type::INT8),
            (&names as _, Type::TEXT_ARRAY),
            (&ended as _, Type::INT8_ARRAY),
            (&max as _, Type::INT8),
        ];
        let rows = client.query_typed(sql, &params).await?;
        let Some(row) = rows.first() else { return Ok(0) };
        let (gone, examined): (i64, i64) = (row.get(0), row.get(2));
        // The next call starts again when all rows have been examined.
        let end: Option<String> = match (gone == max, examined == EXAMINED_MAX) {
            (true, _) => row.get(1),
            (false, true) => row.get(3),
            (false, false) => None,
        };
        self.examined().job = end.unwrap_or_default();
        Ok(usize::try_from(gone).unwrap_or(usize::MAX))
    }

    fn examined(&self) -> std::sync::MutexGuard<'_, Examined> {
        self.examined.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Returns the instant of the last event of a page.
fn last_instant(page: &str) -> Result<Option<Millis>> {
    let last = pages::parse_items(page).last().transpose()?;
    last.map(|(_, _, line)| Ok(parse_event(line)?.at)).transpose()
}
