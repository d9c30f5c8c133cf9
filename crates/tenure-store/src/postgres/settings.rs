//! Settings from the database URL: some are for the store, the rest for the driver.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use crate::store::{Result, StoreError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that sent data may stay unacknowledged before the connection counts as broken.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings in a database URL.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The driver's settings.
    pub(super) config: Config,
    /// Host and port to listen for wake-ups at, if the URL is that of a pooler.
    pub(super) listen: Option<(String, u16)>,
    /// Number of connections for reads.
    pub(super) pool: usize,
    /// Statement timeout in milliseconds.
    pub(super) statement_ms: u64,
    pub(super) trust: Trust,
}

/// Which server certificates are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Any certificate: encrypted but not authenticated, as with `sslmode=require`.
    AnyCertificate,
    /// Certificates signed by an authority in the file `root`, or by one of the system.
    Signed { root: Option<String>, verify_host: bool },
}

impl Settings {
    /// Parses a URL. Errors never contain it: it may have a password.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut store_params = StoreParams::default();
        let mut driver_params = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if !store_params.accept(pair)? {
                driver_params.push(pair);
            }
        }
        let driver_url = if driver_params.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", driver_params.join("&"))
        };
        let mut config: Config = driver_url.parse().map_err(|_| invalid_url())?;
        config.application_name("tenure").connect_timeout(CONNECT_TIMEOUT);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(TCP_USER_TIMEOUT);
        }
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        let StoreParams { listen, pool, statement_ms, ssl_mode, verify_host, root } = store_params;
        if let Some(mode) = ssl_mode {
            config.ssl_mode(mode);
        }
        let trust = match verify_host {
            None if root.is_none() => Trust::AnyCertificate,
            verify_host => Trust::Signed { root, verify_host: verify_host.unwrap_or(false) },
        };
        Ok(Self { config, listen, pool, statement_ms, trust })
    }
}

/// URL parameters that the driver does not support, or interprets differently.
struct StoreParams {
    listen: Option<(String, u16)>,
    pool: usize,
    statement_ms: u64,
    ssl_mode: Option<SslMode>,
    /// `None` if the certificate is not verified at all.
    verify_host: Option<bool>,
    root: Option<String>,
}

impl Default for StoreParams {
    fn default() -> Self {
        let (listen, ssl_mode, verify_host, root) = (None, None, None, None);
        Self { listen, pool: 2, statement_ms: 5_000, ssl_mode, verify_host, root }
    }
}

impl StoreParams {
    /// Parses a parameter of the store. Returns `false` if it is one of the driver.
    fn accept(&mut self, pair: &str) -> Result<bool> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let invalid = |expected: &str| {
            let why = format!("{name} in the database URL is {value:?}; it must be {expected}");
            StoreError::unavailable(why)
        };
        match name {
            "listen" => {
                let (host, port) = value.rsplit_once(':').ok_or_else(|| invalid("HOST:PORT"))?;
                let port = port.parse().map_err(|_| invalid("HOST:PORT"))?;
                self.listen = Some((host.to_owned(), port));
            }
            "pool" => {
                let pool = value.parse().ok().filter(|pool| (1..=64).contains(pool));
                self.pool = pool.ok_or_else(|| invalid("between 1 and 64"))?;
            }
            "statement_timeout" => {
                let ms = value.parse().ok().filter(|ms| (100..=600_000).contains(ms));
                self.statement_ms = ms.ok_or_else(|| invalid("between 100 and 600000 ms"))?;
            }
            "sslrootcert" => self.root = Some(value.to_owned()),
            "sslmode" => {
                (self.ssl_mode, self.verify_host) = match value {
                    "disable" => (Some(SslMode::Disable), None),
                    "prefer" => (Some(SslMode::Prefer), None),
                    "require" => (Some(SslMode::Require), None),
                    "verify-ca" => (Some(SslMode::Require), Some(false)),
                    "verify-full" => (Some(SslMode::Require), Some(true)),
                    _ => return Err(invalid("disable, prefer, require, verify-ca or verify-full")),
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn invalid_url() -> StoreError {
    let form = "postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full";
    StoreError::unavailable(format!("the database URL is invalid; expected {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_split_between_store_and_driver() {
        let url =
            "postgres://u:secret@h:6432/d?listen=db:5432&pool=4&keepalives=0&sslmode=verify-full";
        let settings = Settings::parse(url).unwrap();
        assert_eq!(settings.listen, Some(("db".to_owned(), 5432)));
        assert_eq!(settings.pool, 4);
        assert!(!settings.config.get_keepalives());
        assert_eq!(settings.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(settings.trust, Trust::Signed { root: None, verify_host: true });
    }

    #[test]
    fn errors_about_an_invalid_url_do_not_contain_the_password() {
        for url in ["postgres://u:secret@h:port/d", "postgres://u:secret@h/d?nonsense=1"] {
            let error = Settings::parse(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
            assert!(error.contains("postgres://USER:PASSWORD@HOST"), "{error}");
        }
        let error = Settings::parse("postgres://u:secret@h/d?pool=0").unwrap_err().to_string();
        assert_eq!(error, "pool in the database URL is \"0\"; it must be between 1 and 64");
    }
}
