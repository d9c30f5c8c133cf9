//! What is in `deploy/` fits the binary: its flags, variables, routes and times.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Server, TENURE, http, stderr, stdout};
use tempfile::TempDir;
use tenure::worker::{DRAIN_DEFAULT, HAND_BACK_DEFAULT};

/// How long requests may take to end after a shutdown began.
const DRAIN_OF_REQUESTS: Duration = Duration::from_secs(5);

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The files below a directory of `deploy/`, with their text.
fn files(dir: &str, ending: &str) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(deploy().join(dir)).expect("it is there");
    let paths = entries.map(|entry| entry.expect("it is readable").path());
    let named = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
    let read = |path: PathBuf| (path.clone(), fs::read_to_string(path).expect("it is text"));
    let found: Vec<_> = paths.filter(named).map(read).collect();
    assert!(!found.is_empty(), "nothing in {dir}");
    found
}

fn units() -> Vec<(PathBuf, String)> {
    files("systemd", ".service")
}

fn manifests() -> Vec<(PathBuf, String)> {
    files("kubernetes", ".yaml")
}

fn dockerfile() -> String {
    fs::read_to_string(deploy().join("docker/Dockerfile")).expect("it is there")
}

/// The lines of a text that say something, those that go on joined.
fn lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let kept = joined.lines().filter(|line| !line.trim_start().starts_with('#'));
    kept.map(str::to_owned).collect()
}

/// Every command line of `tenure`, without its name.
fn command_lines() -> Vec<Vec<String>> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut found = Vec::new();
    for (_, unit) in units() {
        let starts = lines(&unit);
        let starts = starts.iter().filter_map(|line| line.strip_prefix("ExecStart="));
        found.extend(starts.map(|start| words(start)[1..].to_vec()));
    }
    for line in lines(&dockerfile()).iter().filter(|line| line.contains("CMD [")) {
        let list = &line[line.find('[').expect("it has one")..];
        let all: Vec<String> = serde_json::from_str(list).expect("a list of words");
        let from = all.iter().position(|word| word == "tenure").map_or(0, |at| at + 1);
        found.push(all[from..].to_vec());
    }
    for (_, manifest) in manifests() {
        let lines = lines(&manifest);
        let args = lines.iter().enumerate().filter(|(_, line)| line.trim() == "args:");
        for (at, _) in args {
            let items = lines[at + 1..].iter().map_while(|line| line.trim().strip_prefix("- --"));
            let verb = lines[at + 1].trim().strip_prefix("- ").expect("an item").to_owned();
            let flags = lines[at + 2..].iter().map_while(|line| line.trim().strip_prefix("- --"));
            assert_eq!(items.count(), 0, "the verb comes first");
            found.push([verb].into_iter().chain(flags.map(|flag| format!("--{flag}"))).collect());
        }
    }
    found
}

