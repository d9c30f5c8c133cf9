//! The logs of the real binary: in JSON every line is an object that says which request or job it
//! is about, and no log and no output ever has a secret in it.

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{free_address, http, signal, stderr, stdout, tenure, until};
use serde_json::Value;
use tempfile::TempDir;

/// A process whose standard error is kept; killed on drop.
struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    fn start(command: &mut Command, log: &Path) -> Self {
        let file = File::create(log).expect("it is writable");
        let child = command.stdout(Stdio::null()).stderr(file).spawn().expect("it starts");
        Self { child, log: log.to_owned() }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).expect("it is readable")
    }

    /// Every line, each of which must be an object.
    fn events(&self) -> Vec<Value> {
        let parse = |line: &str| -> Value {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        self.said().lines().map(parse).collect()
    }

    fn stop(&mut self) {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().expect("it is ours").success(), "{}", self.said());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn serve(dir: &Path, listen: &str, more: &[&str]) -> Daemon {
    let mut command = tenure(dir);
    command.args(["serve", "--listen", listen, "--log-format", "json"]).args(more);
    let server = Daemon::start(command.env("TENURE_LOG", "trace"), &dir.join("server.log"));
    until(|| dir.join("server.url").exists());
    server
}

fn about<'a>(events: &'a [Value], request: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["request_id"] == request).collect()
}

#[test]
fn every_line_in_json_is_an_object_and_requests_are_told_apart() {
    let dir = TempDir::new().expect("a directory");
    let listen = free_address();
    let mut server = serve(dir.path(), &listen, &["--linger", "3s"]);
    http(&listen, &["GET /healthz HTTP/1.1", "x-request-id: good-one"], "").expect("it answers");
    signal(server.child.id(), "TERM");
    until(|| server.said().contains("stopping"));
    let lines = ["GET /readyz HTTP/1.1", "x-request-id: failing-one"];
    let answer = http(&listen, &lines, "").expect("it lingers");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(server.child.wait().expect("it is ours").success());
    let events = server.events();
    let says = |text: &str| {
        events.iter().any(|one| one["message"].as_str().is_some_and(|said| said.contains(text)))
    };
    assert!(says("listening on http://"), "{events:?}");
    assert!(says("stopped"), "{events:?}");
    assert!(!server.said().contains("/signin?code="), "whoever reads the log is admin");
    let end = |request: &str, level: &str, status: u16, route: &str| {
        let about = about(&events, request);
        let end = about.iter().find(|one| one["message"] == "answered").expect("it has an end");
        assert_eq!(
            (&end["level"], &end["status"]),
            (&Value::from(level), &Value::from(status)),
            "{end}"
        );
        assert_eq!((&end["method"], &end["route"]), (&Value::from("GET"), &Value::from(route)));
        assert!(end["duration_ms"].is_f64(), "{end}");
    };
    end("good-one", "DEBUG", 200, "/healthz");
    end("failing-one", "INFO", 503, "/readyz");
}

#[test]
fn a_filter_does_not_take_the_request_from_what_it_lets_through() {
    let dir = TempDir::new().expect("a directory");
    let listen = free_address();
    let mut command = tenure(dir.path());
    command.args(["serve", "--listen", &listen]).env("TENURE_LOG_FORMAT", "json");
    command.env("TENURE_LOG", "error,tenure_app::problem=debug");
    let mut server = Daemon::start(&mut command, &dir.path().join("server.log"));
    until(|| dir.path().join("server.url").exists());
    let lines = ["GET /nowhere HTTP/1.1", "x-request-id: lost-one"];
    http(&listen, &lines, "").expect("it answers");
    server.stop();
    let events = server.events();
    let about = about(&events, "lost-one");
    assert_eq!(about.len(), 1, "{events:?}");
    assert_eq!((&about[0]["path"], &about[0]["level"]), (&"/nowhere".into(), &"DEBUG".into()));
}

#[test]
fn what_ends_a_server_is_said_as_json_too() {
    let dir = TempDir::new().expect("a directory");
    let mut command = tenure(dir.path());
    command.args(["serve", "--log-format", "json", "--listen", "127.0.0.1:notaport"]);
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let said: Value = serde_json::from_str(stderr(&output).trim()).expect("one object");
    assert_eq!(said["level"], "ERROR");
    assert!(said["message"].as_str().is_some_and(|text| text.contains("--listen")), "{said}");
}

