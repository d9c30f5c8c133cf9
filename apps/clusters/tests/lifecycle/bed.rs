//! A server, workers, a stand-in for the installer with its plans and its journal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_testbed::KubeApi;

use crate::cloud;
use crate::common::{self, free_address, signal, tenure, until};

/// The stand-in.
const INSTALLER: &str = include_str!("openshift-install");

/// A profile that allows everything these tests ask for.
const PROFILE: &str = r#"platform = "aws"
versions = ["4.19.1"]
regions = ["us-east-1"]
base_domains = ["dev.example.com"]
workers = { min = 0, max = 30, default = 3 }
ttl = { min = "1s", max = "30d", default = "8h" }
allow_preserve = true
"#;

/// Store of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Embedded,
    Postgres,
}

/// A line of the journal of the stand-in.
#[derive(Clone, Debug)]
pub(crate) struct Entry(Value);

impl Entry {
    pub(crate) fn what(&self) -> &str {
        self.0["what"].as_str().expect("a text")
    }

    pub(crate) fn token(&self) -> u64 {
        self.0["token"].as_u64().expect("a number")
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }
}

pub(crate) struct Bed {
    pub(crate) dir: TempDir,
    listen: String,
    store: Option<String>,
    server: Option<Child>,
    /// Variables of all processes.
    env: Vec<(&'static str, String)>,
}

impl Bed {
    pub(crate) fn start(store: StoreKind) -> Self {
        Self::with(store, "")
    }

    /// Starts a server; `extra` are further lines of `[clusters]`.
    pub(crate) fn with(store: StoreKind, extra: &str) -> Self {
        Self::on(store, &cloud::shared().url(), extra, Vec::new())
    }

    /// The same on another cloud, with variables for all processes.
    pub(crate) fn on(
        store: StoreKind,
        cloud: &str,
        extra: &str,
        env: Vec<(&'static str, String)>,
    ) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let store = (store == StoreKind::Postgres).then(|| {
            let postgres = tenure_testbed::shared();
            postgres.url(&postgres.new_database().expect("a database"))
        });
        let mut bed = Self { dir, listen: free_address(), store, server: None, env };
        for folder in ["profiles", "plan", "go", "kube"] {
            fs::create_dir(bed.file(folder)).expect("it is writable");
        }
        bed.write("profiles/dev.toml", PROFILE);
        bed.program("openshift-install", INSTALLER);
        bed.write("server.toml", &bed.config(0, cloud, extra));
        bed.write("worker.toml", &bed.config(8, cloud, extra));
        bed.launch();
        bed
    }

    fn config(&self, slots: usize, cloud: &str, extra: &str) -> String {
        let dir = self.dir.path().display();
        let verify = if extra.contains("verify =") { "" } else { "verify = \"aws\"" };
        let lock_ttl = if extra.contains("lock_ttl") { "" } else { "lock_ttl = \"3s\"" };
        format!(
            r#"[clusters]
installer = "{dir}/openshift-install"
profiles = "profiles"
slots = {slots}
{lock_ttl}
heartbeat_interval = "500ms"
backoff = "1s"
backoff_max = "4s"
stop_grace = "1s"
{verify}
verify_interval = "100ms"
pass_env = ["STANDIN*", "AWS*"]
aws_endpoint = "{cloud}"
{extra}
"#
        )
    }

    pub(crate) fn launch(&mut self) {
        let mut command = self.command();
        command.args(["serve", "--listen", &self.listen, "--config"]).arg(self.file("server.toml"));
        if let Some(store) = &self.store {
            command.args(["--store", store]);
        }
        let log = File::create(self.file("server.log")).expect("it is writable");
        let child = command.stdout(Stdio::null()).stderr(log).spawn();
        self.server = Some(child.expect("the binary starts"));
        let (url, listen) = (self.file("data/server.url"), self.listen.clone());
        until(|| {
            fs::read_to_string(&url).is_ok_and(|url| url.contains(&listen))
                && std::net::TcpStream::connect(&listen).is_ok()
        });
    }

    pub(crate) fn kill_server(&mut self) {
        let mut server = self.server.take().expect("it runs");
        server.kill().expect("it is ours");
        server.wait().expect("it is ours");
    }

    /// Starts a worker.
    pub(crate) fn worker(&self, name: &str) -> Worker {
        self.spawn_worker(name, self.command(), &[])
    }

