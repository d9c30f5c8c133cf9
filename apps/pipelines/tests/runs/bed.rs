//! Servers with pipelines, and a script that shows who runs, when, and beside whom.

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

/// How long anything may take that should happen soon.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Embedded,
    Postgres,
}

/// Runs each test on both stores.
macro_rules! on_each_store {
    ($($name:ident,)+) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::bed::On::Embedded).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::bed::On::Postgres).await;
            })+
        }
    };
}
pub(crate) use on_each_store;

/// The worker of the server notices soon that its session is lost.
pub(crate) const QUICK: &str = "[worker]\nttl = \"3s\"\ndrain = \"0s\"\n";

/// Notes that it begins and ends, and whether anybody else is at it; waits until it may end.
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

/// A pipeline that works until it may end.
pub(crate) const HOLD: &str = "[[steps]]\nname = \"work\"\ncommand = [\"../../work.sh\"]\n";
/// The same, tried again when it was lost.
pub(crate) const HOLD_AGAIN: &str = "\
     retry = { attempts = 3, initial = \"100ms\" }\n\
     [[steps]]\nname = \"work\"\ncommand = [\"../../work.sh\"]\n";

/// Servers that share a store, their files and their admin key.
pub(crate) struct Site {
    pub(crate) servers: Vec<Process>,
    pub(crate) listen: Vec<String>,
    pub(crate) dir: TempDir,
    pub(crate) store: Option<(String, String)>,
    http: reqwest::Client,
}

pub(crate) const KEY: &str = "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk";

impl Site {
    /// One server with these pipelines, `TENANT/PIPELINE` and text.
    pub(crate) async fn start(on: On, pipelines: &[(&str, &str)]) -> Self {
        Self::start_with(on, 1, QUICK, "", pipelines).await
    }

    /// Several, with more settings in the file, and in its table of pipelines.
    pub(crate) async fn start_with(
        on: On,
        servers: usize,
        config: &str,
        settings: &str,
        pipelines: &[(&str, &str)],
    ) -> Self {
        let mut site = Self::new(on, shared(), servers);
        let table = "[pipelines]\ndir = \"pipelines\"\nsecrets = \"secrets\"\n";
        site.write("tenure.toml", &format!("{config}{table}{settings}"));
        for (name, text) in pipelines {
            site.pipeline(name, text);
        }
        for n in 0..servers {
            site.launch(n).await;
        }
        site
    }

    /// Servers that were not launched yet, on a database of their own.
    pub(crate) fn new(on: On, postgres: &Postgres, servers: usize) -> Self {
        let dir = TempDir::new().expect("a directory");
        let store = (on == On::Postgres).then(|| {
            let database = postgres.new_database().expect("a database");
            (postgres.url(&database), database)
        });
        let mut key = fs::OpenOptions::new();
        key.create_new(true).write(true).mode(0o600);
        let mut key = key.open(dir.path().join("key")).expect("it is writable");
        std::io::Write::write_all(&mut key, KEY.as_bytes()).expect("it is writable");
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
        // A thousand callers need as many connections.
        let mut files = getrlimit(Resource::Nofile);
        files.current = files.maximum;
        setrlimit(Resource::Nofile, files).expect("up to the maximum anybody may");
        // A second time it is there already.
        rustls::crypto::ring::default_provider().install_default().ok();
        let http = reqwest::Client::builder().build().expect("a client needs nothing");
        let site = Self { servers, listen, dir, store, http };
        site.write("work.sh", WORK);
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(site.file("work.sh"), executable).expect("it is ours");
        fs::create_dir(site.file("pipelines")).expect("it is ours");
        site
    }

    /// Starts a server and waits until it is ready.
    pub(crate) async fn launch(&mut self, n: usize) {
        self.servers[n].launch();
        let (server, listen) = (&mut self.servers[n], &self.listen[n]);
        until(async || {
            assert_eq!(server.poll_exit(), None, "server {n} has ended: {}", server.log());
            http(listen, &["GET /readyz HTTP/1.1"], "").is_ok_and(|a| a.starts_with("HTTP/1.1 200"))
        })
        .await;
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file in one step, as editors do.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.file(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("it is ours");
        let new = path.with_extension("new~");
        fs::write(&new, text).expect("it is writable");
        fs::rename(new, path).expect("it is writable");
    }

    pub(crate) fn pipeline(&self, name: &str, text: &str) {
        self.write(&format!("pipelines/{name}.toml"), text);
    }

    /// Lets the work of a pipeline end.
    pub(crate) fn go(&self, pipeline: &str) {
        self.write(&format!("go.{pipeline}"), "");
    }

    /// What the work of a pipeline has noted: words of each line.
    pub(crate) fn trace(&self, tenant: &str, pipeline: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.file(&format!("trace.{tenant}.{pipeline}")));
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        text.unwrap_or_default().lines().map(words).collect()
    }

