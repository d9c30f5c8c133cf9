//! A server with kinds, a worker controlled step by step, and the binary on a pseudo-terminal.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};
use tenure::http::HttpTransport;
use tokio::runtime::Runtime;

use crate::common::{Server, TENURE, stderr, stdout, until};

/// A kind with states and policies, and one without. Only the tests run their jobs.
const CONFIG: &str = r#"
[kinds.database]
states = ["PENDING", "CREATING", "READY", "DESTROYING", "DESTROYED", "FAILED"]
[kinds.database.operations.create]
from = ["PENDING", "FAILED"]
during = "CREATING"
ok = "READY"
failed = "FAILED"
retry = { attempts = 2, initial = "1h", max = "1h" }
meets = { create = "attach", destroy = "reject" }
[kinds.database.operations.destroy]
from = ["READY"]
during = "DESTROYING"
ok = "DESTROYED"
failed = "FAILED"
[kinds.report.operations.run]
retry = { attempts = 1 }
[kinds.report.operations.refresh]
meets = { refresh = "replace" }
[kinds.suite]
grouped = true
[kinds.suite.operations.run]
"#;

pub(crate) struct Site {
    pub(crate) server: Server,
    runtime: Runtime,
}

impl Site {
    pub(crate) fn start() -> Self {
        Self::start_with(CONFIG)
    }

    /// Starts a server with the given `tenure.toml`.
    pub(crate) fn start_with(config: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        Self { server: Server::start_with(Some(config)), runtime }
    }

    /// Runs the binary, which must succeed, and returns its stdout.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.server.run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// Runs the binary with `-o json` and returns its output.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let printed = self.ok(&[args, &["-o", "json"]].concat());
        serde_json::from_str(&printed)
            .unwrap_or_else(|error| panic!("{args:?}: {error}: {printed}"))
    }

    /// Runs the binary and returns its exit code and stderr.
    pub(crate) fn code(&self, args: &[&str]) -> (i32, String) {
        let output = self.server.run(args);
        (output.status.code().expect("it was not killed"), stderr(&output))
    }

    /// Submits a job and returns its id.
    pub(crate) fn submit(&self, resource: &str, operation: &str) -> String {
        id_in(&self.ok(&["job", "submit", resource, operation]))
    }

    pub(crate) fn state(&self, id: &str) -> String {
        self.json(&["job", "show", id])["state"].as_str().expect("it has a state").to_owned()
    }

    /// Starts the binary in the background, with its output in files.
    pub(crate) fn spawn(&self, args: &[&str]) -> Running {
        let (out, err) = (self.unused_path("out"), self.unused_path("err"));
        let file = |path| File::create(path).expect("it is writable");
        let mut command = self.server.tenure();
        command.args(args).stdout(file(&out)).stderr(file(&err));
        Running { child: command.spawn().expect("the binary starts"), out, err }
    }

    fn unused_path(&self, name: &str) -> PathBuf {
        let files = (0..).map(|n| self.server.file(&format!("{name}.{n}")));
        files.into_iter().find(|path| !path.exists()).expect("an unused name")
    }

    /// Opens a session for a worker controlled by the test.
    pub(crate) fn worker(&self, name: &str) -> ManualWorker<'_> {
        let body = json!({ "name": name, "ttl_ms": 3_600_000 });
        let answer = self.post("/v1/sessions", &body);
        let session = answer["session"].as_str().expect("it has an id").to_owned();
        ManualWorker { site: self, session }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (url, key) = (self.server.url(), self.server.key());
        let transport = HttpTransport::new(&url, &key, "default").expect("an address");
        let timeout = Duration::from_secs(30);
        self.runtime.block_on(transport.post(path, None, body, timeout)).expect("it is accepted")
    }
}

/// Returns the id in `ready 019a…`.
pub(crate) fn id_in(line: &str) -> String {
    let id = line.split_whitespace().nth(1).unwrap_or_else(|| panic!("no id in {line:?}"));
    assert_eq!(id.len(), 32, "{line}");
    id.to_owned()
}

/// A worker controlled by the test.
pub(crate) struct ManualWorker<'a> {
    site: &'a Site,
    session: String,
}

/// A job claimed by a [`ManualWorker`].
pub(crate) struct ClaimedJob<'a> {
    site: &'a Site,
    pub(crate) id: String,
    token: Value,
}

impl<'a> ManualWorker<'a> {
    pub(crate) fn claim(&self) -> ClaimedJob<'a> {
        let kinds = ["database", "report", "suite"];
        let body = json!({ "session": self.session, "kinds": kinds, "wait_ms": 30_000 });
        let answer = self.site.post("/v1/jobs/claim", &body);
        let job = &answer["jobs"][0];
        let id = job["job"]["id"].as_str().unwrap_or_else(|| panic!("nothing to do: {answer}"));
        ClaimedJob { site: self.site, id: id.to_owned(), token: job["tenure"]["token"].clone() }
    }
}