const CONFIG: &str = "
[kinds.db.operations.create]
run = [\"sh\", \"-c\", \"echo args $TENURE_ARGS; env; echo trace $TRACEPARENT; cat\"]
";

/// A server, a worker and a command line, with everything that they have said.
struct Site {
    dir: TempDir,
    listen: String,
    said: String,
}

impl Site {
    fn run(&mut self, args: &[&str], key: Option<&str>) -> String {
        let mut command = tenure(self.dir.path());
        if let Some(key) = key {
            command.env("TENURE_KEY", key);
        }
        let output = command.args(args).output().expect("it runs");
        let out = stdout(&output);
        self.said += &(out.clone() + &stderr(&output));
        out
    }
}

/// The key that `key create` shows, once.
fn created(site: &Site) -> String {
    let mut command = tenure(site.dir.path());
    let why = ["--reason", "test"];
    command.args(["key", "create", "--name", "w", "--role", "worker", "-o", "json"]).args(why);
    let shown: Value =
        serde_json::from_slice(&command.output().expect("it runs").stdout).expect("it is JSON");
    shown["secret"].as_str().expect("it is shown once").to_owned()
}

#[test]
fn no_log_and_no_output_has_a_secret_in_it() {
    let dir = TempDir::new().expect("a directory");
    let config = dir.path().join("kinds.toml");
    fs::write(&config, CONFIG.replace("run =", "#run =")).expect("it is writable");
    let with_commands = dir.path().join("worker.toml");
    fs::write(&with_commands, CONFIG).expect("it is writable");
    let listen = free_address();
    let more = ["--config", &config.display().to_string(), "--linger", "0s"];
    let mut server = serve(dir.path(), &listen, &more);
    let mut site = Site { dir, listen, said: String::new() };
    let admin = fs::read_to_string(site.dir.path().join("admin.key")).expect("it was made");
    let worker_key = created(&site);
    let wrong_key = "tenure_default_wrongwrongwrongwrongwrongwrong";
    let (url, password) = (format!("http://{}", site.listen), "pass-of-the-database");
    let (argument, store_env) = ("argument-that-is-secret", "pass-in-the-environment");
    let mut command = tenure(site.dir.path());
    command.args(["worker", "--log-format", "json", "--server", &url]);
    command.args(["--config", &with_commands.display().to_string()]);
    command.env("TENURE_KEY", &worker_key).env("TENURE_LOG", "trace");
    command.env("TENURE_STORE", format!("postgres://u:{store_env}@db/x"));
    let mut worker = Daemon::start(&mut command, &site.dir.path().join("worker.log"));

    let args = format!("{{\"password\":\"{argument}\",\"size\":20}}");
    let submit = ["job", "submit", "db/orders", "create", "--args", &args, "-o", "json"];
    let submitted: Value = serde_json::from_str(&site.run(&submit, None)).expect("it is JSON");
    let id = submitted["job"]["id"].as_str().expect("it has an id").to_owned();
    // What was submitted is shown to whoever may see the job; what follows is not.
    site.said.clear();
    until(|| {
        let mut show = tenure(site.dir.path());
        let shown = show.args(["job", "show", &id, "-o", "json"]).output().expect("it runs");
        stdout(&shown).contains("succeeded")
    });
    let log = site.run(&["job", "logs", &id], None);
    assert!(log.contains("TENURE_JOB="), "the command has shown its environment: {log}");
    assert!(!log.contains("TENURE_KEY=") && !log.contains("TENURE_STORE="), "{log}");
    let trace = format!("trace 00-{id}-");
    assert!(log.contains(&trace), "the job's trace has its id: {log}");
    site.run(&["lock", "ls"], Some(wrong_key));
    site.run(&["lock", "ls", "--key", &worker_key], None);
    site.run(
        &["lock", "break", "a/b", "--token", "1", "--reason", "x", "--key", &worker_key],
        None,
    );
    site.run(&["key", "ls"], None);
    site.run(&["audit"], None);
    for url in [
        format!("postgres://u:{password}@127.0.0.1:1/db"),
        format!("postgres://u:{password}@127.0.0.1:port/db"),
        format!("postgres://u:{password}@127.0.0.1/db?sslmode=nonsense"),
        format!("mysql://u:{password}@127.0.0.1/db"),
    ] {
        for verb in ["serve", "doctor", "migrate"] {
            let listen = ["--listen", "127.0.0.1:0"];
            let listen = if verb == "serve" { &listen[..] } else { &[] };
            let data = site.dir.path().join("other").display().to_string();
            let args = [&[verb, "--store", &url, "--data", &data], listen].concat();
            site.run(&args, None);
        }
    }
    worker.stop();
    server.stop();
    let attempts = worker.events().into_iter().filter(|one| one["job"] == id.as_str());
    let ended = |one: &Value| one["message"] == "the attempt has ended";
    assert!(attempts.into_iter().any(|one| ended(&one)), "{}", worker.said());
    server.events();
    let everything = [server.said(), worker.said(), site.said];
    let secrets = [admin.trim(), &worker_key, wrong_key, password, argument, store_env];
    for secret in secrets {
        for said in &everything {
            let line = said.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{secret} is told");
        }
    }
}
