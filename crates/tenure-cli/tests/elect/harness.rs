//! Candidates as processes of `tenure elect`, and what their commands leave behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::common::{Server, signal, stderr, stdout, until};

pub(crate) const ELECTION: &str = "service/api";
/// The shortest time to live with which commands can be supervised.
pub(crate) const TTL: &str = "3s";

/// A command that runs until it is killed. It records its term, whether processes of earlier
/// leaders are alive, and its own process tree, which is hard to kill: it ignores SIGTERM, and a
/// grandchild has its own session.
pub(crate) const LEAD: &str = r#"
trap '' TERM INT
for pid in $(cat "$D/pids" 2>/dev/null); do
  grep -qs '^State:.[^ZX]' /proc/$pid/status && echo "$pid in $TENURE_TERM" >> "$D/overlap"
done
(setsid sh -c 'trap "" TERM INT; echo $$ >> "$D/pids"; while :; do sleep 0.1; done' &) &
echo $$ >> "$D/pids"
echo "$NAME $TENURE_TERM" >> "$D/terms"
while :; do sleep 0.1; done
"#;

/// A command that ends by itself as soon as the file `end` exists.
pub(crate) const SERVE: &str = r#"
echo "$NAME $TENURE_TERM" >> "$D/terms"
while ! [ -e "$D/end" ]; do sleep 0.02; done
exit 7
"#;

/// A candidate, killed on drop even while it is stopped.
pub(crate) struct Candidate {
    child: Option<Child>,
    errors: PathBuf,
}

impl Candidate {
    /// Starts a candidate of a server, which it reaches at `url`.
    pub(crate) fn start_at(
        server: &Server,
        url: Option<&str>,
        name: &str,
        extra: &[&str],
        script: &str,
    ) -> Self {
        let errors = server.file(&format!("{name}.log"));
        let mut command = server.tenure();
        command.args(["elect", ELECTION, "--holder", name]);
        if !extra.contains(&"--ttl") {
            command.args(["--ttl", TTL]);
        }
        if let Some(url) = url {
            command.args(["--server", url, "--key", &server.key()]);
        }
        let log = fs::File::create(&errors).expect("it is writable");
        command.args(extra).args(["--", "sh", "-c", script]);
        command.env("D", server.data()).env("NAME", name).stdout(Stdio::null()).stderr(log);
        Self { child: Some(command.spawn().expect("the binary starts")), errors }
    }

    pub(crate) fn start(server: &Server, name: &str, extra: &[&str], script: &str) -> Self {
        Self::start_at(server, None, name, extra, script)
    }

    /// Starts a candidate and waits until it is in the queue.
    pub(crate) fn start_waiting(server: &Server, name: &str, script: &str) -> Self {
        let candidate = Self::start(server, name, &[], script);
        until(|| candidates(server).iter().any(|waiting| waiting == name));
        candidate
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.as_ref().expect("it runs").id(), name);
    }

    /// Returns what it said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.errors).expect("it was created")
    }

    /// Returns the exit code, or `None` if a signal killed it.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.take().expect("it runs").wait().expect("it is ours").code()
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Returns the answer of `tenure elect --status`.
pub(crate) fn status(server: &Server) -> Value {
    let output = server.run(&["elect", ELECTION, "--status", "-o", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

/// Returns name and term of the leader.
pub(crate) fn leader(server: &Server) -> Option<(String, u64)> {
    let status = status(server);
    let leader = status["leader"].as_object()?;
    let name = leader["name"].as_str().expect("a name").to_owned();
    Some((name, leader["term"].as_u64().expect("a term")))
}

pub(crate) fn candidates(server: &Server) -> Vec<String> {
    let status = status(server);
    let names = status["candidates"].as_array().expect("a list").iter();
    names.map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
}

/// Returns the terms in which commands ran: `NAME TERM`.
pub(crate) fn terms(server: &Server) -> Vec<String> {
    lines(&server.file("terms"))
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Waits until commands have run in these terms, and asserts that no earlier process tree lived.
pub(crate) fn expect_terms(server: &Server, wanted: &[&str]) {
    until(|| terms(server).len() >= wanted.len());
    assert_eq!(terms(server), wanted);
    let overlap = fs::read_to_string(server.file("overlap"));
    assert!(overlap.is_err(), "{}", overlap.unwrap_or_default());
}

/// Waits until all processes that the commands recorded are running.
pub(crate) fn wait_for_tree(server: &Server, processes: usize) {
    until(|| lines(&server.file("pids")).len() == processes);
}

/// Asserts that a write with the token of this term is refused.
pub(crate) fn expect_fenced(server: &Server, term: &str) {
    let output = server.run(&["lock", "renew", ELECTION, "--token", term]);
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
}
