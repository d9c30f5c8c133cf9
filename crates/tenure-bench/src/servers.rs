//! Private Redis and etcd servers for comparison, on free loopback ports with their own files.
//!
//! Never touches a server that it did not start, never listens beyond loopback, and leaves nothing
//! behind: dropping a `Server` stops the process and removes its directory.

use std::fs::{DirBuilder, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{etcd as etcd_locks, redis as redis_locks};

/// Ten seconds in total; Redis is ready in 50 ms, etcd elects itself in about one second.
const READY_ATTEMPTS: u32 = 200;
const READY_INTERVAL: Duration = Duration::from_millis(50);
const READY_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of log lines shown if a server does not start.
const LOG_LINES_SHOWN: usize = 5;

/// Durability of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The append-only file is synced before a write is acknowledged.
    Disk,
    /// A crash loses all locks.
    Memory,
}

impl Durability {
    fn redis_args(self) -> &'static [&'static str] {
        match self {
            Self::Disk => &["--save", "", "--appendonly", "yes", "--appendfsync", "always"],
            Self::Memory => &["--save", "", "--appendonly", "no"],
        }
    }
}

/// Starts a Redis with its files in a new directory below `parent`. Returns `None` if it is not
/// installed.
pub async fn redis(parent: &Path, durability: Durability) -> Result<Option<Server>> {
    let Some(program) = find_program("redis-server") else { return Ok(None) };
    let dir = Scratch::create(parent)?;
    let [addr] = free_addrs()?;
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string()]);
    command.arg("--dir").arg(dir.path()).args(durability.redis_args());
    let mut server = Server::start(command, addr, dir)?;
    server.wait_until_ready(redis_locks::ping).await.context("start redis-server")?;
    Ok(Some(server))
}

/// Starts a single-node etcd. Returns `None` if it is not installed.
pub async fn etcd(parent: &Path) -> Result<Option<Server>> {
    let Some(program) = find_program("etcd") else { return Ok(None) };
    let dir = Scratch::create(parent)?;
    let [addr, peer] = free_addrs()?;
    let (clients, peers) = (format!("http://{addr}"), format!("http://{peer}"));
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(dir.path().join("data")).args(["--name", "bench"]);
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("bench={peers}")]);
    command.args(["--logger", "zap", "--log-level", "warn"]);
    let mut server = Server::start(command, addr, dir)?;
    server.wait_until_ready(etcd_locks::ping).await.context("start etcd")?;
    Ok(Some(server))
}

/// A running server. Dropping it kills the process, then removes its files.
pub struct Server {
    addr: SocketAddr,
    process: Process,
    dir: Scratch,
}

impl Server {
    /// Returns the address of the server.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Starts the server with an empty environment: `ETCD_*` variables would change the result.
    fn start(mut command: Command, addr: SocketAddr, dir: Scratch) -> Result<Self> {
        let log = File::create(dir.log()).context("create the server's log")?;
        let stderr = log.try_clone().context("share the server's log")?;
        command.env_clear().current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(log).stderr(stderr);
        let child = command
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        Ok(Self { addr, process: Process(child), dir })
    }

    async fn wait_until_ready(
        &mut self,
        ping: impl AsyncFn(SocketAddr) -> Result<()>,
    ) -> Result<()> {
        for _ in 0..READY_ATTEMPTS {
            if let Some(status) = self.process.0.try_wait().context("check the server process")? {
                bail!("it exited with {status}; its log ends with:\n{}", self.log_end());
            }
            if let Ok(Ok(())) = tokio::time::timeout(READY_ATTEMPT_TIMEOUT, ping(self.addr)).await {
                return Ok(());
            }
            tokio::time::sleep(READY_INTERVAL).await;
        }
        bail!("it does not respond on {}; its log ends with:\n{}", self.addr, self.log_end())
    }

    fn log_end(&self) -> String {
        let log = std::fs::read_to_string(self.dir.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

/// A child process. It is reaped only here, so its pid cannot be reused.
struct Process(Child);

impl Drop for Process {
    /// Kills without a graceful shutdown, since the data is discarded.
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("cannot stop process {}: {error}", self.0.id());
        }
    }
}

/// A new private directory, removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory in `parent`.
    pub fn create(parent: &Path) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("tenure-bench-{}-{count}", std::process::id()));
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("create the directory {}", path.display()))?;
        Ok(Self(path))
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Finds a program on the PATH.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns distinct loopback addresses that were free a moment ago.
fn free_addrs<const N: usize>() -> Result<[SocketAddr; N]> {
    let mut listeners = Vec::with_capacity(N);
    let mut addrs = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for addr in &mut addrs {
        let listener = TcpListener::bind(*addr).context("bind a free loopback port")?;
        *addr = listener.local_addr().context("read the free loopback port")?;
        listeners.push(listener);
    }
    Ok(addrs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> Scratch {
        Scratch::create(&std::env::temp_dir()).unwrap()
    }

    #[tokio::test]
    async fn dropped_server_is_killed_and_its_files_removed() {
        let parent = scratch();
        let Some(server) = redis(parent.path(), Durability::Disk).await.unwrap() else { return };
        let (pid, files) = (server.process.0.id(), server.dir.path().to_owned());
        assert!(files.join("appendonlydir").exists());
        drop(server);
        assert!(!files.exists() && !Path::new(&format!("/proc/{pid}")).exists());
    }

    #[tokio::test]
    async fn server_that_exits_early_is_reported_with_its_log() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo no port >&2; exit 3"]);
        let [addr] = free_addrs().unwrap();
        let mut server = Server::start(command, addr, scratch()).unwrap();
        server.process.0.wait().unwrap();
        let error = server.wait_until_ready(redis_locks::ping).await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("no port"), "{error}");
    }

    #[test]
    fn missing_program_is_not_found() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-lock-server").is_none());
    }

    #[test]
    fn free_addresses_differ_and_are_on_loopback() {
        let [one, two] = free_addrs().unwrap();
        assert!(one != two && one.ip().is_loopback() && two.ip().is_loopback());
    }
}
