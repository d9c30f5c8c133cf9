//! Pairs over HTTP on a server in a separate process.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::clock::now;
use crate::http::Connection;
use crate::load::Pairs;
use crate::local::LOCKS_PER_WORKER;

/// Time limit for starting a server.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A `tenure serve` process; killed on drop.
pub(crate) struct Server {
    child: Child,
    addr: SocketAddr,
    key: String,
}

impl Server {
    /// Starts this executable as a server with its data in `dir`, or in the store `store`.
    pub(crate) async fn start(
        dir: &Path,
        store: Option<&str>,
        extra_args: &[&OsStr],
    ) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir).args(extra_args);
        match store {
            // Not as an argument, which other users could see.
            Some(url) => command.env("TENURE_STORE", url),
            None => command.env_remove("TENURE_STORE"),
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start a server")?;
        let mut server = Self { child, addr: ([127, 0, 0, 1], 0).into(), key: String::new() };
        let started = now();
        while started.elapsed() < START_TIMEOUT {
            if let Some(addr) = read_address(dir) {
                server.addr = addr;
                server.key = std::fs::read_to_string(dir.join("admin.key")).context("read key")?;
                return Ok(server);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("the server did not start within {START_TIMEOUT:?}")
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn key(&self) -> &str {
        self.key.trim()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failure means that the process has already exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn read_address(dir: &Path) -> Option<SocketAddr> {
    let url = std::fs::read_to_string(dir.join("server.url")).ok()?;
    url.trim().strip_prefix("http://")?.parse().ok()
}

/// A worker with its own connection and session.
pub(crate) struct RemotePairs {
    connection: Connection,
    bearer: String,
    acquire_body: String,
    paths: Vec<(String, String)>,
    next: usize,
}

impl RemotePairs {
    pub(crate) async fn open(addr: SocketAddr, key: &str, worker: usize) -> Result<Self> {
        let mut connection = Connection::open(addr).await?;
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let body = r#"{"name":"bench","ttl_ms":3600000}"#;
        let (status, response) = connection.post("/v1/sessions", &headers, body.as_bytes()).await?;
        ensure!(status == 200, "opening a session returned status {status}");
        let response: Value = serde_json::from_slice(response)?;
        let session = response["session"].as_str().context("read the session")?;
        let acquire_body = format!(r#"{{"session":"{session}"}}"#);
        let path = |n, verb| format!("/v1/locks/lock/h{worker}-{n}/{verb}");
        let paths = (0..LOCKS_PER_WORKER).map(|n| (path(n, "acquire"), path(n, "release")));
        let paths = paths.collect();
        Ok(Self { connection, bearer, acquire_body, paths, next: 0 })
    }
}

impl Pairs for RemotePairs {
    async fn pair(&mut self, _: u64) -> Result<()> {
        self.next = (self.next + 1) % self.paths.len();
        let (acquire, release) = &self.paths[self.next];
        let headers = [("authorization", self.bearer.as_str())];
        let body = self.acquire_body.as_bytes();
        let (status, response) = self.connection.post(acquire, &headers, body).await?;
        ensure!(status == 200, "an acquire returned status {status}");
        let body = format!(r#"{{"token":{}}}"#, token(response)?);
        let (status, _) = self.connection.post(release, &headers, body.as_bytes()).await?;
        ensure!(status == 200, "a release returned status {status}");
        Ok(())
    }
}

/// Extracts the token from a response without parsing all of it, to keep the load generator cheap.
pub(crate) fn token(response: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(response)?;
    let (_, rest) = text.split_once("\"token\":").context("find a token")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    Ok(digits.parse()?)
}
