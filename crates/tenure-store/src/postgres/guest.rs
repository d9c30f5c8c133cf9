//! Connections for those who are no store: people who look, and transactions of users.

use tokio_postgres::config::SslMode;
use tokio_postgres::{CancelToken, Client, NoTls};

use super::link::unavailable;
use super::settings::Settings;
use super::tls::{self, Tls};
use crate::store::Result;

/// A connection to a database, `postgres://…` as for a store.
pub async fn client(url: &str) -> Result<Client> {
    Ok(connect(url).await?.0)
}

/// The same, with the way to stop what it does.
pub async fn connect(url: &str) -> Result<(Client, Canceller)> {
    let settings = Settings::parse(url)?;
    let away = |error: tokio_postgres::Error| unavailable(&error);
    let (client, tls) = if settings.config.get_ssl_mode() == SslMode::Disable {
        let (client, connection) = settings.config.connect(NoTls).await.map_err(away)?;
        tokio::spawn(connection);
        (client, None)
    } else {
        let tls = tls::connector(&settings.trust, true)?;
        let (client, connection) = settings.config.connect(tls.clone()).await.map_err(away)?;
        tokio::spawn(connection);
        (client, Some(tls))
    };
    let canceller = Canceller { token: client.cancel_token(), tls };
    Ok((client, canceller))
}

/// Stops what a connection does.
pub struct Canceller {
    token: CancelToken,
    tls: Option<Tls>,
}

impl Canceller {
    /// Asks the database to stop the statement that runs; it may be over already.
    pub async fn cancel(self) {
        let asked = match self.tls {
            Some(tls) => self.token.cancel_query(tls).await,
            None => self.token.cancel_query(NoTls).await,
        };
        if let Err(error) = asked {
            tracing::debug!(%error, "cannot ask the database to stop a statement");
        }
    }
}
