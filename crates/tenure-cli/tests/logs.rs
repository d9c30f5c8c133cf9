//! The logs of the real binary: in JSON every line is an object with its request or job id, and no
//! log and no output contains a secret.

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{free_address, http, signal, stderr, stdout, tenure, until};
use serde_json::Value;
use tempfile::TempDir;

/// A process whose stderr is written to a file; killed on drop.
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

    fn output(&self) -> String {
        fs::read_to_string(&self.log).expect("it is readable")
    }

    /// Parses the log; every line must be a JSON object.
    fn events(&self) -> Vec<Value> {
        let parse = |line: &str| -> Value {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        self.output().lines().map(parse).collect()
    }

    fn stop(&mut self) {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().expect("it is ours").success(), "{}", self.output());
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

fn events_of<'a>(events: &'a [Value], request: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["request_id"] == request).collect()
}

#[test]
fn every_json_line_is_an_object_and_has_its_request_id() {
    let dir = TempDir::new().expect("a directory");
    let listen = free_address();
    let mut server = serve(dir.path(), &listen, &["--linger", "3s"]);
    http(&listen, &["GET /healthz HTTP/1.1", "x-request-id: good-one"], "").expect("it answers");
    signal(server.child.id(), "TERM");
    until(|| server.output().contains("stopping"));
    let lines = ["GET /readyz HTTP/1.1", "x-request-id: failing-one"];
    let response = http(&listen, &lines, "").expect("it lingers");
    assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    assert!(server.child.wait().expect("it is ours").success());
    let events = server.events();
    let logged = |text: &str| {
        events
            .iter()
            .any(|one| one["message"].as_str().is_some_and(|message| message.contains(text)))
    };
    assert!(logged("listening on http://"), "{events:?}");
    assert!(logged("stopped"), "{events:?}");
    assert!(!server.output().contains("/signin?code="), "the log must not grant admin rights");
    let end = |request: &str, level: &str, status: u16, route: &str| {
        let events = events_of(&events, request);
        let end =
            events.iter().find(|one| one["message"] == "request completed").expect("it has an end");
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
fn filtered_logs_keep_the_request_id() {
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
    let matching = events_of(&events, "lost-one");
    assert_eq!(matching.len(), 1, "{events:?}");
    assert_eq!(
        (&matching[0]["path"], &matching[0]["level"]),
        (&"/nowhere".into(), &"DEBUG".into())
    );
}

#[test]
fn a_fatal_error_is_logged_as_json() {
    let dir = TempDir::new().expect("a directory");
    let mut command = tenure(dir.path());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = taken.local_addr().expect("it is bound").to_string();
    command.args(["serve", "--log-format", "json", "--listen", &listen]);
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let event: Value = serde_json::from_str(stderr(&output).trim()).expect("one object");
    assert_eq!(event["level"], "ERROR");
    assert!(event["message"].as_str().is_some_and(|text| text.contains("--listen")), "{event}");
}

const CONFIG: &str = "
[kinds.db.operations.create]
run = [\"sh\", \"-c\", \"echo args $TENURE_ARGS; env; echo trace $TRACEPARENT; cat\"]
";

/// Runs the command line and collects its output.
struct Site {
    dir: TempDir,
    listen: String,
    output: String,
}

impl Site {
    fn run(&mut self, args: &[&str], key: Option<&str>) -> String {
        let mut command = tenure(self.dir.path());
        if let Some(key) = key {
            command.env("TENURE_KEY", key);
        }
        let output = command.args(args).output().expect("it runs");
        let out = stdout(&output);
        self.output += &(out.clone() + &stderr(&output));
        out
    }
}

/// Creates a key and returns it.
fn create_key(site: &Site) -> String {
    let mut command = tenure(site.dir.path());
    let why = ["--reason", "test"];
    command.args(["key", "create", "--name", "w", "--role", "worker", "-o", "json"]).args(why);
    let shown: Value =
        serde_json::from_slice(&command.output().expect("it runs").stdout).expect("it is JSON");
    shown["secret"].as_str().expect("it is shown once").to_owned()
}

#[test]
fn no_log_and_no_output_contains_a_secret() {
    let dir = TempDir::new().expect("a directory");
    let config = dir.path().join("kinds.toml");
    fs::write(&config, CONFIG.replace("run =", "#run =")).expect("it is writable");
    let with_commands = dir.path().join("worker.toml");
    fs::write(&with_commands, CONFIG).expect("it is writable");
    let listen = free_address();
    let more = ["--config", &config.display().to_string(), "--linger", "0s"];
    let mut server = serve(dir.path(), &listen, &more);
    let mut site = Site { dir, listen, output: String::new() };
    let admin = fs::read_to_string(site.dir.path().join("admin.key")).expect("it was created");
    let worker_key = create_key(&site);
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
    // Submitted arguments are printed to permitted callers, so this output is not checked.
    site.output.clear();
    until(|| {
        let mut show = tenure(site.dir.path());
        let shown = show.args(["job", "show", &id, "-o", "json"]).output().expect("it runs");
        stdout(&shown).contains("succeeded")
    });
    let log = site.run(&["job", "logs", &id], None);
    assert!(log.contains("TENURE_JOB="), "the command has printed its environment: {log}");
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
    let ended = |one: &Value| one["message"] == "attempt ended";
    assert!(attempts.into_iter().any(|one| ended(&one)), "{}", worker.output());
    server.events();
    let everything = [server.output(), worker.output(), site.output];
    let secrets = [admin.trim(), &worker_key, wrong_key, password, argument, store_env];
    for secret in secrets {
        for text in &everything {
            let line = text.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{secret} is exposed");
        }
    }
}
