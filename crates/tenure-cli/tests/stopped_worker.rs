//! A real worker process that is stopped for longer than its TTL: its command is dead before the
//! next attempt starts, and after it resumes it reports nothing about the job.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{Server, signal, until};
use serde_json::{Value, json};
use tenure::http::HttpTransport;

const KIND: &str = "\
[kinds.db]
[kinds.db.operations.make]
retry = { attempts = 3, initial = \"100ms\" }
";

/// The first attempt ignores SIGTERM and never ends; the second checks that the first is dead.
const SCRIPT: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
if [ "$TENURE_ATTEMPT" = 2 ]; then
    kill -0 "$(cat first)" 2>/dev/null && { echo ::error OVERLAP the first lives; exit 1; }
    echo '::result "alone"'
    exit 0
fi
trap '' TERM
echo $$ > first.new; mv first.new first
while :; do sleep 0.1; done
"#;

/// A worker process, killed on drop even while it is stopped.
struct Worker(Child);

impl Worker {
    fn start(server: &Server, dir: &Path, name: &str) -> Self {
        let config = dir.join(format!("{name}.toml"));
        let text =
            format!("{KIND}run = [\"./make.sh\"]\n[worker]\nttl = \"3s\"\nname = \"{name}\"\n");
        fs::write(&config, text).expect("it is writable");
        let mut command = server.tenure();
        let log = fs::File::create(dir.join(format!("{name}.log"))).expect("it is writable");
        command.current_dir(dir).args(["worker", "--config"]).arg(config);
        Self(command.stdout(Stdio::null()).stderr(log).spawn().expect("the binary starts"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

async fn job(transport: &HttpTransport, id: &str) -> Value {
    let path = format!("/v1/jobs/{id}?wait_ms=30000");
    transport.get_with_wait(&path, Duration::from_secs(30)).await.expect("it answers")
}

async fn submit(transport: &HttpTransport, name: &str) -> String {
    let path = format!("/v1/resources/db/{name}/jobs");
    let body = json!({ "operation": "make" });
    let answer: Value =
        transport.post(&path, None, &body, Duration::ZERO).await.expect("it is taken");
    answer["job"]["id"].as_str().expect("it has an id").to_owned()
}

#[tokio::test]
async fn a_stopped_worker_loses_its_job_and_reports_nothing_after_it_resumes() {
    let server = Server::start_with(Some(KIND));
    let dir = server.data();
    let script = dir.join("make.sh");
    fs::write(&script, SCRIPT).expect("it is writable");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let transport =
        HttpTransport::new(&server.url(), &server.key(), "default").expect("an address");

    let frozen = Worker::start(&server, dir, "frozen");
    let id = submit(&transport, "orders").await;
    until(|| dir.join("first").exists());
    signal(frozen.0.id(), "STOP");
    let healthy = Worker::start(&server, dir, "healthy");
    let done = job(&transport, &id).await;
    assert_eq!(
        (&done["state"], &done["result"]),
        (&json!("succeeded"), &json!("alone")),
        "{done:#}"
    );
    assert_eq!(done["attempts"][0]["code"], "WORKER_TIMEOUT");
    assert_eq!(done["attempts"][1]["worker"], "healthy");

    // It resumes, finds that its session is lost, and works again under a new one.
    drop(healthy);
    signal(frozen.0.id(), "CONT");
    fs::remove_file(dir.join("first")).expect("the first attempt left it");
    let next = submit(&transport, "people").await;
    until(|| dir.join("first").exists());
    let first = job(&transport, &id).await;
    assert_eq!(first["attempts"], done["attempts"], "the finished job must not change");
    let cancel = format!("/v1/jobs/{next}/cancel");
    let _: Value =
        transport.post(&cancel, None, &json!({}), Duration::ZERO).await.expect("it runs");
    let next = job(&transport, &next).await;
    assert_eq!(next["state"], "cancelled");
    assert_eq!(next["attempts"][0]["worker"], "frozen");
    assert_ne!(next["attempts"][0]["session"], done["attempts"][0]["session"]);
}
