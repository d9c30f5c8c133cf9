//! A server with clusters on a store with a clock that only the test moves, and workers that speak
//! its API and pretend to have an installer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_app::LiveConfig;
use tenure_clusters::status::{AtExpiry, ClusterSpec, ClusterStatus};
use tenure_core::Millis;
use tenure_server::audit::{Audit, AuditLimits};
use tenure_server::{Config, HttpConfig};
use tenure_store::clock::{Clock, ManualClock};
use tenure_store::embedded::Options;
use tenure_store::{Embedded, Memory, Store};

use crate::common::{Server, apps, config, http};

pub(crate) const MINUTE_MS: u64 = 60_000;
pub(crate) const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Time to live of the sessions of workers.
pub(crate) const STALE_MS: u64 = 30_000;
/// Step of the clock: shorter than what the store takes for a stall of its own.
const STEP_MS: u64 = 500;
/// Number of attempts of the configuration below.
pub(crate) const ATTEMPTS: u64 = 3;

const CONFIG: &str = r#"
[clusters]
profiles = "profiles"
slots = 0
attempts = 3
backoff = "1m"
backoff_max = "4m"
artifact_retention = "24h"
verify = "none"
[clusters.base_domains]
"acme.example.com" = "acme"
"#;

const PROFILE: &str = r#"platform = "aws"
versions = ["4.19.1", "4.18.3"]
regions = ["us-east-1", "eu-west-1"]
base_domains = ["dev.example.com", "acme.example.com"]
workers = { min = 1, max = 30, default = 3 }
ttl = { min = "10m", max = "30d", default = "8h", required = false }
allow_preserve = true
"#;

pub(crate) struct Bed {
    pub(crate) server: Server,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) live: LiveConfig,
    pub(crate) clock: ManualClock,
    pub(crate) dir: TempDir,
}

impl Bed {
    pub(crate) async fn start() -> Self {
        let (dir, clock) = (directory(), new_clock());
        let store = Arc::new(Memory::with_clock(clock.clone()));
        Self::start_on(store, dir, clock).await
    }

    /// Starts a server on the embedded store.
    pub(crate) async fn start_embedded() -> Self {
        let (dir, clock) = (directory(), new_clock());
        let store = open(&database(dir.path()), &clock);
        Self::start_on(store, dir, clock).await
    }

    /// Starts a server on a store.
    pub(crate) async fn start_on(store: Arc<dyn Store>, dir: TempDir, clock: ManualClock) -> Self {
        let live = apps().parse(CONFIG, dir.path()).expect("valid").live();
        let audit = Audit::open(&dir.path().join("audit.jsonl"), AuditLimits::default());
        let http = HttpConfig { audit: audit.expect("created"), ..HttpConfig::default() };
        let config = Config { live: live.clone(), http, ..config(Arc::default()) };
        let server = Server::run(Arc::clone(&store), config).await;
        Self { server, store, live, clock, dir }
    }

    /// Moves the clock far ahead. No session expires: the store takes it for a stall of its own.
    pub(crate) async fn skip(&self, ms: u64) {
        self.clock.advance(ms);
        self.store.sweep().await.expect("the store works");
    }

