//! A server, a directory with a script that runs tests and a journal of its runs, and nodes.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;
use tenure_testbed::shared;

use crate::common::{free_address, signal, tenure, until};

/// Settings of the server: a node is lost after three seconds.
pub(crate) const SETTINGS: &str = "[builds]\nstale = \"3s\"\nwait = \"2s\"\n";

/// Runs a test and writes `begin TEST WORKER PID` and `end TEST WORKER PID` to the journal, and
/// `overlap TEST` if an earlier run of it is alive. What the test does is in the file `do.TEST`, a
/// shell script.
const SCRIPT: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
touch journal
for pid in $(sed -n "s/^begin $1 [^ ]* \([0-9]*\)$/\1/p" journal); do
  kill -0 "$pid" 2> /dev/null && echo "overlap $1 $pid" >> journal
done
echo "begin $1 $TENURE_WORKER $$" >> journal
code=0
if [ -e "do.$1" ]; then . "./do.$1"; fi
echo "end $1 $TENURE_WORKER $$" >> journal
exit $code
"#;

/// Store of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Embedded,
    Postgres,
}

pub(crate) struct Bed {
    pub(crate) dir: TempDir,
    pub(crate) listen: String,
    store: Option<String>,
    server: Option<Child>,
}

impl Bed {
    pub(crate) fn start(store: StoreKind) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let store = (store == StoreKind::Postgres).then(|| {
            let postgres = shared();
            postgres.url(&postgres.new_database().expect("a database"))
        });
        let mut bed = Self { dir, listen: free_address(), store, server: None };
        bed.write("tenure.toml", SETTINGS);
        bed.write("test.sh", SCRIPT);
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bed.file("test.sh"), executable).expect("it is writable");
        bed.launch();
        bed
    }

    pub(crate) fn launch(&mut self) {
        let mut command = tenure(&self.file("data"));
        command.args(["serve", "--listen", &self.listen, "--config"]).arg(self.file("tenure.toml"));
        if let Some(store) = &self.store {
            command.args(["--store", store]);
        }
        let log = File::create(self.file("server.log")).expect("it is writable");
        let child = command.stdout(Stdio::null()).stderr(log).spawn();
        self.server = Some(child.expect("the binary starts"));
        let (url, listen) = (self.file("data/server.url"), self.listen.clone());
        until(|| {
            fs::read_to_string(&url).is_ok_and(|url| url.contains(&listen))
                && std::net::TcpStream::connect(&listen).is_ok()
        });
    }

    pub(crate) fn kill_server(&mut self) {
        let mut server = self.server.take().expect("it runs");
        server.kill().expect("it is ours");
        server.wait().expect("it is ours");
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).expect("it is writable");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Writes a list of tests `t1` to `tN`. Returns its path.
    pub(crate) fn tests(&self, count: usize) -> String {
        let tests: Vec<String> = (1..=count).map(|n| format!("t{n}\n")).collect();
        self.write("tests.txt", &tests.concat());
        self.file("tests.txt").display().to_string()
    }

    /// Returns the command that runs one test.
    pub(crate) fn script(&self) -> [String; 2] {
        [self.file("test.sh").display().to_string(), "{}".to_owned()]
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = tenure(&self.file("data"));
        let ci = ["GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "JENKINS_URL"];
        for name in ci {
            command.env_remove(name);
        }
        command
    }

    /// Starts `tenure build run x` with the options, on the script.
    pub(crate) fn node(&self, worker: &str, options: &[&str]) -> Node {
        let script = self.script();
        self.node_with(worker, options, &[&script[0], &script[1]])
    }

    /// Starts a node with another command.
    pub(crate) fn node_with(&self, worker: &str, options: &[&str], words: &[&str]) -> Node {
        let mut command = self.command();
        command.args(["build", "run", "x", "--worker", worker]).args(options).arg("--").args(words);
        self.spawn(worker, command)
    }

    pub(crate) fn spawn(&self, name: &str, mut command: Command) -> Node {
        let create =
            |end: &str| File::create(self.file(&format!("{name}.{end}"))).expect("it is writable");
        command.stdout(create("out")).stderr(create("err"));
        let child = Some(command.spawn().expect("the binary starts"));
        let (out, err) = (self.file(&format!("{name}.out")), self.file(&format!("{name}.err")));
        Node { child, out, err }
    }

    /// Runs a verb of `tenure build` to its end. Returns its standard output.
    pub(crate) fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.command().arg("build").args(args).output().expect("the binary runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    }

    /// Returns the build as JSON.
    pub(crate) fn status(&self) -> serde_json::Value {
        let (_, text) = self.run(&["status", "x", "-o", "json"]);
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Returns the report as JSON.
    pub(crate) fn report(&self) -> serde_json::Value {
        let (_, text) = self.run(&["report", "x", "-o", "json"]);
        serde_json::from_str(&text).expect("a report")
    }

    /// Returns the runs of a test, from the journal: worker, and whether it was completed.
    pub(crate) fn runs(&self, test: &str) -> Vec<(String, bool)> {
        let journal = self.read("journal");
        let of_test = |line: &&str| line.split(' ').nth(1) == Some(test);
        let mut runs: Vec<(String, bool)> = Vec::new();
        for line in journal.lines().filter(of_test) {
            let mut words = line.split(' ');
            let (what, worker) = (words.next(), words.nth(1).unwrap_or_default());
            match what {
                Some("begin") => runs.push((worker.to_owned(), false)),
                Some("overlap") => panic!("two runs of {test} were alive at once: {journal}"),
                _ => {
                    let open = runs.iter_mut().rev().find(|run| run.0 == worker && !run.1);
                    open.expect("a run ends after it began").1 = true;
                }
            }
        }
        runs
    }

    /// Checks that every test of the list ran to its end, and that no run of a test began while
    /// another one of it was alive.
    pub(crate) fn check_journal(&self, count: usize) {
        for n in 1..=count {
            let test = format!("t{n}");
            let runs = self.runs(&test);
            assert!(runs.iter().any(|run| run.1), "{test} never was completed: {runs:?}");
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().ok();
            server.wait().ok();
        }
    }
}

/// A process; killed on drop, even if it is stopped.
pub(crate) struct Node {
    child: Option<Child>,
    out: PathBuf,
    err: PathBuf,
}

impl Node {
    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.as_ref().expect("it runs").id(), name);
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }

    /// Waits until the process has exited. Returns its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        let mut status: Option<ExitStatus> = None;
        let cell = std::cell::RefCell::new((&mut child, &mut status));
        until(|| {
            let (child, status) = &mut *cell.borrow_mut();
            **status = child.try_wait().expect("it is ours");
            status.is_some()
        });
        status.expect("it has exited").code()
    }

    pub(crate) fn out(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    pub(crate) fn err(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|exit| exit.is_none()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}
