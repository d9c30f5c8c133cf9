//! PgBouncer in transaction mode, in front of a PostgreSQL server.

use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::clock::{pause, stopwatch};
use crate::postgres::{Postgres, program, shared};
use crate::process::{Process, Scratch, as_database_user, free_port, give};

/// A pooler; dropping it stops it and removes its files.
pub struct PgBouncer {
    // In this order: first it ends, then its files go.
    _process: Process,
    port: u16,
    _scratch: Scratch,
}

impl PgBouncer {
    /// Starts one in front of a server.
    pub fn start(server: &Postgres) -> Result<Self> {
        Self::before(server.port())
    }

    /// Starts one in front of whatever leads to a server.
    pub fn before(server: u16) -> Result<Self> {
        let missing = "`pgbouncer` is missing; on Debian: apt-get install pgbouncer";
        let program = program("pgbouncer")
            .or_else(|error| {
                let usual = Path::new("/usr/sbin/pgbouncer");
                if usual.exists() { Ok(usual.to_owned()) } else { Err(error) }
            })
            .context(missing)?;
        let scratch = Scratch::create()?;
        let port = free_port()?;
        let config = scratch.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n\
             pool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 10\n\
             server_login_retry = 1\nserver_idle_timeout = 2\n"
        );
        std::fs::write(&config, text).context("write the settings of PgBouncer")?;
        give(&config)?;
        let mut command = as_database_user(&program);
        command.arg("-q").arg(&config);
        let process = Process::start(command, &scratch.path().join("pgbouncer.log"))?;
        let mut bouncer = Self { _process: process, port, _scratch: scratch };
        bouncer.until_ready()?;
        Ok(bouncer)
    }

    fn until_ready(&mut self) -> Result<()> {
        let started = stopwatch();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            let log = self._scratch.path().join("pgbouncer.log");
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            let ended = self._process.has_ended() || started.elapsed() > Duration::from_secs(10);
            ensure!(!ended, "PgBouncer does not come up; it says:\n{}", said());
            pause();
        }
        Ok(())
    }

    /// The address of a database behind it. Wake-ups need a connection of their own.
    #[must_use]
    pub fn url(&self, server: &Postgres, database: &str) -> String {
        self.url_with(server.port(), database)
    }

    /// The same, with the port that leads to the server itself.
    #[must_use]
    pub fn url_with(&self, direct: u16, database: &str) -> String {
        let port = self.port;
        format!("postgres://postgres@127.0.0.1:{port}/{database}?listen=127.0.0.1:{direct}")
    }
}

/// The pooler that all tests of a process share, in front of the server that they share.
///
/// # Panics
/// When there is no PostgreSQL or no PgBouncer; the message names the package.
pub fn shared_bouncer() -> &'static PgBouncer {
    static SHARED: OnceLock<PgBouncer> = OnceLock::new();
    SHARED.get_or_init(|| match PgBouncer::start(shared()) {
        Ok(bouncer) => bouncer,
        Err(error) => panic!("cannot start PgBouncer: {error:#}"),
    })
}
