//! Servers with pipelines, and a script that records its starts, ends and overlaps.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_testbed::{Postgres, shared};

use crate::common::{free_address, http};
use crate::process::Process;

/// Time after which a condition has failed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Store to test on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Embedded,
    Postgres,
}

/// Runs each test on both stores.
macro_rules! on_each_store {
    ($($name:ident,)+) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::testbed::StoreKind::Embedded).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::testbed::StoreKind::Postgres).await;
            })+
        }
    };
}
pub(crate) use on_each_store;

/// Lets the worker of the server detect a lost session quickly.
pub(crate) const SHORT_TTL: &str = "[worker]\nttl = \"3s\"\ndrain = \"0s\"\n";

/// Records its start, end and overlaps with other processes; waits until it may finish.
const WORK: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
trace="trace.$TENANT_ID.$PIPELINE_ID"
touch "$trace"
for pid in $(sed -n 's/^begin .* \([0-9]*\)$/\1/p' "$trace"); do
  kill -0 "$pid" 2> /dev/null && echo "overlap $pid $$" >> "$trace"
done
echo "begin $PIPELINE_LOGGING_ID $TENURE_TOKEN $$" >> "$trace"
while [ ! -e "go.$PIPELINE_ID" ]; do sleep 0.02; done
echo "end $PIPELINE_LOGGING_ID $TENURE_TOKEN $$" >> "$trace"
"#;

/// A pipeline that runs until it may finish.
pub(crate) const HOLD: &str = "[[steps]]\nname = \"work\"\ncommand = [\"../../work.sh\"]\n";
/// The same, with retries.
pub(crate) const HOLD_WITH_RETRIES: &str = "\
     retry = { attempts = 3, initial = \"100ms\" }\n\
     [[steps]]\nname = \"work\"\ncommand = [\"../../work.sh\"]\n";

/// Servers that share a store, their files and their admin key.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Process>,
    pub(crate) listen: Vec<String>,
    pub(crate) dir: TempDir,
    pub(crate) store: Option<(String, String)>,
    http: reqwest::Client,
}

pub(crate) const KEY: &str = "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk";

impl Cluster {
    /// Starts one server with the given pipelines: `TENANT/PIPELINE` and text.
    pub(crate) async fn start(store: StoreKind, pipelines: &[(&str, &str)]) -> Self {
        Self::start_with(store, 1, SHORT_TTL, "", pipelines).await
    }

    /// Starts several servers, with more settings in the file and in its table of pipelines.
    pub(crate) async fn start_with(
        store: StoreKind,
        servers: usize,
        config: &str,
        settings: &str,
        pipelines: &[(&str, &str)],
    ) -> Self {
        let mut cluster = Self::new(store, shared(), servers);
        let table = "[pipelines]\ndir = \"pipelines\"\nsecrets = \"secrets\"\n";
        cluster.write("tenure.toml", &format!("{config}{table}{settings}"));
        for (name, text) in pipelines {
            cluster.declare(name, text);
        }
        for n in 0..servers {
            cluster.launch(n).await;
        }
        cluster
    }

    /// Creates servers that are not launched yet, on a database of their own.
    pub(crate) fn new(store: StoreKind, postgres: &Postgres, servers: usize) -> Self {
        let dir = TempDir::new().expect("temporary directory");
        let store = (store == StoreKind::Postgres).then(|| {
            let database = postgres.new_database().expect("database");
            (postgres.url(&database), database)
        });
        let mut key = fs::OpenOptions::new();
        key.create_new(true).write(true).mode(0o600);
        let mut key = key.open(dir.path().join("key")).expect("writable");
        std::io::Write::write_all(&mut key, KEY.as_bytes()).expect("writable");
        let listen: Vec<String> = (0..servers).map(|_| free_address()).collect();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (config, admin) = (path("tenure.toml"), path("key"));
        let server = |n: usize| {
            let mut args = vec!["serve", "--listen", &listen[n], "--config", &config];
            args.extend(["--admin-key-file", &admin]);
            if let Some((url, _)) = &store {
                args.extend(["--store", url]);
            }
            let (data, log) = (dir.path().join(format!("data{n}")), format!("log{n}"));
            Process::new(&data, dir.path().join(log), &args, None)
        };
        let servers = (0..servers).map(server).collect();
        // A thousand callers need a thousand connections.
        let mut files = getrlimit(Resource::Nofile);
        files.current = files.maximum;
        setrlimit(Resource::Nofile, files).expect("raising up to the maximum is permitted");
        // Fails if it is already installed.
        rustls::crypto::ring::default_provider().install_default().ok();
        let http = reqwest::Client::builder().build().expect("HTTP client");
        let cluster = Self { servers, listen, dir, store, http };
        cluster.write("work.sh", WORK);
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(cluster.file("work.sh"), executable).expect("writable");
        fs::create_dir(cluster.file("pipelines")).expect("writable");
        cluster
    }

    /// Starts a server and waits until it is ready.
    pub(crate) async fn launch(&mut self, n: usize) {
        self.servers[n].launch();
        let (server, listen) = (&mut self.servers[n], &self.listen[n]);
        until(async || {
            assert_eq!(server.poll_exit(), None, "server {n} has exited: {}", server.log());
            http(listen, &["GET /readyz HTTP/1.1"], "")
                .is_ok_and(|response| response.starts_with("HTTP/1.1 200"))
        })
        .await;
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file atomically, as editors do.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.file(name);
        fs::create_dir_all(path.parent().expect("parent directory")).expect("writable");
        let new = path.with_extension("new~");
        fs::write(&new, text).expect("writable");
        fs::rename(new, path).expect("writable");
    }

