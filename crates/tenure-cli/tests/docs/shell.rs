//! Runs the commands of one document in one bash process, in a directory and at an address of its
//! own.
//!
//! Programs in `bin` come first in `PATH`: `tenure` is the binary under test, which listens at that
//! address unless the document names another; `curl` fails on an unexpected status.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use regex::Regex;
use tempfile::TempDir;

use crate::blocks::{self, Action, Expected, Step, root, starts_job};
use crate::common::{self, TENURE, free_address, until};
use crate::matching::Ids;

/// Maximum time without output, also while a job has not printed what is shown.
const SILENCE_MAX: Duration = Duration::from_secs(40);

/// How often, and how many times, a new process is asked whether it is ready.
const READY_POLL: Duration = Duration::from_millis(20);
const READY_POLLS_MAX: usize = 1500;

/// A comment that stops the server.
const STOP: &str = "# stop the server";

/// Marks lines that the shell prints for this process.
const MARK: char = '\u{1e}';

/// Reads names of files with commands from standard input, and executes them.
const LOOP: &str = r#"
exec 4>&1
set -Eeuo pipefail
trap 'printf "\n\036failed %s %s\n" "$LINENO" "exit code $?" >&4' ERR
trap 'printf "\n\036exit\n" >&4' EXIT
exited() {
  [ "$1" -eq "$2" ] && return 0
  printf "\n\036failed %s %s\n" "${BASH_LINENO[0]}" "exit code $1, documented is $2" >&4
  exit 1
}
while IFS= read -r step; do
  source "$step" < /dev/null
  printf '\n\036done\n' >&4
done
"#;

/// Adds the address to `tenure serve`.
const TENURE_WRAPPER: &str = r#"#!/bin/bash
if [ "${1-}" = serve ] && [[ " $* " != *" --listen "* ]]; then
  exec "$DOCS_TENURE" "$@" --listen "$DOCS_ADDRESS"
fi
exec "$DOCS_TENURE" "$@"
"#;