    /// Moves the clock in small steps; the sessions of `alive` send heartbeats.
    pub(crate) async fn advance(&self, ms: u64, alive: &[&Worker<'_>]) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(STEP_MS);
            self.clock.advance(step);
            for worker in alive {
                worker.beat().await;
            }
            self.store.sweep().await.expect("the store works");
            left -= step;
        }
    }

    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    pub(crate) async fn worker(&self, name: &str) -> Worker<'_> {
        let body = json!({ "name": name, "ttl_ms": STALE_MS });
        let (status, answer) = self.server.post("/v1/sessions?tenant=*", body).await;
        assert_eq!(status, 200, "{answer}");
        let session = answer["session"].as_str().expect("an id").to_owned();
        Worker { bed: self, session }
    }

    pub(crate) async fn create(&self, name: &str) -> (u16, Value) {
        self.create_with(name, json!({})).await
    }

    /// Requests a cluster with further fields.
    pub(crate) async fn create_with(&self, name: &str, fields: Value) -> (u16, Value) {
        self.server.post("/v1/clusters", request(name, &fields)).await
    }

    pub(crate) async fn destroy(&self, name: &str) -> (u16, Value) {
        self.server.delete(&path(name)).await
    }

    pub(crate) async fn scale(&self, name: &str, workers: u32) -> (u16, Value) {
        self.server.post(&format!("{}/scale", path(name)), json!({ "workers": workers })).await
    }

    pub(crate) async fn extend(&self, name: &str, ttl_ms: u64) -> (u16, Value) {
        self.server.post(&format!("{}/ttl", path(name)), json!({ "ttl_ms": ttl_ms })).await
    }

    /// Sends a POST without a body.
    pub(crate) async fn manage(&self, path: &str) -> (u16, Value) {
        self.server.post(path, json!({ "reason": "a test" })).await
    }

    pub(crate) async fn show(&self, name: &str) -> Value {
        let (status, answer) = self.server.get(&path(name)).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub(crate) async fn state(&self, name: &str) -> String {
        self.show(name).await["state"].as_str().expect("a state").to_owned()
    }

    pub(crate) async fn job(&self, id: &Value) -> Value {
        let id = id.as_str().expect("an id");
        self.server.get(&format!("/v1/jobs/{id}")).await.1
    }

    /// Returns the operations in the lane of a cluster with the states of their jobs.
    pub(crate) async fn lane(&self, name: &str) -> Vec<(String, String)> {
        let page = self.server.get(&format!("/v1/jobs?kind=cluster&name={}", id(name))).await.1;
        let jobs = page["items"].as_array().expect("a list").clone();
        let open = jobs.into_iter().filter(|job| job["ended_at"].is_null());
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        open.map(|job| (text(&job["operation"]), text(&job["state"]))).collect()
    }

    /// Creates a cluster that runs.
    pub(crate) async fn ready(&self, worker: &Worker<'_>, name: &str, fields: Value) {
        let (status, answer) = self.create_with(name, fields).await;
        assert_eq!(status, 202, "{answer}");
        let job = worker.claim(name).await.expect("it can start");
        worker.begin_create(&job).await;
        assert_eq!(worker.finish_create(&job).await, "succeeded");
    }

    /// Brings a new cluster into a state.
    pub(crate) async fn bring(&self, worker: &Worker<'_>, name: &str, state: &str) {
        match state {
            "PENDING" => {
                let job = self.create(name).await.1["job"]["id"].clone();
                let job = job.as_str().expect("an id");
                assert_eq!(self.manage(&format!("/v1/jobs/{job}/cancel")).await.0, 202);
            }
            "CREATING" => {
                self.create(name).await;
                worker.begin_create(&worker.claim(name).await.expect("it can start")).await;
            }
            "FAILED" => {
                self.create(name).await;
                let job = worker.claim(name).await.expect("it can start");
                worker.begin_create(&job).await;
                assert_eq!(worker.fail(&job, false).await, "failed");
            }
            _ => self.bring_ready(worker, name, state).await,
        }
        assert_eq!(self.state(name).await, state);
    }

    async fn bring_ready(&self, worker: &Worker<'_>, name: &str, state: &str) {
        self.ready(worker, name, json!({})).await;
        if state == "READY" {
            return;
        }
        if state == "SCALING" {
            self.scale(name, 5).await;
            worker.claim(name).await.expect("it can start");
            return;
        }
        self.destroy(name).await;
        let job = worker.claim(name).await.expect("it can start");
        match state {
            "DESTROYING" => {}
            "DESTROYED" => assert_eq!(worker.finish_destroy(&job).await, "succeeded"),
            "DESTROY_FAILED" => assert_eq!(worker.fail(&job, false).await, "failed"),
            other => panic!("{other} is not a state"),
        }
    }
}

/// Returns a directory with a profile.
pub(crate) fn directory() -> TempDir {
    let dir = TempDir::new().expect("a directory");
    std::fs::create_dir(dir.path().join("profiles")).expect("it is writable");
    for name in ["dev", "other"] {
        let file = dir.path().join(format!("profiles/{name}.toml"));
        std::fs::write(file, PROFILE).expect("it is writable");
    }
    dir
}

pub(crate) fn new_clock() -> ManualClock {
    let clock = ManualClock::default();
    clock.advance(1_000_000_000_000);
    clock
}

pub(crate) fn database(dir: &Path) -> PathBuf {
    dir.join("tenure.db")
}

/// Opens the embedded store.
pub(crate) fn open(path: &Path, clock: &ManualClock) -> Arc<dyn Store> {
    let clock: Option<Arc<dyn Clock>> = Some(Arc::new(clock.clone()));
    let options = Options { clock, ..Options::default() };
    Arc::new(Embedded::open_with(path, options).expect("it opens"))
}

/// Returns the body of a request for a cluster.
pub(crate) fn request(name: &str, fields: &Value) -> Value {
    let mut body = json!({
        "name": name, "profile": "dev", "owner": "ann", "version": "4.19.1",
        "region": "us-east-1", "base_domain": "dev.example.com",
    });
    let fields = fields.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

pub(crate) fn id(name: &str) -> String {
    format!("aws:{name}.dev.example.com")
}

pub(crate) fn path(name: &str) -> String {
    format!("/v1/clusters/{}", id(name))
}

/// Sends a request with an idempotency key.
pub(crate) async fn with_key(
    bed: &Bed,
    method: &str,
    path: &str,
    key: &str,
    body: &Value,
) -> (u16, Value) {
    let method = method.parse().expect("a method");
    let request = http().request(method, format!("{}{path}", bed.server.url));
    let request = request.header("x-api-key", crate::common::KEY).header("idempotency-key", key);
    crate::common::answer(request.body(body.to_string())).await
}

/// A worker without an installer.
pub(crate) struct Worker<'a> {
    bed: &'a Bed,
    pub(crate) session: String,
}

/// A job that a worker has claimed.
pub(crate) struct Claimed {
    pub(crate) job: Value,
    token: Value,
    status: ClusterStatus,
    spec: ClusterSpec,
}

