//! A real server process with its own data directory, and helpers to run the real binary.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// Returns a command for the binary, without the `TENURE_*` variables of the environment.
pub fn tenure(data: &Path) -> Command {
    let mut command = Command::new(TENURE);
    let names = ["SERVER", "KEY", "STORE", "TENANT", "LOG", "CONFIG", "CA"];
    for name in names.into_iter().chain(["LOG_FORMAT", "ADMIN_KEY_FILE"]) {
        command.env_remove(format!("TENURE_{name}"));
    }
    command.env("TENURE_DATA", data).stdin(Stdio::null());
    command
}

pub struct Server {
    child: Option<Child>,
    listen: String,
    dir: TempDir,
    /// Variables of its environment.
    env: Vec<(&'static str, PathBuf)>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a server with the given `tenure.toml`.
    pub fn start_with(config: Option<&str>) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = free.local_addr().expect("it is bound").to_string();
        drop(free);
        let dir = TempDir::new().expect("a temporary directory");
        let mut server = Self { child: None, listen, dir, env: Vec::new() };
        if let Some(config) = config {
            std::fs::write(server.file("tenure.toml"), config).expect("it is writable");
        }
        server.launch();
        server
    }

    /// Sets variables of the environment of later launches.
    pub fn set_env(&mut self, env: Vec<(&'static str, PathBuf)>) {
        self.env = env;
    }

    /// Starts the process and waits until it accepts connections.
    pub fn launch(&mut self) {
        let config = Some(self.file("tenure.toml")).filter(|config| config.exists());
        let child = tenure(self.dir.path())
            .envs(self.env.iter().cloned())
            .args(["serve", "--listen", &self.listen])
            .args(
                config.map(|config| ["--config".into(), config.into_os_string()]).iter().flatten(),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        self.child = Some(child);
        // It listens before it publishes its address, by which the binary finds it.
        let (listen, file) = (&self.listen, self.file("server.url"));
        let is_published =
            || std::fs::read_to_string(&file).is_ok_and(|url| url.contains(&**listen));
        until(|| is_published() && std::net::TcpStream::connect(listen).is_ok());
    }

    pub fn data(&self) -> &Path {
        self.dir.path()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    pub fn listen(&self) -> &str {
        &self.listen
    }

    pub fn key(&self) -> String {
        let key = std::fs::read_to_string(self.dir.path().join("admin.key"));
        key.expect("the key was created").trim().to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits until the process has exited.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.take().expect("it runs").wait().expect("it is ours")
    }

    pub fn tenure(&self) -> Command {
        tenure(self.data())
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.tenure().args(args).output().expect("the binary runs")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.expect("kill runs").success(), "cannot send {name} to {pid}");
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits for a condition, for up to thirty seconds.
#[expect(clippy::disallowed_methods, reason = "the one bounded wait of these tests")]
pub fn until(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(30), "timed out waiting for the condition");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns an address without a listener.
pub fn free_address() -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("it is bound").to_string()
}

/// Sends one request with `lines` as its head, and returns the raw response.
pub fn http(listen: &str, lines: &[&str], body: &str) -> std::io::Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(listen)?;
    let length = format!("content-length: {}", body.len());
    let head = [lines, &["host: tenure", "connection: close", &length, "", body]].concat();
    stream.write_all(head.join("\r\n").as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}
