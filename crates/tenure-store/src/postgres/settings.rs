//! The address of a database: what of it is for the driver, and what is for us.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use crate::store::{Result, StoreError};

/// How long making a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long bytes may be on their way before the connection counts as broken.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

/// What the address says.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// For the driver.
    pub(super) config: Config,
    /// Where to listen for wake-ups, when the address is that of a pooler.
    pub(super) listen: Option<(String, u16)>,
    /// Connections for reading.
    pub(super) pool: usize,
    /// How long one statement may take, in milliseconds.
    pub(super) statement_ms: u64,
    /// Whom to believe.
    pub(super) trust: Trust,
}

/// Which certificates of the database are good enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Any: the line is encrypted, whoever is at the other end. What `sslmode=require` means.
    Anybody,
    /// One that an authority in this file, or a known one, has signed.
    Signed { root: Option<String>, for_this_host: bool },
}

impl Settings {
    /// Reads an address. Errors never repeat it: it may have a password.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut ours = Ours::default();
        let mut theirs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if !ours.take(pair)? {
                theirs.push(pair);
            }
        }
        let rest = if theirs.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", theirs.join("&"))
        };
        let mut config: Config = rest.parse().map_err(|_| unreadable())?;
        config.application_name("tenure").connect_timeout(CONNECT_MAX);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(UNACKNOWLEDGED_MAX);
        }
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        if let Some(mode) = ours.ssl {
            config.ssl_mode(mode);
        }
        let root = ours.root;
        let trust = match ours.verify {
            None if root.is_none() => Trust::Anybody,
            verify => Trust::Signed { root, for_this_host: verify.unwrap_or(false) },
        };
        let (listen, pool, statement_ms) = (ours.listen, ours.pool, ours.statement_ms);
        Ok(Self { config, listen, pool, statement_ms, trust })
    }
}

/// The parameters that the driver does not know, or knows otherwise.
struct Ours {
    listen: Option<(String, u16)>,
    pool: usize,
    statement_ms: u64,
    ssl: Option<SslMode>,
    verify: Option<bool>,
    root: Option<String>,
}

impl Default for Ours {
    fn default() -> Self {
        let (listen, ssl, verify, root) = (None, None, None, None);
        Self { listen, pool: 2, statement_ms: 5_000, ssl, verify, root }
    }
}

impl Ours {
    /// Takes a parameter that is ours.
    fn take(&mut self, pair: &str) -> Result<bool> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let wrong = |what: &str| {
            let why =
                format!("{name} in the address of the database is {value:?}; it must be {what}");
            StoreError::Unavailable(why)
        };
        match name {
            "listen" => {
                let (host, port) = value.rsplit_once(':').ok_or_else(|| wrong("HOST:PORT"))?;
                let port = port.parse().map_err(|_| wrong("HOST:PORT"))?;
                self.listen = Some((host.to_owned(), port));
            }
            "pool" => {
                let pool = value.parse().ok().filter(|pool| (1..=64).contains(pool));
                self.pool = pool.ok_or_else(|| wrong("between 1 and 64"))?;
            }
            "statement_timeout" => {
                let ms = value.parse().ok().filter(|ms| (100..=600_000).contains(ms));
                self.statement_ms = ms.ok_or_else(|| wrong("between 100 and 600000 ms"))?;
            }
            "sslrootcert" => self.root = Some(value.to_owned()),
            "sslmode" => {
                (self.ssl, self.verify) = match value {
                    "disable" => (Some(SslMode::Disable), None),
                    "prefer" => (Some(SslMode::Prefer), None),
                    "require" => (Some(SslMode::Require), None),
                    "verify-ca" => (Some(SslMode::Require), Some(false)),
                    "verify-full" => (Some(SslMode::Require), Some(true)),
                    _ => return Err(wrong("disable, prefer, require, verify-ca or verify-full")),
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn unreadable() -> StoreError {
    let form = "postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full";
    StoreError::Unavailable(format!("the address of the database cannot be read; it is {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_ours_or_the_drivers() {
        let url =
            "postgres://u:secret@h:6432/d?listen=db:5432&pool=4&keepalives=0&sslmode=verify-full";
        let settings = Settings::parse(url).unwrap();
        assert_eq!(settings.listen, Some(("db".to_owned(), 5432)));
        assert_eq!(settings.pool, 4);
        assert!(!settings.config.get_keepalives());
        assert_eq!(settings.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(settings.trust, Trust::Signed { root: None, for_this_host: true });
    }

    #[test]
    fn a_wrong_address_is_not_repeated_with_its_password() {
        for url in ["postgres://u:secret@h:port/d", "postgres://u:secret@h/d?nonsense=1"] {
            let error = Settings::parse(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
            assert!(error.contains("postgres://USER:PASSWORD@HOST"), "{error}");
        }
        let error = Settings::parse("postgres://u:secret@h/d?pool=0").unwrap_err().to_string();
        assert_eq!(
            error,
            "pool in the address of the database is \"0\"; it must be between 1 and 64"
        );
    }
}
