//! The audit log that all servers share.

use async_trait::async_trait;
use tokio_postgres::types::Type;

use super::{Shared, bigint};
use crate::audit::{AuditFilter, AuditRetention, AuditRow, SharedAudit};
use crate::store::{Result, StoreError};

/// Maximum number of rows that one prune deletes.
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
        let since = bigint(keep.since.unwrap_or_default());
        let bytes = i64::try_from(keep.max_bytes).unwrap_or(i64::MAX);
        let sql = "DELETE FROM tenure.audit WHERE id IN ( \
                   SELECT id FROM ( \
                   SELECT id, at, sum(octet_length(entry)) OVER (ORDER BY id DESC) AS bytes \
                   FROM tenure.audit WHERE class = $1) AS sized \
                   WHERE at < $2 OR bytes > $3 ORDER BY id LIMIT $4) RETURNING id";
        let params = [
            (&class as _, Type::TEXT),
            (&since as _, Type::INT8),
            (&bytes as _, Type::INT8),
            (&PRUNE_ROWS_MAX as _, Type::INT8),
        ];
        Ok(self.reader.query(sql, &params).await.map_err(with_remedy)?.len())
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
