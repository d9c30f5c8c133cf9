//! The audit log that all servers share.

use async_trait::async_trait;
use tokio_postgres::types::Type;

use super::{Shared, bigint};
use crate::audit::{AuditFilter, AuditRetention, AuditRow, SharedAudit};
use crate::store::{Result, StoreError};

/// Maximum number of rows that one statement of a prune reads or deletes.
const PRUNE_ROWS_MAX: i64 = 10_000;

#[async_trait]
impl SharedAudit for Shared {
    async fn append(&self, rows: &[AuditRow]) -> Result<()> {
        let ids: Vec<String> = rows.iter().map(|row| row.id.to_string()).collect();
        let times: Vec<i64> = rows.iter().map(|row| bigint(row.at)).collect();
        let servers: Vec<&str> = rows.iter().map(|row| &*row.server).collect();
        let classes: Vec<&str> = rows.iter().map(|row| row.class).collect();
        let tenants: Vec<Option<&str>> = rows.iter().map(|row| row.tenant.as_deref()).collect();
        let names: Vec<Option<&str>> = rows.iter().map(|row| row.principal.as_deref()).collect();
        let keys: Vec<Option<&str>> = rows.iter().map(|row| row.key.as_deref()).collect();
        let actions: Vec<&str> = rows.iter().map(|row| &*row.action).collect();
        let entries: Vec<&str> = rows.iter().map(|row| &*row.entry).collect();
        let sql = "INSERT INTO tenure.audit \
                   (uid, at, server, class, tenant, principal, key, action, entry) \
                   SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], \
                   $5::text[], $6::text[], $7::text[], $8::text[], $9::text[]) \
                   ON CONFLICT (uid) DO NOTHING";
        let params = [
            (&ids as _, Type::TEXT_ARRAY),
            (&times as _, Type::INT8_ARRAY),
            (&servers as _, Type::TEXT_ARRAY),
            (&classes as _, Type::TEXT_ARRAY),
            (&tenants as _, Type::TEXT_ARRAY),
            (&names as _, Type::TEXT_ARRAY),
            (&keys as _, Type::TEXT_ARRAY),
            (&actions as _, Type::TEXT_ARRAY),
            (&entries as _, Type::TEXT_ARRAY),
        ];
        self.reader.query(sql, &params).await.map_err(with_remedy)?;
        Ok(())
    }

    async fn newest(&self, filter: &AuditFilter) -> Result<Vec<String>> {
        let texts = [&filter.tenant, &filter.action, &filter.who];
        if texts.into_iter().flatten().any(|text| text.contains('\0')) {
            // PostgreSQL stores no such text.
            return Ok(Vec::new());
        }
        let since = bigint(filter.since.unwrap_or_default());
        let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
        let sql = "SELECT entry FROM tenure.audit WHERE at >= $1 \
                   AND ($2::text IS NULL OR tenant = $2) AND ($3::text IS NULL OR action = $3) \
                   AND ($4::text IS NULL OR principal = $4 OR key = $4) \
                   ORDER BY at DESC, id DESC LIMIT $5";
        let params = [
            (&since as _, Type::INT8),
            (&filter.tenant as _, Type::TEXT),
            (&filter.action as _, Type::TEXT),
            (&filter.who as _, Type::TEXT),
            (&limit as _, Type::INT8),
        ];
        let rows = self.reader.query(sql, &params).await.map_err(with_remedy)?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn prune(&self, class: &str, keep: AuditRetention) -> Result<usize> {
        let mut deleted = 0;
        if let Some(since) = keep.since {
            // The rows of the other class in between are deleted likewise.
            deleted += self.delete_audit(class, "at < $2 ORDER BY at", bigint(since)).await?;
        }
        if let Some(last) = self.audit_cutoff(class, keep.max_bytes).await? {
            deleted += self.delete_audit(class, "id <= $2 ORDER BY id", last).await?;
        }
        Ok(deleted)
    }
}

impl Shared {
    /// Deletes the rows of a class that meet a condition, in statements of bounded size. Returns
    /// their number.
    async fn delete_audit(&self, class: &str, condition: &str, bound: i64) -> Result<usize> {
        let sql = format!(
            "WITH deleted AS (DELETE FROM tenure.audit WHERE id IN ( \
             SELECT id FROM tenure.audit WHERE class = $1 AND {condition} \
             LIMIT {PRUNE_ROWS_MAX}) RETURNING 1) SELECT count(*) FROM deleted"
        );
        let mut total = 0;
        loop {
            let params = [(&class as _, Type::TEXT), (&bound as _, Type::INT8)];
            let row = self.reader.query_one(&sql, &params).await.map_err(with_remedy)?;
            let deleted: i64 = row.get(0);
            total += usize::try_from(deleted).unwrap_or_default();
            if deleted < PRUNE_ROWS_MAX {
                return Ok(total);
            }
        }
    }

    /// Returns the newest row of a class that does not fit into its maximum size, if there is one.
    /// Adds up the sizes from the newest row on, in statements of bounded size.
    async fn audit_cutoff(&self, class: &str, max_bytes: u64) -> Result<Option<i64>> {
        let sql = format!(
            "SELECT count(*), min(id), sum(bytes)::bigint, max(id) FILTER (WHERE total > $3) \
             FROM (SELECT id, bytes, sum(bytes) OVER (ORDER BY id DESC) AS total FROM ( \
             SELECT id, octet_length(entry) AS bytes FROM tenure.audit \
             WHERE class = $1 AND id < $2 ORDER BY id DESC LIMIT {PRUNE_ROWS_MAX}) AS sizes) \
             AS sums"
        );
        let (mut below, mut left) = (i64::MAX, i64::try_from(max_bytes).unwrap_or(i64::MAX));
        loop {
            let params =
                [(&class as _, Type::TEXT), (&below as _, Type::INT8), (&left as _, Type::INT8)];
            let row = self.reader.query_one(&sql, &params).await.map_err(with_remedy)?;
            let cutoff: Option<i64> = row.get(3);
            if cutoff.is_some() || row.get::<_, i64>(0) < PRUNE_ROWS_MAX {
                return Ok(cutoff);
            }
            (below, left) = (row.get(1), left - row.get::<_, i64>(2));
        }
    }
}

/// Adds the remedy to an error about missing privileges: the table is newer than the roles.
fn with_remedy(error: StoreError) -> StoreError {
    let text = error.to_string();
    if !text.contains("permission denied") {
        return error;
    }
    StoreError::unavailable(format!(
        "{text}; let the owner of the tables run: tenure migrate --roles | psql"
    ))
}