    pub(crate) fn declare(&self, name: &str, text: &str) {
        self.write(&format!("pipelines/{name}.toml"), text);
    }

    /// Lets the script of a pipeline finish.
    pub(crate) fn let_finish(&self, pipeline: &str) {
        self.write(&format!("go.{pipeline}"), "");
    }

    /// Returns the words of each line that the script of a pipeline has recorded.
    pub(crate) fn trace(&self, tenant: &str, pipeline: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.file(&format!("trace.{tenant}.{pipeline}")));
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        text.unwrap_or_default().lines().map(words).collect()
    }

    /// Returns the number of starts, and checks that no two overlapped.
    pub(crate) fn start_count(&self, tenant: &str, pipeline: &str) -> usize {
        let trace = self.trace(tenant, pipeline);
        let overlap = trace.iter().find(|words| words[0] == "overlap");
        assert_eq!(overlap, None, "overlap: {trace:?}");
        trace.iter().filter(|words| words[0] == "begin").count()
    }

    /// Waits for a number of starts and returns the last process id.
    pub(crate) async fn wait_for_starts(&self, tenant: &str, pipeline: &str, times: usize) -> u32 {
        until(async || self.start_count(tenant, pipeline) >= times).await;
        let trace = self.trace(tenant, pipeline);
        let last = trace.iter().rfind(|words| words[0] == "begin").expect("started");
        last[3].parse().expect("process id")
    }

    pub(crate) async fn send(
        &self,
        n: usize,
        key: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let url = format!("http://{}{path}", self.listen[n]);
        let mut request = self.http.request(method, url).header("x-api-key", key);
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let response = request.send().await.expect("response");
        let status = response.status().as_u16();
        let text = response.text().await.expect("complete response");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, response) = self.send(0, KEY, Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {response}");
        response
    }

    /// Triggers a pipeline of the tenant `default`, or of another one: `acme/billing`.
    pub(crate) async fn trigger(&self, pipeline: &str, body: Value) -> Value {
        let (status, response) = self.try_trigger(0, pipeline, &body).await;
        assert_eq!(status, 200, "{response}");
        response
    }

    pub(crate) async fn try_trigger(&self, n: usize, pipeline: &str, body: &Value) -> (u16, Value) {
        let (tenant, name) = pipeline.split_once('/').unwrap_or(("default", pipeline));
        let path = format!("/pipelines/run/{name}?tenant={tenant}");
        self.send(n, KEY, Method::POST, &path, Some(body)).await
    }

    /// Triggers a pipeline and expects a new run.
    pub(crate) async fn start_run(&self, pipeline: &str) -> String {
        let response = self.trigger(pipeline, json!({ "trigger_by": "a test" })).await;
        assert_eq!(response["status"], "PENDING", "{response}");
        id(&response)
    }

    pub(crate) async fn run(&self, id: &str) -> Value {
        self.get(&format!("/pipelines/runs/{id}?tenant=*")).await
    }

    /// Waits until a run has ended, and checks its status.
    pub(crate) async fn wait_for_end(&self, id: &str, status: &str) -> Value {
        let path = format!("/pipelines/runs/{id}?tenant=*&wait_ms=1000");
        until(async || self.get(&path).await["ended_at"].is_string()).await;
        let run = self.run(id).await;
        assert_eq!(run["status"], status, "{run:#}\n{}", self.output());
        run
    }

    /// Waits until a run has a status.
    pub(crate) async fn wait_for_status(&self, id: &str, status: &str) {
        until(async || self.run(id).await["status"] == status).await;
    }

    /// Returns the log of a run.
    pub(crate) async fn log(&self, id: &str) -> String {
        let logs = self.get(&format!("/v1/jobs/{id}/logs?tenant=*&limit=1000")).await;
        let items = logs["items"].as_array().expect("list").iter();
        items.filter_map(|item| item["text"].as_str()).collect()
    }

    /// Creates a key of a tenant.
    pub(crate) async fn key(&self, tenant: &str, role: &str) -> String {
        let body = json!({ "name": "t", "tenant": tenant, "role": role, "reason": "a test" });
        let (status, response) = self.send(0, KEY, Method::POST, "/v1/keys", Some(&body)).await;
        assert_eq!(status, 201, "{response}");
        response["secret"].as_str().expect("secret").to_owned()
    }

    /// Returns the output of all servers.
    pub(crate) fn output(&self) -> String {
        self.servers.iter().map(Process::log).collect()
    }

    /// Verifies the history.
    pub(crate) async fn verify(&self) {
        let response = self.get("/v1/verify?tenant=*").await;
        assert_eq!(response["ok"], true, "{response}");
    }
}

pub(crate) fn id(response: &Value) -> String {
    response["pipeline_logging_id"].as_str().expect("id").to_owned()
}

/// Returns whether a process is alive.
pub(crate) fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// Waits for a condition.
pub(crate) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, poll).await.expect("condition in time");
}
