//! API keys. Servers read the whole table: it is small and seldom changes.

use async_trait::async_trait;
use tenure_core::{Millis, Text};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{Shared, bigint, corrupt, millis};
use crate::keys::{ApiKey, COLUMNS, KEYS_MAX, KeyRing, SIGNED_OUT};
use crate::store::Result;

#[async_trait]
impl KeyRing for Shared {
    async fn all(&self) -> Result<Vec<ApiKey>> {
        let sql = format!("SELECT {COLUMNS} FROM tenure.keys ORDER BY created_at, id");
        self.reader.query(&sql, &[]).await?.iter().map(parse_api_key).collect()
    }

    async fn add(&self, key: ApiKey) -> Result<bool> {
        let sql = format!(
            "INSERT INTO tenure.keys ({COLUMNS}) \
             SELECT $1, $2, $3, $4, $5, $6, $7, $8, NULL, NULL, NULL \
             WHERE (SELECT count(*) FROM tenure.keys) < {KEYS_MAX} \
             ON CONFLICT DO NOTHING RETURNING id"
        );
        let (created_at, expires_at) = (bigint(key.created_at), key.expires_at.map(bigint));
        let role = key.role.as_str();
        let params = [
            (&&*key.id as _, Type::TEXT),
            (&&*key.name as _, Type::TEXT),
            (&&*key.tenant as _, Type::TEXT),
            (&role as _, Type::TEXT),
            (&&*key.hash as _, Type::TEXT),
            (&created_at as _, Type::INT8),
            (&&*key.created_by as _, Type::TEXT),
            (&expires_at as _, Type::INT8),
        ];
        Ok(!self.reader.query(&sql, &params).await?.is_empty())
    }

    async fn revoke(&self, id: &str, at: Millis, by: &str) -> Result<bool> {
        let sql = "UPDATE tenure.keys SET revoked_at = coalesce(revoked_at, $2), \
                   revoked_by = coalesce(revoked_by, $3) WHERE id = $1 RETURNING id";
        let at = bigint(at);
        let params = [(&id as _, Type::TEXT), (&at as _, Type::INT8), (&by as _, Type::TEXT)];
        Ok(!self.reader.query(sql, &params).await?.is_empty())
    }

    async fn record_uses(&self, uses: &[(Text, Millis)]) -> Result<()> {
        let ids: Vec<&str> = uses.iter().map(|(id, _)| &**id).collect();
        let times: Vec<i64> = uses.iter().map(|(_, at)| bigint(*at)).collect();
        let sql = "UPDATE tenure.keys SET used_at = greatest(used_at, uses.at) \
                   FROM unnest($1::text[], $2::bigint[]) AS uses (id, at) \
                   WHERE keys.id = uses.id";
        let params = [(&ids as _, Type::TEXT_ARRAY), (&times as _, Type::INT8_ARRAY)];
        self.reader.query(sql, &params).await?;
        Ok(())
    }

    async fn get_or_set_secret(&self, candidate: &str) -> Result<String> {
        let params = [(&candidate as _, Type::TEXT)];
        let sql = "INSERT INTO tenure.secrets VALUES ('servers', $1) ON CONFLICT DO NOTHING";
        self.reader.query(sql, &params).await?;
        let sql = "SELECT value FROM tenure.secrets WHERE name = 'servers'";
        Ok(self.reader.query_one(sql, &[]).await?.get(0))
    }

    async fn sign_out(&self, cookie: &str, until: Millis, now: Millis) -> Result<()> {
        // Other values are no numbers, and AND has no order.
        let sql = "DELETE FROM tenure.secrets \
                   WHERE CASE WHEN starts_with(name, $1) THEN value::bigint <= $2 END";
        let now = bigint(now);
        let params = [(&SIGNED_OUT as _, Type::TEXT), (&now as _, Type::INT8)];
        self.reader.query(sql, &params).await?;
        let sql = "INSERT INTO tenure.secrets VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let (name, until) = (format!("{SIGNED_OUT}{cookie}"), bigint(until).to_string());
        self.reader.query(sql, &[(&name as _, Type::TEXT), (&until as _, Type::TEXT)]).await?;
        Ok(())
    }

    async fn signed_out(&self) -> Result<Vec<String>> {
        let sql = "SELECT substr(name, length($1) + 1) FROM tenure.secrets \
                   WHERE starts_with(name, $1)";
        let rows = self.reader.query(sql, &[(&SIGNED_OUT as _, Type::TEXT)]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

fn parse_api_key(row: &Row) -> Result<ApiKey> {
    let text = |at: usize| Text::from(row.get::<_, &str>(at));
    let instant = |at: usize| row.get::<_, Option<i64>>(at).map(millis);
    let role = row.get::<_, &str>(3).parse();
    Ok(ApiKey {
        id: text(0),
        name: text(1),
        tenant: text(2),
        role: role.map_err(|error| corrupt("the role of a key", &error))?,
        hash: text(4),
        created_at: millis(row.get(5)),
        created_by: text(6),
        expires_at: instant(7),
        used_at: instant(8),
        revoked_at: instant(9),
        revoked_by: row.get::<_, Option<&str>>(10).map(Text::from),
    })
}
