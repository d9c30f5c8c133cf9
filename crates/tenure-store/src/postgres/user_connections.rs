//! User connections: plain clients for users' own SQL and for tools, outside of the store.

use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls};

use super::connection::unavailable;
use super::settings::Settings;
use super::tls;
use crate::store::Result;

/// Connects to a database. Accepts the same `postgres://…` URL as the store.
pub async fn connect(url: &str) -> Result<Client> {
    let settings = Settings::parse(url)?;
    let to_store_error = unavailable;
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

/// Checks that a URL can be parsed. The error never contains the URL, which may have a password.
pub fn validate_url(url: &str) -> Result<()> {
    Settings::parse(url).map(drop)
}
