//! `/metrics` of a server: requests by route, the janitor, and an unavailable store.

mod common;
#[path = "common/series.rs"]
mod series;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use common::{Server, until};
use serde_json::json;
use tenure_core::{Command, Kinds, Outcome};
use tenure_store::observer::Observer;
use tenure_store::store::{Hint, Pruned, Reads, Result, Retention, Status, Swept};
use tenure_store::{KeyRing, Memory, Store, StoreError};
use tokio::sync::broadcast;

use series::{Series, parse, values};

async fn scrape(server: &Server) -> Series {
    let (status, text) = server.get("/metrics").await;
    assert_eq!(status, 200);
    parse(text.as_str().expect("text"))
}

#[tokio::test]
async fn requests_are_counted_by_route_pattern() {
    let server = Server::start(Arc::new(Memory::new())).await;
    for name in ["secret-1", "secret-2"] {
        let body = json!({ "holder": "ann", "ttl_ms": 60_000 });
        server.post(&format!("/v1/locks/cluster/{name}/acquire"), body).await;
    }
    server.post("/v1/locks/cluster/secret-1/acquire", json!({ "ttl_ms": 60_000 })).await;
    server.get("/no/such/secret").await;
    server.delete("/healthz").await;
    let method = reqwest::Method::from_bytes(b"INVENTED").expect("a word");
    let invented = reqwest::Client::new().request(method, format!("{}/healthz", server.url));
    invented.send().await.expect("it answers");
    let series = scrape(&server).await;
    let count = |method: &str, route: &str, status: u16| {
        let labels = format!("method=\"{method}\",route=\"{route}\",status=\"{status}\"");
        series.get(&format!("tenure_http_requests_total{{{labels}}}")).copied()
    };
    let acquire = "/v1/locks/{kind}/{name}/acquire";
    assert_eq!(count("POST", acquire, 200), Some(2.0));
    assert_eq!(count("POST", acquire, 422), Some(1.0));
    assert_eq!(count("GET", "none", 404), Some(1.0));
    assert_eq!(count("DELETE", "/healthz", 405), Some(1.0));
    assert_eq!(count("other", "/healthz", 405), Some(1.0));
    let duration = "tenure_http_request_duration_seconds_count";
    assert_eq!(series[&format!("{duration}{{route=\"{acquire}\"}}")], 3.0);
    assert_eq!(series["tenure_http_in_flight"], 1.0, "the scrape itself");
    let routes = values(&series, "route");
    assert!(!routes.iter().any(|route| route.contains("secret")), "{routes:?}");
}

#[tokio::test]
async fn the_text_format_of_prometheus_is_served_on_request() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let scrape = async |accept: &str| {
        let request = reqwest::Client::new().get(format!("{}/metrics", server.url));
        let request = request.bearer_auth(common::KEY).header("accept", accept);
        let response = request.send().await.expect("it answers");
        assert_eq!(response.status(), 200);
        let format = response.headers()["content-type"].to_str().expect("text").to_owned();
        (format, response.text().await.expect("text"))
    };
    let (format, text) = scrape("text/plain").await;
    assert_eq!(format, "text/plain; version=0.0.4; charset=utf-8");
    assert!(text.contains("# TYPE tenure_fenced_writes_total counter\n"), "{text}");
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    let described: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    for line in described {
        let (name, _) = line.split_once(' ').expect("a type");
        let help = text.lines().find_map(|line| line.strip_prefix(&format!("# HELP {name} ")));
        assert!(help.is_some_and(|help| help.trim_end_matches('.').len() > 10), "{name}: {help:?}");
    }
    let (format, text) = scrape("*/*").await;
    assert_eq!(format, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(text.ends_with("# EOF\n"), "{text}");
}

/// A store that can be made unavailable.
#[derive(Default)]
struct OutageStore {
    memory: Memory,
    outage: AtomicBool,
}

impl OutageStore {
    fn check(&self) -> Result<()> {
        let outage = self.outage.load(Ordering::SeqCst);
        if outage { Err(StoreError::unavailable("simulated outage".to_owned())) } else { Ok(()) }
    }
}

#[async_trait]
impl Store for OutageStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.check()?;
        self.memory.apply(commands).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.check()?;
        self.memory.sweep().await
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.memory.prune(keep).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.memory.declare(kinds).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.memory.watch()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.memory.observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.check()?;
        self.memory.status().await
    }

    fn reads(&self) -> &dyn Reads {
        self.memory.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.memory.key_ring()
    }
}

#[tokio::test]
async fn store_gauges_are_absent_while_the_store_is_unavailable() {
    let store = Arc::new(OutageStore::default());
    let server = Server::start(Arc::clone(&store) as Arc<dyn Store>).await;
    let acquire = async || {
        let body = json!({ "holder": "ann", "ttl_ms": 60_000 });
        server.post("/v1/locks/cluster/c1/acquire", body).await.0
    };
    assert_eq!(acquire().await, 200);
    let lock = "tenure_active_locks{kind=\"cluster\"}";
    until(async || scrape(&server).await.get(lock) == Some(&1.0)).await;
    store.outage.store(true, Ordering::SeqCst);
    assert_eq!(acquire().await, 503);
    until(async || scrape(&server).await["tenure_store_up"] == 0.0).await;
    assert_eq!(server.get("/v1/status").await.0, 503, "the census of the scrape");
    let series = scrape(&server).await;
    assert!(!series.contains_key(lock), "unknown");
    assert!(!series.contains_key("tenure_sessions"));
    let granted = "tenure_lock_acquisitions_total{kind=\"cluster\",result=\"granted\"}";
    assert_eq!(series[granted], 1.0);
    assert!(series["tenure_store_errors_total{call=\"apply\"}"] >= 1.0);
    let errors = "tenure_janitor_errors_total{duty=\"expiry\"}";
    until(async || scrape(&server).await[errors] >= 1.0).await;
    store.outage.store(false, Ordering::SeqCst);
    until(async || scrape(&server).await["tenure_store_up"] == 1.0).await;
    assert_eq!(scrape(&server).await[lock], 1.0);
}

#[tokio::test]
async fn every_duty_of_the_janitor_is_exported() {
    let server = Server::start(Arc::new(Memory::new())).await;
    until(async || scrape(&server).await["tenure_janitor_here"] == 1.0).await;
    let duties = [
        "builds",
        "cluster_duplicate_holders",
        "cluster_retention",
        "dead",
        "expiry",
        "lock_age",
        "orphans",
        "overdue",
        "retention",
        "retries",
        "schedule",
        "verify",
    ];
    let ran = async || {
        let series = scrape(&server).await;
        let runs = |duty: &str| series[&format!("tenure_janitor_runs_total{{duty=\"{duty}\"}}")];
        duties.iter().all(|duty| runs(duty) >= 1.0)
    };
    until(ran).await;
    let series = scrape(&server).await;
    assert_eq!(values(&series, "duty").into_iter().collect::<Vec<_>>(), duties);
    let age = series["tenure_janitor_last_run_age_seconds{duty=\"expiry\"}"];
    assert!(age < 10.0 && series["tenure_janitor_lag_seconds{duty=\"expiry\"}"] < 10.0, "{age}");
    assert_eq!(series["tenure_janitor_errors_total{duty=\"expiry\"}"], 0.0);
}
