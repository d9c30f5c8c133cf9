//! The files in `deploy/` match the binary: flags, environment variables, routes and timeouts.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Server, TENURE, http, stderr, stdout};
use tempfile::TempDir;
use tenure::worker::{DRAIN_DEFAULT, HAND_BACK_DEFAULT};

/// Time that open requests have to finish after a shutdown began.
const REQUEST_DRAIN: Duration = Duration::from_secs(5);

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Returns the files in a directory of `deploy/` with their text.
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

/// Returns the lines without comments, with continuation lines joined.
fn lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let kept = joined.lines().filter(|line| !line.trim_start().starts_with('#'));
    kept.map(str::to_owned).collect()
}

/// Returns the arguments of every `tenure` command line.
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
fn command_lines_use_only_existing_flags() {
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
fn environment_variables_are_ones_that_the_binary_reads() {
    let known = help("serve") + &help("worker") + "[env: TENURE_LOG=]";
    let texts = units().into_iter().chain(manifests()).map(|(_, text)| text);
    for text in texts.chain([dockerfile()]) {
        for (at, _) in text.match_indices("TENURE_") {
            let rest = &text[at..];
            let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
            let name = &rest[..end.unwrap_or(rest.len())];
            assert!(known.contains(&format!("[env: {name}")), "{name} is not read by the binary");
        }
    }
}

#[test]
fn probes_use_existing_routes() {
    let server = Server::start();
    let texts: String = manifests().into_iter().map(|(_, text)| text).collect();
    let after = |text: &'static str| texts.match_indices(text).map(move |(at, _)| at + text.len());
    let paths: BTreeSet<&str> = after("httpGet: {path: ")
        .map(|at| texts[at..].split(',').next().expect("it has one"))
        .collect();
    assert_eq!(paths, BTreeSet::from(["/healthz", "/readyz"]));
    for path in paths {
        let response = http(server.listen(), &[&format!("GET {path} HTTP/1.1")], "");
        let response = response.expect("it answers");
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
    }
}

/// Returns the seconds that follow `word`, as in `TimeoutStopSec=60s`.
fn seconds(text: &str, word: &str) -> Duration {
    let at = text.find(word).unwrap_or_else(|| panic!("no {word}")) + word.len();
    let digits: String = text[at..].chars().take_while(char::is_ascii_digit).collect();
    Duration::from_secs(digits.parse().expect("a number"))
}

#[test]
fn stop_timeouts_are_longer_than_the_drain() {
    let needed = DRAIN_DEFAULT + HAND_BACK_DEFAULT + REQUEST_DRAIN;
    for (path, unit) in units() {
        assert!(seconds(&unit, "TimeoutStopSec=") > needed, "{}", path.display());
    }
    for (path, manifest) in manifests() {
        if !manifest.contains("kind: Deployment") {
            continue;
        }
        let wait =
            |word| if manifest.contains(word) { seconds(&manifest, word) } else { Duration::ZERO };
        let before = wait("sleep: {seconds: ") + wait("--linger=");
        let grace = seconds(&manifest, "terminationGracePeriodSeconds: ");
        assert!(grace > needed + before, "{}", path.display());
    }
}

#[test]
fn nothing_runs_as_root_and_no_secret_is_inline() {
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
        let text = lines(&manifest).join("\n");
        assert!(!text.contains("postgres://") && !text.contains("kind: Secret"), "{path}");
    }
    for (path, unit) in units() {
        for must in ["DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"] {
            assert!(unit.contains(must), "{} has no {must}", path.display());
        }
    }
    let steps = lines(&dockerfile());
    assert!(steps.iter().any(|line| line.starts_with("USER 65532")), "{steps:?}");
}

/// Collects the directories outside of the crate from which text is included into the binary.
fn collect_included_dirs(dir: &Path, found: &mut BTreeSet<String>) {
    const UP: &str = "include_str!(concat!(\"../../../../";
    for entry in fs::read_dir(dir).expect("it is there") {
        let path = entry.expect("it is readable").path();
        if path.is_dir() {
            collect_included_dirs(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).expect("it is text");
            let rests = text.match_indices(UP).map(|(at, _)| &text[at + UP.len()..]);
            found.extend(rests.filter_map(|rest| Some(rest.split_once("/\"")?.0.to_owned())));
        }
    }
}

#[test]
fn the_image_build_context_has_all_needed_files() {
    let root = deploy().join("..");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("it is there");
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ["));
    // Cargo needs every member of the workspace, whatever it builds.
    let members = members.expect("a list").split('"').skip(1).step_by(2);
    let mut needed = BTreeSet::from(["Cargo.toml", "Cargo.lock"].map(str::to_owned));
    needed.extend(members.map(|member| member.trim_end_matches("/*").to_owned()));
    collect_included_dirs(&root.join("crates/tenure-server/src"), &mut needed);
    for path in ["apps", "crates", "docs/errors"] {
        assert!(needed.contains(path), "{needed:?}");
    }
    let ignored = fs::read_to_string(root.join(".dockerignore")).expect("it is there");
    for path in needed {
        assert!(
            ignored.lines().any(|line| line == format!("!{path}")),
            "{path} is missing from the build context"
        );
        assert!(root.join(&path).exists(), "{path} does not exist");
    }
}

#[test]
fn only_builds_with_the_otel_feature_depend_on_opentelemetry() {
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
fn systemd_accepts_the_units() {
    let dir = TempDir::new().expect("a directory");
    for (path, unit) in units() {
        let copy = dir.path().join(path.file_name().expect("it has one"));
        fs::write(&copy, unit.replace("/usr/local/bin/tenure", TENURE)).expect("it is writable");
        let mut verify = Command::new("systemd-analyze");
        let output = verify.args(["verify", "--man=no"]).arg(&copy).output().expect("it runs");
        let name = copy.file_name().expect("it has one").to_string_lossy().into_owned();
        let stderr = stderr(&output);
        let complaints: Vec<&str> = stderr.lines().filter(|line| line.contains(&name)).collect();
        assert_eq!(complaints, [] as [&str; 0]);
    }
}

#[test]
fn the_manifests_are_valid_yaml() {
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

#[test]
fn the_key_command_for_prometheus_creates_a_key_that_may_read_the_metrics() {
    let text = fs::read_to_string(deploy().join("prometheus/prometheus.yml")).expect("it is there");
    let commands: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix('#').map(str::trim))
        .filter(|line| line.starts_with("tenure "))
        .collect();
    assert_eq!(commands.len(), 1, "{commands:?}");
    let server = Server::start();
    let words = commands[0].strip_prefix("tenure").expect("checked above");
    // A shell removes the quotes, as it does for a reader who copies the line.
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec {TENURE} {words} -o json")]);
    let output = shell.env("TENURE_DATA", server.data()).output().expect("sh runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let created: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let secret = created["secret"].as_str().expect("a secret");
    let path = text.lines().find_map(|line| line.trim().strip_prefix("metrics_path: "));
    let line = format!("GET {} HTTP/1.1", path.expect("a path"));
    let read = |key: &str| {
        let key = format!("authorization: Bearer {key}");
        http(server.listen(), &[&line, &key], "").expect("it answers")
    };
    let metrics = read(secret);
    assert!(
        metrics.starts_with("HTTP/1.1 200") && metrics.contains("tenure_build_info"),
        "{metrics}"
    );
    assert!(read("wrong").starts_with("HTTP/1.1 401"));
}
