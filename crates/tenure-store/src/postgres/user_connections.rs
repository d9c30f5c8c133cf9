//! User connections: plain clients for users' own SQL and for tools, outside of the store.

use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls};

use super::client::indicates_pooler;
use super::connection::unavailable;
use super::settings::Settings;
use super::tls;
use crate::random;
use crate::store::{Result, StoreError};

/// Setting whose value only the session of one connection has.
const MARK: &str = "tenure.connection";

/// Connects to a database. Accepts the same `postgres://…` URL as the store.
pub async fn connect(url: &str) -> Result<Client> {
    open(Settings::parse(url)?).await
}

/// Like [`connect`], for state that belongs to a session, such as its advisory locks. Fails behind
/// a pooler, where such state belongs to nobody.
pub async fn connect_directly(url: &str) -> Result<Client> {
    let mut settings = Settings::parse(url)?;
    let mark = format!("{:016x}", random::nonce());
    let given = settings.config.get_options().unwrap_or_default();
    // A pooler refuses the option, or does not pass it on to the session of the database.
    settings.config.options(format!("{given} -c {MARK}={mark}"));
    let client = open(settings).await?;
    let sql = format!("SELECT current_setting('{MARK}', true)");
    let rows = client.query_typed(&sql, &[]).await.map_err(to_store_error)?;
    match rows.first().and_then(|row| row.get::<_, Option<String>>(0)) {
        Some(found) if found == mark => Ok(client),
        _ => Err(pooled()),
    }
}

async fn open(settings: Settings) -> Result<Client> {
    if settings.config.get_ssl_mode() == SslMode::Disable {
        let (client, connection) = settings.config.connect(NoTls).await.map_err(to_store_error)?;
        tokio::spawn(connection);
        return Ok(client);
    }
    let tls = tls::connector(&settings.trust, true)?;
    let (client, connection) = settings.config.connect(tls).await.map_err(to_store_error)?;
    tokio::spawn(connection);
    Ok(client)
}

fn to_store_error(error: tokio_postgres::Error) -> StoreError {
    if indicates_pooler(&error) { pooled() } else { unavailable(error) }
}

fn pooled() -> StoreError {
    StoreError::unavailable(
        "the connection goes through a pooler; give the address of the database itself",
    )
}

/// Checks that a URL can be parsed. The error never contains the URL, which may have a password.
pub fn validate_url(url: &str) -> Result<()> {
    Settings::parse(url).map(drop)
}
