//! PostgreSQL servers.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::clock::{pause, stopwatch};
use crate::process::{Process, Scratch, as_database_user, chown_to_database_user, free_port};

/// Time limit for a server to accept connections.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether commits are flushed to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Commits wait for fsync.
    Disk,
    /// No fsync: for tests that crash only processes.
    None,
}

/// A PostgreSQL server; dropping it stops it and removes its files.
pub struct Postgres {
    process: Option<Process>,
    port: u16,
    options: Vec<String>,
    data: PathBuf,
    scratch: Scratch,
}

impl Postgres {
    /// Initializes a new cluster and starts it.
    pub fn start(durability: Durability) -> Result<Self> {
        Self::start_with(durability, &[])
    }

    /// Starts a new cluster with settings of the form `name=value`.
    pub fn start_with(durability: Durability, settings: &[&str]) -> Result<Self> {
        let scratch = Scratch::create()?;
        let data = scratch.path().join("data");
        run(as_database_user(&program("initdb")?).arg("-D").arg(&data).args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ]))?;
        Self::open(scratch, data, durability, settings)
    }

    fn open(
        scratch: Scratch,
        data: PathBuf,
        durability: Durability,
        settings: &[&str],
    ) -> Result<Self> {
        let mut options: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        options.extend(["listen_addresses=127.0.0.1", "max_connections=400"].map(str::to_owned));
        options.push(format!("unix_socket_directories={}", scratch.path().display()));
        if durability == Durability::None {
            let fast = ["fsync=off", "synchronous_commit=off", "full_page_writes=off"];
            options.extend(fast.map(str::to_owned));
        }
        let port = free_port()?;
        let mut server = Self { process: None, port, options, data, scratch };
        server.resume()?;
        Ok(server)
    }

    /// Starts a stopped server again, on the same port and data directory.
    pub fn resume(&mut self) -> Result<()> {
        let mut command = as_database_user(&program("postgres")?);
        command.arg("-D").arg(&self.data).args(["-p", &self.port.to_string()]);
        for option in &self.options {
            command.args(["-c", option]);
        }
        self.process = Some(Process::start(command, &self.log())?);
        self.wait_ready()
    }

    fn wait_ready(&mut self) -> Result<()> {
        let started = stopwatch();
        while started.elapsed() < READY_TIMEOUT {
            let ended = self.process.as_mut().is_none_or(Process::has_ended);
            ensure!(!ended, "PostgreSQL exited; its log:\n{}", self.log_text());
            let port = self.port.to_string();
            let mut ready = Command::new(program("pg_isready")?);
            ready.args(["--quiet", "--host=127.0.0.1", "--port", &port]);
            if ready.status().context("run pg_isready")?.success() {
                return Ok(());
            }
            pause();
        }
        bail!("PostgreSQL did not become ready; its log:\n{}", self.log_text())
    }

    fn log(&self) -> PathBuf {
        self.scratch.path().join("postgres.log")
    }

    /// Returns the log since the last start.
    #[must_use]
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Returns the port it listens on, also while it is stopped.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of a database.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Creates a database and returns its name.
    pub fn new_database(&self) -> Result<String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// Runs SQL and returns its output, one line per row.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let mut command = Command::new(program("psql")?);
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        command.args(["--set=ON_ERROR_STOP=1", "--dbname", &self.url(database), "--command", sql]);
        run(&mut command)
    }

    /// Stops the server with an immediate shutdown, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate(Signal::QUIT);
        }
    }

    /// Sends a signal to all server processes, such as SIGSTOP or SIGCONT.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = self.process.as_ref().context("PostgreSQL is not running")?;
        let pid = process.pid().as_raw_nonzero().to_string();
        let children = run(Command::new("pgrep").args(["-P", &pid])).unwrap_or_default();
        let children = children.lines().filter_map(|pid| pid.trim().parse().ok());
        process.signal(signal);
        for pid in children.filter_map(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(pid, signal).ok();
        }
        Ok(())
    }

    /// Takes a base backup of the running cluster.
    pub fn backup(&self) -> Result<Backup> {
        let scratch = Scratch::create()?;
        let data = scratch.path().join("data");
        let port = self.port.to_string();
        run(as_database_user(&program("pg_basebackup")?)
            .args(["--host=127.0.0.1", "--port", &port, "--username=postgres"])
            .args(["--checkpoint=fast", "--wal-method=stream", "--no-sync", "-D"])
            .arg(&data))?;
        Ok(Backup { data, scratch })
    }

    /// Starts a streaming standby of this server.
    pub fn standby(&self, durability: Durability) -> Result<Self> {
        self.standby_through(self.port, durability)
    }

    /// Starts a streaming standby that connects through another port, such as a proxy's.
    pub fn standby_through(&self, port: u16, durability: Durability) -> Result<Self> {
        let Backup { data, scratch } = self.backup()?;
        let signal = data.join("standby.signal");
        std::fs::write(&signal, "").context("create standby.signal")?;
        chown_to_database_user(&signal)?;
        let source = format!("primary_conninfo=host=127.0.0.1 port={port} user=postgres");
        Self::open(scratch, data, durability, &[&source])
    }

    /// Promotes a standby with what it has received so far.
    pub fn promote(&self) -> Result<()> {
        self.psql("postgres", "SELECT pg_promote()").map(drop)
    }

    /// Copies a database to another server with `pg_dump`, and returns its name there.
    pub fn dump_to(&self, database: &str, other: &Self) -> Result<String> {
        let dump = self.scratch.path().join("dump.sql");
        run(Command::new(program("pg_dump")?).arg("-f").arg(&dump).arg(self.url(database)))?;
        let name = other.new_database()?;
        let mut restore = Command::new(program("psql")?);
        restore.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]);
        run(restore.arg("--dbname").arg(other.url(&name)).arg("--file").arg(&dump))?;
        Ok(name)
    }

    /// Replaces the cluster by a backup and starts it.
    pub fn restore(&mut self, backup: &Backup) -> Result<()> {
        self.kill();
        run(Command::new("rm").arg("-rf").arg(&self.data))?;
        run(Command::new("cp").arg("-a").arg(&backup.data).arg(&self.data))?;
        self.resume()
    }
}

/// A base backup of a cluster.
pub struct Backup {
    data: PathBuf,
    scratch: Scratch,
}

/// Returns the server that all tests of a process share, each with its own database.
///
/// # Panics
/// If PostgreSQL is not installed; the message names the package.
pub fn shared() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(|| match Postgres::start(Durability::None) {
        Ok(server) => server,
        Err(error) => panic!("cannot start PostgreSQL: {error:#}"),
    })
}

/// Finds a PostgreSQL program of the newest installed version.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    found.extend(std::env::split_paths(&path));
    let program = found.into_iter().map(|dir| dir.join(name)).find(|path| path.exists());
    program
        .with_context(|| format!("`{name}` is missing; on Debian: apt-get install postgresql-15"))
}

/// Runs a command to completion and returns its output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null()).current_dir("/");
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
