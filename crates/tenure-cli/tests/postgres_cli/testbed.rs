//! Tenure servers on a database, and helpers to run the binary and `psql`.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tenure_testbed::Postgres;

use crate::common::{http, stderr, stdout, tenure, until};

/// A Tenure server on a database; killed on drop.
pub(crate) struct TestServer {
    child: Child,
    listen: String,
    dir: TempDir,
}

impl TestServer {
    /// Starts a server and waits until it accepts connections.
    pub(crate) fn start(store: &str) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = free.local_addr().expect("it is bound").to_string();
        drop(free);
        let dir = TempDir::new().expect("a temporary directory");
        let config = dir.path().join("tenure.toml");
        std::fs::write(&config, "[kinds.report.operations.build]\n").expect("it is writable");
        let log = std::fs::File::create(dir.path().join("log")).expect("it is writable");
        let child = tenure(dir.path())
            .args(["serve", "--listen", &listen, "--store", store, "--config"])
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it runs");
        let mut server = Self { child, listen, dir };
        let address_file = server.dir.path().join("server.url");
        let ended = std::cell::RefCell::new(&mut server.child);
        until(|| {
            let ended = ended.borrow_mut().try_wait().expect("it is ours");
            assert!(ended.is_none(), "{}", read(&address_file.with_file_name("log")));
            read(&address_file).contains(&server.listen)
                && TcpStream::connect(&server.listen).is_ok()
        });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    pub(crate) fn listen(&self) -> &str {
        &self.listen
    }

    pub(crate) fn admin_key(&self) -> String {
        read(&self.dir.path().join("admin.key")).trim().to_owned()
    }

    /// Returns its metrics.
    pub(crate) fn metrics(&self) -> String {
        let key = format!("x-api-key: {}", self.admin_key());
        http(&self.listen, &["GET /metrics HTTP/1.1", &key], "").expect("it answers")
    }

    /// Returns its stderr output.
    pub(crate) fn log(&self) -> String {
        read(&self.dir.path().join("log"))
    }

    /// Runs the binary against this server.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        tenure(self.dir.path()).args(args).output().expect("it runs")
    }

    /// Runs the binary against this server, which must succeed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        ok(tenure(self.dir.path()).args(args))
    }

    /// Acquires a lock and returns its token.
    pub(crate) fn acquire(&self, lock: &str) -> u64 {
        let output = self.ok(&["lock", "acquire", lock, "--ttl", "1h", "-o", "json"]);
        let tenure: Value = serde_json::from_str(&output).expect("it is JSON");
        tenure["token"].as_u64().expect("it has a token")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Runs the binary without a server.
pub(crate) fn run(args: &[&str]) -> Output {
    let dir = TempDir::new().expect("a temporary directory");
    tenure(dir.path()).args(args).env_remove("PGPASSWORD").output().expect("it runs")
}

/// Runs a program, which must succeed, and returns its stdout.
pub(crate) fn ok(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}{}", stderr(&output), stdout(&output));
    stdout(&output)
}

/// Runs `tenure doctor` and returns its exit code and report.
pub(crate) fn doctor(store: &str) -> (Option<i32>, Value) {
    let output = run(&["doctor", "--store", store, "-o", "json"]);
    let found = serde_json::from_slice(&output.stdout);
    (output.status.code(), found.unwrap_or_else(|_| panic!("{}", stderr(&output))))
}

/// Returns a finding by its name.
pub(crate) fn finding<'a>(report: &'a Value, name: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("it has findings");
    let found = findings.iter().find(|finding| finding["name"] == name);
    found.unwrap_or_else(|| panic!("no finding {name}: {report}"))
}

/// Returns the URL of a database for another role.
pub(crate) fn url_as(server: &Postgres, role: &str, database: &str) -> String {
    format!("postgres://{role}@127.0.0.1:{}/{database}", server.port())
}

/// Runs a script with `psql` and returns its stdout, or its stderr if it fails.
pub(crate) fn psql(url: &str, script: &str) -> Result<String, String> {
    let mut child = Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"])
        .args(["--dbname", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it runs");
    if output.status.success() { Ok(stdout(&output)) } else { Err(stderr(&output)) }
}