    /// Starts a worker with further options.
    pub(crate) fn worker_with(&self, name: &str, options: &[&str]) -> Worker {
        self.spawn_worker(name, self.command(), options)
    }

    /// Starts a worker whose wall clock is wrong.
    pub(crate) fn worker_with_clock(&self, name: &str, offset: &str) -> Worker {
        // Not by the program of that name, whose child would survive it.
        let mut command = self.command();
        command.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1");
        command.env("FAKETIME", offset).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let worker = self.spawn_worker(name, command, &[]);
        let maps = format!("/proc/{}/maps", worker.0.as_ref().expect("it runs").id());
        until(|| fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("libfaketime")));
        worker
    }

    fn spawn_worker(&self, name: &str, mut command: Command, options: &[&str]) -> Worker {
        let url = format!("http://{}", self.listen);
        command.args(["worker", "--server", &url, "--config"]).arg(self.file("worker.toml"));
        command.args(options);
        let log = File::create(self.file(&format!("{name}.log"))).expect("it is writable");
        let child = command.stdout(Stdio::null()).stderr(log).spawn();
        Worker(Some(child.expect("the binary starts")))
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = tenure(&self.file("data"));
        command.env("STANDIN_DIR", self.dir.path()).current_dir(self.dir.path());
        command.env("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE");
        command.env("AWS_SECRET_ACCESS_KEY", "secret").env("AWS_REGION", "us-east-1");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a verb. Returns its exit code and its standard output.
    pub(crate) fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.command().args(args).output().expect("the binary runs");
        let text = common::stdout(&output) + &common::stderr(&output);
        (output.status.code(), text)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).expect("it is writable");
    }

    pub(crate) fn program(&self, name: &str, text: &str) {
        self.write(name, text);
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.file(name), executable).expect("it is writable");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Sets what the stand-in does for a cluster: behaviours by command.
    pub(crate) fn plan(&self, cluster: &str, plan: &Value) {
        self.write(&format!("plan/{cluster}.json"), &plan.to_string());
    }

    /// Starts the API of a cluster that will be created. Its machines follow at once.
    pub(crate) fn kube(&self, cluster: &str, workers: u32) -> KubeApi {
        let api = KubeApi::start(workers).expect("it starts");
        api.advance_by_itself();
        self.write(&format!("kube/{cluster}"), &api.kubeconfig());
        api
    }

    /// Waits until an attempt has reached a point at which its plan holds it. Returns its token.
    pub(crate) fn reached(&self, cluster: &str, point: &str) -> u64 {
        self.reached_after(cluster, point, 0)
    }

    /// The same for an attempt with a greater token.
    pub(crate) fn reached_after(&self, cluster: &str, point: &str, token: u64) -> u64 {
        let prefix = format!("{cluster}.{point}.");
        let find = || {
            let files = fs::read_dir(self.file("reached")).into_iter().flatten().flatten();
            let names = files.filter_map(|file| file.file_name().into_string().ok());
            let tokens = names.filter_map(|name| name.strip_prefix(&prefix)?.parse::<u64>().ok());
            tokens.filter(|found| *found > token).max()
        };
        until(|| find().is_some());
        find().expect("it was there")
    }

    /// Lets the attempts that are held at a point continue.
    pub(crate) fn go(&self, cluster: &str, point: &str) {
        self.write(&format!("go/{cluster}.{point}"), "");
    }

    /// Sends a request. Returns the status and the body.
    pub(crate) fn api(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.request(method, path, body);
        (status, serde_json::from_str(&body).unwrap_or_default())
    }

    /// Sends a request. Returns the status and the text of the body.
    pub(crate) fn request(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let key = self.read("data/admin.key");
        let authorization = format!("authorization: Bearer {}", key.trim());
        let line = format!("{method} {path} HTTP/1.1");
        let lines = [line.as_str(), &authorization, "content-type: application/json"];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = common::http(&self.listen, &lines, &body).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    /// Returns the URL of the database.
    pub(crate) fn database(&self) -> &str {
        self.store.as_deref().expect("the store is PostgreSQL")
    }

    /// Requests a cluster with the defaults of the profile.
    pub(crate) fn create(&self, name: &str) -> (u16, Value) {
        self.create_with(name, &json!({}))
    }

    /// Requests a cluster with further fields.
    pub(crate) fn create_with(&self, name: &str, fields: &Value) -> (u16, Value) {
        let mut body = json!({"name": name, "profile": "dev", "owner": "ann"});
        let fields = fields.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        self.api("POST", "/v1/clusters", &body)
    }

    pub(crate) fn show(&self, name: &str) -> Value {
        self.api("GET", &path(name), &Value::Null).1
    }

    pub(crate) fn destroy(&self, name: &str) -> (u16, Value) {
        self.api("DELETE", &path(name), &Value::Null)
    }

    pub(crate) fn state(&self, name: &str) -> String {
        self.show(name)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a cluster has a state and no operation.
    pub(crate) fn settled(&self, name: &str, state: &str) {
        let is_settled = || {
            let shown = self.show(name);
            shown["state"] == state && shown["operation"].is_null()
        };
        let describe = || {
            let logs: Vec<String> = ["server", "a", "b"].map(|log| self.log(log)).into();
            format!("{} is not {state}: {:#}\n{}", name, self.show(name), logs.join("\n"))
        };
        let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| until(is_settled)));
        assert!(settled.is_ok(), "{}", describe());
    }

    fn log(&self, name: &str) -> String {
        let text = self.read(&format!("{name}.log"));
        let start = text.len().saturating_sub(4_000);
        format!("{name}: {}", String::from_utf8_lossy(&text.as_bytes()[start..]))
    }

    /// Returns the job with an id.
    pub(crate) fn job(&self, id: &Value) -> Value {
        let id = id.as_str().expect("an id");
        self.api("GET", &format!("/v1/jobs/{id}"), &Value::Null).1
    }

    /// Returns the log of a job.
    pub(crate) fn job_log(&self, id: &Value) -> String {
        let id = id.as_str().expect("an id");
        let page = self.api("GET", &format!("/v1/jobs/{id}/logs?limit=1000"), &Value::Null).1;
        let items = page["items"].as_array().cloned().unwrap_or_default();
        items.iter().filter_map(|item| item["text"].as_str()).collect()
    }

    /// Returns the journal of the stand-in.
    pub(crate) fn journal(&self) -> Vec<Entry> {
        let text = self.read("journal");
        text.lines().map(|line| Entry(serde_json::from_str(line).expect("JSON"))).collect()
    }

    /// Returns the number of runs of a command for a cluster.
    pub(crate) fn runs(&self, cluster: &str, command: &str) -> usize {
        let journal = self.journal();
        let starts = journal.iter().filter(|entry| entry.what() == "start");
        starts
            .filter(|entry| entry.text("cluster") == cluster && entry.text("command") == command)
            .count()
    }

    /// Checks what must always hold: no attempt did anything after a later one of the same cluster
    /// had begun, and nothing is left of installations whose clusters do not run.
    pub(crate) fn check(&self, running: &[&str]) {
        let mut latest: BTreeMap<String, u64> = BTreeMap::new();
        let mut infras: BTreeMap<String, String> = BTreeMap::new();
        for entry in &self.journal() {
            let infra = entry.text("infra");
            let cluster = match entry.what() {
                "start" => entry.text("cluster").to_owned(),
                _ => cluster_of(infra),
            };
            if cluster.is_empty() {
                continue;
            }
            let newest = latest.entry(cluster.clone()).or_default();
            assert!(entry.token() >= *newest, "{cluster}: {entry:?} after token {newest}");
            *newest = entry.token();
            if !infra.is_empty() {
                infras.insert(infra.to_owned(), cluster);
            }
        }
        let exist = cloud::infras();
        let mut left: Vec<_> = infras.iter().filter(|(infra, _)| exist.contains(*infra)).collect();
        left.retain(|(_, cluster)| !running.contains(&cluster.as_str()));
        assert!(left.is_empty(), "resources are left in the cloud of {left:?}");
    }
}

/// Returns the path of a cluster in the API.
pub(crate) fn path(name: &str) -> String {
    format!("/v1/clusters/aws:{name}.dev.example.com")
}

/// Returns the name of the cluster of an installation.
fn cluster_of(infra: &str) -> String {
    infra.rsplit_once('-').map_or_else(String::new, |(cluster, _)| cluster.to_owned())
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().ok();
            server.wait().ok();
        }
    }
}

/// A worker process; killed on drop, even if it is stopped.
pub(crate) struct Worker(Option<Child>);

impl Worker {
    pub(crate) fn signal(&self, name: &str) {
        signal(self.0.as_ref().expect("it runs").id(), name);
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.0.take().expect("it runs");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}
