//! PgBouncer in transaction mode, in front of a PostgreSQL server.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::clock::{pause, stopwatch};
use crate::postgres::{Postgres, program, shared};
use crate::process::{Process, Scratch, as_database_user, chown_to_database_user, free_port};

/// A running PgBouncer; dropping it stops it and removes its files.
pub struct PgBouncer {
    // Field order: the process must end before its files are removed.
    process: Option<Process>,
    port: u16,
    scratch: Scratch,
}

impl PgBouncer {
    /// Starts a pooler in front of a server.
    pub fn start(server: &Postgres) -> Result<Self> {
        Self::start_on_port(server.port())
    }

    /// Starts a pooler in front of a server port, such as a proxy's.
    pub fn start_on_port(server_port: u16) -> Result<Self> {
        let scratch = Scratch::create()?;
        let port = free_port()?;
        let config = scratch.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n\
             pool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 10\n\
             server_login_retry = 1\nserver_idle_timeout = 2\n"
        );
        std::fs::write(&config, text).context("write pgbouncer.ini")?;
        chown_to_database_user(&config)?;
        let mut bouncer = Self { process: None, port, scratch };
        bouncer.resume()?;
        Ok(bouncer)
    }

    /// Starts a killed pooler again, on the same port.
    pub fn resume(&mut self) -> Result<()> {
        let missing = "`pgbouncer` is missing; on Debian: apt-get install pgbouncer";
        let program = program("pgbouncer")
            .or_else(|error| {
                let usual = Path::new("/usr/sbin/pgbouncer");
                if usual.exists() { Ok(usual.to_owned()) } else { Err(error) }
            })
            .context(missing)?;
        let mut command = as_database_user(&program);
        command.arg("-q").arg(self.scratch.path().join("pgbouncer.ini"));
        self.process = Some(Process::start(command, &self.log())?);
        self.wait_ready()
    }

    /// Kills the pooler, which cuts all connections.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate(Signal::KILL);
        }
    }

    /// Sends a signal, such as SIGSTOP or SIGCONT.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    fn log(&self) -> PathBuf {
        self.scratch.path().join("pgbouncer.log")
    }

    fn wait_ready(&mut self) -> Result<()> {
        let started = stopwatch();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            let log = self.log();
            let log_text = || std::fs::read_to_string(&log).unwrap_or_default();
            let ended = self.process.as_mut().is_none_or(Process::has_ended);
            let ended = ended || started.elapsed() > Duration::from_secs(10);
            ensure!(!ended, "PgBouncer did not start; its log:\n{}", log_text());
            pause();
        }
        Ok(())
    }

    /// Returns the URL of a database behind the pooler. LISTEN uses a direct connection.
    #[must_use]
    pub fn url(&self, server: &Postgres, database: &str) -> String {
        self.url_with_listen_port(server.port(), database)
    }

    /// Returns the URL of a database, with the port for the direct LISTEN connection.
    #[must_use]
    pub fn url_with_listen_port(&self, listen_port: u16, database: &str) -> String {
        let port = self.port;
        format!("postgres://postgres@127.0.0.1:{port}/{database}?listen=127.0.0.1:{listen_port}")
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // It may not end for another signal while clients wait.
        self.kill();
    }
}

/// Returns the pooler that all tests of a process share, in front of [`shared`].
///
/// # Panics
/// If PostgreSQL or PgBouncer is not installed; the message names the package.
pub fn shared_bouncer() -> &'static PgBouncer {
    static SHARED: OnceLock<PgBouncer> = OnceLock::new();
    SHARED.get_or_init(|| match PgBouncer::start(shared()) {
        Ok(bouncer) => bouncer,
        Err(error) => panic!("cannot start PgBouncer: {error:#}"),
    })
}