    /// How often it has begun; never two at once.
    pub(crate) fn begun(&self, tenant: &str, pipeline: &str) -> usize {
        let trace = self.trace(tenant, pipeline);
        let overlap = trace.iter().find(|words| words[0] == "overlap");
        assert_eq!(overlap, None, "two at once: {trace:?}");
        trace.iter().filter(|words| words[0] == "begin").count()
    }

    /// Waits until it has begun so often, and gives the process that began last.
    pub(crate) async fn until_begun(&self, tenant: &str, pipeline: &str, times: usize) -> u32 {
        until(async || self.begun(tenant, pipeline) >= times).await;
        let trace = self.trace(tenant, pipeline);
        let last = trace.iter().rfind(|words| words[0] == "begin").expect("it has begun");
        last[3].parse().expect("a process")
    }

    pub(crate) async fn ask(
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
        let response = request.send().await.expect("it answers");
        let status = response.status().as_u16();
        let text = response.text().await.expect("a whole answer");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.ask(0, KEY, Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Triggers a pipeline of the tenant `default`, or of another: `acme/billing`.
    pub(crate) async fn trigger(&self, pipeline: &str, body: Value) -> Value {
        let (status, answer) = self.try_trigger(0, pipeline, &body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub(crate) async fn try_trigger(&self, n: usize, pipeline: &str, body: &Value) -> (u16, Value) {
        let (tenant, name) = pipeline.split_once('/').unwrap_or(("default", pipeline));
        let path = format!("/pipelines/run/{name}?tenant={tenant}");
        self.ask(n, KEY, Method::POST, &path, Some(body)).await
    }

    /// Triggers, and expects a run of its own.
    pub(crate) async fn begin(&self, pipeline: &str) -> String {
        let answer = self.trigger(pipeline, json!({ "trigger_by": "a test" })).await;
        assert_eq!(answer["status"], "PENDING", "{answer}");
        id(&answer)
    }

    pub(crate) async fn run(&self, id: &str) -> Value {
        self.get(&format!("/pipelines/runs/{id}?tenant=*")).await
    }

    /// Waits until a run is over, and has this status.
    pub(crate) async fn over(&self, id: &str, status: &str) -> Value {
        let path = format!("/pipelines/runs/{id}?tenant=*&wait_ms=1000");
        until(async || self.get(&path).await["ended_at"].is_string()).await;
        let run = self.run(id).await;
        assert_eq!(run["status"], status, "{run:#}\n{}", self.said());
        run
    }

    /// Waits until a run has this status.
    pub(crate) async fn until_status(&self, id: &str, status: &str) {
        until(async || self.run(id).await["status"] == status).await;
    }

    /// The log of a run.
    pub(crate) async fn log(&self, id: &str) -> String {
        let logs = self.get(&format!("/v1/jobs/{id}/logs?tenant=*&limit=1000")).await;
        let items = logs["items"].as_array().expect("a list").iter();
        items.filter_map(|item| item["text"].as_str()).collect()
    }

    /// A key of a tenant.
    pub(crate) async fn key(&self, tenant: &str, role: &str) -> String {
        let body = json!({ "name": "t", "tenant": tenant, "role": role, "reason": "a test" });
        let (status, answer) = self.ask(0, KEY, Method::POST, "/v1/keys", Some(&body)).await;
        assert_eq!(status, 201, "{answer}");
        answer["secret"].as_str().expect("it is shown").to_owned()
    }

    /// What all servers have said.
    pub(crate) fn said(&self) -> String {
        self.servers.iter().map(Process::log).collect()
    }

    /// Nothing contradicts the promise of one holder at a time.
    pub(crate) async fn verify(&self) {
        let answer = self.get("/v1/verify?tenant=*").await;
        assert_eq!(answer["ok"], true, "{answer}");
    }
}

pub(crate) fn id(answer: &Value) -> String {
    answer["pipeline_logging_id"].as_str().expect("an id").to_owned()
}

/// Whether a process is there.
pub(crate) fn lives(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// Waits for a condition.
pub(crate) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let patient = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, patient).await.expect("it never happened");
}