impl Claimed {
    pub(crate) fn operation(&self) -> &str {
        self.job["operation"].as_str().expect("a text")
    }

    pub(crate) fn id(&self) -> &Value {
        &self.job["id"]
    }

    /// Returns what a JANITOR_DESTROY does.
    pub(crate) fn decide(&self) -> AtExpiry {
        let submitted_at = self.job["submitted_at"].as_str().expect("an instant");
        let submitted_at = tenure_wire::parse_instant(submitted_at).expect("an instant");
        self.status.at_expiry(&self.spec, submitted_at)
    }
}

impl Worker<'_> {
    pub(crate) async fn beat(&self) -> u16 {
        let path = format!("/v1/sessions/{}/beat", self.session);
        self.bed.server.post(&path, json!({ "seen": 0 })).await.0
    }

    /// Claims the next job of a cluster.
    pub(crate) async fn claim(&self, name: &str) -> Option<Claimed> {
        self.claim_in("default", &id(name)).await
    }

    pub(crate) async fn claim_in(&self, tenant: &str, id: &str) -> Option<Claimed> {
        let only = json!({ "kind": "cluster", "name": id });
        let body = json!({ "session": self.session, "only": only });
        let path = format!("/v1/jobs/claim?tenant={tenant}");
        let (status, mut answer) = self.bed.server.post(&path, body).await;
        assert_eq!(status, 200, "{answer}");
        let mut claimed = answer["jobs"].as_array_mut()?.pop()?;
        let text = |value: &Value| (!value.is_null()).then(|| value.to_string());
        Some(Claimed {
            status: ClusterStatus::parse(text(&claimed["status"]).as_deref()).expect("a status"),
            spec: ClusterSpec::parse(text(&claimed["spec"]).as_deref()).expect("a spec"),
            token: claimed["tenure"]["token"].take(),
            job: claimed["job"].take(),
        })
    }

    pub(crate) async fn post(&self, job: &Claimed, verb: &str, mut body: Value) -> (u16, Value) {
        body["token"] = job.token.clone();
        let id = job.id().as_str().expect("an id");
        self.bed.server.post(&format!("/v1/jobs/{id}/{verb}"), body).await
    }

    /// Finishes an attempt. Returns the state of the job.
    pub(crate) async fn finish(&self, job: &Claimed, body: Value) -> String {
        let (status, answer) = self.post(job, "finish", body).await;
        assert_eq!(status, 200, "{answer}");
        answer["state"].as_str().expect("a state").to_owned()
    }

    pub(crate) async fn fail(&self, job: &Claimed, transient: bool) -> String {
        let body = json!({ "outcome": "failed", "code": "BROKEN", "transient": transient });
        self.finish(job, body).await
    }

    /// Writes what a CREATE writes when it begins a life of the cluster.
    pub(crate) async fn begin_create(&self, job: &Claimed) {
        let submitted_at = job.job["submitted_at"].as_str().expect("an instant");
        let submitted_at = tenure_wire::parse_instant(submitted_at).expect("an instant");
        let config = job.job["args"].clone();
        let ttl = config["ttl_ms"].as_u64();
        let expires_at = ttl.map(|ttl| submitted_at.plus(ttl));
        let merge = json!({
            "config": config, "create_job": job.id(), "created_at": submitted_at.0,
            "expires_at": expires_at.map(|at| at.0), "destroying": false, "preserved": false,
        });
        let at = expires_at.map(|at| json!({ "at": tenure_wire::instant(at) }));
        let body = json!({ "merge": merge, "timers": { "JANITOR_DESTROY": at } });
        let (status, answer) = self.post(job, "status", body).await;
        assert_eq!(status, 200, "{answer}");
    }

    pub(crate) async fn finish_create(&self, job: &Claimed) -> String {
        let outputs = json!({ "api_url": "https://api.example.com:6443" });
        let merge = json!({ "outputs": outputs, "workers": job.job["args"]["workers"] });
        self.finish(job, json!({ "outcome": "ok", "merge": merge })).await
    }

    /// Begins to remove the cluster.
    pub(crate) async fn begin_destroy(&self, job: &Claimed) -> u16 {
        self.post(job, "status", json!({ "merge": { "destroying": true } })).await.0
    }

    pub(crate) async fn finish_destroy(&self, job: &Claimed) -> String {
        let merge = json!({ "outputs": null, "workers": null, "destroying": false });
        let body =
            json!({ "outcome": "ok", "merge": merge, "timers": { "JANITOR_DESTROY": null } });
        self.finish(job, body).await
    }

    /// Ends a JANITOR_DESTROY that does nothing.
    pub(crate) async fn skip(&self, job: &Claimed, next: Option<Millis>) -> String {
        let at = next.map(|at| json!({ "at": tenure_wire::instant(at) }));
        let state = job.job["state_before"].clone();
        let body = json!({
            "outcome": "ok", "state": state, "timers": { "JANITOR_DESTROY": at },
        });
        self.finish(job, body).await
    }
}
