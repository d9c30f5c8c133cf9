//! Schema migrations.

use tenure_core::Incarnation;

use super::client::PgClient;
use super::failure::Failure;
use super::{corrupt, incarnation, user_connections};
use crate::store::{Result, StoreError};

/// Names and SQL of the migrations. The nth one creates version n.
const MIGRATIONS: [(&str, &str); 7] = [
    ("0001_tables", include_str!("0001_tables.sql")),
    ("0002_keys", include_str!("0002_keys.sql")),
    ("0003_records", include_str!("0003_records.sql")),
    ("0004_pages", include_str!("0004_pages.sql")),
    ("0005_held", include_str!("0005_held.sql")),
    ("0006_audit", include_str!("0006_audit.sql")),
    ("0007_engine", include_str!("0007_engine.sql")),
];
/// The schema version that this program creates.
pub(super) const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// The pending migrations of a database.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The current schema version; zero if there is no schema.
    pub version: usize,
    /// Names and SQL of the pending migrations.
    pub steps: Vec<(&'static str, &'static str)>,
}

/// Returns the migrations that [`migrate`] would apply.
pub async fn plan(url: &str) -> Result<Plan> {
    let client = connect(url).await?;
    let version = read_version(&client).await.map_err(Failure::into_store)?;
    Ok(Plan { version, steps: MIGRATIONS[version..].to_vec() })
}

/// Applies pending migrations. With `new_incarnation`, also starts a new incarnation, so that no
/// token that was ever granted can be granted again.
pub async fn migrate(url: &str, new_incarnation: bool) -> Result<(Plan, Incarnation)> {
    let plan = plan(url).await?;
    let client = connect(url).await?;
    let seen = Incarnation::default();
    let mut incarnation = apply_pending(&client, seen).await?;
    if new_incarnation {
        incarnation = incarnation::ensure_current(&client, seen, true).await?;
    }
    Ok((plan, incarnation))
}

async fn connect(url: &str) -> Result<PgClient> {
    Ok(PgClient::new(user_connections::connect(url).await?, "BEGIN".to_owned(), false))
}

/// Returns the SQL that begins a transaction of one process at a time. The lock belongs to the
/// transaction, so a crashed process does not keep it.
pub(super) fn begin_exclusive() -> String {
    "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('tenure migrate', 0))".to_owned()
}

/// Applies pending migrations when a server starts. Migrations may exceed the statement timeout of
/// the store's connections, so they run on a separate one. `seen` is the last incarnation that the
/// server has seen.
pub(super) async fn migrate_on_start(
    client: &PgClient,
    url: &str,
    seen: Incarnation,
) -> Result<Incarnation> {
    if read_version(client).await.map_err(Failure::into_store)? == MIGRATIONS.len() {
        return incarnation::ensure_current(client, seen, false).await;
    }
    apply_pending(&connect(url).await?, seen).await
}

/// Applies pending migrations. Returns the current incarnation.
async fn apply_pending(client: &PgClient, seen: Incarnation) -> Result<Incarnation> {
    let work = async {
        client.batch_execute(&begin_exclusive()).await?;
        let from = read_version(client).await?;
        for (at, (_, sql)) in MIGRATIONS.iter().enumerate().skip(from) {
            let schema = if at == 0 { "CREATE SCHEMA IF NOT EXISTS tenure;" } else { "" };
            let version = at + 1;
            let set_version = format!(
                "INSERT INTO tenure.meta VALUES ('version', '{version}') \
                 ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            );
            client.batch_execute(&format!("{schema}\n{sql};\n{set_version}")).await?;
        }
        client.batch_execute("COMMIT").await?;
        Ok(())
    };
    work.await.map_err(Failure::into_store)?;
    incarnation::ensure_current(client, seen, false).await
}

/// Reads the schema version. Fails if it is newer than this program supports.
async fn read_version(client: &PgClient) -> std::result::Result<usize, Failure> {
    let exists = client.query_typed("SELECT to_regclass('tenure.meta') IS NOT NULL", &[]).await?;
    if !exists.first().is_some_and(|row| row.get(0)) {
        return Ok(0);
    }
    let sql = "SELECT value FROM tenure.meta WHERE key = 'version'";
    let rows = client.query_typed(sql, &[]).await?;
    let version = rows.first().map_or("0", |row| row.get(0));
    let version = version.parse();
    let version: usize = version.map_err(|error| corrupt("the schema version", &error))?;
    if version > MIGRATIONS.len() {
        return Err(Failure::Store(StoreError::unavailable(format!(
            "the schema has version {version}, but this program supports only up to {}; use the \
             newer program that migrated it",
            MIGRATIONS.len()
        ))));
    }
    Ok(version)
}
