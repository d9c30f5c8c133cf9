//! Nodes of a build: processes of pytest with the plugin, on a server of their own.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use crate::common::{Server, TENURE, signal, stderr, stdout, until};

const CONFTEST: &str = include_str!("conftest.py");

/// The nodes of a build, with the tests that they run.
pub(crate) struct Bed {
    pub(crate) server: Server,
    dir: TempDir,
}

impl Bed {
    pub(crate) fn new(tests: &str) -> Self {
        Self::with("", tests)
    }

    /// Starts a server with further settings in its table `[builds]`.
    pub(crate) fn with(settings: &str, tests: &str) -> Self {
        let config = format!("[builds]\nstale = \"3s\"\n{settings}");
        let server = Server::start_with(Some(&config));
        let dir = TempDir::new().expect("a temporary directory");
        fs::create_dir(dir.path().join("tests")).expect("writable");
        fs::write(dir.path().join("tests/conftest.py"), CONFTEST).expect("writable");
        fs::write(dir.path().join("tests/test_it.py"), tests).expect("writable");
        // Names the root of the ids of tests.
        fs::write(dir.path().join("tests/pytest.ini"), "[pytest]\n").expect("writable");
        Self { server, dir }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Lets stopped nodes continue.
    pub(crate) fn release(&self) {
        File::create(self.file("go")).expect("writable");
    }

    /// Starts a node that stops nowhere.
    pub(crate) fn start(&self, worker: &str, args: &[&str]) -> Node {
        self.start_with(worker, args, &[])
    }

    /// Starts a node with variables for the tests.
    pub(crate) fn start_with(&self, worker: &str, args: &[&str], env: &[(&str, &str)]) -> Node {
        let out = self.file(&format!("{worker}.out"));
        let log = File::create(&out).expect("writable");
        let child = python()
            .args(["-m", "pytest", "-p", "pytest_tenure.plugin", "-p", "no:cacheprovider"])
            .args(["-v", "--tenure"])
            .args(args)
            .current_dir(self.file("tests"))
            .env("TENURE_SERVER", self.server.url())
            .env("TENURE_KEY", self.server.key())
            .envs([("TENURE_BUILD", "acme/4711"), ("TENURE_WORKER", worker)])
            .env("BED", self.dir.path())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("pytest starts");
        Node { child: RefCell::new(child), out, key: self.server.key() }
    }

    /// Starts a node and waits until it has stopped where `place` says.
    pub(crate) fn start_stopped(&self, worker: &str, args: &[&str], place: &str) -> Node {
        let node = self.start_with(worker, args, &[("BED_STOP", place)]);
        until(|| {
            assert!(node.try_wait().is_none(), "{}", node.out());
            self.file("stopped").exists()
        });
        node
    }

    /// Returns the tests that ran, once per run, as `WORKER TEST`.
    pub(crate) fn runs(&self) -> Vec<String> {
        let runs = fs::read_to_string(self.file("runs")).unwrap_or_default();
        let mut runs: Vec<String> = runs.lines().map(str::to_owned).collect();
        runs.sort();
        runs
    }

    /// Asserts that each of the sixty tests ran once, apart from runs on the node `but`.
    #[track_caller]
    pub(crate) fn assert_each_ran_once(&self, but: &str) {
        let runs = self.runs();
        let others = runs.iter().filter_map(|run| run.split_once(' '));
        let mut tests: Vec<&str> =
            others.filter(|(worker, _)| *worker != but).map(|(_, test)| test).collect();
        tests.sort_unstable();
        let mut expected: Vec<String> =
            (0..60).map(|n| format!("test_it.py::test_n[{n}]")).collect();
        expected.sort_unstable();
        assert_eq!(tests, expected);
    }
}

/// Returns a command for Python with the plugin.
fn python() -> Command {
    let target = Path::new(TENURE).ancestors().nth(2).expect("the target directory");
    let python = target.join("pytest/python/bin/python");
    assert!(python.exists(), "{} is missing: run `cargo xtask prepare`", python.display());
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/pytest-tenure/src");
    let mut command = Command::new(python);
    for name in ["TENURE_TENANT", "TENURE_CA", "PYTEST_ADDOPTS", "COLUMNS", "FORCE_COLOR"] {
        command.env_remove(name);
    }
    command.env("PYTHONPATH", plugin).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Returns the output of a Python program with these arguments and variables.
pub(crate) fn evaluate(program: &str, args: &[String], env: &[(&str, &str)]) -> String {
    let mut command = python();
    for name in ["TENURE_BUILD", "TENURE_WORKER", "GITHUB_RUN_ID", "CI_PIPELINE_ID"] {
        command.env_remove(name);
    }
    for name in ["BUILDKITE_BUILD_ID", "CIRCLE_WORKFLOW_ID", "JENKINS_URL"] {
        command.env_remove(name);
    }
    command.args(["-X", "utf8", "-c", program]).args(args).envs(env.iter().copied());
    let output = command.output().expect("python starts");
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// A process of pytest, killed on drop.
pub(crate) struct Node {
    child: RefCell<Child>,
    out: PathBuf,
    key: String,
}

impl Node {
    pub(crate) fn out(&self) -> String {
        let out = fs::read_to_string(&self.out).expect("text");
        assert!(!out.contains(&self.key), "the output has the key");
        out
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.borrow().id(), name);
    }

    pub(crate) fn try_wait(&self) -> Option<ExitStatus> {
        self.child.borrow_mut().try_wait().expect("it is ours")
    }

    /// Waits for its end and asserts the exit code. Returns the output.
    #[track_caller]
    pub(crate) fn ends_with(&self, code: i32) -> String {
        until(|| self.try_wait().is_some());
        let (status, out) = (self.try_wait().expect("it has ended"), self.out());
        assert_eq!(status.code(), Some(code), "{out}");
        out
    }

    pub(crate) fn kill(&self) {
        self.signal("KILL");
        until(|| self.try_wait().is_some());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut child = self.child.borrow_mut();
        child.kill().ok();
        child.wait().ok();
    }
}
