//! The versions of the tables.

use tenure_core::Incarnation;

use super::conn::Conn;
use super::failure::Failure;
use super::{corrupt, guest, life};
use crate::store::{Result, StoreError};

/// What makes each version from the one before.
const MIGRATIONS: [(&str, &str); 5] = [
    ("0001_tables", include_str!("0001_tables.sql")),
    ("0002_keys", include_str!("0002_keys.sql")),
    ("0003_records", include_str!("0003_records.sql")),
    ("0004_pages", include_str!("0004_pages.sql")),
    ("0005_held", include_str!("0005_held.sql")),
];
/// The version of the tables that this program makes.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// What would be done to a database.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The version that it has; zero for none.
    pub version: usize,
    /// The names and texts of the migrations to come.
    pub steps: Vec<(&'static str, &'static str)>,
}

/// What [`migrate`] would do to the database at this address.
pub async fn plan(url: &str) -> Result<Plan> {
    let client = connect(url).await?;
    let version = version(&client).await.map_err(Failure::into_store)?;
    Ok(Plan { version, steps: MIGRATIONS[version..].to_vec() })
}

/// Brings the tables up to date, and begins a new life of the store if it is asked for: then no
/// token that was ever given out can come again.
pub async fn migrate(url: &str, new_incarnation: bool) -> Result<(Plan, Incarnation)> {
    let plan = plan(url).await?;
    let client = connect(url).await?;
    let incarnation = run(&client).await?;
    let incarnation = if new_incarnation { life::begin(&client, true).await? } else { incarnation };
    Ok((plan, incarnation))
}

async fn connect(url: &str) -> Result<Conn> {
    Ok(Conn::new(guest::client(url).await?, "BEGIN".to_owned(), false))
}

/// Begins a transaction that one process at a time may have. The lock is the transaction's, so that
/// nothing is left behind by one that dies.
pub(super) fn begin() -> String {
    "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('tenure migrate', 0))".to_owned()
}

/// The same, for a server that starts. What there is to do may take longer than anything else may,
/// so it gets a connection of its own.
pub(super) async fn up(client: &Conn, url: &str) -> Result<Incarnation> {
    if version(client).await.map_err(Failure::into_store)? == MIGRATIONS.len() {
        return life::begin(client, false).await;
    }
    run(&connect(url).await?).await
}

/// Brings the tables up to date, and says which life this is.
async fn run(client: &Conn) -> Result<Incarnation> {
    let work = async {
        client.batch_execute(&begin()).await?;
        let from = version(client).await?;
        for (at, (_, sql)) in MIGRATIONS.iter().enumerate().skip(from) {
            let schema = if at == 0 { "CREATE SCHEMA IF NOT EXISTS tenure;" } else { "" };
            let version = at + 1;
            let note = format!(
                "INSERT INTO tenure.meta VALUES ('version', '{version}') \
                 ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            );
            client.batch_execute(&format!("{schema}\n{sql};\n{note}")).await?;
        }
        client.batch_execute("COMMIT").await?;
        Ok(())
    };
    work.await.map_err(Failure::into_store)?;
    life::begin(client, false).await
}

/// The version of the tables, if this program knows it.
async fn version(client: &Conn) -> std::result::Result<usize, Failure> {
    let exists = client.query_typed("SELECT to_regclass('tenure.meta') IS NOT NULL", &[]).await?;
    if !exists.first().is_some_and(|row| row.get(0)) {
        return Ok(0);
    }
    let sql = "SELECT value FROM tenure.meta WHERE key = 'version'";
    let rows = client.query_typed(sql, &[]).await?;
    let version = rows.first().map_or("0", |row| row.get(0));
    let version = version.parse();
    let version: usize = version.map_err(|error| corrupt("the version of the tables", &error))?;
    if version > MIGRATIONS.len() {
        return Err(Failure::Store(StoreError::Unavailable(format!(
            "the tables have version {version}, and this program knows {}: a newer one has been \
             here. Use that one",
            MIGRATIONS.len()
        ))));
    }
    Ok(version)
}
