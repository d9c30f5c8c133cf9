//! An in-process server on a free port, and a client for it.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_app::{Apps, Rule};
use tenure_core::Kinds;
use tenure_server::auth::Keys;
use tenure_server::auth::access::Rules;
use tenure_server::{Config, HttpConfig};
use tenure_store::Store;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const KEY: &str = "tenure_0123456789abcdef0123456789abcdef";

pub struct Server {
    pub url: String,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<std::io::Result<()>>>,
}

impl Server {
    pub async fn start(store: Arc<dyn Store>) -> Self {
        Self::start_with(store, Arc::default()).await
    }

    pub async fn start_with(store: Arc<dyn Store>, kinds: Arc<Kinds>) -> Self {
        Self::run(store, config(kinds)).await
    }

    /// Starts a server with other HTTP settings.
    pub async fn start_with_http(store: Arc<dyn Store>, http: HttpConfig) -> Self {
        Self::run(store, Config { http, ..config(Arc::default()) }).await
    }

    /// Starts a server with the full configuration.
    pub async fn run(store: Arc<dyn Store>, config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            stopped.await.ok();
        };
        let task = tokio::spawn(tenure_server::run(listener, store, config, shutdown));
        Self { url, stop: Some(stop), task: Some(task) }
    }

    /// Starts a graceful shutdown.
    pub fn stop(&mut self) -> JoinHandle<std::io::Result<()>> {
        drop(self.stop.take());
        self.task.take().expect("stopped once")
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.post_with(path, &[("authorization", &format!("Bearer {KEY}"))], body.to_string()).await
    }

    pub async fn post_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> (u16, Value) {
        let mut request = http().post(format!("{}{path}", self.url)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answer(request).await
    }

    /// Sends a POST with an `Idempotency-Key`.
    pub async fn post_as(&self, path: &str, key: &str, body: Value) -> (u16, Value) {
        let headers = [("x-api-key", KEY), ("idempotency-key", key)];
        self.post_with(path, &headers, body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: Value) -> (u16, Value) {
        let request = http().put(format!("{}{path}", self.url));
        answer(request.header("x-api-key", KEY).body(body.to_string())).await
    }

    pub async fn delete(&self, path: &str) -> (u16, Value) {
        let request = http().delete(format!("{}{path}", self.url));
        answer(request.header("x-api-key", KEY)).await
    }

    /// Sends any request with any key.
    pub async fn request(
        &self,
        key: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let method = method.parse().expect("a method");
        let mut request = http().request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        answer(request.header("x-api-key", key)).await
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let request = http().get(format!("{}{path}", self.url));
        answer(request.header("x-api-key", KEY)).await
    }
}

/// Returns all apps, so that their routes and metrics are tested like those of the server.
pub fn apps() -> Apps {
    tenure_cli::apps::installed()
}

/// Returns the access rules of all routes, sorted. Routes that are also under `/v1` count once.
pub fn rules() -> Vec<Rule> {
    let rules = Rules::new(&apps());
    let mut rules: Vec<Rule> =
        rules.iter().filter(|(path, rule)| *path == rule.path).map(|(_, rule)| *rule).collect();
    rules.sort_by_key(|rule| (rule.path, rule.method));
    rules
}

/// Returns the configuration of a server with all apps.
pub fn config(kinds: Arc<Kinds>) -> Config {
    Config { apps: apps(), ..Config::new(Keys::admin(KEY), kinds) }
}

thread_local! {
    static HTTP: reqwest::Client = {
        // Fails if it is installed already.
        rustls::crypto::ring::default_provider().install_default().ok();
        reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("a client")
    };
}

/// Returns the HTTP client of this thread.
pub fn http() -> reqwest::Client {
    HTTP.with(reqwest::Client::clone)
}

/// Creates a key.
pub async fn key(server: &Server, tenant: &str, role: &str) -> String {
    let body = json!({ "name": "t", "tenant": tenant, "role": role, "reason": "a test" });
    let (status, answer) = server.post("/v1/keys", body).await;
    assert_eq!(status, 201, "{answer}");
    answer["secret"].as_str().expect("a secret").to_owned()
}

pub async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.expect("the server answers");
    let status = response.status().as_u16();
    let text = response.text().await.expect("a complete response");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Waits for a condition, for at most ten seconds.
pub async fn until<F: Future<Output = bool>>(condition: impl Fn() -> F) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), poll).await.expect("timed out");
}

/// A session that claims jobs.
pub struct Worker {
    pub session: String,
    tenant: String,
}

impl Worker {
    pub async fn open(server: &Server, name: &str) -> Self {
        Self::open_for(server, name, "default").await
    }

    pub async fn open_for(server: &Server, name: &str, tenant: &str) -> Self {
        let body = json!({ "name": name, "ttl_ms": 60_000 });
        let (status, answer) = server.post(&format!("/v1/sessions?tenant={tenant}"), body).await;
        assert_eq!(status, 200, "{answer}");
        let session = answer["session"].as_str().expect("an id").to_owned();
        Self { session, tenant: tenant.to_owned() }
    }

    /// Claims one job, waiting for it.
    pub async fn claim(&self, server: &Server, kinds: &[&str], wait_ms: u64) -> Value {
        let body = json!({ "session": self.session, "kinds": kinds, "wait_ms": wait_ms });
        let (status, answer) =
            server.post(&format!("/v1/jobs/claim?tenant={}", self.tenant), body).await;
        assert_eq!(status, 200, "{answer}");
        answer["jobs"].clone()
    }
}
