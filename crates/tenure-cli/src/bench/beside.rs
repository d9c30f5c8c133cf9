//! A transaction of somebody else, which is idle and keeps an old view of the database.
//!
//! While it lasts the database may forget no row that it could still see.

use anyhow::{Context as _, Result, ensure};
use tokio_postgres::{Client, Config, NoTls};

/// Parameters of an address that are for the store, not for the driver.
const OURS: [&str; 4] = ["listen", "pool", "statement_timeout", "sslrootcert"];
/// Begins it. No setting of the database may end it early.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; \
                     SET LOCAL idle_in_transaction_session_timeout = 0";
/// Takes its view, and looks whether it still has it.
const LOOK: &str = "SELECT count(*) FROM tenure.journal";

/// A transaction that is idle. Dropping it ends its connection.
pub(crate) struct Idle {
    client: Client,
    /// How many entries the journal has in its view.
    seen: i64,
}

impl Idle {
    /// Begins one on the database of a store. It has no TLS, so an address that asks for it fails.
    pub(crate) async fn begin(url: &str) -> Result<Self> {
        let config = config(url)?;
        let (client, connection) = config.connect(NoTls).await.context("connect without TLS")?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection of the idle transaction has ended");
            }
        });
        client.batch_execute(BEGIN).await.context("begin an idle transaction")?;
        let seen = look(&client).await?;
        Ok(Self { client, seen })
    }

    /// Ends it, and fails unless it had its view until now.
    pub(crate) async fn end(self) -> Result<()> {
        let seen = look(&self.client).await.context("the idle transaction was over too early")?;
        ensure!(seen == self.seen, "the idle transaction saw {seen} entries, not {}", self.seen);
        self.client.batch_execute("ROLLBACK").await.context("end the idle transaction")
    }
}

/// How many entries of the journal a transaction sees.
async fn look(client: &Client) -> Result<i64> {
    let rows = client.query_typed(LOOK, &[]).await.context("count the entries of the journal")?;
    Ok(rows.first().context("count the entries of the journal: no row")?.try_get(0)?)
}

/// What of the address of a store is for the driver. Errors never repeat it.
fn config(url: &str) -> Result<Config> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let theirs = query.split('&').filter(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        !name.is_empty() && !OURS.contains(&name)
    });
    let theirs: Vec<&str> = theirs
        .map(|pair| if pair.starts_with("sslmode=verify") { "sslmode=require" } else { pair })
        .collect();
    let url = format!("{base}?{}", theirs.join("&"));
    let read: Result<Config, _> = url.trim_end_matches('?').parse();
    let mut config = read.ok().context("the address of the database cannot be read")?;
    config.application_name("tenure bench");
    if config.get_password().is_none()
        && let Ok(password) = std::env::var("PGPASSWORD")
    {
        config.password(password);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::config::SslMode;

    #[test]
    fn the_driver_gets_what_it_knows() {
        let url = "postgres://u@h:6432/d?listen=db:5432&pool=4&keepalives=0&sslmode=verify-full";
        let config = config(url).unwrap();
        assert_eq!(config.get_ports(), [6432]);
        assert!(!config.get_keepalives());
        assert_eq!(config.get_ssl_mode(), SslMode::Require);
    }

    #[test]
    fn an_address_without_parameters_is_read() {
        assert_eq!(config("postgres://u@h/d").unwrap().get_dbname(), Some("d"));
        assert_eq!(config("postgres://u@h/d?pool=2").unwrap().get_dbname(), Some("d"));
    }

    #[test]
    fn a_wrong_address_is_not_repeated_with_its_password() {
        let error = config("postgres://u:secret@h:port/d").unwrap_err();
        assert!(!format!("{error:#}").contains("secret"), "{error:#}");
    }
}
