//! The binary `kube-standin`, as a test in another language uses it.
//!
//! Must never sleep: it waits for output and for the end of the process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

fn start(dir: &Path, more: &[&str]) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-standin"));
    command.arg("--dir").arg(dir).args(["--workers", "3"]).args(more);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a URL");
    (child, line.trim().to_owned())
}

fn curl(dir: &Path, url: &str, more: &[&str]) -> Value {
    let kubeconfig = std::fs::read_to_string(dir.join("kubeconfig")).expect("it is written");
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
    let header = format!("Authorization: Bearer {}", token.expect("it has a token"));
    let output = Command::new("curl").args(["-sSkfH", &header, url]).args(more).output();
    let output = output.expect("curl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn ready_nodes(dir: &Path, url: &str) -> usize {
    let nodes = curl(dir, &format!("{url}/api/v1/nodes"), &[]);
    let ready = |node: &&Value| node["status"]["conditions"][1]["status"] == "True";
    nodes["items"].as_array().expect("a list").iter().filter(ready).count()
}

fn scale(dir: &Path, url: &str) {
    let set = "machinesets/demo-x7k2p-worker-eu-west-1a";
    let url =
        format!("{url}/apis/machine.openshift.io/v1beta1/namespaces/openshift-machine-api/{set}");
    let merge = ["-XPATCH", "-HContent-Type: application/merge-patch+json"];
    let body = ["-d", r#"{"spec": {"replicas": 3}}"#];
    curl(dir, &url, &[merge, body].concat());
}

/// Removes the directory, which ends the process.
fn stop(dir: tempfile::TempDir, mut child: Child) {
    dir.close().expect("it is removed");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn machines_follow_by_themselves_until_the_directory_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (child, url) = start(dir.path(), &["--auto"]);
    assert_eq!(ready_nodes(dir.path(), &url), 6);
    scale(dir.path(), &url);
    assert_eq!(ready_nodes(dir.path(), &url), 8);
    stop(dir, child);
}

#[test]
fn machines_move_when_they_are_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let (child, url) = start(dir.path(), &["--stuck", "1"]);
    scale(dir.path(), &url);
    assert_eq!(ready_nodes(dir.path(), &url), 6);
    let control = |verb: &str| curl(dir.path(), &format!("{url}/standin/{verb}"), &["-XPOST"]);
    assert_eq!(control("advance")["changed"], true);
    control("settle");
    assert_eq!(ready_nodes(dir.path(), &url), 7);
    control("unstick");
    control("settle");
    assert_eq!(ready_nodes(dir.path(), &url), 8);
    stop(dir, child);
}

#[test]
fn wrong_arguments_are_explained() {
    let output = Command::new(env!("CARGO_BIN_EXE_kube-standin")).arg("--what").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown argument --what"));
}
