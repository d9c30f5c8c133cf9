//! API keys in the SQLite file, written by the writer thread.

use async_trait::async_trait;
use rusqlite::{Row, params};
use tenure_core::{Millis, Text};

use super::Embedded;
use super::database::{Database, millis_from_sql};
use super::jobs::millis_to_sql;
use super::writer::WriterRequest;
use crate::keys::{ApiKey, COLUMNS, KEYS_MAX, KeyRing, SIGNED_OUT};
use crate::store::Result;

impl Embedded {
    /// Runs a closure with the database on the writer thread.
    async fn with_database<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.request(|reply| {
            WriterRequest::Run(Box::new(move |writer| {
                drop(reply.send(writer.with_database(work)));
            }))
        })
        .await
    }
}

#[async_trait]
impl KeyRing for Embedded {
    async fn all(&self) -> Result<Vec<ApiKey>> {
        self.with_database(|database| {
            let sql = format!("SELECT {COLUMNS} FROM keys ORDER BY created_at, id");
            let mut statement = database.connection.prepare_cached(&sql)?;
            statement.query_map([], parse_key)?.collect()
        })
        .await
    }

    async fn add(&self, key: ApiKey) -> Result<bool> {
        self.with_database(move |database| {
            let sql = format!(
                "INSERT INTO keys ({COLUMNS}) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, NULL, NULL, \
                 NULL WHERE (SELECT count(*) FROM keys) < ?9 ON CONFLICT DO NOTHING"
            );
            let expires_at = key.expires_at.map(millis_to_sql);
            let keys_max = i64::try_from(KEYS_MAX).unwrap_or(i64::MAX);
            let params = params![
                &*key.id,
                &*key.name,
                &*key.tenant,
                key.role.as_str(),
                &*key.hash,
                millis_to_sql(key.created_at),
                &*key.created_by,
                expires_at,
                keys_max,
            ];
            Ok(database.connection.execute(&sql, params)? == 1)
        })
        .await
    }

    async fn revoke(&self, id: &str, at: Millis, by: &str) -> Result<bool> {
        let (id, by) = (id.to_owned(), by.to_owned());
        self.with_database(move |database| {
            let sql = "UPDATE keys SET revoked_at = coalesce(revoked_at, ?2), \
                       revoked_by = coalesce(revoked_by, ?3) WHERE id = ?1";
            Ok(database.connection.execute(sql, params![id, millis_to_sql(at), by])? == 1)
        })
        .await
    }

    async fn record_uses(&self, uses: &[(Text, Millis)]) -> Result<()> {
        let uses = uses.to_vec();
        self.with_database(move |database| {
            let sql = "UPDATE keys SET used_at = max(coalesce(used_at, 0), ?2) WHERE id = ?1";
            let mut statement = database.connection.prepare_cached(sql)?;
            for (id, at) in &uses {
                statement.execute(params![&**id, millis_to_sql(*at)])?;
            }
            Ok(())
        })
        .await
    }

    async fn get_or_set_secret(&self, candidate: &str) -> Result<String> {
        let candidate = candidate.to_owned();
        self.with_database(move |database| {
            let connection = &database.connection;
            let sql = "INSERT OR IGNORE INTO meta (key, value) VALUES ('secret', ?1)";
            connection.execute(sql, [candidate])?;
            let sql = "SELECT value FROM meta WHERE key = 'secret'";
            connection.query_row(sql, [], |row| row.get(0))
        })
        .await
    }

    async fn sign_out(&self, cookie: &str, until: Millis, now: Millis) -> Result<()> {
        let key = signed_out_key(cookie);
        self.with_database(move |database| {
            let sql = "DELETE FROM meta WHERE substr(key, 1, length(?1)) = ?1 \
                       AND CAST(value AS INTEGER) <= ?2";
            let params = params![SIGNED_OUT, millis_to_sql(now)];
            database.connection.execute(sql, params)?;
            let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)";
            database.connection.execute(sql, params![key, millis_to_sql(until)])?;
            Ok(())
        })
        .await
    }

    async fn signed_out(&self) -> Result<Vec<String>> {
        self.with_database(|database| {
            let sql = "SELECT substr(key, length(?1) + 1) FROM meta \
                       WHERE substr(key, 1, length(?1)) = ?1";
            let mut statement = database.connection.prepare_cached(sql)?;
            statement.query_map([SIGNED_OUT], |row| row.get(0))?.collect()
        })
        .await
    }
}

/// Returns the row of `meta` that keeps a signed-out cookie.
fn signed_out_key(cookie: &str) -> String {
    format!("{SIGNED_OUT}{cookie}")
}

fn parse_key(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    let text = |at| row.get::<_, String>(at).map(Text::from);
    let role: String = row.get(3)?;
    let invalid = |error| {
        let text = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(3, text, Box::new(error))
    };
    Ok(ApiKey {
        id: text(0)?,
        name: text(1)?,
        tenant: text(2)?,
        role: role.parse().map_err(invalid)?,
        hash: text(4)?,
        created_at: millis_from_sql(row.get(5)?),
        created_by: text(6)?,
        expires_at: row.get::<_, Option<i64>>(7)?.map(millis_from_sql),
        used_at: row.get::<_, Option<i64>>(8)?.map(millis_from_sql),
        revoked_at: row.get::<_, Option<i64>>(9)?.map(millis_from_sql),
        revoked_by: row.get::<_, Option<String>>(10)?.map(Text::from),
    })
}
