//! A server in this process on a free port, and ways to ask it.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::sync::Arc;

use serde_json::Value;
use tenure_server::auth::Keys;
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
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            stopped.await.ok();
        };
        let task = tokio::spawn(tenure_server::run(listener, store, Keys::admin(KEY), shutdown));
        Self { url, stop: Some(stop), task: Some(task) }
    }

    /// Begins a graceful shutdown.
    pub fn stop(&mut self) -> JoinHandle<std::io::Result<()>> {
        drop(self.stop.take());
        self.task.take().expect("it is stopped once")
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
        let mut request = reqwest::Client::new().post(format!("{}{path}", self.url)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answer(request).await
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let request = reqwest::Client::new().get(format!("{}{path}", self.url));
        answer(request.header("x-api-key", KEY)).await
    }
}

async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.expect("the server answers");
    let status = response.status().as_u16();
    let text = response.text().await.expect("a whole answer");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}