fn help(verb: &str) -> String {
    let output = Command::new(TENURE).args([verb, "--help"]).output().expect("it runs");
    assert!(output.status.success(), "{verb}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn every_command_line_has_only_flags_that_there_are() {
    let all = command_lines();
    let verbs: Vec<&str> = all.iter().map(|words| &*words[0]).collect();
    for (verb, times) in [("serve", 3), ("worker", 2), ("doctor", 1)] {
        let found = verbs.iter().filter(|found| **found == verb).count();
        assert_eq!(found, times, "{verb} in {all:?}");
    }
    for words in &all {
        let help = help(&words[0]);
        let known: BTreeSet<&str> = help.split([' ', '\n', ',']).collect();
        for flag in words.iter().filter(|word| word.starts_with("--")) {
            let name = flag.split('=').next().expect("it has one");
            assert!(known.contains(name), "{name} is no flag of {}", words[0]);
        }
    }
}

#[test]
fn every_variable_is_one_that_is_read() {
    let known = help("serve") + &help("worker") + "[env: TENURE_LOG=]";
    let texts = units().into_iter().chain(manifests()).map(|(_, text)| text);
    for text in texts.chain([dockerfile()]) {
        for (at, _) in text.match_indices("TENURE_") {
            let rest = &text[at..];
            let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
            let name = &rest[..end.unwrap_or(rest.len())];
            assert!(known.contains(&format!("[env: {name}")), "{name} is read by nobody");
        }
    }
}

#[test]
fn probes_ask_for_routes_that_answer() {
    let server = Server::start();
    let texts: String = manifests().into_iter().map(|(_, text)| text).collect();
    let after = |text: &'static str| texts.match_indices(text).map(move |(at, _)| at + text.len());
    let paths: BTreeSet<&str> = after("httpGet: {path: ")
        .map(|at| texts[at..].split(',').next().expect("it has one"))
        .collect();
    assert_eq!(paths, BTreeSet::from(["/healthz", "/readyz"]));
    for path in paths {
        let answer = http(server.listen(), &[&format!("GET {path} HTTP/1.1")], "");
        let answer = answer.expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
}

/// The number behind a word, such as `TimeoutStopSec=60s`.
fn seconds(text: &str, word: &str) -> Duration {
    let at = text.find(word).unwrap_or_else(|| panic!("no {word}")) + word.len();
    let digits: String = text[at..].chars().take_while(char::is_ascii_digit).collect();
    Duration::from_secs(digits.parse().expect("a number"))
}

#[test]
fn whoever_is_told_to_stop_has_the_time_for_it() {
    let needed = DRAIN_DEFAULT + HAND_BACK_DEFAULT + DRAIN_OF_REQUESTS;
    for (path, unit) in units() {
        assert!(seconds(&unit, "TimeoutStopSec=") > needed, "{}", path.display());
    }
    for (path, manifest) in manifests() {
        if !manifest.contains("kind: Deployment") {
            continue;
        }
        let wait = |word| if manifest.contains(word) { seconds(&manifest, word) } else { DRAINED };
        let before = wait("sleep: {seconds: ") + wait("--linger=");
        let grace = seconds(&manifest, "terminationGracePeriodSeconds: ");
        assert!(grace > needed + before, "{}", path.display());
    }
}

const DRAINED: Duration = Duration::ZERO;

#[test]
fn nothing_runs_as_root_and_no_secret_is_written_down() {
    for (path, manifest) in manifests() {
        let path = path.display();
        if manifest.contains("kind: Deployment") {
            for must in [
                "runAsNonRoot: true",
                "readOnlyRootFilesystem: true",
                "allowPrivilegeEscalation: false",
                "capabilities: {drop: [ALL]}",
                "secretKeyRef:",
                "limits:",
            ] {
                assert!(manifest.contains(must), "{path} has no {must}");
            }
        }
        let said = lines(&manifest).join("\n");
        assert!(!said.contains("postgres://") && !said.contains("kind: Secret"), "{path}");
    }
    for (path, unit) in units() {
        for must in ["DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"] {
            assert!(unit.contains(must), "{} has no {must}", path.display());
        }
    }
    let steps = lines(&dockerfile());
    assert!(steps.iter().any(|line| line.starts_with("USER 65532")), "{steps:?}");
}

/// Text that becomes part of the binary and is not in its crate.
fn taken_from_outside(dir: &Path, found: &mut BTreeSet<String>) {
    const UP: &str = "include_str!(concat!(\"../../../../";
    for entry in fs::read_dir(dir).expect("it is there") {
        let path = entry.expect("it is readable").path();
        if path.is_dir() {
            taken_from_outside(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).expect("it is text");
            let rests = text.match_indices(UP).map(|(at, _)| &text[at + UP.len()..]);
            found.extend(rests.filter_map(|rest| Some(rest.split_once("/\"")?.0.to_owned())));
        }
    }
}

#[test]
fn an_image_is_built_from_all_that_it_needs() {
    let root = deploy().join("..");
    let mut needed = BTreeSet::from(["Cargo.toml", "Cargo.lock", "crates"].map(str::to_owned));
    taken_from_outside(&root.join("crates/tenure-server/src"), &mut needed);
    assert!(needed.contains("docs/errors"), "{needed:?}");
    let ignored = fs::read_to_string(root.join(".dockerignore")).expect("it is there");
    for path in needed {
        assert!(ignored.lines().any(|line| line == format!("!{path}")), "{path} is left out");
        assert!(root.join(&path).exists(), "{path} is not there");
    }
}

#[test]
fn only_a_build_that_wants_traces_has_the_crates_for_them() {
    let tree = |features: &str| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--offline", "-p", "tenure-cli", "-e", "normal", "--prefix", "none"]);
        let output = cargo.args(["--features", features]).current_dir(deploy()).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    assert!(tree("otel").contains("opentelemetry"));
    assert!(!tree("").contains("opentelemetry"));
    assert!(!tree("otel").contains("tonic v"), "spans go over HTTP");
}

#[test]
fn systemd_takes_the_units() {
    let dir = TempDir::new().expect("a directory");
    for (path, unit) in units() {
        let copy = dir.path().join(path.file_name().expect("it has one"));
        fs::write(&copy, unit.replace("/usr/local/bin/tenure", TENURE)).expect("it is writable");
        let mut verify = Command::new("systemd-analyze");
        let output = verify.args(["verify", "--man=no"]).arg(&copy).output().expect("it runs");
        let name = copy.file_name().expect("it has one").to_string_lossy().into_owned();
        let said = stderr(&output);
        let about_it: Vec<&str> = said.lines().filter(|line| line.contains(&name)).collect();
        assert_eq!(about_it, [] as [&str; 0]);
    }
}

#[test]
fn the_manifests_are_yaml() {
    let parse = "import sys, yaml
for path in sys.argv[1:]:
    for one in yaml.safe_load_all(open(path)):
        print(one['apiVersion'], one['kind'], one['metadata']['name'])";
    let paths = manifests().into_iter().map(|(path, _)| path);
    let mut python = Command::new("python3");
    let output = python.args(["-c", parse]).args(paths).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let found: BTreeSet<String> = stdout(&output).lines().map(str::to_owned).collect();
    let wanted = [
        "apps/v1 Deployment tenure",
        "apps/v1 Deployment tenure-worker",
        "networking.k8s.io/v1 NetworkPolicy tenure",
        "policy/v1 PodDisruptionBudget tenure",
        "v1 Service tenure",
    ];
    assert_eq!(found, wanted.map(str::to_owned).into());
}