impl ClaimedJob<'_> {
    pub(crate) fn progress(&self, percent: u8, message: &str) -> bool {
        let body = json!({ "token": self.token, "percent": percent, "message": message });
        let answer = self.site.post(&format!("/v1/jobs/{}/progress", self.id), &body);
        answer["cancelling"].as_bool().expect("a boolean")
    }

    pub(crate) fn status(&self, merge: &Value) {
        let body = json!({ "token": self.token, "merge": merge });
        self.site.post(&format!("/v1/jobs/{}/status", self.id), &body);
    }

    pub(crate) fn log(&self, text: &str) {
        let body = json!({ "token": self.token, "text": text });
        self.site.post(&format!("/v1/jobs/{}/logs", self.id), &body);
    }

    pub(crate) fn finish(&self, mut outcome: Value) {
        outcome["token"] = self.token.clone();
        self.site.post(&format!("/v1/jobs/{}/finish", self.id), &outcome);
    }

    pub(crate) fn succeed(&self) {
        self.finish(json!({ "outcome": "ok" }));
    }

    pub(crate) fn fail(&self, code: &str, message: &str, transient: bool) {
        let (outcome, code) = ("failed", code);
        self.finish(json!({
            "outcome": outcome, "code": code, "message": message, "transient": transient,
        }));
    }
}

/// The binary in the background; killed on drop.
pub(crate) struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn out(&self) -> String {
        std::fs::read_to_string(&self.out).expect("it was created")
    }

    pub(crate) fn err(&self) -> String {
        std::fs::read_to_string(&self.err).expect("it was created")
    }

    pub(crate) fn until_err(&self, words: &str) {
        until(|| self.err().contains(words));
    }

    /// Returns the id in the first line of its output.
    pub(crate) fn id(&self) -> String {
        until(|| self.out().contains('\n'));
        id_in(&self.out())
    }

    /// Stops the process as a user would.
    pub(crate) fn stop(&mut self) {
        crate::common::signal(self.child.id(), "TERM");
        wait_until_exited(&mut self.child);
    }

    pub(crate) fn exit_code(mut self) -> Option<i32> {
        wait_until_exited(&mut self.child).code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn wait_until_exited(child: &mut Child) -> std::process::ExitStatus {
    let status = std::cell::Cell::new(None);
    let child = std::cell::RefCell::new(child);
    until(|| {
        status.set(child.borrow_mut().try_wait().expect("it is ours"));
        status.get().is_some()
    });
    status.get().expect("it has ended")
}

/// The binary on its own pseudo-terminal.
pub(crate) struct Terminal {
    child: Child,
    master: File,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    pub(crate) fn run(site: &Site, args: &[&str]) -> Self {
        Self::run_with_columns(site, args, 150)
    }

    pub(crate) fn run_with_columns(site: &Site, args: &[&str], columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("it is a terminal");
        let path = ptsname(&master, Vec::new()).expect("it has a name").into_string();
        let noctty = OpenptFlags::NOCTTY.bits().cast_signed();
        let mut open = OpenOptions::new();
        let slave = open.read(true).write(true).custom_flags(noctty);
        let slave = slave.open(path.expect("ASCII")).expect("the other end");
        let side = || Stdio::from(slave.try_clone().expect("a file"));
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", TENURE]).args(args).env("TERM", "xterm");
        for (name, value) in site.server.tenure().get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn();
        let (master, screen) = (File::from(master), Arc::new(Mutex::new(String::new())));
        let (reader, shown) = (master.try_clone().expect("a file"), Arc::clone(&screen));
        std::thread::spawn(move || read(reader, &shown));
        Self { child: child.expect("setsid is there"), master, screen }
    }

    /// Returns all output so far.
    pub(crate) fn screen(&self) -> String {
        self.screen.lock().expect("no panic").clone()
    }

    /// Waits for words, whatever their colour is.
    pub(crate) fn until(&self, words: &str) {
        until(|| without_colors(&self.screen()).contains(words));
    }

    /// Returns the id of the process, which `setsid` has become.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn resize(&self, columns: u16) {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).expect("it is a terminal");
    }

    pub(crate) fn type_in(&mut self, keys: &[u8]) {
        self.master.write_all(keys).expect("it is open");
    }

    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        wait_until_exited(&mut self.child).code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns a text without the sequences that select colours.
pub(crate) fn without_colors(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| match part.split_once('m') {
        Some((code, rest)) if code.bytes().all(|b| b.is_ascii_digit() || b == b';') => plain + rest,
        _ => plain + "\u{1b}[" + part,
    })
}

/// Reads until the other end is closed, which is an error on a pseudo-terminal.
fn read(mut master: File, screen: &Mutex<String>) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = master.read(&mut bytes) {
        screen.lock().expect("no panic").push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
}

/// Runs a command with `input` on stdin.
pub(crate) fn with_input(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    child.wait_with_output().expect("it is ours")
}