/// Checks the status of the answer: that which is documented, or any that is no error.
const CURL_WRAPPER: &str = r#"#!/bin/bash
PATH=${PATH#*:}
if [ -z "${DOCS_STATUS-}" ]; then
  exec curl --fail-with-body "$@"
fi
body=$(mktemp -p "$HOME")
status=$(curl -o "$body" -w '%{http_code}' "$@")
cat "$body"
[ "$status" = "$DOCS_STATUS" ] && exit
echo "status $status, documented is $DOCS_STATUS" >&2
exit 22
"#;

/// Names the server for the worker in Python, whose default is a fixed port.
const PYTHON_WRAPPER: &str = r#"#!/bin/bash
PATH=${PATH#*:} TENURE_SERVER=http://$DOCS_ADDRESS exec python3 "$@"
"#;

static EXIT_COMMENT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^(.*\S)\s+# exit (\d+)\b.*$").expect("a valid expression"));

static STATUS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r##"(?:# |"status": )([45]\d\d)\b"##).expect("a valid expression"));

/// A request in one line with the status that is documented.
static STATUS_COMMENT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^(curl .*# ([45]\d\d)\b.*)$").expect("a valid expression"));

pub(crate) struct Shell {
    document: &'static str,
    dir: TempDir,
    bash: Child,
    steps: Option<ChildStdin>,
    lines: Receiver<String>,
    /// What stands in the document, and what is used in its place.
    places: Vec<(String, String)>,
    ids: Ids,
    background: Vec<Process>,
    has_jobs: bool,
}

/// A process that runs until the document ends.
struct Process {
    child: Child,
    /// Where a server listens, else empty.
    address: String,
    /// The data directory of a server, else empty.
    data: String,
}

/// Runs a document. `prepare` provides what the document assumes, such as a server.
pub(crate) fn run(document: &'static str, prepare: fn(&mut Shell)) {
    let page = blocks::read(document);
    let actions = blocks::actions(&page).unwrap_or_else(|problems| {
        panic!("{document}:{}", problems.join(&format!("\n{document}:")))
    });
    let mut shell = Shell::start(document);
    prepare(&mut shell);
    for action in actions {
        match action {
            Action::Write { name, text } => shell.write(&name, &text),
            Action::Run(step) => {
                if step.text.lines().any(|line| line == STOP) {
                    shell.stop_all();
                }
                shell.step(&step);
            }
            Action::Start(step) => shell.start_process(&step),
        }
    }
    shell.stop_all();
}

impl Shell {
    fn start(document: &'static str) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        for name in ["bin", "work", "home", "backup", "steps"] {
            fs::create_dir(dir.path().join(name)).expect("a writable directory");
        }
        let wrappers =
            [("tenure", TENURE_WRAPPER), ("curl", CURL_WRAPPER), ("python3", PYTHON_WRAPPER)];
        for (name, text) in wrappers {
            let file = dir.path().join("bin").join(name);
            fs::write(&file, text).expect("a writable directory");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("our file");
        }
        let copied = Command::new("cp")
            .arg("-r")
            .args(["apps", "examples"].map(|folder| root().join(folder)))
            .arg(dir.path().join("work"))
            .status();
        assert!(copied.expect("cp runs").success(), "cannot copy the examples");
        let places = places(dir.path());
        let mut command = Self::bash(dir.path(), &places[0].1);
        command.args(["-c", LOOP, "bash"]).stdin(Stdio::piped()).process_group(0);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdout(writer.try_clone().expect("a pipe")).stderr(writer);
        let mut bash = command.spawn().expect("bash runs");
        drop(command);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
                line.clear();
            }
        });
        let steps = bash.stdin.take();
        let (ids, background) = (Ids::default(), Vec::new());
        Self { document, dir, bash, steps, lines, places, ids, background, has_jobs: false }
    }

    /// Returns a bash with the environment of the document.
    fn bash(dir: &Path, address: &str) -> Command {
        let mut command = Command::new("bash");
        let path = std::env::var("PATH").expect("a PATH");
        command
            .env_clear()
            .env("PATH", format!("{}:{path}", dir.join("bin").display()))
            .env("HOME", dir.join("home"))
            .env("LANG", "C.UTF-8")
            .env("DOCS_TENURE", TENURE)
            .env("DOCS_ADDRESS", address)
            .current_dir(dir.join("work"));
        command
    }

    /// Returns a path in the directory where commands are executed.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("work").join(name)
    }

    /// Writes a file that the document shows. A script is executable, and valid.
    fn write(&mut self, name: &str, text: &str) {
        let file = self.file(name);
        fs::write(&file, text).expect("a writable directory");
        if text.starts_with("#!") {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("our file");
            self.assume(&format!("bash -n {name}"));
        }
    }

    /// Uses `real` wherever the document has `shown`.
    pub(crate) fn place(&mut self, shown: &str, real: &str) {
        self.places.insert(0, (shown.into(), real.into()));
    }

    /// Returns the data directory of the user.
    fn data(&self) -> PathBuf {
        self.dir.path().join("home/.local/share/tenure")
    }

    fn address(&self) -> &str {
        let shown = "127.0.0.1:7117";
        &self.places.iter().find(|place| place.0 == shown).expect("it is always there").1
    }

    /// Starts a server that the document assumes.
    pub(crate) fn serve(&mut self, command: &str) {
        self.start_process(&Step { line: 1, text: format!("{command}\n"), expected: None });
    }

    /// Executes commands that the document assumes.
    pub(crate) fn assume(&mut self, commands: &str) {
        self.step(&Step { line: 1, text: format!("{commands}\n"), expected: None });
    }

    /// Returns the real commands for those of a document.
    fn real(&self, text: &str) -> String {
        let mut text = self.ids.substitute(text);
        for (shown, real) in &self.places {
            text = text.replace(shown, real);
        }
        let replacement = "if $1; then exited 0 $2; else exited $$? $2; fi";
        let text = EXIT_COMMENT.replace_all(&text, replacement);
        STATUS_COMMENT.replace_all(&text, "DOCS_STATUS=$2 $1").into_owned()
    }

    /// Returns an output with the names of the document.
    fn shown(&self, output: &str) -> String {
        let mut output = output.to_owned();
        for (shown, real) in self.places.iter().rev() {
            output = output.replace(real, shown);
        }
        output
    }

    /// Writes commands to a file whose line numbers are those of the document.
    fn write_step(&self, step: &Step, first: &str, text: &str) -> PathBuf {
        let file = self.dir.path().join("steps").join(self.document.replace('/', "."));
        let lines = "\n".repeat(step.line.saturating_sub(1));
        fs::write(&file, format!("{first}{lines}{text}")).expect("a writable directory");
        file
    }

    fn step(&mut self, step: &Step) {
        let starts_job = step.text.lines().next_back().is_some_and(starts_job);
        let before = starts_job.then(|| self.activity());
        let shown =
            step.expected.as_ref().map(|(Expected::Text(text) | Expected::Json(text))| text);
        let is_single = step.text.matches("curl ").count() == 1;
        let commands = if is_single { &*step.text } else { "" };
        let status = STATUS.captures(commands).or_else(|| STATUS.captures(shown?));
        let status = status.map_or_else(String::new, |found| found[1].to_owned());
        let text = self.real(&step.text);
        let file = self.write_step(step, &format!("export DOCS_STATUS={status}; "), &text);
        let steps = self.steps.as_mut().expect("it is open until the end");
        writeln!(steps, "{}", file.display()).expect("bash reads");
        self.has_jobs |= starts_job;
        self.await_end(step);
        if let Some(before) = before {
            until(|| self.activity() != before);
        }
    }

    /// Waits until the commands have ended and the expected output is there.
    fn await_end(&mut self, step: &Step) {
        let (mut output, mut has_ended) = (String::new(), false);
        let mut failure = None;
        loop {
            let matches = |ids: &mut Ids, output: &str, exactly| {
                step.expected.as_ref().is_none_or(|text| ids.matches(text, output, exactly))
            };
            if has_ended {
                let shown = self.shown(&output);
                if matches(&mut self.ids, &shown, !self.has_jobs) {
                    return;
                }
                if !self.has_jobs {
                    self.fail(step, step.line, "the output is not what is shown", &output);
                }
            }
            let Ok(line) = self.lines.recv_timeout(SILENCE_MAX) else {
                let what = if has_ended { "the output is not what is shown" } else { "timed out" };
                self.fail(step, step.line, what, &output);
            };
            match line.strip_prefix(MARK).map(|mark| mark.trim_end().split_once(' ')) {
                None => output += &line,
                Some(Some((_, what))) => failure = failure.or_else(|| Some(what.to_owned())),
                Some(None) if line.contains("done") => has_ended = true,
                Some(None) => {
                    let failure = failure.unwrap_or_else(|| "0 bash has exited".into());
                    let (line, what) = failure.split_once(' ').expect("a line and a reason");
                    self.fail(step, line.parse().unwrap_or(step.line), what, &output);
                }
            }
        }
    }

    /// Counts holders, waiters, workers and their jobs: a new job of the shell changes it.
    fn activity(&self) -> u64 {
        let key = fs::read_to_string(self.data().join("admin.key")).expect("a server runs");
        let key = format!("authorization: Bearer {}", key.trim());
        ["/v1/locks", "/v1/workers"]
            .map(|path| {
                let head = [&*format!("GET {path} HTTP/1.1"), &*key];
                let answer = common::http(self.address(), &head, "").expect("the server answers");
                let body = answer.split_once("\r\n\r\n").expect("a body").1;
                let body: serde_json::Value = serde_json::from_str(body).expect("a JSON body");
                let items = body["items"].as_array().expect("a list").iter();
                items
                    .map(|item| {
                        let jobs = item["jobs"].as_array().map_or(0, Vec::len);
                        1 + item["waiters"].as_u64().unwrap_or(0) + jobs as u64
                    })
                    .sum::<u64>()
            })
            .iter()
            .sum()
    }

    /// Starts a process and waits until it is ready. A server replaces the one before it.
    fn start_process(&mut self, step: &Step) {
        let text = self.real(&step.text);
        let is_server = text.contains("tenure serve");
        let option = |name: &str| text.split(name).nth(1)?.split_whitespace().next();
        let address = option("--listen ").unwrap_or_else(|| self.address()).to_owned();
        let data = option("--data ").filter(|dir| *dir != ".").map(Into::into);
        let data = data.unwrap_or_else(|| self.data().display().to_string());
        if is_server {
            self.stop_where(|other| other.address == address || other.data == data);
        }
        // What the commands before have exported, and their directory.
        let exports = self.dir.path().join("exports");
        self.assume(&format!(
            "{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {}",
            exports.display()
        ));
        let before = if is_server { 0 } else { self.activity() };
        let first = format!("set -eu; source {}; ", exports.display());
        let file = self.write_step(step, &first, &format!("exec {text}"));
        let log_path = self.dir.path().join(format!("log.{}", self.background.len()));
        let log = File::create(&log_path).expect("a writable directory");
        let child = Self::bash(self.dir.path(), self.address())
            .arg(file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("bash runs");
        let is_of = |text: &str| if is_server { text.to_owned() } else { String::new() };
        self.background.push(Process { child, address: is_of(&address), data: is_of(&data) });
        let is_ready = |shell: &Self| {
            if !is_server {
                return shell.activity() != before;
            }
            let answer = common::http(&address, &["GET /readyz HTTP/1.1"], "");
            answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        self.await_ready(step, &log_path, is_ready);
    }

    /// Waits until the last process is ready and has printed what is shown.
    fn await_ready(&mut self, step: &Step, log: &Path, is_ready: impl Fn(&Self) -> bool) {
        let read = || fs::read_to_string(log).expect("our file");
        for _ in 0..READY_POLLS_MAX {
            let process = self.background.last_mut().expect("it was started");
            if let Some(status) = process.child.try_wait().expect("our child") {
                self.fail(step, step.line, &format!("the process has ended: {status}"), &read());
            }
            let shown = self.shown(&read());
            let expected = step.expected.as_ref();
            if is_ready(self) && expected.is_none_or(|text| self.ids.matches(text, &shown, false)) {
                return;
            }
            pause();
        }
        self.fail(step, step.line, "not ready, or the output is not what is shown", &read());
    }

    /// Stops processes, the last first, and requires that they exit with success.
    fn stop_where(&mut self, condition: impl Fn(&Process) -> bool) {
        while let Some(at) = self.background.iter().rposition(&condition) {
            let mut process = self.background.remove(at);
            common::signal(process.child.id(), "TERM");
            let child = RefCell::new(&mut process.child);
            until(|| child.borrow_mut().try_wait().expect("our child").is_some());
            let status = process.child.wait().expect("our child");
            assert!(status.success(), "{}: a process did not stop: {status}", self.document);
        }
    }

    fn stop_all(&mut self) {
        self.stop_where(|_| true);
    }

    fn fail(&self, step: &Step, line: usize, what: &str, output: &str) -> ! {
        let page = blocks::read(self.document);
        let line = if line == 0 { step.line } else { line };
        let command = page.lines().nth(line - 1).unwrap_or_default().trim_start_matches("$ ");
        let command = if line == 1 { &step.text } else { command };
        let expected = match &step.expected {
            Some(Expected::Text(text) | Expected::Json(text)) => format!("--- shown:\n{text}\n"),
            None => String::new(),
        };
        panic!(
            "{}:{line}: {what}\n--- command:\n{command}\n{expected}--- output:\n{}\n---\nfix the \
             command, or mark its block as `illustrative` if it cannot run",
            self.document,
            self.shown(output).trim()
        );
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The group has only processes that the document started.
        let groups =
            self.background.iter().map(|process| process.child.id()).chain([self.bash.id()]);
        for group in groups {
            let group = format!("-{group}");
            Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().ok();
        }
        self.bash.wait().ok();
        for process in &mut self.background {
            process.child.wait().ok();
        }
    }
}

/// Returns addresses and directories of documents with the free and private ones in their place.
fn places(dir: &Path) -> Vec<(String, String)> {
    let inside = |name: &str| dir.join(name).display().to_string();
    let places = [
        ("127.0.0.1:7117", free_address()),
        ("127.0.0.1:7200", free_address()),
        ("/var/lib/tenure", inside("home/.local/share/tenure")),
        ("/etc/tenure", inside("etc/tenure")),
        ("/backup", inside("backup")),
    ];
    places.map(|(shown, real)| (shown.to_owned(), real)).into()
}

#[expect(clippy::disallowed_methods, reason = "a bounded wait for a process to be ready")]
fn pause() {
    std::thread::sleep(READY_POLL);
}
