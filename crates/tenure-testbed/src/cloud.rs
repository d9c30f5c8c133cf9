//! Imitations of AWS from a Python environment: moto and MiniStack.
//!
//! They listen on loopback only, and have no state on disk beyond their own directory. See
//! `postgres.rs` for databases.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::clock::{pause, stopwatch};
use crate::process::{Process, Scratch, free_port};

/// Time limit for a server to answer its health check.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of one health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of ports that are tried: another process can take a free port before the server does.
const PORTS_MAX: usize = 3;

/// How to start a server.
struct Program {
    /// Name in the `bin` folder of the environment.
    name: &'static str,
    args: fn(port: u16) -> Vec<String>,
    env: fn(port: u16) -> Vec<(&'static str, String)>,
    /// Path that answers 200 once the server is ready.
    health: &'static str,
}

const MOTO: Program = Program {
    name: "moto_server",
    args: |port| ["-H", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned).to_vec(),
    env: |_| Vec::new(),
    health: "/moto-api/data.json",
};

const MINISTACK: Program = Program {
    name: "ministack",
    args: |_| Vec::new(),
    // It listens on every interface by default.
    env: |port| {
        vec![
            ("BIND_HOST", "127.0.0.1".to_owned()),
            ("MINISTACK_HOST", "127.0.0.1".to_owned()),
            ("GATEWAY_PORT", port.to_string()),
            ("SERVICES", "sqs,s3,tagging".to_owned()),
        ]
    },
    health: "/_ministack/health",
};

/// A server written in Python; dropping it kills it and removes its files.
pub struct PythonServer {
    // Field order: the process must end before its files are removed.
    process: Process,
    port: u16,
    scratch: Scratch,
}

impl PythonServer {
    /// Starts moto, an imitation of all of AWS.
    ///
    /// `environment` is the virtual environment that has it.
    pub fn moto(environment: &Path) -> Result<Self> {
        Self::start(environment, &MOTO)
    }

    /// Starts MiniStack, another imitation of AWS.
    pub fn ministack(environment: &Path) -> Result<Self> {
        Self::start(environment, &MINISTACK)
    }

    fn start(environment: &Path, program: &Program) -> Result<Self> {
        let path = environment.join("bin").join(program.name);
        ensure!(path.exists(), "{} is missing: run `cargo xtask prepare`", path.display());
        let mut last = Self::start_once(&path, program);
        for _ in 1..PORTS_MAX {
            if last.is_ok() {
                break;
            }
            last = Self::start_once(&path, program);
        }
        last
    }

    fn start_once(path: &Path, program: &Program) -> Result<Self> {
        let scratch = Scratch::create_private("tenure-cloud")?;
        let port = free_port()?;
        let mut command = Command::new("setpriv");
        command.arg("--pdeathsig=KILL").arg("--").arg(path).args((program.args)(port));
        // Nothing of the caller's environment: no credentials, proxies or settings.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("HOME", scratch.path()).env("TMPDIR", scratch.path());
        command.envs((program.env)(port)).current_dir(scratch.path());
        let process = Process::start(command, &log(&scratch))?;
        let mut server = Self { process, port, scratch };
        server.wait_ready(program)?;
        Ok(server)
    }

    fn wait_ready(&mut self, program: &Program) -> Result<()> {
        let started = stopwatch();
        // The port may be another process's, which answers while the server has ended.
        while !self.is_healthy(program.health) || self.process.has_ended() {
            let ended = self.process.has_ended() || started.elapsed() > READY_TIMEOUT;
            ensure!(!ended, "{} did not start; its log:\n{}", program.name, self.log_text());
            pause();
        }
        Ok(())
    }

    fn is_healthy(&self, path: &str) -> bool {
        self.get(path).is_ok_and(|answer| {
            answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.0 200")
        })
    }

    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).context("connect")?;
        stream.set_read_timeout(Some(HEALTH_TIMEOUT)).context("set a timeout")?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).context("send a request")?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).context("read an answer")?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Returns the log since the start.
    #[must_use]
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(log(&self.scratch)).unwrap_or_default()
    }

    /// Returns its address, `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sends a signal, such as SIGSTOP or SIGCONT.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }
}

impl Drop for PythonServer {
    fn drop(&mut self) {
        self.process.terminate(Signal::KILL);
    }
}

fn log(scratch: &Scratch) -> PathBuf {
    scratch.path().join("server.log")
}
