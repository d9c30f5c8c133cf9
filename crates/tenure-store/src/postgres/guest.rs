//! Connections for those who are no store: people who look, and transactions of users.

use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls};

use super::link::unavailable;
use super::settings::Settings;
use super::tls;
use crate::store::Result;

/// A connection to a database, `postgres://…` as for a store.
pub async fn client(url: &str) -> Result<Client> {
    let settings = Settings::parse(url)?;
    let away = |error: tokio_postgres::Error| unavailable(&error);
    if settings.config.get_ssl_mode() == SslMode::Disable {
        let (client, connection) = settings.config.connect(NoTls).await.map_err(away)?;
        tokio::spawn(connection);
        return Ok(client);
    }
    let tls = tls::connector(&settings.trust, true)?;
    let (client, connection) = settings.config.connect(tls).await.map_err(away)?;
    tokio::spawn(connection);
    Ok(client)
}

/// Whether an address can be read at all; what it says never repeats the address.
pub fn check_address(url: &str) -> Result<()> {
    Settings::parse(url).map(drop)
}
