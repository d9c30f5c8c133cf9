//! `tenure demo clusters`: the real binary plays its scenario, and leaves nothing behind.

#[path = "../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, ExitStatus};

use common::{signal, stderr, stdout, tenure, until};
use tempfile::TempDir;

/// A demo whose output goes to files, with a directory for temporary files of its own.
struct Demo {
    child: Child,
    /// Everything that the demo and its commands create is below it.
    tmp: TempDir,
    files: TempDir,
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let (tmp, files) = (temporary_dir(), temporary_dir());
        let file = |name| File::create(files.path().join(name)).expect("writable");
        let mut command = tenure(files.path());
        command.args(["demo", "clusters"]).args(args).env("TMPDIR", tmp.path());
        command.stdout(file("out")).stderr(file("err"));
        Self { child: command.spawn().expect("it starts"), tmp, files }
    }

    fn out(&self) -> String {
        fs::read_to_string(self.files.path().join("out")).expect("text")
    }

    fn err(&self) -> String {
        fs::read_to_string(self.files.path().join("err")).expect("text")
    }

    fn until_out(&self, words: &str) {
        until(|| {
            let found = self.out().contains(words);
            assert!(found || self.err().is_empty(), "{}{}", self.out(), self.err());
            found
        });
    }

    fn interrupt(&self) {
        signal(self.child.id(), "INT");
    }

    fn wait(&mut self) -> ExitStatus {
        let (child, mut status) = (&mut self.child, None);
        let ended = std::cell::RefCell::new((child, &mut status));
        until(|| {
            let (child, status) = &mut *ended.borrow_mut();
            **status = child.try_wait().expect("it is ours");
            status.is_some()
        });
        status.expect("it has ended")
    }

    /// Asserts that the directory is removed and that no process of the demo is left.
    fn assert_nothing_left(&self) {
        let left: Vec<_> = fs::read_dir(self.tmp.path()).expect("directory").collect();
        assert!(left.is_empty(), "{left:?}");
        // A killed process disappears when its parent has read its status.
        until(|| processes_in(self.tmp.path()).is_empty());
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn temporary_dir() -> TempDir {
    TempDir::new().expect("temporary directory")
}

/// Returns the processes that work in `dir` or have it in their environment.
fn processes_in(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().expect("text");
    let in_dir = |process: &Path| {
        let cwd = fs::read_link(process.join("cwd")).unwrap_or_default();
        let environ = fs::read(process.join("environ")).unwrap_or_default();
        cwd.starts_with(dir) || String::from_utf8_lossy(&environ).contains(dir)
    };
    let processes = fs::read_dir("/proc").expect("procfs").flatten().map(|entry| entry.path());
    let found = processes.filter(|process| in_dir(process));
    found.map(|process| process.display().to_string()).collect()
}

/// Returns the words that follow `before` in the output.
fn words_after<'a>(out: &'a str, before: &str) -> &'a str {
    let at = out.find(before).unwrap_or_else(|| panic!("{before} is missing: {out}"));
    &out[at + before.len()..]
}

#[test]
fn the_scenario_happens_as_promised_and_leaves_nothing() {
    let mut demo = Demo::start(&[]);
    demo.until_out("shop: CREATE");
    assert!(processes_in(demo.tmp.path()).len() > 3, "the workers are found");
    demo.until_out("6. another worker");
    let status = demo.wait();
    let out = demo.out();
    assert_eq!(status.code(), Some(0), "{out}{}", demo.err());
    demo.assert_nothing_left();
    for part in [
        "attached aws:shop.demo.example.com",
        "is creating aws:shop.demo.example.com with another configuration",
        "CREATE of aws:shop.demo.example.com succeeded",
        "shop is reached at https://api.shop.demo.example.com:6443",
        " are left in the cloud",
        "the cloud has nothing of shop",
        "night is DESTROYED by the operation JANITOR_DESTROY",
        "blog: removing what an earlier attempt has created",
        "blog: verified twice: the cloud lists no resource",
        "in attempt 2: READY",
        "tenures: 0 violations\n",
        "next: tenure demo clusters --keep",
    ] {
        assert!(out.contains(part), "{part} is missing: {out}");
    }
    let end = words_after(&out, "the cloud has nothing of blog-");
    assert!(end.contains("resources of blog-"), "{end}");
    assert!(!out.contains("kubeadmin\", and password"), "{out}");
    assert!(!out.contains('\u{1b}'), "no escape codes: {out}");
}

#[test]
fn an_interrupt_ends_the_demo_its_workers_and_their_installers() {
    let mut demo = Demo::start(&[]);
    demo.until_out("shop: CREATE, 10 %");
    demo.interrupt();
    assert_eq!(demo.wait().code(), Some(130), "{}", demo.err());
    demo.assert_nothing_left();
    assert!(!demo.out().contains("READY"), "it does not wait for a cluster");
}

#[test]
fn a_kept_server_runs_the_suggested_commands_until_an_interrupt() {
    let mut demo = Demo::start(&["--keep"]);
    demo.until_out("3. blog");
    demo.until_out("6. another worker");
    demo.until_out("serves until Ctrl-C");
    let out = demo.out();
    let commands: Vec<_> = out.lines().filter_map(|line| line.strip_prefix("next: ")).collect();
    let (export, rest) = commands.split_first().expect("commands");
    let data = export.split_whitespace().nth(1).and_then(|word| word.strip_prefix("TENURE_DATA="));
    let data = Path::new(data.unwrap_or_else(|| panic!("no directory: {out}")));
    assert!(rest.len() > 2, "{out}");
    for line in rest {
        // The meaning follows after several spaces.
        let command = line.split("  ").next().expect("command");
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let output = tenure(data).args(words).output().expect("it runs");
        assert!(output.status.success(), "{command}: {}{}", stdout(&output), stderr(&output));
    }
    demo.interrupt();
    assert_eq!(demo.wait().code(), Some(0), "the scenario was complete: {}", demo.err());
    demo.assert_nothing_left();
}
